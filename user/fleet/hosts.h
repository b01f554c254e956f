// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fleet/clock_offset.h"
#include "fleet/link.h"
#include "fleet/listed.h"
#include "fleet/protocol.h"
#include "util/result.h"

namespace speedbump::fleet {

// One host, as its agent tells of it.
struct Host {
    std::string launch; // as given
    std::string listed; // its name where a list has one, else empty
    std::string name;   // for people: the host's own, or the launch where two have the same
    std::unique_ptr<Link> link;
    Shape shape;                // what it may tell of
    std::vector<size_t> points; // which of the experiment's progress points are its
    std::optional<Hello> hello;
    std::optional<Attached> attached;
    ClockOffset clock;
    std::optional<Error> failed; // it has ended, and why

    // Whether it answers, and its clock is known: delays are asked of it then. What a stalled link
    // holds is not worth waiting for.
    bool is_in = false;
    size_t warnings = 0; // so far
    uint64_t pinged_ns = 0, ping_id = 0;
    bool is_pinged = false; // without an answer so far
    uint64_t answered_ns = 0;
    uint64_t out_since_ns = 0, out_ns = 0; // 0: it is not out; in all before that
    uint64_t out_so_far(uint64_t now_ns) const {
        return out_ns + (out_since_ns > 0 ? now_ns - out_since_ns : 0);
    }
};

// What hosts tell while a schedule is on.
struct Listener {
    std::function<void(size_t host, Taken taken)> taken;
    std::function<void(size_t host, const Late& late)> late;
    std::function<void(size_t host, const Tripped& tripped)> tripped;
    // A host came in or went out (Host::is_in), or has failed.
    std::function<void(size_t host)> changed;
    std::function<void(const std::string&)> warn;
};

// While it lives, a link whose other end is gone is told by write(), not by SIGPIPE.
class NoPipeSignal {
  public:
    NoPipeSignal() : before_(std::signal(SIGPIPE, SIG_IGN)) {}
    ~NoPipeSignal() { std::signal(SIGPIPE, before_); }
    NoPipeSignal(const NoPipeSignal&) = delete;
    NoPipeSignal& operator=(const NoPipeSignal&) = delete;

  private:
    void (*before_)(int);
};

// All hosts: their links, clocks, and what they say. Not thread-safe.
class Hosts {
  public:
    // `words`: of the commands that start the agents.
    static Result<std::unique_ptr<Hosts>> start(const std::vector<Launch>& launches,
                                                const std::vector<std::vector<std::string>>& words);
    // All of them end at once.
    ~Hosts();

    void listen(Listener listener) { listener_ = std::move(listener); }
    // Until `done`, or the time is over (false), or `wake_fd` is readable (false); asks for the
    // clocks all the while.
    bool run_until(const std::function<bool()>& done, std::chrono::nanoseconds time, int wake_fd);
    // To all that are there.
    void send_all(const Order& order);

    std::vector<Host>& all() { return hosts_; }
    size_t size() const { return hosts_.size(); }

  private:
    void turn(size_t host);
    void hear(size_t host, Report report);
    void ping(Host& host);
    void judge(size_t host);
    void fail(size_t host, Error error);

    NoPipeSignal no_signal_; // until the last link is gone
    std::vector<Host> hosts_;
    Listener listener_;
};

} // namespace speedbump::fleet
