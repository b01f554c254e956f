// SPDX-License-Identifier: MIT
#include "fleet/gather.h"

#include <algorithm>
#include <charconv>
#include <functional>

#include "fleet/words.h"
#include "util/clock.h"

namespace speedbump::fleet {

namespace {

using std::chrono::seconds;

constexpr auto kForHello = seconds(30);
constexpr auto kForAttach = seconds(120); // interpreters may be hooked
constexpr auto kForClocks = seconds(10);

// "node2 ('ssh node2')", or the launch alone.
std::string full_name(const Host& host) {
    return host.name == host.launch ? "'" + host.launch + "'"
                                    : host.name + " ('" + host.launch + "')";
}

// The first host's error, or that it takes too long.
Result<void> wait_for_all(Hosts& hosts, const experiment::Hooks& hooks, seconds time,
                          const std::string& what,
                          const std::function<bool(const Host&)>& is_done) {
    const Clock::time_point end = Clock::now() + time;
    const auto has_failed = [](const Host& host) { return host.failed.has_value(); };
    const auto done = [&] {
        return std::any_of(hosts.all().begin(), hosts.all().end(), has_failed) ||
               std::all_of(hosts.all().begin(), hosts.all().end(), is_done);
    };
    while (!hosts.run_until(done, end - Clock::now(), hooks.wake_fd)) {
        if (hooks.stop_asked())
            return make_error(ErrorKind::kIo, "interrupted before anything was measured");
        if (Clock::now() < end) continue;
        for (const Host& host : hosts.all())
            if (!is_done(host))
                return make_error(ErrorKind::kTimeout, full_name(host) + ": " + what + " within " +
                                                           std::to_string(time.count()) + " s")
                    .with_hint("LAUNCH must not ask for a password: it has no terminal");
    }
    for (const Host& host : hosts.all())
        if (host.failed) return Error(*host.failed).with_context(full_name(host));
    return {};
}

Result<void> check_versions(Hosts& hosts, const std::string& version) {
    for (const Host& host : hosts.all())
        if (host.hello->protocol != kProtocol || host.hello->version != version)
            return make_error(ErrorKind::kUnsupported, full_name(host) + ": speedbump there is " +
                                                           host.hello->version + ", here it is " +
                                                           version + ": they must be the same")
                .with_hint("install the same version there, or name it with --at-binary");
    return {};
}

void name_hosts(Hosts& hosts) {
    const auto& all = hosts.all();
    const auto own = [](const Host& host) {
        return host.listed.empty() ? host.hello->host : host.listed;
    };
    for (Host& host : hosts.all()) {
        const auto same = [&](const Host& other) { return own(other) == own(host); };
        const auto same_launch = [&](const Host& other) { return other.launch == host.launch; };
        host.name = host.launch;
        if (!own(host).empty() && std::count_if(all.begin(), all.end(), same) == 1)
            host.name = own(host);
        else if (std::count_if(all.begin(), all.end(), same_launch) > 1)
            host.name = host.launch + " (" + std::to_string(&host - all.data() + 1) + ")";
    }
}

Attach attach_of(const FleetRequest& request, size_t host, std::vector<size_t>& points) {
    const experiment::Request& experiment = request.experiment;
    Attach attach;
    for (const targets::TargetLine& line : experiment.file.lines)
        attach.lines.push_back(line.original);
    attach.positive = experiment.positive_lines;
    for (size_t point = 0; point < experiment.progress.size(); ++point) {
        const Combination& one = request.progress[point];
        if (one.kind == Combination::Kind::kAt && one.host != host) continue;
        attach.progress.push_back(experiment.progress[point].text);
        points.push_back(point);
    }
    attach.whole_python = experiment.whole.contains(targets::Runtime::kPython);
    attach.whole_native = experiment.whole.contains(targets::Runtime::kNative);
    attach.pids = experiment.session.pids;
    attach.cgroup = experiment.session.cgroup;
    attach.exe = request.exe;
    attach.follow_children = experiment.session.follow_children;
    attach.max_slowdown = experiment.max_slowdown;
    attach.max_cpu = experiment.max_cpu;
    return attach;
}

Result<void> attach_all(const FleetRequest& request, Hosts& hosts, const experiment::Hooks& hooks) {
    for (size_t host = 0; host < hosts.size(); ++host) {
        Host& one = hosts.all()[host];
        const Order attach = attach_of(request, host, one.points);
        one.shape.points = one.points.size();
        one.link->send(attach);
    }
    if (auto attached = wait_for_all(hosts, hooks, kForAttach, "it has not attached",
                                     [](const Host& host) { return host.attached.has_value(); });
        !attached)
        return attached;
    for (const Host& host : hosts.all())
        if (host.attached->targets.size() != hosts.all()[0].attached->targets.size())
            return make_error(ErrorKind::kInvalid,
                              full_name(host) + ": it has other targets than the first host");
    return wait_for_all(hosts, hooks, kForClocks, "its clock could not be read",
                        [](const Host& host) { return host.is_in; });
}

} // namespace

Result<Combination> take_combination(std::string& progress, size_t hosts) {
    Combination combination;
    const auto takes = [&progress](const std::string& prefix) {
        if (!progress.starts_with(prefix)) return false;
        progress.erase(0, prefix.size());
        return true;
    };
    if (takes("sum:")) return combination;
    if (takes("min:")) {
        combination.kind = Combination::Kind::kMin;
    } else if (takes("at:")) {
        combination.kind = Combination::Kind::kAt;
        size_t number = 0;
        const auto [end, error] =
            std::from_chars(progress.data(), progress.data() + progress.size(), number);
        if (error != std::errc() || *end != ':' || number < 1 || number > hosts)
            return make_error(ErrorKind::kUsage, "--progress: at:N: is the Nth --at, from 1 to " +
                                                     std::to_string(hosts) +
                                                     ", as in at:1:native:exe:handle");
        combination.host = number - 1;
        progress.erase(0, static_cast<size_t>(end + 1 - progress.data()));
    }
    return combination;
}

std::string to_string(const Combination& combination) {
    switch (combination.kind) {
        case Combination::Kind::kSum:
            return "sum";
        case Combination::Kind::kMin:
            return "min";
        case Combination::Kind::kAt:
            return "at:" + std::to_string(combination.host + 1);
    }
    return "sum";
}

Result<std::unique_ptr<Hosts>> gather(const FleetRequest& request, const experiment::Hooks& hooks) {
    if (request.experiment.file.lines.size() > kMaxTargets)
        return make_error(ErrorKind::kUsage, "--at: a targets file has up to " +
                                                 std::to_string(kMaxTargets) + " lines with it");
    std::vector<std::vector<std::string>> commands;
    for (const Launch& launch : request.launches) {
        auto words = split_words(launch.text);
        if (!words) return std::move(words).error().with_context("--at '" + launch.text + "'");
        words->insert(words->end(), {request.binary, "agent"});
        commands.push_back(std::move(*words));
    }
    hooks.say("starting agents");
    auto hosts = Hosts::start(request.launches, commands);
    if (!hosts) return hosts;
    Listener listener;
    listener.warn = hooks.warn;
    (*hosts)->listen(std::move(listener));
    if (auto met = wait_for_all(**hosts, hooks, kForHello, "no agent has answered",
                                [](const Host& host) { return host.hello.has_value(); });
        !met)
        return std::move(met).error();
    if (auto same = check_versions(**hosts, request.version); !same) return std::move(same).error();
    name_hosts(**hosts);
    hooks.say("attaching");
    if (auto attached = attach_all(request, **hosts, hooks); !attached)
        return std::move(attached).error();
    return hosts;
}

size_t functions_of(Hosts& hosts) {
    return hosts.all()[0].attached->targets.size();
}

std::vector<experiment::Target> targets_of(const FleetRequest& request, Hosts& hosts) {
    std::vector<experiment::Target> targets;
    for (size_t function = 0; function < functions_of(hosts); ++function)
        for (size_t host = 0; host < hosts.size(); ++host) {
            const Host& one = hosts.all()[host];
            const Attached::Target& told = one.attached->targets[function];
            if (request.each || host == 0) {
                experiment::Target& target = targets.emplace_back();
                target.name = hosts.all()[0].attached->targets[function].name;
                if (request.each) target.name += " @ " + one.name;
                if (request.each) target.host = host;
                if (told.is_positive) target.role = experiment::Role::kPositive;
            }
            experiment::Target& target = targets.back();
            if (told.function_count > target.function_count) {
                target.functions = told.functions;
                target.function_count = told.function_count;
            }
            for (const std::string& note : told.notes)
                target.notes.push_back(one.name + ": " + note);
        }
    return targets;
}

} // namespace speedbump::fleet
