// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fleet/lines.h"
#include "fleet/protocol.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/result.h"

namespace speedbump::fleet {

// A program that connects its standard input and output with an agent's. Nothing here waits for
// it but end_all(). Not thread-safe.
class Link {
  public:
    // Starts it, in a process group of its own: what a terminal sends must not end it.
    static Result<std::unique_ptr<Link>> start(const std::vector<std::string>& command);
    // Ends the input of each, on which it should end, and waits for that; then ends it. All at
    // once: however many do not end by themselves, it takes as long as one.
    static void end_all(std::span<Link* const> links);
    ~Link(); // ends it
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    void send(const Order& order) { outbox_.add(line_of(order)); }
    // What did not go yet: it does not read.
    size_t unsent() const { return outbox_.size(); }
    // Sends and reads what goes.
    void turn();
    std::optional<std::string> next() { return lines_.next(); }
    // It has ended its output, what it sent has been told by next(), and it has exited, which a
    // launcher may take its time for, some seconds at most.
    bool has_last_words();
    // What became of it then: how it ended, and what it last said on stderr.
    std::string last_words();
    // On its input's end it ends, and with it the agent.
    void close() { input_.reset(); }

    // To be watched: readable when there is something to read; -1 once it has ended its output.
    int fd() const { return has_ended_ ? -1 : output_.get(); }

  private:
    Link() = default;
    bool has_exited();
    static bool wait_for(std::span<Link* const> links, std::chrono::milliseconds time);

    pid_t pid_ = -1;
    std::optional<int> status_; // as waitpid() gives it
    Fd input_, output_, errors_;
    LineBuffer lines_{kMaxLine};
    Outbox outbox_;
    std::string said_; // the end of what it said on stderr
    bool has_ended_ = false;
    Clock::time_point ended_at_; // then
};

} // namespace speedbump::fleet
