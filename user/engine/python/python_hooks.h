// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/python/python_side.h"
#include "targets/target.h"
#include "util/result.h"

namespace speedbump::engine {

// The Python engine as a session has it: while it is open, interpreters are hooked, and what was
// counted before it was closed is kept. The thread that opens it owns its table.
class PythonHooks final : public HookEngine {
  public:
    using Warn = std::function<void(const std::string&)>;
    // nullptr when the file has no Python line. Not open yet.
    static std::unique_ptr<PythonHooks> create(const targets::TargetsFile& file, uint32_t columns,
                                               Warn warn);

    Capabilities capabilities() const override {
        return {.name = "python", .title = "Python", .schedule = true};
    }
    // 0 until an interpreter is hooked.
    nanoseconds floor(elf::SiteKind kind) const override;
    Result<void> configure(uint32_t target, const TargetSettings& settings, uint64_t armed_at_ns,
                           const ProbeSets& sets) override;
    void arm(bool armed) override;
    uint32_t* armed_word() override { return side_ ? side_->armed_word() : nullptr; }
    int fd() const override;
    void handle_events() override;
    Clock::duration until_next() const override;
    // Another one each time that it is opened.
    Schedule* schedule() override { return side_ ? side_->schedule() : nullptr; }
    Result<std::vector<Counts>> read_counts() override;
    Losses losses() const override;

    std::vector<size_t> lines() const override { return lines_; }
    void add_line(uint32_t target, size_t line) override;
    Result<void> regroup(Regrouping regrouping) override;
    Result<void> open() override;
    bool is_open() const override { return side_ != nullptr; }
    void close() override;
    void attach(const std::vector<std::pair<pid_t, uint64_t>>& processes_and_roots,
                bool wait) override;
    void begin_events() override;
    void end_events() override;
    void forked(pid_t parent, pid_t child, uint64_t roots) override;
    void execed(pid_t pid) override;
    void exited(pid_t pid) override;
    Result<std::string> path_entry(pid_t only) override;
    HookReport report() const override;

  private:
    // By target and process.
    using Sums = std::map<std::pair<uint32_t, pid_t>, Counts>;
    PythonHooks(const targets::TargetsFile& file, uint32_t columns, Warn warn)
        : file_(file), columns_(columns), warn_(std::move(warn)) {}
    void add_counts(Sums& sums);

    const targets::TargetsFile file_;
    const uint32_t columns_;
    Warn warn_;
    std::vector<size_t> lines_;
    std::map<uint32_t, size_t> line_of_;   // target
    std::map<size_t, uint32_t> target_of_; // line
    std::optional<Regrouping> regrouping_;
    std::unique_ptr<PythonSide> side_;
    Sums closed_; // what sides before this one counted
    bool was_fresh_ = false;
};

} // namespace speedbump::engine
