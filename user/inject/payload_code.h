// SPDX-License-Identifier: MIT
// The part of the payload that is the same for every processor: once in payload_x86_64.cpp or
// payload_aarch64.cpp, after what it is put together from there.
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/ucontext.h>

#include <cerrno>
#include <csignal>
#include <cstddef>

#include "inject/payload.h"
#include "inject/payload_tools.h"

// Compiled without instrumentation, jump tables and built-in calls; see CMakeLists.txt.

using speedbump::inject::Block;
using speedbump::inject::ForkGuard;
using speedbump::inject::Region;

static_assert(offsetof(Block, code) == 16 && offsetof(Block, frame) == 24 &&
              offsetof(Block, mode) == 32 && offsetof(Block, extended_state) == 40 &&
              offsetof(Block, all_signals) == 48 && offsetof(Block, borrowed) == 56 &&
              offsetof(Block, error) == 64);
static_assert(offsetof(Region, left) == 8);
static_assert(offsetof(Region, address) == 24 && offsetof(Region, size) == 32 &&
              offsetof(Region, munmap) == 40);

namespace {

// A signal that came while the thread was borrowed would have made the interrupted call return
// EINTR. Issued again, the call would sleep on and its caller would not see the signal.
PAYLOAD_INLINE void heed_signals(const Block* block) {
    if (!block->repeats_call) return;
    auto* context = reinterpret_cast<ucontext_t*>(block->frame);
    uint64_t old_mask;
    __builtin_memcpy(&old_mask, &context->uc_sigmask, sizeof(old_mask));
    bool interrupted = false;
    const auto* canary = reinterpret_cast<const volatile uint64_t*>(block->canary);
    for (uint64_t i = 0; i < block->canary_words; ++i)
        if (canary[i] != speedbump::inject::kCanary) interrupted = true;
    // A handler has run; whose is not known.
    if (interrupted && block->repeats_call == speedbump::inject::kRepeatUnlessSignal)
        interrupted = !all_handlers_restart();
    uint64_t pending = 0;
    raw_call(SYS_rt_sigpending, reinterpret_cast<long>(&pending), 8);
    pending &= ~old_mask;
    for (long number = 1; number <= 64 && !interrupted; ++number) {
        if (!(pending >> (number - 1) & 1)) continue;
        const KernelAction action = action_of(number);
        if (action.handler <= kNoHandler) continue;
        if (block->repeats_call == speedbump::inject::kRepeatUnlessAnySignal ||
            !(action.flags & SA_RESTART))
            interrupted = true;
    }
    if (!interrupted) return;
    fail_call_of(context);
}

// A thread may have to wait for a CPU between its stop and here.
PAYLOAD_INLINE void take_off_wait(const Block* block) {
    if (block->waits_since == 0) return;
    KernelTime now{0, 0};
    raw_call(SYS_clock_gettime, 0 /* CLOCK_REALTIME */, reinterpret_cast<long>(&now));
    const long passed =
        now.seconds * 1000000000 + now.nanoseconds - static_cast<long>(block->waits_since);
    if (passed <= 0) return;
    if (block->time_left == speedbump::inject::kTimeInRegister) {
        auto* context = reinterpret_cast<ucontext_t*>(block->frame);
        const long left = time_of_call(context);
        const long passed_ms = (passed + 500000) / 1000000;
        set_time_of_call(context, passed_ms < left ? left - passed_ms : 0);
        return;
    }
    auto* time = reinterpret_cast<KernelTime*>(block->time_left);
    const auto unit = static_cast<long>(block->time_unit);
    constexpr long kForEver = 1000000000; // seconds, more than which overflow
    if (time->seconds > kForEver) return;
    long left = time->seconds * 1000000000 + time->nanoseconds * unit - passed;
    if (left < 0) left = 0;
    time->seconds = left / 1000000000;
    time->nanoseconds = left % 1000000000 / unit;
}

// Of the copy of this code that runs.
PAYLOAD_INLINE Region* own_region() {
    return reinterpret_cast<Region*>(own_begin() + speedbump::inject::kDataOffset);
}

} // namespace

extern "C" {

// The fork handlers (see ForkGuard). This one runs on the thread that forks. It does not wait for
// ever, since it may hold the GIL, and where memory is traced (tracemalloc) the new thread waits
// for that. It counts pauses, not time: on a busy machine the other thread has its turn in each.
__attribute__((visibility("hidden"))) PAYLOAD void speedbump_payload_before_fork() {
    constexpr int kPauses = 1000; // of some 100 us
    ForkGuard& guard = own_region()->guard;
    for (int i = 0;; ++i) {
        __atomic_add_fetch(&guard.forks, 1, __ATOMIC_SEQ_CST);
        if (!__atomic_load_n(&guard.is_at_work, __ATOMIC_SEQ_CST) || i == kPauses) return;
        __atomic_sub_fetch(&guard.forks, 1, __ATOMIC_SEQ_CST);
        pause_ns(50000);
    }
}

__attribute__((visibility("hidden"))) PAYLOAD void speedbump_payload_after_fork() {
    __atomic_sub_fetch(&own_region()->guard.forks, 1, __ATOMIC_SEQ_CST);
}

// Of the GIL, if it is `from` still.
PAYLOAD_INLINE void change_interval(uint64_t address, uint64_t from_us, uint64_t to_us) {
    __atomic_compare_exchange_n(reinterpret_cast<uint64_t*>(address), &from_us, to_us, false,
                                __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

// With the switch interval as it was, unless the program has set another one meanwhile.
PAYLOAD_INLINE void ask_no_more(ForkGuard& guard) {
    if (guard.gil_interval == 0) return;
    change_interval(guard.gil_interval, speedbump::inject::kAskingUs, guard.interval_us);
    __atomic_store_n(&guard.gil_interval, 0, __ATOMIC_RELEASE);
}

// The child has no such thread, keeps these handlers, and may fork.
__attribute__((visibility("hidden"))) PAYLOAD void speedbump_payload_in_child() {
    ForkGuard& guard = own_region()->guard;
    guard.forks = 0;
    guard.is_at_work = 0;
    ask_no_more(guard);
}

} // extern "C"

namespace {

// False when there can be none: memory, or a filter of system calls.
PAYLOAD_INLINE bool start_guard(Region* region) {
    const auto address = static_cast<long>(region->address);
    if (raw_call(SYS_madvise, address, speedbump::inject::kForkedSize, MADV_DOFORK) != 0)
        return false;
    using Handler = void();
    const auto add = function<int(Handler*, Handler*, Handler*, void*)>(region->go.register_atfork);
    if (add(speedbump_payload_before_fork, speedbump_payload_after_fork, speedbump_payload_in_child,
            reinterpret_cast<void*>(address)) != 0) {
        raw_call(SYS_madvise, address, speedbump::inject::kForkedSize, MADV_DONTFORK);
        return false;
    }
    // From glibc 2.36 on a fork that is in another handler just now has passed these by. One that
    // copies the memory by then is waited for by the second call.
    pause_ns(1000000);
    raw_call(SYS_madvise, address, speedbump::inject::kForkedSize, MADV_DOFORK);
    return true;
}

// With the GIL: no thread of Python begins to fork meanwhile, whose child would find the lock of
// glibc taken that __cxa_finalize() holds. False, and nothing done, while one forks whose handlers
// gave the GIL up (gRPC's do): up to glibc 2.35 __cxa_finalize() would wait for it.
PAYLOAD_INLINE bool end_guard(Region* region) {
    if (__atomic_load_n(&region->guard.forks, __ATOMIC_SEQ_CST) != 0) return false;
    const auto address = static_cast<long>(region->address);
    function<void(void*)>(region->go.cxa_finalize)(reinterpret_cast<void*>(address));
    raw_call(SYS_madvise, address, speedbump::inject::kForkedSize, MADV_DONTFORK);
    return true;
}

PAYLOAD_INLINE long monotonic_ns() {
    KernelTime now{0, 0};
    raw_call(SYS_clock_gettime, 1 /* CLOCK_MONOTONIC */, reinterpret_cast<long>(&now));
    return now.seconds * 1000000000 + now.nanoseconds;
}

// Whether Python code can run, and somebody waits for ours.
PAYLOAD_INLINE bool is_wanted(const Region* region, int channel) {
    return function<int()>(region->go.is_ready)() && !hung_up(channel);
}

// Waits until the GIL is free, for as long as a thread waits by default before it asks for it.
// Whether it is to be asked for: it was not free all the time.
PAYLOAD_INLINE bool must_ask(const Region* region, int channel) {
    if (region->go.gil_interval == 0) return false;
    const auto* interval = reinterpret_cast<const uint64_t*>(region->go.gil_interval);
    const auto* locked = reinterpret_cast<const int32_t*>(region->go.gil_locked);
    constexpr uint64_t kLongestUs = 5000, kBetweenUs = 250;
    uint64_t left_us = __atomic_load_n(interval, __ATOMIC_RELAXED);
    if (left_us <= speedbump::inject::kAskingUs) return false;
    if (left_us > kLongestUs) left_us = kLongestUs;
    const long end = monotonic_ns() + static_cast<long>(left_us * 1000);
    bool was_taken = false;
    for (uint64_t look = 0; look <= kLongestUs / kBetweenUs; ++look) { // a filter may forbid clocks
        const bool is_taken = __atomic_load_n(locked, __ATOMIC_RELAXED) != 0;
        was_taken |= is_taken;
        if ((!is_taken && look > 0) || monotonic_ns() > end || !is_wanted(region, channel)) break;
        pause_ns(kBetweenUs * 1000);
    }
    return was_taken;
}

// See sb_take_gil() in pyext/src/cpython_state.h.
PAYLOAD_INLINE void ask(Region* region) {
    ForkGuard& guard = region->guard;
    const auto* interval = reinterpret_cast<const uint64_t*>(region->go.gil_interval);
    const uint64_t before_us = __atomic_load_n(interval, __ATOMIC_RELAXED);
    if (before_us <= speedbump::inject::kAskingUs) return; // somebody asks already
    guard.interval_us = before_us;
    __atomic_store_n(&guard.gil_interval, region->go.gil_interval, __ATOMIC_RELEASE);
    change_interval(region->go.gil_interval, before_us, speedbump::inject::kAskingUs);
}

// The thread's state, which PyGILState_Ensure() will find; null when there is no memory.
PAYLOAD_INLINE void* make_thread_state(Region* region, int channel) {
    ForkGuard& guard = region->guard;
    __atomic_store_n(&guard.is_at_work, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&guard.forks, __ATOMIC_SEQ_CST) != 0 && !hung_up(channel))
        pause_ns(50000);
    void* interpreter = function<void*()>(region->go.interpreter_main)();
    void* state = function<void*(void*)>(region->go.thread_state_new)(interpreter);
    __atomic_store_n(&guard.is_at_work, 0, __ATOMIC_SEQ_CST);
    return state;
}

} // namespace

extern "C" {

// The new thread. Its result stays in the region until it is unmapped, as the very last thing, by
// a jump into munmap that returns to pthread's own code.
__attribute__((visibility("hidden"))) PAYLOAD void speedbump_payload_work(Region* region) {
    using speedbump::inject::Go;
    // The borrowed thread still stands on the region's stack for a moment.
    while (__atomic_load_n(&region->left, __ATOMIC_ACQUIRE) == 0) pause_ns(20000);
    auto self = function<unsigned long()>(region->pthread_self);
    function<int(unsigned long)>(region->pthread_detach)(self());
    region->thread_id = static_cast<uint32_t>(raw_call(SYS_gettid));

    region->restarts = all_handlers_restart() ? 1 : 0;

    int pair[2] = {-1, -1};
    long error = raw_call(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0,
                          reinterpret_cast<long>(pair));
    if (error < 0) {
        region->error = static_cast<int32_t>(-error);
        __atomic_store_n(&region->state, speedbump::inject::kRegionFailed, __ATOMIC_RELEASE);
        pause_ns(200000000);
        return;
    }
    region->our_fd = pair[1];
    __atomic_store_n(&region->state, speedbump::inject::kRegionWaiting, __ATOMIC_RELEASE);

    int channel = -1;
    int core = -1;
    int directory = -1;
    KernelPollFd poll_fd{pair[0], 1 /* POLLIN */, 0};
    KernelTime limit{2, 0};
    long ready = raw_call(SYS_ppoll, reinterpret_cast<long>(&poll_fd), 1,
                          reinterpret_cast<long>(&limit), 0, 8);
    if (ready > 0) {
        alignas(8) char control[64];
        struct {
            void* base;
            unsigned long length;
        } data{&region->go, sizeof(region->go)};
        struct {
            void* name;
            int name_length, pad;
            void* data;
            unsigned long data_count;
            void* control;
            unsigned long control_length;
            int flags, pad2;
        } message;
        // One by one: an initialiser of all may become a call of memset().
        message.name = nullptr;
        message.name_length = 0;
        message.data = &data;
        message.data_count = 1;
        message.control = control;
        message.control_length = sizeof(control);
        message.flags = 0;
        long got = raw_call(SYS_recvmsg, pair[0], reinterpret_cast<long>(&message),
                            MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        auto* header = reinterpret_cast<cmsghdr*>(control);
        if (got > static_cast<long>(offsetof(Go, source)) &&
            message.control_length >= sizeof(cmsghdr) + sizeof(int) &&
            header->cmsg_type == SCM_RIGHTS) {
            const int* fds = reinterpret_cast<const int*>(control + sizeof(cmsghdr));
            // Near its limit of descriptors it gets fewer than were sent.
            if (header->cmsg_len >= sizeof(cmsghdr) + 2 * sizeof(int)) {
                channel = fds[0];
                core = fds[1];
            } else {
                raw_call(SYS_close, fds[0]);
            }
            if (header->cmsg_len >= sizeof(cmsghdr) + 3 * sizeof(int)) directory = fds[2];
        }
    }
    raw_call(SYS_close, pair[0]);
    raw_call(SYS_close, pair[1]);
    if (channel < 0) {
        region->error = ready > 0 ? EMFILE : ETIMEDOUT;
        __atomic_store_n(&region->state, speedbump::inject::kRegionFailed, __ATOMIC_RELEASE);
        pause_ns(100000000); // so that it can be read
        return;
    }
    __atomic_store_n(&region->state, speedbump::inject::kRegionWorking, __ATOMIC_RELEASE);
    if (directory >= 0) {
        // A working directory of this thread's own.
        if (raw_call(SYS_unshare, 0x200 /* CLONE_FS */) == 0) raw_call(SYS_fchdir, directory);
        raw_call(SYS_close, directory);
    }

    const Go& go = region->go;
    bool taken = false;
    bool guarded = false;
    const bool must = must_ask(region, channel);
    bool is_entered = is_wanted(region, channel);
    if (is_entered) {
        guarded =
            go.register_atfork != 0 && (must || go.thread_state_new != 0) && start_guard(region);
        // Its end may have begun meanwhile: nobody forks from Python any more.
        is_entered = !guarded || function<int()>(go.is_ready)() != 0;
        while (!is_entered && !end_guard(region)) pause_ns(1000000);
    }
    if (is_entered) {
        const bool has_state =
            guarded && go.thread_state_new != 0 && make_thread_state(region, channel) != nullptr;
        const bool asks = guarded && must;
        if (asks) ask(region);
        int gil = function<int()>(go.gil_ensure)();
        // The channel is the cancel flag: who gave up, or died, has closed it.
        void* dict = nullptr;
        void* module = nullptr; // borrowed of the dict
        if (!hung_up(channel)) {
            __atomic_store_n(&region->state, speedbump::inject::kRegionRunning, __ATOMIC_RELEASE);
            dict = function<void*()>(go.dict_new)();
            auto set = [&](const char* name, int value) __attribute__((always_inline)) {
                void* number = function<void*(long)>(go.long_from_long)(value);
                if (!number) return;
                function<int(void*, const char*, void*)>(go.dict_set_item_string)(dict, name,
                                                                                  number);
                function<void(void*)>(go.dec_ref)(number);
            };
            if (dict) {
                set(go.channel_name, channel);
                set(go.core_name, core);
                void* result = function<void*(const char*, int, void*, void*, void*)>(
                    go.run_string)(go.source, 257 /* Py_file_input */, dict, dict, nullptr);
                if (result) {
                    taken = true; // by the module, or closed
                    function<void(void*)>(go.dec_ref)(result);
                    module = function<void*(void*, const char*)>(go.dict_get_item_string)(
                        dict, go.module_name);
                }
            }
        }
        ask_no_more(region->guard);
        while (guarded && !end_guard(region)) {
            function<void(int)>(go.gil_release)(gil);
            pause_ns(1000000);
            if (asks) ask(region);
            gil = function<int()>(go.gil_ensure)();
            ask_no_more(region->guard);
        }
        // Not by Python code: that would give the GIL up for whoever has asked for it meanwhile.
        if (module && function<int(void*)>(go.is_true)(module) == 1) {
            void* result = function<void*(void*, const char*, const char*, ...)>(go.call_method)(
                module, go.serve_name, go.serve_format, channel, core);
            if (result) function<void(void*)>(go.dec_ref)(result);
            taken = result != nullptr; // it raises nothing once it has begun
        }
        if (dict) function<void(void*)>(go.dec_ref)(dict);
        function<void()>(go.err_clear)();
        // PyThreadState_New() counted one use, which no PyGILState_Ensure() stands for.
        if (has_state) function<void(int)>(go.gil_release)(0 /* PyGILState_LOCKED */);
        function<void(int)>(go.gil_release)(gil);
    }
    if (!taken) {
        raw_call(SYS_close, channel);
        raw_call(SYS_close, core);
    }
    // A thread that forks without the GIL may still be in a handler.
    if (guarded) pause_ns(10000000);
    __atomic_store_n(&region->state, speedbump::inject::kRegionFinished, __ATOMIC_RELEASE);
}

// Runs on the borrowed thread, on the region's stack, all signals blocked. 0 or a negative errno.
__attribute__((visibility("hidden"))) PAYLOAD long speedbump_payload_borrowed(Block* block) {
    auto* region = reinterpret_cast<Region*>(block->region + speedbump::inject::kDataOffset);
    region->magic = speedbump::inject::kRegionMagic;
    region->address = block->region;
    region->size = speedbump::inject::kRegionSize;
    region->munmap = block->munmap;
    region->pthread_self = block->pthread_self;
    region->pthread_detach = block->pthread_detach;
    raw_call(SYS_madvise, static_cast<long>(block->region), speedbump::inject::kRegionSize,
             MADV_DONTFORK);
    // The alternate signal stack is the one thing in the frame that can't be read from outside.
    auto* context = reinterpret_cast<ucontext_t*>(block->frame);
    raw_call(SYS_sigaltstack, 0, reinterpret_cast<long>(&context->uc_stack));
    // The program may be about to look at it, and these calls set it, that succeed too: an
    // madvise() of glibc's that only newer kernels know.
    int* const number = function<int*()>(block->errno_location)();
    const int before = *number;
    alignas(16) unsigned char attributes[64]; // pthread_attr_t
    function<int(void*)>(block->pthread_attr_init)(attributes);
    function<int(void*, uint64_t)>(block->pthread_attr_setstacksize)(
        attributes, speedbump::inject::kThreadStack);
    unsigned long thread;
    int error = function<int(unsigned long*, void*, uint64_t, void*)>(block->pthread_create)(
        &thread, attributes, block->region + block->thread_entry, region);
    *number = before;
    take_off_wait(block);
    heed_signals(block);
    return -error;
}

} // extern "C"
