// SPDX-License-Identifier: MIT
#include "fleet/lines.h"

#include <unistd.h>

#include <cerrno>

namespace speedbump::fleet {

void LineBuffer::add(std::string_view piece) {
    while (!piece.empty() && !is_broken_) {
        const size_t end = piece.find('\n');
        text_ += piece.substr(0, end);
        if (text_.size() > longest_) {
            is_broken_ = true;
            text_ = {};
            return;
        }
        if (end == std::string_view::npos) return;
        lines_.push_back(std::move(text_));
        text_ = {};
        piece.remove_prefix(end + 1);
    }
}

std::optional<std::string> LineBuffer::next() {
    if (lines_.empty()) return std::nullopt;
    std::string line = std::move(lines_.front());
    lines_.pop_front();
    return line;
}

Heard read_into(LineBuffer& buffer, const Fd& fd) {
    char piece[65536];
    const ssize_t got = ::read(fd.get(), piece, sizeof(piece));
    if (got < 0) return errno == EAGAIN || errno == EINTR ? Heard::kNothing : Heard::kEnd;
    if (got == 0) return Heard::kEnd;
    buffer.add({piece, static_cast<size_t>(got)});
    return Heard::kSomething;
}

bool Outbox::flush(const Fd& fd) {
    size_t sent = 0;
    while (sent < text_.size()) {
        const ssize_t went = ::write(fd.get(), text_.data() + sent, text_.size() - sent);
        if (went < 0 && errno == EINTR) continue;
        if (went < 0 && errno == EAGAIN) break;
        if (went < 0) return false;
        sent += static_cast<size_t>(went);
    }
    text_.erase(0, sent);
    return true;
}

} // namespace speedbump::fleet
