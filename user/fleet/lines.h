// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "util/fd.h"

namespace speedbump::fleet {

// Lines of a stream that comes in pieces. Nothing that the other end sends takes more memory than
// one line may have.
class LineBuffer {
  public:
    explicit LineBuffer(size_t longest) : longest_(longest) {}
    void add(std::string_view piece);
    // The next whole line, without its newline.
    std::optional<std::string> next();
    // A line was longer than any may be: what comes after it is not told.
    bool is_broken() const { return is_broken_; }

  private:
    size_t longest_;
    std::string text_; // since the last newline
    std::deque<std::string> lines_;
    bool is_broken_ = false;
};

// What could be read from a descriptor that never waits.
enum class Heard { kSomething, kNothing, kEnd };
// Reads what is there, some at most, into the buffer.
Heard read_into(LineBuffer& buffer, const Fd& fd);

// What is on its way to a descriptor that never waits. The other end may not read.
class Outbox {
  public:
    void add(std::string_view line) { text_ += line; }
    size_t size() const { return text_.size(); }
    // Sends what goes; false when the other end is gone.
    bool flush(const Fd& fd);

  private:
    std::string text_;
};

} // namespace speedbump::fleet
