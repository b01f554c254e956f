// SPDX-License-Identifier: MIT
#include "fleet/hosts.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "util/clock.h"

namespace speedbump::fleet {

namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr auto kTick = milliseconds(10);
constexpr auto kPingEach = milliseconds(100), kFirstPingEach = milliseconds(5);
constexpr size_t kFirstPings = 32;
// A host that does not answer for so long is out; that a delay goes on there is prevented by the
// agent itself.
constexpr auto kPatience = milliseconds(700);
constexpr size_t kMostWarnings = 50;     // of a host, that are shown
constexpr size_t kMostUnsent = 1u << 20; // bytes

uint64_t count(nanoseconds time) {
    return static_cast<uint64_t>(time.count());
}

} // namespace

Result<std::unique_ptr<Hosts>> Hosts::start(const std::vector<Launch>& launches,
                                            const std::vector<std::vector<std::string>>& words) {
    auto hosts = std::make_unique<Hosts>();
    for (size_t i = 0; i < launches.size(); ++i) {
        auto link = Link::start(words[i]);
        if (!link) return std::move(link).error().with_context("--at '" + launches[i].text + "'");
        Host& host = hosts->hosts_.emplace_back();
        host.launch = launches[i].text;
        host.listed = launches[i].name;
        host.name = host.listed.empty() ? host.launch : host.listed;
        host.link = std::move(*link);
    }
    return hosts;
}

Hosts::~Hosts() {
    std::vector<Link*> links;
    for (const Host& host : hosts_)
        if (host.link) links.push_back(host.link.get());
    Link::end_all(links);
}

void Hosts::send_all(const Order& order) {
    for (Host& host : hosts_)
        if (!host.failed) host.link->send(order);
}

void Hosts::fail(size_t host, Error error) {
    hosts_[host].failed = std::move(error);
    hosts_[host].link->close();
    if (std::exchange(hosts_[host].is_in, false)) hosts_[host].out_since_ns = monotonic_ns();
    if (listener_.changed) listener_.changed(host);
}

void Hosts::hear(size_t index, Report report) {
    Host& host = hosts_[index];
    if (auto* hello = std::get_if<Hello>(&report)) {
        if (!host.hello) host.hello = std::move(*hello);
    } else if (auto* attached = std::get_if<Attached>(&report)) {
        if (host.attached) return; // what it has once told goes on to hold
        host.shape.targets = attached->targets.size();
        host.attached = std::move(*attached);
    } else if (const auto* pong = std::get_if<Pong>(&report)) {
        if (!host.is_pinged || pong->id != host.ping_id) return;
        host.is_pinged = false;
        host.answered_ns = monotonic_ns();
        const auto jump = host.clock.add(host.pinged_ns, pong->now_ns, host.answered_ns);
        if (jump && ++host.warnings <= kMostWarnings && listener_.warn)
            listener_.warn(fmt::format("{}: its clock has jumped by {:.3f} ms: slices begin anew",
                                       host.name, static_cast<double>(*jump) / 1e6));
    } else if (auto* taken = std::get_if<Taken>(&report)) {
        if (listener_.taken) listener_.taken(index, std::move(*taken));
    } else if (const auto* late = std::get_if<Late>(&report)) {
        if (listener_.late) listener_.late(index, *late);
    } else if (const auto* tripped = std::get_if<Tripped>(&report)) {
        if (listener_.tripped) listener_.tripped(index, *tripped);
    } else if (const auto* warning = std::get_if<Warning>(&report)) {
        if (++host.warnings <= kMostWarnings && listener_.warn)
            listener_.warn(host.name + ": " + warning->text);
    } else {
        fail(index, std::move(std::get<Failed>(report).error));
    }
}

void Hosts::turn(size_t index) {
    Host& host = hosts_[index];
    if (host.failed) return;
    host.link->turn();
    while (const auto line = host.failed ? std::nullopt : host.link->next()) {
        auto report = read_report(*line, host.shape);
        if (report)
            hear(index, std::move(*report));
        else if (!host.hello)
            fail(index, std::move(report)
                            .error()
                            .with_context("it is no agent that answers")
                            .with_hint("LAUNCH must print nothing itself, nor may the shell that "
                                       "it starts; see what `LAUNCH speedbump agent` says"));
        else
            fail(index, std::move(report).error());
    }
    if (!host.failed && host.link->has_last_words())
        fail(index, make_error(ErrorKind::kIo, host.link->last_words()));
}

void Hosts::ping(Host& host) {
    const nanoseconds each = host.clock.count() < kFirstPings ? kFirstPingEach : kPingEach;
    const uint64_t now = monotonic_ns();
    if (host.failed || !host.hello || host.is_pinged || now - host.pinged_ns < count(each)) return;
    host.pinged_ns = now;
    host.is_pinged = true;
    host.link->send(Ping{++host.ping_id});
    host.link->turn();
}

// Whether it is in, once it is attached.
void Hosts::judge(size_t index) {
    Host& host = hosts_[index];
    if (host.failed || !host.attached) return;
    const uint64_t now = monotonic_ns();
    const bool answers = !host.is_pinged || now - host.pinged_ns < count(kPatience);
    const bool is_in = answers && host.clock.is_known() && host.link->unsent() < kMostUnsent;
    // A late answer is of a question that was held up: the next one tells.
    if (is_in && !host.is_in && host.answered_ns - host.pinged_ns > count(kPatience)) return;
    if (is_in == host.is_in) return;
    host.is_in = is_in;
    if (!is_in)
        host.out_since_ns = now;
    else if (host.out_since_ns > 0)
        host.out_ns += now - std::exchange(host.out_since_ns, 0);
    if (listener_.changed) listener_.changed(index);
}

bool Hosts::run_until(const std::function<bool()>& done, nanoseconds time, int wake_fd) {
    const uint64_t end = monotonic_ns() + count(time);
    for (;;) {
        for (size_t host = 0; host < hosts_.size(); ++host) {
            ping(hosts_[host]);
            turn(host);
            judge(host);
        }
        if (done()) return true;
        const uint64_t now = monotonic_ns();
        if (now >= end) return false;
        std::vector<pollfd> waits = {{wake_fd, POLLIN, 0}}; // a negative one is ignored
        for (const Host& host : hosts_)
            if (!host.failed) waits.push_back({host.link->fd(), POLLIN, 0});
        const auto left = std::chrono::ceil<milliseconds>(nanoseconds(end - now));
        ::poll(waits.data(), waits.size(),
               static_cast<int>(std::min<milliseconds>(left, kTick).count()));
        if (waits[0].revents != 0) return false;
    }
}

} // namespace speedbump::fleet
