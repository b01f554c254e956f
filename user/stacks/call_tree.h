// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace speedbump::stacks {

// Samples of stacks as a tree: a node is a function and all that called it. What is added stays, so
// that its size is that of what differs, not of the number of samples.
class CallTree {
  public:
    static constexpr uint32_t kRoot = 0; // no function

    struct Frame {
        std::string name; // empty: no symbol table names it
        std::string file; // the source of a Python function, the binary of a native one
        int line = 0;     // of a Python function: its first one
        bool is_python = false;
        auto operator<=>(const Frame&) const = default;
    };
    struct Node {
        uint32_t parent = kRoot;
        uint32_t frame = 0; // of kRoot: of no meaning
    };
    struct Thread {
        pid_t pid = 0;
        pid_t tid = 0;
        std::string name;
    };
    // Periods in which a node was innermost.
    struct Count {
        uint64_t all = 0;
        uint64_t active = 0; // of these: on a CPU, or waiting for one
    };

    // The number of a frame.
    uint32_t frame(const Frame& frame);
    // The number of a thread; only a new one is asked for its name.
    template <typename Name>
    uint32_t thread(pid_t pid, pid_t tid, const Name& name) {
        const auto [entry, is_new] =
            thread_numbers_.try_emplace({pid, tid}, static_cast<uint32_t>(threads_.size()));
        if (is_new) threads_.push_back({pid, tid, name()});
        return entry->second;
    }
    // The node of what `node` calls.
    uint32_t callee(uint32_t node, uint32_t frame);
    void add(uint32_t thread, uint32_t node, bool active, uint64_t times);

    const std::vector<Frame>& frames() const { return frames_; }
    const std::vector<Node>& nodes() const { return nodes_; } // parents first
    const std::vector<Thread>& threads() const { return threads_; }
    // By thread and node.
    const std::map<std::pair<uint32_t, uint32_t>, Count>& counts() const { return counts_; }

    // Stacks as flame graph tools take them, outermost first, with their counts:
    // "python3 (12);main (app.py:3);render (views.py:40);sqlite3_step (libsqlite3.so.0)".
    std::map<std::string, uint64_t> collapsed() const;

  private:
    std::vector<Frame> frames_;
    std::vector<Node> nodes_{{}};
    std::vector<Thread> threads_;
    std::map<Frame, uint32_t> frame_numbers_;
    std::map<std::pair<pid_t, pid_t>, uint32_t> thread_numbers_;
    std::unordered_map<uint64_t, uint32_t> callees_; // by node and frame
    std::map<std::pair<uint32_t, uint32_t>, Count> counts_;
};

} // namespace speedbump::stacks
