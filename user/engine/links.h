// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace speedbump::engine {

// One place that a BPF program is attached to.
struct UprobePlace {
    uint64_t file_offset = 0;
    uint64_t cookie = 0;
    bool at_return = false;
    // File offset of 16 bits in the program's data that the kernel counts up while the probe is
    // there: a USDT mark's semaphore. 0: none.
    uint64_t semaphore = 0;
};

// Probes that are in place, each set held by one descriptor. Destruction takes them out, which
// waits for the kernel's grace period; release_all() takes many out in one such wait. Nothing stays
// behind when this program is killed meanwhile (shielded.h).
class Links {
  public:
    Links() = default;
    Links(Links&& other) noexcept : descriptors_(std::exchange(other.descriptors_, {})) {}
    Links& operator=(Links&& other) noexcept;
    ~Links();

    bool empty() const { return descriptors_.empty(); }
    void append(Links&& other);
    static void release_all(std::vector<Links> links);

    // Attach a program (its descriptor) to places of a file, for one process or, with -1, for all.
    // By uprobe_multi (Linux 6.6), all places at once, none of them at_return. 0, or the errno;
    // then nothing is in place.
    int attach_multi(int program, const std::string& path, const std::vector<UprobePlace>& places,
                     pid_t pid);
    // The same for each of these processes by itself: none for those where that was refused.
    static std::vector<Links> attach_multi_each(int program, const std::string& path,
                                                const std::vector<UprobePlace>& places,
                                                const std::vector<pid_t>& pids);
    // By a perf event each. Of each place 0, or the errno.
    std::vector<int> attach_perf(int program, const std::string& path,
                                 const std::vector<UprobePlace>& places, pid_t pid);

  private:
    std::vector<int> descriptors_;
};

} // namespace speedbump::engine
