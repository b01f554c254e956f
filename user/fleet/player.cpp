// SPDX-License-Identifier: MIT
#include "fleet/player.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "util/clock.h"

namespace speedbump::fleet {

namespace {

using std::chrono::milliseconds;

constexpr auto kLead = milliseconds(5); // until a schedule begins
// So long after the coordinator was heard last delays may begin. Those in flight end with their
// slices.
constexpr auto kDeadMan = std::chrono::seconds(1);
constexpr size_t kMostRows = 4096; // that wait to be written
constexpr size_t kMostTold = 256;  // slices in a report

uint64_t count(nanoseconds time) {
    return static_cast<uint64_t>(time.count());
}

int64_t number_in(const char* variable) {
    int64_t value = 0;
    if (const char* text = ::secure_getenv(variable))
        std::from_chars(text, text + std::strlen(text), value);
    return value;
}

int64_t ahead() {
    static const int64_t kAhead = number_in("SPEEDBUMP_TEST_CLOCK_AHEAD");
    static const int64_t kJump = number_in("SPEEDBUMP_TEST_CLOCK_JUMP");
    static const uint64_t kJumpsAt =
        monotonic_ns() + static_cast<uint64_t>(number_in("SPEEDBUMP_TEST_CLOCK_JUMPS_AFTER"));
    return kAhead + (kJump != 0 && monotonic_ns() >= kJumpsAt ? kJump : 0);
}

} // namespace

uint64_t agent_clock_ns() {
    return to_agent(monotonic_ns());
}
uint64_t to_monotonic(uint64_t agent_ns) {
    return agent_ns - static_cast<uint64_t>(ahead());
}
uint64_t to_agent(uint64_t monotonic) {
    return monotonic + static_cast<uint64_t>(ahead());
}

void Player::begin(const Begin& begin) {
    end();
    epoch_ = begin;
    epoch_->start_ns = to_monotonic(begin.start_ns);
    next_ = begin.first;
}

void Player::add(Rows rows) {
    if (!epoch_ || rows.epoch != epoch_->epoch || rows.first != next_ + rows_.size()) return;
    for (auto& row : rows.doses) {
        if (rows_.size() == kMostRows) return;
        // A hit counts for the slice in which it came: its delay is to be over soon after.
        for (nanoseconds& dose : row) dose = std::min(dose, epoch_->slice / 2);
        rows_.push_back(std::move(row));
    }
}

void Player::end() {
    session_.schedule()->end();
    epoch_.reset();
    rows_.clear();
    late_.reset();
    runs_ = false;
}

uint64_t Player::start_of(uint64_t slice) const {
    return epoch_->start_ns + (slice - epoch_->first) * count(epoch_->slice);
}

void Player::note_late(uint64_t first, uint64_t slices) {
    if (slices > 0) tell_(Late{epoch_->epoch, first, slices});
}

Result<void> Player::catch_up() {
    if (!epoch_) return {};
    if (runs_) take_in();
    if (runs_ && late_) {
        // What was written in time is over soon, and then all is begun anew.
        if (session_.schedule()->taken() < *late_) return {};
        note_late(base_ + *late_, 1);
        runs_ = false;
    }
    return write_ahead();
}

// With the first row that is in time. False where there is none.
bool Player::start_again() {
    if (!rows_.empty()) columns_.clear(); // which may take longer than the start lies ahead
    const uint64_t soonest = monotonic_ns() + count(kLead);
    const uint64_t skipped_from = next_;
    while (!rows_.empty() && start_of(next_) < soonest) {
        rows_.pop_front();
        ++next_;
    }
    note_late(skipped_from, next_ - skipped_from);
    if (rows_.empty()) return false;
    base_ = next_;
    late_.reset();
    runs_ = true;
    columns_.begin(start_of(base_), epoch_->slice);
    return true;
}

Result<void> Player::write_ahead() {
    if (!runs_ && !start_again()) return {};
    session::Schedule& schedule = *session_.schedule();
    const uint64_t until = heard_ns_ + count(kDeadMan);
    while (!rows_.empty() && schedule.room() > 0 && start_of(next_ + 1) <= until) {
        const bool in_time = schedule.add(rows_.front());
        rows_.pop_front();
        ++next_;
        if (!in_time) {
            schedule.end();
            late_ = next_ - 1 - base_;
        }
        if (next_ - 1 == base_)
            if (auto begun = starts_.note(in_time); !begun) return begun;
        if (!in_time) break;
    }
    return {};
}

void Player::take_in() {
    session::Schedule& schedule = *session_.schedule();
    const uint64_t settle = count(experiment::settle_of(epoch_->slice, epoch_->slice / 2));
    const uint64_t now = monotonic_ns();
    Taken taken{
        epoch_->epoch, base_ + schedule.taken(), to_agent(schedule.start_of(schedule.taken())), {}};
    while (schedule.taken() < late_.value_or(schedule.written()) &&
           now >= schedule.start_of(schedule.taken() + 1) + settle &&
           taken.slices.size() < kMostTold)
        taken.slices.push_back(columns_.take());
    if (!taken.slices.empty()) tell_(taken);
}

} // namespace speedbump::fleet
