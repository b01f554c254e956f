// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "mutator.h"

namespace speedbump::fuzz {

// A digit for each of the first `base` values: 0-9, then as the two languages have it.
inline void append_number(std::string& out, uint64_t value, unsigned base, const char* digits) {
    std::string text;
    do text.insert(text.begin(), digits[value % base]);
    while ((value /= base) > 0);
    out += text;
}

// The next level of a name; at the lowest only what needs no other is made.
class Level {
  public:
    explicit Level(size_t& left) : left_(left) { --left_; }
    ~Level() { ++left_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

  private:
    size_t& left_;
};

// What both languages' names have: a size, levels, and numbers drawn at random.
class NameMaker {
  protected:
    NameMaker(Random& random, size_t size)
        : random_(random), size_(size), longest_(random_.below(14)) {
        random = Random(random.next()); // the next name's are others
        constexpr std::array<size_t, 6> kLevels = {4, 6, 12, 60, 900, 16'000};
        levels_ = kLevels[random_.below(kLevels.size())];
        newest_ = random_.below(17);
        repeats_ = one_in(2);
        copies_ = one_in(2);
    }

    bool is_full() const { return levels_ < 2 || out_.size() >= size_; }
    bool one_in(size_t count) { return random_.below(count) == 0; }
    // How many of a list, mostly few.
    size_t some() { return random_.below(size_t{1} << random_.below(longest_ + 1)) + 1; }
    // Where something begins that may be repeated: from a place before on, everything is drawn as
    // it was there, until the name is full.
    void may_repeat() {
        if (!repeats_) return;
        const size_t drawn = random_.below(12);
        if (drawn == 0) motif_ = random_;
        if (drawn == 1 && motif_) random_ = *motif_;
    }
    template <size_t kCount>
    size_t weighted(const std::array<size_t, kCount>& weights) {
        size_t sum = 0;
        for (const size_t weight : weights) sum += weight;
        size_t drawn = random_.below(sum);
        size_t kind = 0;
        while (drawn >= weights[kind]) drawn -= weights[kind++];
        return kind;
    }
    // A few are preferred, and most of the others left out.
    template <size_t kCount>
    void draw(std::array<size_t, kCount>& weights) {
        for (size_t& weight : weights) weight = one_in(3) ? 1 : 0;
        for (size_t count = 1 + random_.below(4); count > 0; --count)
            weights[random_.below(kCount)] += 1 + random_.below(32);
    }
    // Calls `element` for something small and writes that many times more; gives how many.
    template <typename Element>
    size_t copies(const Element& element) {
        const size_t begin = out_.size();
        in_small(element);
        const std::string text = out_.substr(begin);
        const size_t room = size_ - std::min(size_, out_.size());
        const size_t most = room / std::max<size_t>(text.size(), 1);
        const size_t count = one_in(2) ? most : random_.below(most + 1);
        for (size_t i = 0; i < count; ++i) out_ += text;
        return count;
    }
    // Calls `element` for something small, with a hole in it where a level ends, and puts that into
    // itself again and again, `innermost` at last; gives how many times more.
    template <typename Element, typename Innermost>
    size_t nest(const Element& element, const Innermost& innermost) {
        const size_t begin = out_.size();
        wants_hole_ = true;
        holes_below_ = std::min(levels_, kSmall);
        in_small(element);
        wants_hole_ = false;
        const std::string text = out_.substr(begin);
        const size_t hole = text.find(kHole);
        if (hole == std::string::npos) return 0;
        out_.resize(begin);
        const size_t room = size_ - std::min(size_, begin);
        const size_t count = std::min(random_.below(room / text.size() + 1), kMaxNested);
        for (size_t i = 0; i <= count; ++i) out_.append(text, 0, hole);
        innermost();
        for (size_t i = 0; i <= count; ++i) out_.append(text, hole + 1);
        return count;
    }
    bool is_hole() {
        if (!wants_hole_ || levels_ >= holes_below_ || !(is_full() || one_in(3))) return false;
        out_ += kHole;
        wants_hole_ = false;
        return true;
    }
    void identifier() {
        const size_t size = one_in(200) ? random_.below(2000) : 1 + random_.below(2);
        out_ += std::to_string(size);
        for (size_t i = 0; i < size; ++i) out_ += "abxyz"[random_.below(5)];
    }

    template <typename Element>
    void in_small(const Element& element) {
        const size_t levels = std::exchange(levels_, std::min(levels_, kSmall));
        const size_t longest = std::exchange(longest_, random_.below(2));
        element();
        levels_ = levels;
        longest_ = longest;
    }

    static constexpr char kHole = '\1';
    static constexpr size_t kMaxNested = 8000;
    static constexpr size_t kSmall = 9; // levels

    Random random_;
    std::optional<Random> motif_;
    std::string out_;
    size_t size_;
    size_t longest_; // lists, as a power of two
    size_t levels_;
    size_t newest_; // of 16 references that many are to what came last
    bool repeats_;
    bool copies_;
    bool wants_hole_ = false;
    size_t holes_below_ = 0; // so many levels
};

} // namespace speedbump::fuzz
