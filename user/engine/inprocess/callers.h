// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/inprocess/batch.h"
#include "process/named_code.h"
#include "util/result.h"

namespace speedbump::engine::inprocess {

// Whose calls of which targets are wanted (`caller=`), and where those lie in each process: found
// anew as libraries come and go.
class Callers {
  public:
    explicit Callers(std::function<void(const std::string&)> warn) : warn_(std::move(warn)) {}

    void configure(uint32_t target, const std::optional<targets::Pattern>& caller);

    // Gives the sites the tables that their targets ask for. Those where the return address can't
    // be found are taken out and added to `refused`.
    struct Tables {
        std::vector<size_t> names; // of each table: an index of ours
        std::vector<process::AddressRanges> ranges;
    };
    Result<Tables> choose(pid_t pid, std::vector<Site>& sites, std::vector<RefusedProbe>& refused);
    // To be kept right in a process from now on.
    void watch(pid_t pid, const std::shared_ptr<Batch>& batch, Tables tables);
    // The same tables in a child that has forked with them.
    void watch_child(pid_t pid, const std::shared_ptr<Batch>& batch);

    // Looks at all processes, and forgets those that have ended. Not while a batch is taken out.
    void refresh();

  private:
    struct Watched {
        pid_t pid;
        std::weak_ptr<Batch> batch;
        Tables tables; // as they are there
    };

    std::function<void(const std::string&)> warn_;
    std::vector<std::unique_ptr<process::NamedCode>> names_;
    std::map<uint32_t, size_t> name_of_; // of targets
    std::vector<Watched> watched_;
};

} // namespace speedbump::engine::inprocess
