// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

// The code that runs inside a target, and the data it works on. Everything in the section
// `speedbump_payload` is copied there byte by byte: no relocation, no string literal, no call out
// of the section except through the addresses below.
namespace speedbump::inject {

inline constexpr uint32_t kRegionMagic = 0x53423031;
inline constexpr uint64_t kCodeOffset = 0;       // of the region: the code, one or two pages
inline constexpr uint64_t kDataOffset = 0x2000;  // struct Region
inline constexpr uint64_t kRegionSize = 0x30000; // the rest is the borrowed thread's stack
inline constexpr size_t kMaxSource = 12 * 1024;
// Of the new thread, whatever the program's own threads have: dlopen() and Python run there.
inline constexpr uint64_t kThreadStack = 2 << 20;

inline constexpr uint64_t kAskingUs = 1; // SB_ASKING_US of pyext/src/cpython_state.h

// How the borrowed thread goes back.
enum ResumeMode : uint64_t {
    kResumeFrame = 0,   // rt_sigreturn with the full frame
    kResumeRestart = 1, // into restart_syscall, whose state rt_sigreturn would destroy
};

// Whether the frame issues an interrupted call again, and what a signal that came meanwhile does to
// it: what the kernel does at -ERESTARTSYS, or at -ERESTARTNOHAND and -EINTR.
enum Repeat : uint64_t {
    kRepeatNothing = 0,
    kRepeatUnlessSignal = 1, // a handler without SA_RESTART makes it return EINTR
    kRepeatUnlessAnySignal = 2,
};

// The time-out of a call that is issued again is in r10 (ms), not a timespec or timeval in memory.
inline constexpr uint64_t kTimeInRegister = 0;

// States of a region, in order.
enum RegionState : uint32_t {
    kRegionEmpty = 0,
    kRegionWaiting = 1,  // our_fd is valid; the new thread waits for the go
    kRegionWorking = 2,  // the go arrived
    kRegionRunning = 3,  // holds the GIL and was not cancelled
    kRegionFinished = 4, // nothing more will be written; unmapped shortly after
    kRegionFailed = 5,   // `error` says why; unmapped shortly after
};

// The go, sent over the bootstrap socket with SCM_RIGHTS: the channel, the core's file, and, for a
// core that is loaded by a relative path, the directory to go to.
struct Go {
    uint64_t is_ready;
    uint64_t gil_ensure;
    uint64_t gil_release;
    uint64_t dict_new;
    uint64_t dict_set_item_string;
    uint64_t dict_get_item_string;
    uint64_t is_true;
    uint64_t call_method;
    uint64_t long_from_long;
    uint64_t run_string;
    uint64_t dec_ref;
    uint64_t err_clear;
    // What ForkGuard needs; 0: there is none.
    uint64_t register_atfork;
    uint64_t cxa_finalize;
    // Of a Python whose thread states must not be made while it forks, otherwise 0.
    uint64_t thread_state_new;
    uint64_t interpreter_main;
    // Where the GIL's switch interval lies, and whether it is taken (cpython/gil.h); 0: not known.
    uint64_t gil_interval;
    uint64_t gil_locked;
    char channel_name[16]; // names of the two descriptors in the source's private dict
    char core_name[16];
    char module_name[16];    // and of the core that it has loaded,
    char serve_name[16];     // the core's function,
    char serve_format[4];    // and the types of its arguments
    char source[kMaxSource]; // NUL-terminated Python, compiled as a file
};

// What a fork must not meet, or a child not keep, is done while fork handlers of its own are
// registered, until the new thread has the GIL and the core. What children need for them is
// kForkedSize bytes of the region.
//
// Before 3.12 CPython takes the lock that PyThreadState_New() holds in a forked child before it
// makes that lock anew: a child forked meanwhile hangs. Forks are held off for so long.
//
// Where the GIL is not to be had in its own time, the switch interval is kAskingUs meanwhile (see
// sb_take_gil() in pyext/src/cpython_state.h), which a child would keep.
struct ForkGuard {
    uint32_t forks;        // under way
    uint32_t is_at_work;   // the new thread makes its thread state
    uint64_t gil_interval; // where it lies, while the new thread asks
    uint64_t interval_us;  // what it was
};

// Lives at region + kDataOffset; the injector only reads it.
struct Region {
    uint32_t magic;
    uint32_t state;     // RegionState
    uint32_t left;      // 1: the borrowed thread uses the region no more
    int32_t our_fd;     // the injector's end of the bootstrap socket pair
    int32_t error;      // errno
    uint32_t thread_id; // of the new thread
    uint64_t address;   // of the region itself
    uint64_t size;
    uint64_t munmap; // in libc
    uint64_t pthread_self;
    uint64_t pthread_detach;
    uint64_t restarts; // 1: all signal handlers have SA_RESTART
    ForkGuard guard;
    Go go;
};
inline constexpr uint64_t kForkedSize = kDataOffset + 4096;
static_assert(offsetof(Region, go) <= kForkedSize - kDataOffset);

// Lies on the borrowed thread's stack, below the red zone; written by the injector.
struct Block {
    uint64_t region;         // 0: address to map at
    uint64_t code_size;      // 8: of the copy of the section, a multiple of 8
    uint64_t code;           // 16: where that copy lies
    uint64_t frame;          // 24: the ucontext that rt_sigreturn restores
    uint64_t mode;           // 32: ResumeMode
    uint64_t extended_state; // 40: XSAVE area for kResumeRestart
    uint64_t all_signals;    // 48: a mask of all ones
    uint64_t borrowed;       // 56: offset of payload_borrowed in the section
    int64_t error;           // 64: negative errno; best effort, this memory is the target's again
    uint64_t canary;         // 72: where kCanary words begin that a signal handler overwrites
    uint64_t canary_words;   // 80
    uint64_t repeats_call;   // 88: Repeat
    uint64_t thread_entry;   // 96: offset of payload_thread in the section
    // Not 0: the call issued again has a time-out, of which what has passed since is to be taken
    // off. Of CLOCK_REALTIME (ns), the one clock that is the same in all time name spaces.
    uint64_t waits_since;
    uint64_t time_left; // the address of the time-out, or kTimeInRegister
    uint64_t time_unit; // ns of its second word
    uint64_t pthread_create;
    uint64_t pthread_attr_init;
    uint64_t pthread_attr_setstacksize;
    uint64_t munmap;
    uint64_t pthread_self;
    uint64_t pthread_detach;
    uint64_t errno_location;
};

inline constexpr uint64_t kCanary = 0x5a5b5a5b5a5b5a5bULL;

// The whole section, and offsets into it. `stub_bytes()` is the part that goes into the padding of
// a text segment; the rest reaches the region through the Block.
struct Bytes {
    const std::byte* data;
    size_t size;
};
Bytes payload_bytes();
Bytes stub_bytes();
uint64_t borrowed_offset();
uint64_t thread_offset();

} // namespace speedbump::inject
