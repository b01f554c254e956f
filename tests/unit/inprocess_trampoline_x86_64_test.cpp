// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/inprocess/hook.h"
#include "engine/inprocess/trampoline.h"
#include "sb_common.h"
#include "traced_child.h"

namespace speedbump::engine::inprocess {
namespace {

constexpr uint64_t kBase = 0x2000'0000'0000;
constexpr size_t kPage = 4096;
constexpr uint64_t kStack = kBase + kPage; // of a page
constexpr uint64_t kRegion = kStack + kPage;
constexpr uint32_t kTarget = 3;
// lea 8(%rax,%rcx),%rdx; int3: a range of five bytes, and the end of a run.
constexpr unsigned char kCode[] = {0x48, 0x8d, 0x54, 0x08, 0x08, 0xcc};
// Of the area of XSAVE: what is in use, which is the processor's business, and what it may be.
constexpr size_t kHeader = 512, kHeaderEnd = 576;

template <typename T>
T& at(uint64_t address) {
    return *reinterpret_cast<T*>(address);
}

// A function with a jump, a region behind it, and a child that calls it.
class TrampolineTest : public testing::Test {
  protected:
    TrampolineTest() : layout_(kRegion, 1) {
        size_ = layout_.end - kBase;
        EXPECT_EQ(::mmap(reinterpret_cast<void*>(kBase), size_, PROT_READ | PROT_WRITE | PROT_EXEC,
                         MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
                  reinterpret_cast<void*>(kBase));
        const auto made = make_trampoline(layout_, 0, kTarget, kBase, {kCode, sizeof kCode});
        if (!made) std::abort();
        std::memcpy(reinterpret_cast<void*>(kBase), kCode, sizeof kCode);
        std::memcpy(reinterpret_cast<void*>(kBase), made->jump.data(), made->jump.size());
        const std::string code = region_head({}) + made->bytes;
        std::memcpy(reinterpret_cast<void*>(kRegion), code.data(), code.size());
        at<ProcessWord>(layout_.process) = kOwnCounts;
        settings().ticks_per_ns = uint64_t{2} << kTickShift;
        child_ = std::make_unique<TracedChild>();
    }
    ~TrampolineTest() override { ::munmap(reinterpret_cast<void*>(kBase), size_); }

    HookSettings& settings() { return at<HookSettings>(layout_.settings); }
    HookTarget& target() { return at<HookTarget>(layout_.target(kTarget)); }
    uint64_t hits() {
        uint64_t sum = 0;
        for (uint64_t i = 0; i < kCountsPerSite; ++i)
            sum += at<HookCounts>(layout_.counts_of(0) + i * sizeof(HookCounts)).hits;
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
        std::memcpy(area.data() + kHeader, &in_use, sizeof in_use);
    }
    static size_t offset_of(unsigned component) {
        unsigned a = 0xd, b = 0, c = component, d = 0;
        asm("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
        return b;
    }

    Layout layout_;
    size_t size_ = 0;
    std::unique_ptr<TracedChild> child_;
    std::string components_;
};

TEST_F(TrampolineTest, KeepsAllRegistersInEachState) {
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
    };
    for (const auto& [name, enter] : states) {
        SCOPED_TRACE(name);
        enter();
        for (int i = 0; i < 300 && !HasFailure(); ++i) expect_all_kept(draw);
    }
    std::printf("%s\n", components_.c_str());
    // Of five states each hit is counted.
    EXPECT_EQ(hits(), 5u * 300);
}

// What is kept is kept because the trampoline does so: one that forgets a flag is found out.
TEST_F(TrampolineTest, IsSeenToForget) {
    settings().armed = 1;
    target().enabled = 1;
    auto* const code = reinterpret_cast<unsigned char*>(layout_.trampoline(0));
    bool is_found = false;
    for (size_t i = 0; i < 128; ++i)
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

} // namespace
} // namespace speedbump::engine::inprocess
