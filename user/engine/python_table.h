// SPDX-License-Identifier: MIT
#pragma once

#include <pthread.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "abi.h"
#include "engine/engine.h"
#include "util/fd.h"
#include "util/result.h"

namespace speedbump::engine {

// The session's end of the table that it shares with every interpreter it has hooked
// (bpf/abi.h: sb_table_header): settings by line of the targets file, counters by process. The
// creating thread owns it: when that thread dies, also by SIGKILL, the kernel says so in the table
// and the hooks remove themselves. Destruction closes the table for good.
class PythonTable {
  public:
    static Result<std::unique_ptr<PythonTable>> create(uint32_t lines);
    ~PythonTable();
    PythonTable(const PythonTable&) = delete;
    PythonTable& operator=(const PythonTable&) = delete;

    int fd() const { return fd_.get(); } // the memfd to hand to interpreters
    void arm(bool armed);
    // As BpfEngine::configure, by line index.
    void configure(uint32_t line, const TargetSettings& settings, uint64_t window_origin_ns);
    // Per line and process (as it sees its own PID) since the table was made.
    std::vector<Counts> read_counts() const;
    uint64_t lost_counts() const;

  private:
    PythonTable(Fd fd, void* memory);
    sb_table_header& header() const { return *static_cast<sb_table_header*>(memory_); }
    template <typename T>
    T* at(uint64_t offset) const {
        return reinterpret_cast<T*>(static_cast<char*>(memory_) + offset);
    }

    Fd fd_;
    void* memory_;
};

} // namespace speedbump::engine
