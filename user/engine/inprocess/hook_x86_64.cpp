// SPDX-License-Identifier: MIT
#include "engine/inprocess/hook.h"

#include <cstddef>

#include "abi.h"
#include "targets/glob.h"

// Compiled without instrumentation, vector registers and built-in calls; see CMakeLists.txt. It
// runs in signal handlers, children of vfork() and threads of any kind: no locks, no library, no
// thread-local storage, no system calls but that of a delay that sleeps and that for the name of a
// thread. What it leaves on the stack below it holds no address of the region's code, which would
// look as if somebody were to come back there.
#define HOOK __attribute__((section("speedbump_hook"), used, noinline, visibility("hidden")))
#define HOOK_LABEL __attribute__((visibility("hidden")))
#define HOOK_APART __attribute__((section("speedbump_hook"), noinline))
#define HOOK_INLINE static inline __attribute__((always_inline))

using namespace speedbump::engine::inprocess;

extern "C" {
extern const unsigned char __start_speedbump_hook[] __attribute__((visibility("hidden")));
extern const unsigned char __stop_speedbump_hook[] __attribute__((visibility("hidden")));
}

namespace {

constexpr uint64_t kNoTime = UINT64_MAX;
constexpr uint64_t kPauseTicks = 1000; // that an instruction `pause` may take, and more
constexpr int kClockTries = 4;
constexpr uint64_t kLongestNap = 10'000'000; // ns; what is disarmed meanwhile ends behind it

template <typename T>
HOOK_INLINE T load(const T& word) {
    return __atomic_load_n(&word, __ATOMIC_RELAXED);
}

template <typename Word>
HOOK_INLINE void add(Word& word, uint64_t value) {
    __atomic_fetch_add(&word, value, __ATOMIC_RELAXED);
}

// That of the copy of this code that runs.
HOOK_INLINE const HookRegion& own_region() {
    auto hook = reinterpret_cast<uint64_t>(__start_speedbump_hook);
    asm("" : "+r"(hook)); // what lies before it is no part of it to the compiler
    return *reinterpret_cast<const HookRegion*>(hook - kRegionToHook);
}

HOOK_INLINE bool is_live(const HookSettings& settings) {
    return load(settings.armed) != 0 && (load(settings.owner) & kOwnerDied) == 0;
}

// 1: not a forked child that the loader has given no memory of its own; else 0.
HOOK_INLINE uint64_t is_known_process(const HookRegion& region) {
    return load(*reinterpret_cast<const ProcessWord*>(region.process)) & 1;
}

// Whether calls of the target are counted and delayed here.
HOOK_INLINE bool delays(const HookRegion& region, const HookTarget& target) {
    const auto& settings = *reinterpret_cast<const HookSettings*>(region.settings);
    return is_live(settings) && load(target.enabled) != 0 &&
           (is_known_process(region) != 0 || load(settings.follow) != 0);
}

// The kernel's code uses general registers alone, no locks and no thread-local storage, and may be
// called in signal handlers, but keeps no promise about what it leaves on the stack: no address of
// the region may be in a register that it would keep there, and none to which it has returned.
HOOK_INLINE uint64_t vdso_clock(uint64_t function) {
    constexpr uint64_t kMonotonic = 1;
    struct {
        int64_t seconds, nanoseconds;
    } now{};
    uint64_t which = kMonotonic;
    auto* to = &now;
    asm volatile(
        "mov %%rsp, %%rbx\n"
        "and $-16, %%rsp\n"
        "call *%%rax\n"
        "movq $0, -8(%%rsp)\n"
        "mov %%rbx, %%rsp\n"
        : "+a"(function), "+D"(which), "+S"(to)
        :
        : "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "cc", "memory");
    // A filter may forbid the system call that the kernel falls back to, should its clock change.
    if (static_cast<uint32_t>(function) != 0) return kNoTime;
    return static_cast<uint64_t>(now.seconds) * 1'000'000'000 +
           static_cast<uint64_t>(now.nanoseconds);
}

HOOK_INLINE uint64_t read_clock(const ClockFunction& clock) {
    if (clock.address == 0) return __builtin_ia32_rdtsc();
    const uint64_t ns = vdso_clock(clock.address);
    return ns == kNoTime ? kNoTime : ns - clock.ahead_ns;
}

// The only system call: of a delay that is to sleep. False: it is not to be had.
HOOK_INLINE bool nap(uint64_t ns) {
    constexpr int64_t kNanosleep = 35, kInterrupted = -4;
    const struct {
        int64_t seconds, nanoseconds;
    } time{0, static_cast<int64_t>(ns < kLongestNap ? ns : kLongestNap)};
    int64_t result = kNanosleep;
    asm volatile("syscall" : "+a"(result) : "D"(&time), "S"(nullptr) : "rcx", "r11", "memory");
    return result == 0 || result == kInterrupted;
}

struct Moment {
    uint64_t ns;          // of the host's monotonic clock; 0: the clock is being set over and over
    uint64_t ns_per_tick; // as HookClock's
};

HOOK_INLINE uint64_t in_ns(uint64_t ticks, uint64_t ns_per_tick) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(ticks) * ns_per_tick >> kNsShift);
}

HOOK_INLINE Moment moment_of(const HookSettings& settings, uint64_t ticks) {
    for (int i = 0; i < kClockTries; ++i) {
        const uint32_t set = __atomic_load_n(&settings.clock, __ATOMIC_ACQUIRE);
        const HookClock& clock = settings.clocks[set & 1];
        const uint64_t origin = load(clock.origin_ticks);
        const Moment moment{load(clock.origin_ns), load(clock.ns_per_tick)};
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (load(settings.clock) != set) continue;
        // It may have been set just now, by another CPU.
        const uint64_t ns = ticks >= origin ? moment.ns + in_ns(ticks - origin, moment.ns_per_tick)
                                            : moment.ns - in_ns(origin - ticks, moment.ns_per_tick);
        return {ns, moment.ns_per_tick};
    }
    return {};
}

// As the vdso reads it: the limit of a segment that the kernel has for that. Where there is none it
// is any number, which is as good for a ring, but for the time that CPUs wait for each other.
HOOK_INLINE uint32_t own_cpu() {
    uint32_t number = 0;
    asm("lsl %1, %0" : "+r"(number) : "r"(0x7bu) : "cc");
    return number;
}

// Threads have stacks apart from each other.
HOOK_INLINE uint64_t own_stripe() {
    const auto stack = reinterpret_cast<uint64_t>(__builtin_frame_address(0));
    return (stack >> 14 ^ stack >> 20 ^ stack >> 23) % kStripes;
}

struct Slice {
    sb_slice_counts* counts; // nullptr: there is none
    uint64_t delay_ns;
    uint64_t ns_per_tick;
};

// What the schedule has for a hit at this time, which is counted in its slice.
HOOK_INLINE Slice scheduled_hit(const HookRegion& region, const HookSettings& settings,
                                uint64_t column, uint64_t ticks) {
    const auto* const schedule = reinterpret_cast<const sb_schedule*>(region.schedule);
    if (schedule == nullptr || column >= region.columns) return {};
    const Moment now = moment_of(settings, ticks);
    __u64 since_ns = 0;
    const uint64_t slice = sb_slice_at(schedule, now.ns, &since_ns);
    if (slice == SB_NO_SLICE) return {};
    const uint64_t cell = sb_cell(slice, static_cast<uint32_t>(column), region.columns);
    const uint64_t dose = load(reinterpret_cast<const __u64*>(schedule + 1)[cell]);
    const uint64_t ring =
        uint64_t{own_cpu() & region.last_ring} * (uint64_t{SB_RING_SLICES} * region.columns);
    sb_slice_counts& counts = reinterpret_cast<sb_slice_counts*>(region.slices)[ring + cell];
    add(counts.hits, 1);
    add(counts.since_ns, since_ns);
    return {&counts, dose != 0 ? sb_within_schedule(schedule, now.ns, dose) : 0, now.ns_per_tick};
}

// A hit that has a delay, or a schedule. Apart from the others, which need no registers kept.
HOOK_APART void delay_call(const HookSite& site, HookDelays& counts, uint64_t delay_ns) {
    // Copies, so that nothing of the region is needed any more once the clock is read.
    const HookRegion region = own_region();
    auto& turn = *reinterpret_cast<sb_turn*>(site.target + region.to_turn);
    const auto& settings = *reinterpret_cast<const HookSettings*>(region.settings);
    const auto& target = *reinterpret_cast<const HookTarget*>(site.target);
    Slice slice{};
    const bool is_scheduled = (delay_ns & SB_SCHEDULED) != 0;
    const uint64_t begin = read_clock(region.clock);
    if (begin == kNoTime || begin < load(target.start_ticks)) return;
    const uint64_t end = load(target.end_ticks);
    if (end != 0 && begin >= end) return;
    if (is_scheduled) {
        slice = scheduled_hit(region, settings, delay_ns & ~SB_SCHEDULED, begin);
        delay_ns = slice.delay_ns;
        if (slice.counts == nullptr) return;
    }
    const uint64_t every = load(target.every);
    if (every > 1 && __atomic_add_fetch(&turn.calls, 1, __ATOMIC_RELAXED) % every != 0) {
        if (!is_scheduled) return;
        delay_ns = 0;
    }
    if (delay_ns > SB_MAX_DELAY_NS) delay_ns = SB_MAX_DELAY_NS;
    // Without a branch: it is to take as long without a delay, which only a schedule comes here
    // with.
    const uint64_t is_delayed = delay_ns != 0 ? 1 : 0;
    add(counts.delays, is_delayed);
    add(counts.requested_ns, delay_ns);
    if (slice.counts != nullptr) add(slice.counts->delays, is_delayed);
    const uint64_t ticks_per_ns = load(settings.ticks_per_ns);
    const uint64_t ticks = delay_ns * ticks_per_ns >> kTickShift;
    const uint64_t wake = load(target.sleeps) != 0 ? load(settings.wake_ticks) : kNoTime;
    bool may_nap = true;
    // A delay of the schedule comes on top of what a hit without one takes.
    const uint64_t outside = is_scheduled ? 0 : load(settings.outside_ticks);
    const uint64_t length = ticks > outside ? ticks - outside : 0;
    uint64_t now = is_scheduled ? read_clock(region.clock) : begin;
    // A clock that has gone back (the counter, over a suspend) ends it.
    while (now - begin < length && is_live(settings)) {
        const uint64_t left = length - (now - begin);
        if (may_nap && left > wake)
            may_nap = nap(((left - wake) << kTickShift) / ticks_per_ns);
        else if (left > kPauseTicks)
            __builtin_ia32_pause();
        now = read_clock(region.clock);
    }
    if (now == kNoTime || now < begin) return;
    const uint64_t measured = now - begin + outside;
    add(counts.measured_ticks, measured * is_delayed);
    if (slice.counts == nullptr) return;
    const uint64_t measured_ns = in_ns(measured, slice.ns_per_tick);
    add(slice.counts->measured_ns, measured_ns * is_delayed);
    add(slice.counts->undelayed_ns, measured_ns * (1 - is_delayed));
}

// --- whose calls are wanted

HOOK_INLINE bool is_called_from(const HookCallers& callers, uint64_t address) {
    const uint32_t half = __atomic_load_n(&callers.holds, __ATOMIC_ACQUIRE) & 1;
    const auto* const ranges =
        reinterpret_cast<const HookRange*>(&callers + 1) + uint64_t{half} * callers.capacity;
    uint64_t low = 0, high = load(callers.counts[half]); // those that begin up to there
    while (low < high) {
        const uint64_t middle = (low + high) / 2;
        if (load(ranges[middle].begin) <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && address < load(ranges[low - 1].end);
}

constexpr size_t kNameBytes = 16; // TASK_COMM_LEN
struct Name {
    char bytes[kNameBytes];
};

// That of the thread; false: it is not to be had.
HOOK_INLINE bool read_name(Name& name) {
    constexpr int64_t kPrctl = 157, kGetName = 16;
    int64_t result = kPrctl;
    asm volatile("syscall"
                 : "+a"(result), "=m"(name)
                 : "D"(kGetName), "S"(name.bytes)
                 : "rcx", "r11", "memory");
    return result == 0;
}

// Asked each time: where its storage or its stack lies does not tell a thread from the one before
// it, which had another name.
HOOK_APART bool is_thread(const HookThread& wanted) {
    Name name;
    if (!read_name(name)) return false;
    size_t length = 0;
    while (length < kNameBytes && name.bytes[length] != 0) ++length;
    const uint64_t size = load(wanted.length);
    return speedbump::targets::glob::match(
        {wanted.pattern, size < sizeof wanted.pattern ? size : sizeof wanted.pattern},
        {name.bytes, length});
}

} // namespace

extern "C" {

HOOK bool speedbump_hook_filter(const HookSite* site) {
    const HookRegion& region = own_region();
    if (!delays(region, *reinterpret_cast<const HookTarget*>(site->target))) return false;
    if (site->callers != 0) {
        const auto frame = reinterpret_cast<uint64_t>(__builtin_frame_address(0));
        const uint64_t stack = frame + 2 * sizeof(uint64_t) + kSavedBytes;
        const uint64_t returns_to =
            *reinterpret_cast<const uint64_t*>(stack + site->return_distance);
        // A call may be the last instruction of its function.
        if (!is_called_from(*reinterpret_cast<const HookCallers*>(site->callers), returns_to - 1))
            return false;
    }
    const uint64_t thread = load(reinterpret_cast<const HookTarget*>(site->target)->thread);
    if (thread == 0) return true;
    return is_thread(
        reinterpret_cast<const HookThread*>(region.threads)[(thread - 1) % kMaxThreads]);
}

HOOK void speedbump_hook_call(const HookSite* site) {
    const HookRegion& region = own_region();
    const auto& target = *reinterpret_cast<const HookTarget*>(site->target);
    if (!delays(region, target)) return;
    const uint64_t stripe = is_known_process(region) * kStripes + own_stripe();
    add(reinterpret_cast<uint64_t*>(region.hits + stripe * region.hits_stripe)[site->slot], 1);
    const uint64_t delay_ns = load(target.delay_ns);
    if (delay_ns == 0) return;
    auto* const delays =
        reinterpret_cast<HookDelays*>(region.delays + stripe * region.delays_stripe);
    delay_call(*site, delays[site->slot], delay_ns);
}

void speedbump_hook_way() HOOK_LABEL;
void speedbump_hook_filtered_way() HOOK_LABEL;

} // extern "C"

// The ways from a trampoline to there. On the stack lie the return address, %rcx and what was below
// the stack pointer. All that the functions above may change is kept: the registers that a callee
// need not, and the flags; the vector registers they do not use. A hit without a delay is counted
// without them, in the process itself; `lock incq` is most of what that takes.
#define REGION(offset) "__start_speedbump_hook-176+" #offset "(%rip)"
static_assert(kRegionToHook == 176 && offsetof(HookRegion, settings) == 0 &&
              offsetof(HookRegion, process) == 8 && offsetof(HookRegion, hits_by_return) == 16 &&
              offsetof(HookRegion, hits_stripe) == 24 &&
              offsetof(HookRegion, sites_by_return) == 32);
static_assert(offsetof(HookSettings, armed) == 0 && offsetof(HookSettings, owner) == 4 &&
              kOwnerDied == uint32_t{1} << (62 - 32));
static_assert(uint32_t{1} == static_cast<uint32_t>(HookState::kCounted));
static_assert(kOwnCounts == 1 && kStripes == 8 && sizeof(ProcessWord) == 8);
static_assert(kSavedBytes == 128 + 11 * 8); // with the return address, and %rcx
asm(R"(
    .pushsection speedbump_hook, "ax", @progbits
    .hidden __start_speedbump_hook
    .hidden speedbump_hook_way
    .hidden speedbump_hook_filtered_way

    # All that is kept, and the HookSite in %rdi.
    .macro speedbump_keep
    push %rax
    push %rsi
    push %rdi
    push %r8
    push %r9
    push %r10
    push %r11
    speedbump_site
    .endm

    .macro speedbump_site
    mov 72(%rsp), %rdi              # the return address
    shr %rdi
    add )" REGION(32) R"(, %rdi     # sites_by_return
    .endm

    # And nothing left of where it has returned to.
    .macro speedbump_call function
    call \function
    movq $0, -8(%rsp)
    .endm

    .balign 64
    .globl speedbump_hook_way
    .type speedbump_hook_way, @function
speedbump_hook_way:
    push %rax
    lahf
    seto %al
    push %rdx
    cmp $1, %ecx                    # kCounted
    jne .Lspeedbump_hook
    mov )" REGION(0) R"(, %rdx      # settings
    mov (%rdx), %rdx                # `armed`, and above it `owner`
    bt $62, %rdx                    # kOwnerDied
    jc .Lspeedbump_flags
    test %edx, %edx
    jz .Lspeedbump_flags
    mov )" REGION(8) R"(, %rdx      # process
    cmpq $1, (%rdx)                 # kOwnCounts
    jne .Lspeedbump_hook
    mov %rsp, %rcx                  # own_stripe()
    shr $3, %rcx
    xor %rsp, %rcx
    shr $6, %rcx
    xor %rsp, %rcx
    shr $14, %rcx
    and $7, %ecx
    or $8, %ecx                     # of the process's own
    imul )" REGION(24) R"(, %rcx    # hits_stripe
    mov 16(%rsp), %rdx              # the return address
    shr $3, %rdx
    add )" REGION(16) R"(, %rdx     # hits_by_return
    lock incq (%rdx, %rcx)
.Lspeedbump_flags:
    pop %rdx
    add $0x7f, %al                  # the overflow flag
    sahf                            # the others
    pop %rax
    ret

    .balign 16
    .globl speedbump_hook_filtered_way
    .type speedbump_hook_filtered_way, @function
speedbump_hook_filtered_way:
    push %rax
    lahf
    seto %al
    push %rdx
    speedbump_keep
    speedbump_call speedbump_hook_filter
    test %al, %al
    jz .Lspeedbump_registers
    speedbump_site
    jmp .Lspeedbump_wanted

.Lspeedbump_hook:
    speedbump_keep
.Lspeedbump_wanted:
    speedbump_call speedbump_hook_call
.Lspeedbump_registers:
    pop %r11
    pop %r10
    pop %r9
    pop %r8
    pop %rdi
    pop %rsi
    pop %rax
    jmp .Lspeedbump_flags

    .purgem speedbump_keep
    .purgem speedbump_site
    .purgem speedbump_call
    .popsection
)");

namespace speedbump::engine::inprocess {

HookCode hook_code() {
    const auto offset = [](auto* function) {
        return static_cast<size_t>(reinterpret_cast<const unsigned char*>(function) -
                                   __start_speedbump_hook);
    };
    return {__start_speedbump_hook,
            static_cast<size_t>(__stop_speedbump_hook - __start_speedbump_hook),
            offset(&speedbump_hook_way), offset(&speedbump_hook_filtered_way)};
}

} // namespace speedbump::engine::inprocess
