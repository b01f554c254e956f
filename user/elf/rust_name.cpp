// SPDX-License-Identifier: MIT
#include "elf/rust_name.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace speedbump::elf {
namespace {

constexpr uint64_t kMaxLifetimes = 1000; // of one binder
constexpr int kMaxDepth = 1024;          // as libiberty's

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

// Reads a name as libiberty's rust-demangle.c does, and prints nothing.
class RustName {
  public:
    explicit RustName(std::string_view text) : text_(text) {}

    bool is_good() {
        path();
        if (is_good_ && at_ < text_.size()) path(); // the crate that instantiates it
        return is_good_ && at_ == text_.size();
    }

  private:
    // Each level of the name that is within another one.
    class Level {
      public:
        explicit Level(RustName& name) : name_(name) {
            if (++name_.depth_ > kMaxDepth) name_.is_good_ = false;
        }
        ~Level() { --name_.depth_; }
        Level(const Level&) = delete;
        Level& operator=(const Level&) = delete;

      private:
        RustName& name_;
    };

    char next() {
        if (at_ < text_.size()) return text_[at_++];
        is_good_ = false;
        return '\0';
    }
    bool eat(char c) {
        if (at_ >= text_.size() || text_[at_] != c) return false;
        ++at_;
        return true;
    }

    // "_" is 0, "0_" is 1; what is too large stays so.
    uint64_t number() {
        constexpr uint64_t kLarge = UINT64_MAX / 128;
        if (eat('_')) return 0;
        uint64_t value = 0;
        while (is_good_ && !eat('_')) {
            const char c = next();
            const int digit = is_digit(c)            ? c - '0'
                              : c >= 'a' && c <= 'z' ? c - 'a' + 10
                              : c >= 'A' && c <= 'Z' ? c - 'A' + 36
                                                     : -1;
            if (digit < 0) is_good_ = false;
            value = std::min(value * 62 + static_cast<uint64_t>(std::max(digit, 0)), kLarge);
        }
        return value + 1;
    }
    uint64_t optional_number(char tag) { return eat(tag) ? number() + 1 : 0; }
    void binder() {
        if (optional_number('G') > kMaxLifetimes) is_good_ = false;
    }

    void identifier() {
        eat('u');
        char c = next();
        if (!is_digit(c)) is_good_ = false;
        size_t size = is_good_ ? static_cast<size_t>(c - '0') : 0;
        while (size > 0 && size < text_.size() && at_ < text_.size() && is_digit(text_[at_]))
            size = size * 10 + static_cast<size_t>(next() - '0');
        eat('_');
        if (size > text_.size() - at_) {
            is_good_ = false;
            size = 0;
        }
        at_ += size;
    }
    void named() {
        optional_number('s');
        identifier();
    }

    void path() {
        const Level level(*this);
        if (!is_good_) return;
        const char tag = next();
        switch (tag) {
            case 'C':
                return named();
            case 'N':
                next(); // the name space
                path();
                return named();
            case 'M':
            case 'X':
                optional_number('s');
                path();
                type();
                if (tag == 'X') path();
                return;
            case 'Y':
                type();
                return path();
            case 'I':
                path();
                return arguments();
            case 'B':
                number();
                return;
            default:
                is_good_ = false;
        }
    }

    void arguments() {
        while (is_good_ && !eat('E')) {
            if (eat('L'))
                number();
            else if (eat('K'))
                constant();
            else
                type();
        }
    }

    void types() {
        while (is_good_ && !eat('E')) type();
    }

    void type() {
        const Level level(*this);
        if (!is_good_) return;
        constexpr std::string_view kBasic = "abcdefhijlmnopstuvxyz";
        const char tag = next();
        if (kBasic.find(tag) != std::string_view::npos) return;
        switch (tag) {
            case 'R':
            case 'Q':
                if (eat('L')) number();
                return type();
            case 'P':
            case 'O':
            case 'S':
                return type();
            case 'A':
                type();
                return constant();
            case 'T':
                return types();
            case 'F':
                binder();
                eat('U');
                if (eat('K') && !eat('C')) identifier();
                types();
                return type();
            case 'D':
                binder();
                while (is_good_ && !eat('E')) dynamic_trait();
                if (!eat('L')) is_good_ = false;
                number();
                return;
            case 'B':
                number();
                return;
            default:
                --at_;
                path();
        }
    }

    void dynamic_trait() {
        path();
        while (is_good_ && eat('p')) {
            identifier();
            type();
        }
    }

    void constant() {
        if (eat('B')) {
            number();
            return;
        }
        const char tag = next();
        if (tag == 'p') return;
        constexpr std::string_view kTypes = "htmyojaslxnibc";
        if (kTypes.find(tag) == std::string_view::npos) is_good_ = false;
        eat('n');
        while (is_good_ && !eat('_')) {
            const char c = next();
            if (!is_digit(c) && (c < 'a' || c > 'f')) is_good_ = false;
        }
    }

    std::string_view text_;
    size_t at_ = 0;
    int depth_ = 0;
    bool is_good_ = true;
};

} // namespace

bool is_plain_rust_name(std::string_view symbol) {
    if (!symbol.starts_with("_R")) return false;
    symbol.remove_prefix(2);
    return RustName(symbol.substr(0, symbol.find('.'))).is_good();
}

} // namespace speedbump::elf
