// SPDX-License-Identifier: MIT
#include "fleet/words.h"

#include <optional>

namespace speedbump::fleet {

namespace {

constexpr std::string_view kBlank = " \t";
constexpr std::string_view kEscapedInQuotes = "$`\"\\";
constexpr std::string_view kOperators = ";&|<>\n()";

class Splitter {
  public:
    explicit Splitter(std::string_view text) : text_(text) {}

    Result<std::vector<std::string>> words() {
        while (at_ < text_.size()) {
            const char one = text_[at_++];
            if (kBlank.find(one) != std::string_view::npos) {
                end_word();
            } else if (kOperators.find(one) != std::string_view::npos) {
                return make_error(ErrorKind::kUsage, std::string("'") + one +
                                                         "' is not for one command: put it in "
                                                         "quotes where it is part of a word");
            } else if (one == '\'' || one == '"') {
                if (!quoted(one))
                    return make_error(ErrorKind::kUsage, "a quotation mark has no other");
            } else if (one != '\\') {
                word() += one;
            } else if (at_ == text_.size()) {
                return make_error(ErrorKind::kUsage, "nothing follows the last '\\'");
            } else {
                word() += text_[at_++];
            }
        }
        end_word();
        if (words_.empty()) return make_error(ErrorKind::kUsage, "it names no command");
        return std::move(words_);
    }

  private:
    std::string& word() {
        if (!word_) word_.emplace();
        return *word_;
    }
    void end_word() {
        if (word_) words_.push_back(std::move(*word_));
        word_.reset();
    }
    // Up to the mark that ends it; false where none does.
    bool quoted(char mark) {
        std::string& into = word();
        while (at_ < text_.size()) {
            const char one = text_[at_++];
            if (one == mark) return true;
            const bool is_escape = mark == '"' && one == '\\' && at_ < text_.size() &&
                                   kEscapedInQuotes.find(text_[at_]) != std::string_view::npos;
            into += is_escape ? text_[at_++] : one;
        }
        return false;
    }

    std::string_view text_;
    size_t at_ = 0;
    std::optional<std::string> word_;
    std::vector<std::string> words_;
};

} // namespace

Result<std::vector<std::string>> split_words(std::string_view text) {
    return Splitter(text).words();
}

} // namespace speedbump::fleet
