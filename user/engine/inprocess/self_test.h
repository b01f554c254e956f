// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>

#include "engine/inprocess/table.h"
#include "engine/inprocess/trampoline.h"
#include "engine/measure.h"
#include "sb_common.h"
#include "util/result.h"

namespace speedbump::engine::inprocess {

// The target that is none of a session's.
inline constexpr uint32_t kScratchTarget = SB_MAX_TARGETS - 1;

// A function with a jump in this program itself, by which the cost of one is measured. While it
// measures the table is armed: only before the first jump of a session.
class SelfTest {
  public:
    static Result<std::unique_ptr<SelfTest>> create(Table& table);
    ~SelfTest();
    SelfTest(const SelfTest&) = delete;
    SelfTest& operator=(const SelfTest&) = delete;

    // Has the hook take off a delay what lies outside its spin, and returns what a call costs with
    // a delay of 0.
    nanoseconds calibrate(const Ticks& ticks);
    // What a call takes longer with a delay, in ns; the mean of so many.
    double added_ns(nanoseconds delay, int calls);

  private:
    explicit SelfTest(Table& table) : table_(table) {}
    Result<void> build();
    double cost(int calls) const;

    Table& table_;
    void* memory_ = nullptr;
    size_t size_ = 0;
    void (*plain_)() = nullptr;
    void (*jumping_)() = nullptr;
};

} // namespace speedbump::engine::inprocess
