// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "abi.h"
#include "engine/inprocess/hook.h"
#include "engine/inprocess/table.h"
#include "engine/inprocess/trampoline.h"
#include "engine/inprocess/vdso.h"
#include "traced_child.h"
#include "util/clock.h"

namespace speedbump::engine::inprocess {
namespace {

constexpr uint64_t kBase = 0x2000'0000'0000;
constexpr size_t kPage = 4096;
constexpr uint64_t kStack = kBase + kPage; // of a page
constexpr uint64_t kRegion = kStack + kPage;
constexpr uint32_t kTarget = 3;
constexpr uint32_t kColumns = 3, kColumn = 1, kRings = 2;
// lea 8(%rax,%rcx),%rdx; int3: a range of five bytes, and the end of a run.
constexpr unsigned char kCode[] = {0x48, 0x8d, 0x54, 0x08, 0x08, 0xcc};
// Of the area of XSAVE: what is in use, which is the processor's business, and what it may be.
constexpr size_t kHeader = 512, kHeaderEnd = 576;

template <typename T>
T& at(uint64_t address) {
    return *reinterpret_cast<T*>(address);
}

// A function with a jump, a region behind it, and a child that calls it.
class TrampolineTest : public testing::TestWithParam<ClockSource> {
  protected:
    explicit TrampolineTest(const Filter& filter = {}, const CallerTables& tables = {})
        : layout_(kRegion, 1, {kColumns, kRings}, tables) {
        size_ = layout_.end - kBase;
        EXPECT_EQ(::mmap(reinterpret_cast<void*>(kBase), size_, PROT_READ | PROT_WRITE | PROT_EXEC,
                         MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
                  reinterpret_cast<void*>(kBase));
        const auto made =
            make_trampoline(layout_, 0, kTarget, kBase, {kCode, sizeof kCode}, filter);
        if (!made) std::abort();
        std::memcpy(reinterpret_cast<void*>(kBase), kCode, sizeof kCode);
        std::memcpy(reinterpret_cast<void*>(kBase), made->jump.data(), made->jump.size());
        if (GetParam() == ClockSource::kVdso) {
            const auto clock = vdso_clock_of(::getpid());
            if (!clock) std::abort();
            clock_ = {clock->address, kAhead};
        }
        const std::string code = region_head(layout_, {}, clock_) + made->bytes;
        std::memcpy(reinterpret_cast<void*>(kRegion), code.data(), code.size());
        at<HookSite>(layout_.hook_site(0)) = made->hook_site;
        at<ProcessWord>(layout_.process) = kOwnCounts;
        settings().ticks_per_ns = uint64_t{2} << kTickShift;
        child_ = std::make_unique<TracedChild>();
    }
    ~TrampolineTest() override { ::munmap(reinterpret_cast<void*>(kBase), size_); }

    // What the hook reads.
    uint64_t ticks() {
        return clock_.address != 0 ? monotonic_ns() - kAhead : __builtin_ia32_rdtsc();
    }
    HookSettings& settings() { return at<HookSettings>(layout_.settings); }
    HookTarget& target() { return at<HookTarget>(layout_.target(kTarget)); }
    sb_schedule& schedule() { return at<sb_schedule>(layout_.settings + schedule_offset()); }
    __u64& dose(uint64_t slice) {
        return (&at<__u64>(layout_.settings + schedule_offset() +
                           sizeof(sb_schedule)))[sb_cell(slice, kColumn, kColumns)];
    }
    // What all CPUs have counted in a slice.
    sb_slice_counts in_slice(uint64_t slice) {
        sb_slice_counts sum{};
        for (uint32_t ring = 0; ring < kRings; ++ring) {
            const auto& one = (&at<sb_slice_counts>(
                layout_.common + slices_offset()))[ring * SB_RING_SLICES * kColumns +
                                                   sb_cell(slice, kColumn, kColumns)];
            sum.hits += one.hits;
            sum.delays += one.delays;
            sum.measured_ns += one.measured_ns;
        }
        return sum;
    }
    // Slices of an hour, the first of which began half an hour ago on a clock that says `now`.
    void begin_schedule(uint64_t now_ns) {
        settings().clocks[settings().clock & 1] = {ticks(), now_ns, (uint64_t{1} << kNsShift) / 2};
        schedule().start_ns = now_ns - kHour / 2;
        schedule().slice_ns = kHour;
        schedule().end_slice = 1;
        schedule().columns = kColumns;
        target().delay_ns = SB_SCHEDULED | kColumn;
    }
    static constexpr uint64_t kHour = 3'600'000'000'000;
    // As the loader leaves it once it has armed, paused or changed a target.
    void set_state() {
        at<HookState>(layout_.state(kTarget)) = state_of(target(), settings().armed != 0);
    }
    // A call of the function as it is now.
    void call() {
        set_state();
        child_->registers.rip = kBase;
        child_->registers.rsp = kStack + kPage - 256;
        child_->registers.eflags = 0x202;
        ASSERT_EQ(child_->run(), SIGTRAP);
    }
    uint64_t hits() {
        uint64_t sum = 0;
        for (uint64_t stripe = 0; stripe < 2 * kStripes; ++stripe)
            sum += at<uint64_t>(layout_.hits_of(0, stripe));
        return sum;
    }

    // Calls it with random registers, flags and data below the stack pointer: all must be what the
    // replaced instructions alone would have made of them.
    void expect_all_kept(std::mt19937_64& draw) {
        user_regs_struct registers = child_->registers;
        for (auto* one :
             {&registers.rax, &registers.rbx, &registers.rcx, &registers.rdx, &registers.rsi,
              &registers.rdi, &registers.rbp, &registers.r8, &registers.r9, &registers.r10,
              &registers.r11, &registers.r12, &registers.r13, &registers.r14, &registers.r15})
            *one = draw();
        registers.rsp = kStack + kPage - 256 + draw() % 16 * 8;
        registers.rip = kBase;
        // CF PF AF ZF SF DF OF; IF and what is always set stay.
        registers.eflags = 0x202 | (draw() & 0xcd5);
        auto* const stack = reinterpret_cast<unsigned char*>(kStack);
        for (size_t i = 0; i < kPage; ++i) stack[i] = static_cast<unsigned char>(draw());
        const uint64_t kept_from = registers.rsp - 128;
        const std::vector<unsigned char> before(reinterpret_cast<unsigned char*>(kept_from),
                                                reinterpret_cast<unsigned char*>(kRegion));
        child_->registers = registers;
        fill_vectors(draw);
        const std::vector<unsigned char> vectors = child_->xstate();
        ASSERT_EQ(child_->run(), SIGTRAP);
        expect_nothing_left_behind();
        registers.rdx = registers.rax + registers.rcx + 8;
        registers.rip = kBase + sizeof kCode;
        for (size_t i = 0; i < sizeof registers / 8; ++i)
            EXPECT_EQ(reinterpret_cast<uint64_t*>(&registers)[i],
                      reinterpret_cast<uint64_t*>(&child_->registers)[i])
                << "word " << i << " of user_regs_struct";
        EXPECT_EQ(std::memcmp(reinterpret_cast<void*>(kept_from), before.data(), before.size()), 0)
            << "the stack or the red zone";
        ASSERT_EQ(child_->xstate().size(), vectors.size());
        for (size_t i = 0; i < vectors.size(); ++i) {
            if (i >= kHeader && i < kHeaderEnd) continue;
            ASSERT_EQ(child_->xstate()[i], vectors[i]) << "byte " << i << " of the XSAVE area";
        }
    }

    // No address of the region lies below the stack pointer: who looks for threads that are still
    // to come back there would find one.
    void expect_nothing_left_behind() {
        const uint64_t stack_pointer = child_->registers.rsp;
        for (uint64_t place = kStack; place + 8 <= (stack_pointer & ~uint64_t{7}); place += 8) {
            const auto word = at<uint64_t>(place);
            EXPECT_FALSE(word >= layout_.code && word < layout_.settings)
                << stack_pointer - place << " below the stack pointer";
        }
    }

    // All of x87, SSE, AVX and AVX-512 that this processor has; no odd bits where it has rules.
    void fill_vectors(std::mt19937_64& draw) {
        std::vector<unsigned char>& area = child_->xstate();
        uint64_t in_use = 0, enabled = 0;
        std::memcpy(&enabled, area.data() + 464, sizeof enabled); // what the kernel has
        const auto fill = [&](size_t begin, size_t size) {
            for (size_t i = begin; i < begin + size && i < area.size(); ++i)
                area[i] = static_cast<unsigned char>(draw());
        };
        const auto put16 = [&](size_t where, unsigned value) {
            area[where] = static_cast<unsigned char>(value);
            area[where + 1] = static_cast<unsigned char>(value >> 8);
        };
        put16(0, 0x037f ^ (draw() & 0x0f00)); // precision and rounding, exceptions masked
        put16(2, draw() % 8 << 11);           // the top of its stack
        area[4] = static_cast<unsigned char>(draw());
        for (size_t i = 0; i < 8; ++i) fill(32 + 16 * i, 10);
        const uint32_t mxcsr = 0x1f80 | (draw() & 0xe03f);
        std::memcpy(area.data() + 24, &mxcsr, sizeof mxcsr);
        fill(160, 16 * 16);
        in_use |= 3;
        components_ = "x87, xmm";
        const auto component = [&](unsigned bit, size_t begin, size_t size, const char* name) {
            if ((enabled >> bit & 1) == 0 || begin + size > area.size()) return;
            fill(begin, size);
            in_use |= uint64_t{1} << bit;
            components_ += std::string(", ") + name;
        };
        // Where they lie CPUID tells; the same on all processors that have them.
        component(2, offset_of(2), 256, "ymm");
        component(5, offset_of(5), 64, "k");
        component(6, offset_of(6), 512, "zmm0 to zmm15");
        component(7, offset_of(7), 1024, "zmm16 to zmm31");
        uint64_t others = 0; // such as PKRU, which stay as they are
        std::memcpy(&others, area.data() + kHeader, sizeof others);
        in_use |= others & ~kFilled;
        std::memcpy(area.data() + kHeader, &in_use, sizeof in_use);
    }
    static constexpr uint64_t kFilled = 0b1110'0111; // components
    static size_t offset_of(unsigned component) {
        unsigned a = 0xd, b = 0, c = component, d = 0;
        asm("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
        return b;
    }

    static constexpr uint64_t kAhead = 1'000'000; // of a time namespace
    Layout layout_;
    ClockFunction clock_{};
    size_t size_ = 0;
    std::unique_ptr<TracedChild> child_;
    std::string components_;
};

TEST_P(TrampolineTest, KeepsAllRegistersInEachState) {
    std::mt19937_64 draw(20261124);
    const std::vector<std::pair<const char*, std::function<void()>>> states{
        {"not armed", [&] { settings().armed = 0; }},
        {"the loader is dead",
         [&] {
             settings().armed = 1;
             settings().owner = kOwnerDied;
         }},
        {"not enabled",
         [&] {
             settings().owner = 0;
             target().enabled = 0;
         }},
        {"a delay of 0", [&] { target().enabled = 1; }},
        {"a delay", [&] { target().delay_ns = 3000; }},
        {"a delay that sleeps",
         [&] {
             target().sleeps = 1;
             settings().wake_ticks = 1000;
             target().delay_ns = 20'000;
         }},
        {"after its window", [&] { target().end_ticks = 1; }},
        {"before its window",
         [&] {
             target().end_ticks = 0;
             target().start_ticks = UINT64_MAX;
         }},
        {"a child that is not followed",
         [&] {
             target().start_ticks = 0;
             at<ProcessWord>(layout_.process) = 0;
         }},
        {"a child that is", [&] { settings().follow = 1; }},
        {"a schedule that has not begun", [&] { target().delay_ns = SB_SCHEDULED | kColumn; }},
        {"a slice without a delay",
         [&] {
             target().start_ticks = 0;
             begin_schedule(kHour);
         }},
        {"a slice with a delay", [&] { dose(0) = 3000; }},
        {"each second of them", [&] { target().every = 2; }},
        {"a column that is none", [&] { target().delay_ns = SB_SCHEDULED | kColumns; }},
    };
    for (const auto& [name, enter] : states) {
        SCOPED_TRACE(name);
        enter();
        set_state();
        for (int i = 0; i < 300 && !HasFailure(); ++i) expect_all_kept(draw);
    }
    std::printf("%s\n", components_.c_str());
    // Of eleven states each hit is counted.
    EXPECT_EQ(hits(), 11u * 300);
    EXPECT_EQ(in_slice(0).hits, 3u * 300);
    EXPECT_EQ(in_slice(0).delays, 300u + 150u);
    EXPECT_GE(in_slice(0).measured_ns, (300 + 150) * 3000u);
}

TEST_P(TrampolineTest, FindsTheSliceByTheClock) {
    settings().armed = 1;
    target().enabled = 1;
    constexpr uint64_t kNow = 5 * kHour;
    begin_schedule(kNow);
    call();
    EXPECT_EQ(in_slice(0).hits, 1u);
    schedule().start_ns = kNow - 3 * kHour - kHour / 2;
    call();
    EXPECT_EQ(in_slice(3).hits, 0u) << "a slice that is not written yet";
    schedule().end_slice = 4;
    dose(3) = 2000;
    call();
    EXPECT_EQ(in_slice(3).hits, 1u);
    EXPECT_EQ(in_slice(3).delays, 1u);
    schedule().start_ns = kNow + kHour; // still to come
    call();
    // The clock was set by a CPU that is ahead of this one.
    schedule().start_ns = kNow - 3 * kHour - kHour / 2;
    settings().clocks[settings().clock & 1].origin_ticks += 1'000'000'000;
    call();
    EXPECT_EQ(in_slice(3).hits, 2u);
    // The other clock is the one that holds.
    settings().clocks[(settings().clock + 1) & 1] = {ticks(), kNow - kHour,
                                                     (uint64_t{1} << kNsShift) / 2};
    ++settings().clock;
    call();
    EXPECT_EQ(in_slice(2).hits, 1u);
    schedule().end_slice = 0;
    call();
    EXPECT_EQ(in_slice(0).hits + in_slice(1).hits + in_slice(2).hits + in_slice(3).hits, 4u);
    EXPECT_EQ(hits(), 7u);
}

// However long a delay of the schedule is, it ends where the schedule does. A host only adds to
// what it takes, when it has other things to do: the shortest of several tells of the delay itself.
// One that was held up until the schedule was over has had none.
TEST_P(TrampolineTest, ADelayEndsWithTheSchedule) {
    settings().armed = 1;
    target().enabled = 1;
    uint64_t shortest = UINT64_MAX;
    for (int i = 0; i < 8; ++i) {
        begin_schedule(kHour);
        schedule().slice_ns = kHour / 2 + 20'000'000; // 20 ms from now on
        dose(0) = SB_MAX_DELAY_NS;
        const uint64_t before = in_slice(0).measured_ns;
        const uint64_t delays = in_slice(0).delays;
        const auto used = thread_cpu_time();
        const uint64_t begun = monotonic_ns();
        call();
        if (in_slice(0).delays == delays) continue;
        const uint64_t measured = in_slice(0).measured_ns - before;
        EXPECT_LT(measured, SB_MAX_DELAY_NS);
        // Others may want the CPU, too: what it lacked it is no delay.
        const auto ran = static_cast<uint64_t>((thread_cpu_time() - used).count());
        const uint64_t took = monotonic_ns() - begun, lacked = took - std::min(took, ran);
        shortest = std::min(shortest, measured - std::min(measured, lacked));
    }
    EXPECT_GE(in_slice(0).delays, 1u);
    EXPECT_LE(shortest, 21'000'000u);
}

TEST_P(TrampolineTest, DelaysEachNthCall) {
    settings().armed = 1;
    target().enabled = 1;
    target().delay_ns = 1000;
    target().every = 3;
    for (int i = 0; i < 10; ++i) call();
    uint64_t delays = 0;
    for (uint64_t stripe = 0; stripe < 2 * kStripes; ++stripe)
        delays += at<HookDelays>(layout_.delays_of(0, stripe)).delays;
    EXPECT_EQ(hits(), 10u);
    EXPECT_EQ(delays, 3u);
    EXPECT_EQ(at<sb_turn>(layout_.turn(kTarget)).calls, 10u);
}

// A trampoline that asks who calls, and on which thread.
class FilterTest : public TrampolineTest {
  protected:
    static constexpr uint32_t kDistance = 24, kCapacity = 4;
    FilterTest() : TrampolineTest({true, 0, kDistance}, {1, kCapacity}) {
        callers() = {0, kCapacity, {}};
        settings().armed = 1;
        target().enabled = 1;
    }
    HookCallers& callers() { return at<HookCallers>(layout_.callers_of(0)); }
    void set_callers(uint32_t half, const std::vector<HookRange>& ranges) {
        std::copy(ranges.begin(), ranges.end(),
                  reinterpret_cast<HookRange*>(&callers() + 1) + half * kCapacity);
        callers().counts[half] = static_cast<uint32_t>(ranges.size());
        callers().holds = half;
    }
    bool is_counted(uint64_t return_address) {
        at<uint64_t>(kStack + kPage - 256 + kDistance) = return_address;
        const uint64_t before = hits();
        call();
        return hits() != before;
    }
    void set_thread(const std::string& pattern) {
        auto& thread = at<HookThread>(layout_.settings + threads_offset() + 2 * sizeof(HookThread));
        thread.length = pattern.copy(thread.pattern, sizeof thread.pattern);
        target().thread = 3;
    }
};

TEST_P(FilterTest, KnowsWhereTheCallerLies) {
    EXPECT_FALSE(is_counted(100)); // there are none
    set_callers(1, {{100, 200}, {300, 301}, {400, 500}, {500, 600}});
    const std::vector<std::pair<uint64_t, bool>> expected{
        {0, false},   {100, false}, {101, true}, {150, true},  {200, true},
        {201, false}, {300, false}, {301, true}, {302, false}, {400, false},
        {401, true},  {501, true},  {600, true}, {601, false}};
    for (const auto& [address, is_within] : expected)
        EXPECT_EQ(is_counted(address), is_within) << address;
    EXPECT_FALSE(is_counted(UINT64_MAX));
    set_callers(0, {{700, 800}});
    EXPECT_FALSE(is_counted(150));
    EXPECT_TRUE(is_counted(750));
    EXPECT_FALSE(is_counted(801));
}

TEST_P(FilterTest, KnowsTheNameOfTheThread) {
    set_callers(0, {{0, UINT64_MAX}});
    char name[16] = {};
    ::prctl(PR_GET_NAME, name);
    const std::string own(name);
    ASSERT_GE(own.size(), 4u);
    for (const auto& [pattern, expected] :
         std::vector<std::pair<std::string, bool>>{{own, true},
                                                   {"*", true},
                                                   {own.substr(0, 3) + "*", true},
                                                   {"?" + own.substr(1), true},
                                                   {"[!z]" + own.substr(1), true},
                                                   {own + "?", false},
                                                   {"z*", false},
                                                   {"", false},
                                                   {own.substr(1), false}}) {
        set_thread(pattern);
        for (int i = 0; i < 3; ++i) EXPECT_EQ(is_counted(1), expected) << pattern;
    }
}

TEST_P(FilterTest, KeepsAllRegisters) {
    std::mt19937_64 draw(20261125);
    const std::vector<std::pair<const char*, std::function<void()>>> states{
        {"no caller", [] {}},
        {"any caller",
         [&] {
             set_callers(0, {{0, UINT64_MAX}});
         }},
        {"another thread", [&] { set_thread("another*[!x]"); }},
        {"this thread", [&] { set_thread("*"); }},
    };
    for (const auto& [name, enter] : states) {
        SCOPED_TRACE(name);
        enter();
        set_state();
        for (int i = 0; i < 300 && !HasFailure(); ++i) expect_all_kept(draw);
    }
    EXPECT_EQ(hits(), 600u);
}

// A signal handler clears one word, and the kernel sets a bit where the loader dies: states are
// behind both.
TEST_P(TrampolineTest, CountsNothingOnceItIsOver) {
    std::mt19937_64 draw(20261129);
    settings().armed = 1;
    target().enabled = 1;
    for (const uint64_t delay_ns : {0, 1'000'000'000}) {
        target().delay_ns = delay_ns;
        settings().armed = 1;
        set_state();
        settings().armed = 0;
        for (int i = 0; i < 100 && !HasFailure(); ++i) expect_all_kept(draw);
        settings().armed = 1;
        settings().owner = kOwnerDied | 77;
        for (int i = 0; i < 100 && !HasFailure(); ++i) expect_all_kept(draw);
        settings().owner = 77;
    }
    EXPECT_EQ(hits(), 0u);
    target().delay_ns = 0;
    call();
    EXPECT_EQ(hits(), 1u);
}

// What is kept is kept because the trampoline does so: one that forgets a flag is found out.
TEST_P(TrampolineTest, IsSeenToForget) {
    settings().armed = 1;
    target().enabled = 1;
    set_state();
    auto* const code = reinterpret_cast<unsigned char*>(layout_.code); // of all sites
    bool is_found = false;
    for (uint64_t i = 0; i < layout_.trampoline(0) - layout_.code && !is_found; ++i)
        if (code[i] == 0x04 && code[i + 1] == 0x7f && code[i + 2] == 0x9e) { // add $0x7f,%al; sahf
            code[i + 2] = 0x90;
            is_found = true;
        }
    ASSERT_TRUE(is_found);
    child_->registers.rip = kBase;
    child_->registers.rsp = kStack + kPage - 256;
    child_->registers.eflags = 0x202 | 0x001; // the carry
    ASSERT_EQ(child_->run(), SIGTRAP);
    EXPECT_NE(child_->registers.eflags, 0x203u);
}

// Functions with jumps in this program itself, of all lengths that a range may have, with a delay
// or none: each is counted where it belongs, whoever calls.
TEST(Slots, EachTrampolineCountsItsOwn) {
    constexpr size_t kFunctions = 60, kRoom = 64;
    std::vector<std::vector<unsigned char>> codes;
    size_t slots = 0;
    for (size_t i = 0; i < kFunctions; ++i) {
        // Nops of all lengths; some behind a jump that is never taken, whose two bytes become six.
        std::vector<unsigned char> code{0x39, 0xc0};              // cmp %eax,%eax
        if (i % 2 != 0) code.insert(code.end(), {0x75, 0x00});    // jne
        for (size_t k = 0; k < i % 15; ++k) code.push_back(0x3e); // of the next one; up to 15 bytes
        code.push_back(0x90);
        while (code.size() < 6) code.push_back(0x90);
        code.push_back(0xc3);
        slots += slots_of(0, {code.data(), code.size()});
        codes.push_back(code);
    }
    EXPECT_GT(slots, kFunctions) << "none of them takes two";
    EXPECT_LT(slots, 2 * kFunctions) << "each of them takes two";
    const Layout shape(0, slots, {0, 1});
    const uint64_t size = kPage + shape.end;
    void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE | PROT_EXEC,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    const auto base = reinterpret_cast<uint64_t>(memory);
    const Layout layout(base + kPage, slots, {0, 1});
    std::string code = region_head(layout, {}, {});
    auto& settings = at<HookSettings>(layout.settings);
    settings.armed = 1;
    settings.ticks_per_ns = uint64_t{2} << kTickShift;
    at<ProcessWord>(layout.process) = kOwnCounts;
    std::vector<size_t> slot_of;
    size_t next = 0;
    for (size_t i = 0; i < kFunctions; ++i) {
        const auto& function = codes[i];
        const uint64_t site = base + i * kRoom;
        const auto target = static_cast<uint32_t>(i);
        const auto made =
            make_trampoline(layout, next, target, site, {function.data(), function.size()});
        ASSERT_TRUE(made);
        slot_of.push_back(next);
        next += slots_of(0, {function.data(), function.size()});
        code += made->bytes;
        std::memcpy(reinterpret_cast<void*>(site), function.data(), function.size());
        std::memcpy(reinterpret_cast<void*>(site), made->jump.data(), made->jump.size());
        at<HookSite>(layout.hook_site(made->slot)) = made->hook_site;
        auto& settings_of = at<HookTarget>(layout.target(target));
        settings_of.enabled = 1;
        settings_of.delay_ns = i % 3 == 0 ? 1 : 0;
        at<HookState>(layout.state(target)) = state_of(settings_of, true);
    }
    std::memcpy(reinterpret_cast<void*>(layout.code), code.data(), code.size());
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread)
        threads.emplace_back([base] {
            for (int round = 0; round < 500; ++round)
                for (size_t i = 0; i < kFunctions; ++i)
                    for (size_t k = 0; k < i; ++k) reinterpret_cast<void (*)()>(base + i * kRoom)();
        });
    for (auto& thread : threads) thread.join();
    for (size_t i = 0; i < kFunctions; ++i) {
        uint64_t hits = 0, delays = 0, others = 0;
        for (uint64_t stripe = 0; stripe < 2 * kStripes; ++stripe) {
            const auto counted = at<uint64_t>(layout.hits_of(slot_of[i], stripe));
            (stripe < kStripes ? others : hits) += counted;
            delays += at<HookDelays>(layout.delays_of(slot_of[i], stripe)).delays;
        }
        EXPECT_EQ(hits, 2000 * i) << i;
        EXPECT_EQ(others, 0u) << i;
        EXPECT_EQ(delays, i % 3 == 0 ? 2000 * i : 0) << i;
    }
    ::munmap(memory, size);
}

const auto kClocks = testing::Values(ClockSource::kTsc, ClockSource::kVdso);
std::string clock_name(const testing::TestParamInfo<ClockSource>& source) {
    return source.param == ClockSource::kTsc ? "tsc" : "vdso";
}
INSTANTIATE_TEST_SUITE_P(EachClock, TrampolineTest, kClocks, clock_name);
INSTANTIATE_TEST_SUITE_P(EachClock, FilterTest, kClocks, clock_name);

} // namespace
} // namespace speedbump::engine::inprocess
