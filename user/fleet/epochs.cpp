// SPDX-License-Identifier: MIT
#include "fleet/epochs.h"

#include <algorithm>
#include <cstdlib>

#include "util/clock.h"

namespace speedbump::fleet {

namespace {

using std::chrono::milliseconds;

constexpr auto kAhead = milliseconds(300); // that slices are sent, besides what the links take
constexpr auto kWrittenEach = milliseconds(40);
constexpr auto kTooLate = milliseconds(20);             // until a slice that is written only now
constexpr auto kPatience = milliseconds(2000);          // for a slice, after its end
constexpr auto kDrift = std::chrono::microseconds(250); // beyond what is not known

uint64_t count(nanoseconds time) {
    return static_cast<uint64_t>(time.count());
}

// Whether a host's slices begin elsewhere than they are thought to, by what is known of its clock.
bool is_off(int64_t by, const Offset& offset) {
    return static_cast<uint64_t>(std::abs(by)) > count(kDrift) + offset.error;
}

// What the slowest link takes for a question and its answer.
uint64_t longest_trip(std::vector<Host>& hosts) {
    uint64_t longest = 0;
    for (const Host& host : hosts)
        if (const auto offset = host.clock.best(); offset && host.is_in)
            longest = std::max(longest, 2 * offset->error);
    return std::min(longest, count(std::chrono::seconds(1)));
}

} // namespace

Epochs::Epochs(Hosts& hosts, nanoseconds slice, size_t points)
    : hosts_(hosts),
      slice_(slice),
      points_(points),
      periods_(hosts.size()),
      parts_(hosts.size()),
      lost_(hosts.size()) {}

uint64_t Epochs::start_of(uint64_t slice) const {
    return start_ns_ + (slice - first_) * count(slice_);
}

void Epochs::begin() {
    ++epoch_;
    is_on_ = true;
    first_ = written_;
    start_ns_ = monotonic_ns() + count(milliseconds(50)) + longest_trip(hosts_.all());
    for (Part& part : parts_) part.is_in = false;
    tick();
}

void Epochs::end() {
    hosts_.send_all(End{});
    is_on_ = false;
    written_ -= pending_.size();
    pending_.clear();
}

void Epochs::count_anew() {
    std::fill(lost_.begin(), lost_.end(), 0);
    apart_.clear();
}

void Epochs::let_in() {
    for (size_t host = 0; host < parts_.size(); ++host) {
        const Host& one = hosts_.all()[host];
        const auto offset = one.clock.best();
        const bool comes = one.is_in && offset && !parts_[host].is_in;
        parts_[host].is_in = one.is_in && offset;
        if (!comes) continue;
        parts_[host].ahead = offset->ahead;
        const auto start = static_cast<int64_t>(start_of(written_)) + offset->ahead;
        one.link->send(Begin{epoch_, written_, static_cast<uint64_t>(std::max<int64_t>(start, 0)),
                             slice_, periods_[host]});
    }
}

bool Epochs::has_drifted() const {
    for (size_t host = 0; host < parts_.size(); ++host) {
        const auto offset = hosts_.all()[host].clock.best();
        if (!parts_[host].is_in || !offset) continue;
        if (is_off(offset->ahead - parts_[host].ahead, *offset)) return true;
    }
    return false;
}

void Epochs::write_ahead() {
    const uint64_t until = monotonic_ns() + count(kAhead) + longest_trip(hosts_.all());
    if (start_of(written_) + count(kWrittenEach) > until) return;
    std::vector<bool> in;
    for (const Part& part : parts_) in.push_back(part.is_in);
    std::vector<Rows> rows(parts_.size(), Rows{epoch_, written_, {}});
    for (; start_of(written_) <= until; ++written_) {
        Draw draw = drawer_(written_, in);
        Pending& pending = pending_.emplace_back();
        pending.slice.steps = std::move(draw.steps);
        pending.slice.hosts.resize(parts_.size());
        pending.shifts.resize(parts_.size());
        for (size_t host = 0; host < parts_.size(); ++host) {
            pending.fates.push_back(in[host] ? Fate::kAsked : Fate::kNotAsked);
            if (in[host]) rows[host].doses.push_back(std::move(draw.doses[host]));
        }
    }
    for (size_t host = 0; host < parts_.size(); ++host)
        if (!rows[host].doses.empty()) hosts_.all()[host].link->send(rows[host]);
}

void Epochs::tick() {
    if (!is_on_) return;
    finish_those_that_are();
    // This program had no CPU for long, or was stopped: what it would write is over.
    const bool is_late = start_of(written_) < monotonic_ns() + count(kTooLate) && written_ > first_;
    if (is_late || has_drifted()) {
        end();
        begin();
        return;
    }
    let_in();
    write_ahead();
}

Epochs::Pending* Epochs::pending_of(uint64_t slice) {
    const uint64_t oldest = written_ - pending_.size();
    if (slice < oldest || slice >= written_) return nullptr;
    return &pending_[slice - oldest];
}

void Epochs::take(size_t host, Taken taken) {
    const ClockOffset& clock = hosts_.all()[host].clock;
    const auto offset = clock.best();
    if (taken.epoch != epoch_ || !offset || !clock.is_known()) return;
    const int64_t began = static_cast<int64_t>(taken.began_ns) - offset->ahead;
    for (size_t i = 0; i < taken.slices.size(); ++i) {
        Pending* pending = pending_of(taken.first + i);
        if (pending == nullptr || pending->fates[host] != Fate::kAsked) continue;
        // Its clock has jumped, and nobody knows when; or it is known better than at the begin.
        const int64_t shift = began - static_cast<int64_t>(start_of(taken.first));
        if (is_off(shift, *offset)) {
            pending->fates[host] = Fate::kLost;
            continue;
        }
        pending->fates[host] = Fate::kTold;
        pending->shifts[host] = shift;
        // All points of the experiment, of which this host has some.
        SliceReading& reading = pending->slice.hosts[host].emplace();
        reading.targets = std::move(taken.slices[i].targets);
        reading.points.resize(points_);
        const std::vector<size_t>& points = hosts_.all()[host].points;
        for (size_t point = 0; point < points.size(); ++point)
            reading.points[points[point]] = taken.slices[i].points[point];
    }
}

void Epochs::note_late(size_t host, const Late& late) {
    if (late.epoch != epoch_) return;
    uint64_t slice = written_ - pending_.size();
    for (Pending& pending : pending_) {
        const bool is_late = slice >= late.first && slice - late.first < late.count;
        if (is_late && pending.fates[host] == Fate::kAsked) pending.fates[host] = Fate::kLost;
        ++slice;
    }
}

void Epochs::note_change(size_t host) {
    if (!hosts_.all()[host].failed) return;
    parts_[host].is_in = false;
    for (Pending& pending : pending_)
        if (pending.fates[host] == Fate::kAsked) pending.fates[host] = Fate::kLost;
}

void Epochs::finish(uint64_t slice, const Pending& pending) {
    bool is_whole = true;
    int64_t first = INT64_MAX, last = INT64_MIN;
    for (size_t host = 0; host < parts_.size(); ++host) {
        const Fate fate = pending.fates[host];
        if (fate == Fate::kAsked || fate == Fate::kLost) {
            ++lost_[host];
            is_whole = false;
        } else if (fate == Fate::kTold) {
            first = std::min(first, pending.shifts[host]);
            last = std::max(last, pending.shifts[host]);
        }
    }
    if (is_whole && last >= first) apart_.push_back(static_cast<uint64_t>(last - first));
    finish_(slice, is_whole ? &pending.slice : nullptr);
}

void Epochs::finish_those_that_are() {
    const uint64_t now = monotonic_ns();
    while (!pending_.empty()) {
        const uint64_t slice = written_ - pending_.size();
        const auto& fates = pending_.front().fates;
        const bool is_waited_for =
            std::find(fates.begin(), fates.end(), Fate::kAsked) != fates.end();
        const uint64_t over = start_of(slice + 1);
        if (now <= over || (is_waited_for && now <= over + count(kPatience))) return;
        const Pending done = std::move(pending_.front());
        pending_.pop_front();
        finish(slice, done);
    }
}

} // namespace speedbump::fleet
