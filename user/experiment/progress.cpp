// SPDX-License-Identifier: MIT
#include "experiment/progress.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include <filesystem>
#include <set>

#include "elf/marks.h"
#include "engine/iterator.h"
#include "engine/quiet_libbpf.h"
#include "experiment/progress_polls.h"
#include "experiment/progress_probes.h"
#include "experiment/progress_syscall.h"
#include "process/maps.h"
#include "targets/matcher.h"
#include "util/clock.h"
#include "util/text.h"

namespace speedbump::experiment {

namespace {

using Kind = ProgressSpec::Kind;

// Calls of native functions.
class Calls : public ProgressPoint {
  public:
    Calls(std::shared_ptr<Programs> programs, uint32_t index, bool timed, targets::TargetLine line)
        : programs_(programs),
          index_(index),
          timed_(timed),
          probes_(std::move(programs), index, timed, std::move(line)) {}

    Result<void> attach(const std::vector<pid_t>& pids) { return probes_.attach(pids); }

    Result<Reading> read() override {
        if (auto followed = probes_.follow(programs_->session().snapshot().processes); !followed)
            return std::move(followed).error();
        return Reading{programs_->sum(programs_->skeleton().maps.units, index_), monotonic_ns()};
    }

    std::vector<uint64_t> latencies() override {
        std::vector<uint64_t> calls;
        for (uint32_t bucket = 0; timed_ && bucket < SB_LATENCY_BUCKETS; ++bucket)
            calls.push_back(programs_->sum(programs_->skeleton().maps.latencies,
                                           index_ * SB_LATENCY_BUCKETS + bucket));
        return calls;
    }

    uint64_t lost() override { return timed_ ? programs_->lost_calls() : 0; }

  private:
    std::shared_ptr<Programs> programs_;
    uint32_t index_;
    bool timed_;
    ProgressProbes probes_; // after the programs, so that they go first
};

// USDT marks.
class Marks : public ProgressPoint {
  public:
    Marks(std::shared_ptr<Programs> programs, uint32_t index)
        : programs_(std::move(programs)), index_(index) {}

    Result<Reading> read() override {
        return Reading{programs_->sum(programs_->skeleton().maps.units, index_), monotonic_ns()};
    }

    Result<void> attach(const ProgressSpec& spec, const std::vector<pid_t>& pids) {
        std::set<std::pair<uint64_t, uint64_t>> seen;
        const targets::Pattern binary{spec.first, targets::has_glob(spec.first)};
        for (const pid_t pid : pids) {
            const auto maps = process::read_maps(pid);
            if (!maps) continue; // it has ended
            std::error_code ignored;
            const std::string exe =
                std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", ignored);
            for (const process::Mapping& mapping : *maps) {
                const targets::BinaryIdentity identity{mapping.path, "", mapping.path == exe};
                if (!mapping.executable || !targets::binary_matches(binary, identity) ||
                    !seen.insert({mapping.device, mapping.inode}).second)
                    continue;
                const auto file = process::open_mapped_file(pid, mapping);
                if (!file) return file.error();
                if (auto safe = check(spec, file->get(), mapping.path); !safe) return safe;
                LIBBPF_OPTS(bpf_usdt_opts, options, .usdt_cookie = index_);
                const std::string path = "/proc/self/fd/" + std::to_string(file->get());
                const engine::QuietLibbpf quiet;
                bpf_link* link = bpf_program__attach_usdt(programs_->skeleton().progs.sb_count_mark,
                                                          -1, path.c_str(), spec.second.c_str(),
                                                          spec.third.c_str(), &options);
                if (link || errno != ENOENT) (void)keep(link, "the mark " + spec.third);
            }
        }
        return found();
    }

  private:
    // That all places of the mark in a file may be probed.
    Result<void> check(const ProgressSpec& spec, int file, const std::string& path) const {
        const auto marks = elf::read_marks(file, path);
        if (!marks) return marks.error();
        const bool moves_to_nop5 = libbpf_major_version() > 1 || libbpf_minor_version() >= 7;
        for (const elf::Mark& mark : *marks) {
            if (mark.provider != spec.second || mark.name != spec.third) continue;
            const auto verdict =
                elf::judge_mark(mark, engine::site_options(programs_->features()), moves_to_nop5);
            if (!verdict.allowed)
                return make_error(ErrorKind::kUnsupported,
                                  "the mark " + spec.third + " in " + printable(path) +
                                      " can't be probed: its instruction " +
                                      elf::instruction_text(mark.code, mark.address) + " " +
                                      verdict.reason);
        }
        return {};
    }

    bool keep(bpf_link* link, const std::string& what) {
        if (!link) {
            error_ = errno_error("count " + what, errno);
            return false;
        }
        links_.emplace_back(link);
        return true;
    }
    Result<void> found() const {
        if (!links_.empty()) return {};
        if (error_) return *error_;
        return make_error(ErrorKind::kNotFound, "is nowhere in the processes");
    }

    std::shared_ptr<Programs> programs_;
    std::vector<engine::BpfLink> links_; // after the programs, so that they go first
    uint32_t index_;
    std::optional<Error> error_;
};

// Calls of Python functions: a line of the session's own targets, delay 0.
class PythonCalls : public ProgressPoint {
  public:
    PythonCalls(session::Session& session, size_t line) : session_(session) {
        const session::Snapshot snapshot = session.snapshot();
        for (uint32_t index = 0; index < snapshot.targets.size(); ++index)
            if (snapshot.targets[index].line_index == line) target_ = index;
    }

    Result<Reading> read() override {
        Reading reading{0, monotonic_ns()};
        const auto all = session_.counts();
        if (!all) return all.error();
        for (const engine::Counts& counts : *all)
            if (counts.target == target_) reading.units += counts.hits;
        return reading;
    }

  private:
    session::Session& session_;
    uint32_t target_ = 0;
};

Result<std::unique_ptr<ProgressPoint>> open_counter(const ProgressSpec& spec,
                                                    std::shared_ptr<Programs> programs,
                                                    uint32_t index,
                                                    const std::vector<pid_t>& pids) {
    if (spec.kind == Kind::kUsdt) {
        auto marks = std::make_unique<Marks>(std::move(programs), index);
        if (auto attached = marks->attach(spec, pids); !attached)
            return std::move(attached).error();
        return std::unique_ptr<ProgressPoint>(std::move(marks));
    }
    auto line = line_of(spec);
    if (!line) return std::move(line).error();
    auto calls = std::make_unique<Calls>(std::move(programs), index, spec.kind == Kind::kLatency,
                                         std::move(*line));
    if (auto attached = calls->attach(pids); !attached) return std::move(attached).error();
    return std::unique_ptr<ProgressPoint>(std::move(calls));
}

} // namespace

Result<std::vector<std::unique_ptr<ProgressPoint>>> open_progress(
    const std::vector<ProgressSpec>& specs, const std::vector<PythonProgress>& python,
    session::Session& session) {
    if (specs.size() > SB_MAX_PROGRESS)
        return make_error(ErrorKind::kUsage,
                          "more than " + std::to_string(SB_MAX_PROGRESS) + " progress points");
    std::vector<pid_t> pids;
    for (const session::ProcessInfo& process : session.snapshot().processes)
        if (process.alive) pids.push_back(process.pid);
    std::vector<std::unique_ptr<ProgressPoint>> points;
    std::shared_ptr<Programs> programs;
    for (uint32_t index = 0; index < specs.size(); ++index) {
        const ProgressSpec& spec = specs[index];
        Result<std::unique_ptr<ProgressPoint>> opened = std::unique_ptr<ProgressPoint>();
        switch (spec.kind) {
            case Kind::kPython:
                for (const PythonProgress& one : python)
                    if (one.progress == index)
                        opened = std::unique_ptr<ProgressPoint>(
                            std::make_unique<PythonCalls>(session, one.line));
                break;
            case Kind::kSyscall:
                opened = open_syscall(spec.first, session);
                break;
            case Kind::kCommand:
                opened = open_command(spec);
                break;
            case Kind::kFile:
                opened = open_file(spec);
                break;
            case Kind::kHttp:
                opened = open_http(spec);
                break;
            default:
                if (!programs) {
                    auto loaded = Programs::load(session);
                    if (!loaded) return std::move(loaded).error();
                    programs = std::move(*loaded);
                }
                opened = open_counter(spec, programs, index, pids);
        }
        if (!opened) return std::move(opened).error().with_context("progress point " + spec.text);
        points.push_back(std::move(*opened));
    }
    return points;
}

std::optional<Latency> latency_between(const std::vector<uint64_t>& before,
                                       const std::vector<uint64_t>& after) {
    uint64_t total = 0;
    std::vector<uint64_t> calls;
    for (size_t bucket = 0; bucket < after.size(); ++bucket) {
        calls.push_back(after[bucket] - before.at(bucket));
        total += calls.back();
    }
    if (total == 0) return std::nullopt;
    const auto percentile = [&](double share) {
        const double wanted = share * static_cast<double>(total);
        uint64_t sum = 0;
        for (uint32_t bucket = 0; bucket < calls.size(); ++bucket) {
            sum += calls[bucket];
            if (static_cast<double>(sum) >= wanted)
                return nanoseconds(static_cast<int64_t>(latency_of_bucket(bucket)));
        }
        return nanoseconds(0);
    };
    return Latency{percentile(0.5), percentile(0.9), percentile(0.99)};
}

} // namespace speedbump::experiment
