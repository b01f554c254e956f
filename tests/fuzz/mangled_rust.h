// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "name_maker.h"

namespace speedbump::fuzz {

// Rust's v0: paths, types and constants, any of which may be written as the place of an earlier
// one.
class RustName : NameMaker {
  public:
    RustName(Random& random, size_t size) : NameMaker(random, size) {
        draw(paths_);
        draw(types_);
    }

    std::string make() {
        path();
        if (one_in(4)) path(); // the crate that instantiates it
        return "_R" + out_;
    }

    // Of before: identifiers and a hash, with escapes.
    std::string make_legacy() {
        constexpr std::array<std::string_view, 8> kEscapes = {"$LT$", "$GT$", "$u20$", "$BP$",
                                                              "$RF$", "..",   "$C$",   "$u7e$"};
        out_ = "_ZN";
        for (size_t count = some(); count > 0 && !is_full(); --count) {
            std::string text(one_in(4) ? "_" : "a");
            for (size_t parts = some(); parts > 0 && text.size() < size_; --parts)
                text += one_in(3) ? "b" : kEscapes[random_.below(kEscapes.size())];
            out_ += std::to_string(text.size()) + text;
        }
        return out_ + (one_in(8) ? "E" : "17h0123456789abcdefE");
    }

  private:
    // _ is 0, 0_ is 1.
    void number(uint64_t value) {
        if (value > 0)
            append_number(out_, value - 1, 62,
                          "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
        out_ += '_';
    }
    // Mostly small, now and then more than can be counted up to.
    uint64_t any_number() {
        return one_in(8) ? random_.next() >> random_.below(64) : random_.below(3);
    }

    void plain() {
        if (one_in(8)) {
            out_ += 's'; // the how manyth of that name
            number(any_number());
        }
        if (one_in(32)) out_ += 'u';
        identifier();
    }

    // False: there is nothing to refer to.
    bool back_reference(const std::vector<size_t>& places) {
        if (places.size() < 2) return false;
        // Behind its own beginning there is none, but nothing keeps a name from saying so.
        const size_t last = places.size() - 2;
        const size_t place = random_.below(16) < newest_
                                 ? places[last - random_.below(std::min<size_t>(last, 2) + 1)]
                                 : places[random_.below(last + 1)];
        out_ += 'B';
        number(one_in(256) ? random_.below(out_.size() + 2) : place);
        return true;
    }

    void path() {
        path_places_.push_back(out_.size());
        if (is_full()) {
            out_ += "C1a";
            return;
        }
        const Level level(levels_);
        switch (weighted(paths_)) {
            case 0:
                out_ += 'C';
                return plain();
            case 1:
                if (back_reference(path_places_)) return;
                out_ += 'C';
                return plain();
            case 2:
                out_ += one_in(2) ? "Nt" : "NC";
                path();
                return plain();
            case 3:
                out_ += 'I';
                path();
                for (size_t count = some(); count > 0 && !is_full(); --count) argument();
                out_ += 'E';
                return;
            case 4:
                out_ += "MX"[random_.below(2)];
                if (out_.back() == 'M') {
                    path(); // is not shown
                    return type();
                }
                path();
                type();
                return path();
            case 5:
                out_ += 'Y';
                type();
                return path();
        }
    }

    void argument() {
        if (one_in(8)) {
            out_ += 'L';
            return number(any_number());
        }
        if (one_in(8)) {
            out_ += 'K';
            return constant();
        }
        type();
    }

    void constant() {
        if (one_in(4) && back_reference(constant_places_)) return;
        constant_places_.push_back(out_.size());
        constexpr std::array<std::string_view, 5> kConstants = {"p", "j7b_", "b1_", "c61_", "an1_"};
        out_ += kConstants[random_.below(kConstants.size())];
    }

    void binder() {
        if (!one_in(4)) return;
        out_ += 'G';
        number(any_number());
    }

    void type() {
        if (is_hole()) return;
        type_places_.push_back(out_.size());
        if (copies_ && !wants_hole_ && !is_full() && one_in(16)) {
            nest([this] { type(); }, [this] { out_ += 'l'; });
            return;
        }
        if (is_full()) {
            if (!one_in(2) || !back_reference(type_places_)) out_ += 'l';
            return;
        }
        may_repeat();
        const Level level(levels_);
        switch (weighted(types_)) {
            case 0:
                out_ += "abcdefhijlmnopstuvxyz"[random_.below(21)];
                return;
            case 1:
                if (!back_reference(type_places_)) out_ += 'l';
                return;
            case 2:
                return path();
            case 3:
                if (one_in(4)) out_.append(std::min(some(), size_), "SRQPO"[random_.below(5)]);
                out_ += one_in(3) ? 'S' : "RQPO"[random_.below(4)];
                if (one_in(4) && (out_.back() == 'R' || out_.back() == 'Q')) {
                    out_ += 'L';
                    number(any_number());
                }
                return type();
            case 4:
                out_ += 'T';
                for (size_t count = some() - 1; count > 0 && !is_full(); --count) {
                    if (copies_ && one_in(6))
                        copies([this] { type(); });
                    else
                        type();
                }
                out_ += 'E';
                return;
            case 5:
                out_ += 'F';
                binder();
                for (size_t count = some() - 1; count > 0 && !is_full(); --count) type();
                out_ += 'E';
                return type();
            case 6:
                out_ += 'D';
                binder();
                for (size_t count = some() - 1; count > 0 && !is_full(); --count) path();
                out_ += "EL";
                return number(any_number());
            case 7:
                out_ += 'A';
                type();
                return constant();
        }
    }

    std::vector<size_t> path_places_, type_places_, constant_places_;
    std::array<size_t, 6> paths_;
    std::array<size_t, 8> types_;
};

} // namespace speedbump::fuzz
