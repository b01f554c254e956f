// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "stacks/call_paths.h"
#include "stacks/code.h"
#include "stacks/gathering.h"
#include "stacks/layout.h"
#include "stacks/thread_list.h"

namespace speedbump::stacks {

// Reads the stack of a thread that may run meanwhile: again and again, until what was read proves
// to be its stack at one moment (docs/decisions/0006-reading-stacks.md).
class SnapshotReader {
  public:
    // All of them must outlive it.
    SnapshotReader(const Source& source, const Layout& layout, Gathering& gathering,
                   ThreadList& list, CodeTable& codes, CallPaths& paths,
                   std::chrono::microseconds patience);

    // Reads the thread's stack, or the fault that kept it from it. `with_chain`: with it, whether
    // the list of threads holds. False: it does not.
    bool read(Thread& thread, bool with_chain);

  private:
    enum class Outcome { kDone, kAgain, kStaleList };

    // Where the parts of one reading lie among its bytes.
    struct Reading {
        bool with_chain = false;
        bool has_cframe = false;
        size_t chain_bytes = 0;
        size_t generation_bytes = 0;      // of all interpreters; 0: freed code is not counted
        size_t generation_then_bytes = 0; // the same, before identities are read, or 0
        uint64_t innermost = 0;
        const char* first = nullptr; // the frames
        const char* generations_then = nullptr;
        const char* identities = nullptr; // of the doubtful code objects
        const char* second = nullptr;     // the frames again
        const char* generations_now = nullptr;
    };

    Outcome try_once(Thread& thread, bool with_chain, int tries);
    Reading ask(const Thread& thread, bool with_chain);
    Outcome forget_plan(Thread& thread);
    // Takes the bytes apart; not kDone: something changed meanwhile.
    Outcome take_apart(Thread& thread, Reading& reading);
    bool find_missing(Thread& thread, const Reading& reading);
    bool is_unchanged(const char* again) const;
    bool identities_hold(Thread& thread, const char* bytes);
    bool resolve(Thread& thread);
    bool add_resolved(const Resolved* before, uint32_t path_before, const sb_python_frame& raw,
                      Code* code);
    bool is_code_certain(Thread& thread, const std::vector<Code*>& checked, Code* code);
    bool is_proven(bool slept, int tries);
    void accept(Thread& thread);
    void wait_a_random_while();

    const Source& source_;
    const Layout& layout_;
    Gathering& gathering_;
    ThreadList& list_;
    CodeTable& codes_;
    CallPaths& paths_;
    std::chrono::microseconds patience_;
    uint32_t thread_low_;
    uint32_t thread_size_;

    // Of the try that is made.
    std::vector<RawFrame> raw_; // innermost first
    std::vector<Resolved> fresh_;
    StackFault fault_ = StackFault::kFine;
    uint32_t candidate_ = CallPaths::kRoot;
    int streak_ = 0;
    std::unordered_map<uint32_t, int> candidates_; // how many of this sample's tries gave each
    bool is_candidate_new_ = false;                // this try gave one
    uint64_t random_ = 0x9e3779b97f4a7c15;
};

} // namespace speedbump::stacks
