// SPDX-License-Identifier: MIT
#include "session/finder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <map>
#include <set>
#include <thread>
#include <utility>

#include "session/program_files.h"
#include "util/proc.h"

namespace speedbump::session {

using process::FileKey;

namespace {

constexpr auto kLongestFirstLook = std::chrono::milliseconds(500);
// How long all that are in an exec are waited for, and how often they are looked at meanwhile.
constexpr auto kLongestExec = std::chrono::milliseconds(100);
constexpr auto kExecLook = std::chrono::milliseconds(1);

} // namespace

// --- all at the beginning

Result<void> Finder::find_all() {
    has_begun_ = true;
    std::vector<std::pair<Member*, Error>> refused;
    bool has_looked = false;
    const auto exec_end = Clock::now() + kLongestExec;
    for (auto& [tgid, member] : members_.all()) {
        if (!member.alive) continue;
        auto found = find_mapped(member, exec_end);
        has_looked |= found.has_value();
        if (!found && found.error().kind == ErrorKind::kUnsupported)
            refused.emplace_back(&member, std::move(found).error());
        else if (!found)
            return found;
    }
    for (const auto& [member, error] : refused) {
        if (!has_looked && !hooks_)
            return Error(error).with_context(
                fmt::format("process {} ({})", member->pid, member->command));
        put_off(*member, error);
    }
    if (!options_.run_command.empty())
        if (auto found = find_program(members_.all().begin()->second); !found) return found;
    find_named_files();
    probes_.warn_of_many();
    probes_.probe_together();
    for (const auto& [tgid, member] : members_.all())
        if (auto probed = probes_.probe(member); !probed)
            return std::move(probed).error().with_context(
                fmt::format("process {} ({})", member.pid, member.command));
    // Children are covered from their first instruction once probes are wide. A program that has
    // not started yet can wait for that, however many processes there are to look at.
    const auto end = Clock::now() + kLongestFirstLook;
    do probes_.look_for_outsiders();
    while (probes_.is_looking() && (!options_.run_command.empty() || Clock::now() < end));
    return {};
}

// What maps no code is in an exec: until `exec_end` it is waited for. The event of the exec comes
// in any case, but that nothing matches would be said before.
Result<void> Finder::find_mapped(Member& member, Clock::time_point exec_end) {
    auto findings = resolver_.look_at_process(member.pid);
    while (findings && !findings->maps_code && Clock::now() < exec_end) {
        std::this_thread::sleep_for(kExecLook);
        findings = resolver_.look_at_process(member.pid);
    }
    if (findings) {
        take(member, std::move(*findings));
        return {};
    }
    Error error = std::move(findings).error();
    if (error.kind == ErrorKind::kNotFound) return {}; // its exit is on the way
    if (error.kind != ErrorKind::kPermission) return error;
    return std::move(error)
        .with_context(fmt::format("look at process {} ({})", member.pid, member.command))
        .with_hint(
            "CAP_SYS_PTRACE is needed to look into the processes of others: "
            "run as root (sudo)");
}

// Of the program that the member waits to exec.
Result<void> Finder::find_program(Member& member) {
    auto program = program_files(options_.run_command);
    if (!program) return std::move(program).error();
    const auto look = [&](const std::string& path, bool executable) {
        if (auto findings = resolver_.look_at_file(path, "", executable))
            take(member, std::move(*findings));
    };
    look(program->executable, true);
    for (const std::string& library : program->libraries) look(library, false);
    return {};
}

// Paths that nothing maps yet are probed now, so that their first call is slowed already.
void Finder::find_named_files() {
    std::set<std::string> roots_seen;
    for (auto& [tgid, member] : members_.all()) {
        std::string root = fmt::format("/proc/{}/root", member.pid);
        char target[4096];
        const ssize_t length = readlink(root.c_str(), target, sizeof(target));
        if (length < 0 ||
            !roots_seen.insert(std::string(target, static_cast<size_t>(length))).second)
            continue;
        process::Findings findings = resolver_.look_at_named_files(root);
        const std::set<FileKey> named = findings.files;
        take(member, std::move(findings));
        for (auto& [other_tgid, other] : members_.all())
            other.files.insert(named.begin(), named.end());
    }
}

// --- a member at a time

void Finder::take(Member& member, process::Findings&& findings) {
    member.files.insert(findings.files.begin(), findings.files.end());
    std::map<FileKey, std::vector<engine::Probe>> fresh;
    for (const process::NativeMatch& match : findings.matches)
        if (const auto probe = targets_.add(match, probes_.sets_of(match.file)))
            fresh[match.file].push_back(*probe);
    for (process::Skipped& skipped : findings.skipped) targets_.skip(std::move(skipped));
    for (const auto& [key, probes] : fresh)
        probes_.add(key, resolver_.descriptor(key), probes, member);
}

void Finder::look_at(Member& member) {
    if (!has_begun_) return; // the tree is still being built: all are looked at afterwards
    auto findings = resolver_.look_at_process(member.pid);
    if (!findings) {
        // Gone, or going: its exit tells.
        if (findings.error().kind != ErrorKind::kNotFound) put_off(member, findings.error());
        return;
    }
    take(member, std::move(*findings));
    if (auto probed = probes_.probe(member); !probed)
        put_off(member, probed.error());
    else
        unfinished_.done(member.tgid);
    // An interpreter shows once its library is mapped, some time after the exec.
    if (hooks_) hooks_->attach({{member.pid, member.roots}}, false);
}

void Finder::probe(const Member& member) {
    if (auto probed = probes_.probe(member); !probed) put_off(member, probed.error());
}

void Finder::put_off(const Member& member, const Error& error) {
    if (is_ending(member.pid)) return; // whatever was found wrong with it: its exit tells
    if (unfinished_.add(member.tgid, error.kind))
        warn_(fmt::format("process {} ({}): {}: it is not slowed everywhere; trying again",
                          member.pid, member.command, error.message));
}

void Finder::try_unfinished() {
    for (const uint32_t tgid : unfinished_.due()) {
        Member* member = members_.find(tgid);
        if (member && member->alive)
            look_at(*member);
        else
            unfinished_.forget(tgid);
    }
}

} // namespace speedbump::session
