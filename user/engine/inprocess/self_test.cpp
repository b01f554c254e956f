// SPDX-License-Identifier: MIT
#include "engine/inprocess/self_test.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "util/page.h"

namespace speedbump::engine::inprocess {
namespace {

constexpr int kManyCalls = 4000;
constexpr int kDelayedCalls = 200;
constexpr int kBatchCount = 40;
constexpr nanoseconds kLong = std::chrono::microseconds(1);
// push %rbp; mov %rsp,%rbp; xchg %ax,%ax; pop %rbp; ret
constexpr unsigned char kFunction[] = {0x55, 0x48, 0x89, 0xe5, 0x66, 0x90, 0x5d, 0xc3};
constexpr size_t kSite = 1; // in it, with five bytes to replace

double least_disturbed(const auto& measure, int calls) {
    std::vector<double> values;
    for (int i = 0; i < kBatchCount; ++i) values.push_back(measure(calls));
    return undisturbed(std::move(values));
}

} // namespace

Result<std::unique_ptr<SelfTest>> SelfTest::create(Table& table) {
    std::unique_ptr<SelfTest> test(new SelfTest(table));
    if (auto built = test->build(); !built) return std::move(built).error();
    return test;
}

// Two functions on a page, one of them with a jump, and the region behind it.
Result<void> SelfTest::build() {
    const Layout shape(0, 1, table_.extent());
    size_ = kPage + shape.end;
    memory_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) return errno_error("map code to measure", errno);
    auto* const page = static_cast<unsigned char*>(memory_);
    const auto address = reinterpret_cast<uint64_t>(page);
    const Layout layout(address + kPage, 1, table_.extent());
    const auto map = [](uint64_t where, uint64_t size, int protection, int fd) {
        return mmap(reinterpret_cast<void*>(where), size, protection, MAP_SHARED | MAP_FIXED, fd,
                    0) != MAP_FAILED;
    };
    if (!map(layout.settings, settings_bytes(layout.extent), PROT_READ, table_.fd()) ||
        !map(layout.common, common_bytes(layout.extent), PROT_READ | PROT_WRITE,
             table_.common_fd()))
        return errno_error("map the settings", errno);
    auto* const plain = page;
    auto* const jumping = page + 64;
    std::memcpy(plain, kFunction, sizeof kFunction);
    std::memcpy(jumping, kFunction, sizeof kFunction);
    const auto made =
        make_trampoline(layout, 0, kScratchTarget, reinterpret_cast<uint64_t>(jumping + kSite),
                        {kFunction + kSite, 5});
    if (!made) return made.error();
    std::memcpy(jumping + kSite, made->jump.data(), made->jump.size());
    const auto clock = clock_of(getpid(), table_.clock_source());
    if (!clock) return clock.error();
    const std::string code = region_head(layout, {}, *clock) + made->bytes;
    std::memcpy(page + kPage, code.data(), code.size());
    std::memcpy(reinterpret_cast<void*>(layout.hook_site(0)), &made->hook_site, sizeof(HookSite));
    const ProcessWord known = kOwnCounts;
    std::memcpy(reinterpret_cast<void*>(layout.process), &known, sizeof known);
    if (mprotect(memory_, kPage + (layout.settings - layout.code), PROT_READ | PROT_EXEC) != 0)
        return errno_error("make code to measure executable", errno);
    plain_ = reinterpret_cast<void (*)()>(plain);
    jumping_ = reinterpret_cast<void (*)()>(jumping);
    return {};
}

SelfTest::~SelfTest() {
    if (memory_ != nullptr && memory_ != MAP_FAILED) munmap(memory_, size_);
}

double SelfTest::cost(int calls) const {
    return ns_per_call(jumping_, calls) - ns_per_call(plain_, calls);
}

double SelfTest::added_ns(nanoseconds delay, int calls) {
    TargetSettings settings;
    settings.delay = delay;
    (void)table_.configure(kScratchTarget, settings, 0); // it asks for no threads
    table_.arm(true);
    ns_per_call(jumping_, kWarmUpCalls);
    const double added = cost(calls);
    table_.arm(false);
    return added;
}

nanoseconds SelfTest::calibrate(const Ticks& ticks) {
    table_.settings().outside_ticks = 0;
    const auto measured = [this](nanoseconds delay) {
        return least_disturbed([&](int calls) { return added_ns(delay, calls); },
                               delay.count() == 0 ? kManyCalls : kDelayedCalls);
    };
    const double floor = measured(nanoseconds(0));
    const double outside = measured(kLong) - static_cast<double>(kLong.count());
    __atomic_store_n(&table_.settings().outside_ticks,
                     static_cast<uint64_t>(std::max(0.0, outside) * ticks.per_ns),
                     __ATOMIC_RELEASE);
    return nanoseconds(static_cast<int64_t>(floor + 0.5));
}

} // namespace speedbump::engine::inprocess
