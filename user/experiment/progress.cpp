// SPDX-License-Identifier: MIT
#include "experiment/progress.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <seccomp.h>

#include <filesystem>
#include <set>

#include "engine/iterator.h"
#include "engine/links.h"
#include "engine/quiet_libbpf.h"
#include "experiment/progress_polls.h"
#include "process/maps.h"
#include "process/resolver.h"
#include "progress.skel.h"
#include "targets/matcher.h"
#include "util/clock.h"

namespace speedbump::experiment {

namespace {

using Kind = ProgressSpec::Kind;

struct SkeletonDeleter {
    void operator()(progress_bpf* skeleton) const { progress_bpf__destroy(skeleton); }
};

// The counting programs, shared by all points of an experiment.
class Programs {
  public:
    static Result<std::shared_ptr<Programs>> load(const session::Session& session) {
        auto programs = std::make_shared<Programs>();
        programs->skeleton_.reset(progress_bpf__open());
        if (!programs->skeleton_) return errno_error("open the counting programs", errno);
        progress_bpf* skeleton = programs->skeleton_.get();
        int error = bpf_map__reuse_fd(skeleton->maps.tree, session.tree_map());
        if (error == 0) error = progress_bpf__load(skeleton);
        if (error != 0) return errno_error("load the counting programs", -error);
        return programs;
    }

    progress_bpf& skeleton() { return *skeleton_; }

    uint64_t sum(bpf_map* map, uint32_t key) const {
        std::vector<uint64_t> values(static_cast<size_t>(libbpf_num_possible_cpus()));
        if (bpf_map_lookup_elem(bpf_map__fd(map), &key, values.data()) != 0) return 0;
        uint64_t total = 0;
        for (const uint64_t value : values) total += value;
        return total;
    }

  private:
    std::unique_ptr<progress_bpf, SkeletonDeleter> skeleton_;
};

// Calls, marks and system calls, counted in the kernel.
class Counter : public ProgressPoint {
  public:
    Counter(std::shared_ptr<Programs> programs, uint32_t index, bool timed)
        : programs_(std::move(programs)), index_(index), timed_(timed) {}

    Result<Reading> read() override {
        progress_bpf& skeleton = programs_->skeleton();
        return Reading{programs_->sum(skeleton.maps.units, index_), monotonic_ns()};
    }

    std::vector<uint64_t> latencies() override {
        std::vector<uint64_t> calls;
        for (uint32_t bucket = 0; timed_ && bucket < SB_LATENCY_BUCKETS; ++bucket)
            calls.push_back(programs_->sum(programs_->skeleton().maps.latencies,
                                           index_ * SB_LATENCY_BUCKETS + bucket));
        return calls;
    }

    // Probes the functions of the line in every file that the processes map.
    Result<void> attach_calls(const targets::TargetLine& line, const std::vector<pid_t>& pids) {
        targets::TargetsFile file{"--progress", {line}};
        process::Resolver resolver(file, {});
        progress_bpf& skeleton = programs_->skeleton();
        for (const pid_t pid : pids) {
            auto findings = resolver.look_at_process(pid);
            if (!findings) continue; // it has ended
            for (const process::NativeMatch& match : findings->matches) {
                const std::string path =
                    "/proc/self/fd/" + std::to_string(resolver.descriptor(match.file));
                const auto attach = [&](bpf_program* program, uint64_t offset, bool at_return) {
                    const int error_number = calls_.attach_perf(bpf_program__fd(program), path,
                                                                {offset, index_, at_return}, -1);
                    if (error_number != 0)
                        error_ = errno_error("count " + match.name, error_number);
                    return error_number == 0;
                };
                const bool attached =
                    timed_ ? attach(skeleton.progs.sb_call_begins, match.entry_offset, false) &&
                                 attach(skeleton.progs.sb_call_ends, match.entry_offset, true)
                           : attach(skeleton.progs.sb_count_call, match.site.file_offset, false);
                if (!attached) return *error_;
            }
        }
        return found();
    }

    Result<void> attach_mark(const ProgressSpec& spec, const std::vector<pid_t>& pids) {
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

    Result<void> attach_syscall(const std::string& name) {
        const int number = seccomp_syscall_resolve_name(name.c_str());
        if (number < 0) return make_error(ErrorKind::kUsage, "there is no system call " + name);
        const auto key = static_cast<uint32_t>(number);
        if (bpf_map_update_elem(bpf_map__fd(programs_->skeleton().maps.syscalls), &key, &index_,
                                BPF_NOEXIST) != 0)
            return errno_error("count the system call " + name, errno);
        (void)keep(bpf_program__attach(programs_->skeleton().progs.sb_count_syscall),
                   "the system call " + name);
        return found();
    }

  private:
    bool keep(bpf_link* link, const std::string& what) {
        if (!link) {
            error_ = errno_error("count " + what, errno);
            return false;
        }
        links_.emplace_back(link);
        return true;
    }
    Result<void> found() const {
        if (!links_.empty() || !calls_.empty()) return {};
        if (error_) return *error_;
        return make_error(ErrorKind::kNotFound, "is nowhere in the processes");
    }

    std::shared_ptr<Programs> programs_;
    std::vector<engine::BpfLink> links_; // after the programs, so that they go first
    engine::Links calls_;
    uint32_t index_;
    bool timed_;
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
        for (const engine::Counts& counts : session_.counts())
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
    auto counter =
        std::make_unique<Counter>(std::move(programs), index, spec.kind == Kind::kLatency);
    Result<void> attached;
    if (spec.kind == Kind::kUsdt) {
        attached = counter->attach_mark(spec, pids);
    } else if (spec.kind == Kind::kSyscall) {
        attached = counter->attach_syscall(spec.first);
    } else {
        const auto line = line_of(spec);
        if (!line) return line.error();
        attached = counter->attach_calls(*line, pids);
    }
    if (!attached) return std::move(attached).error();
    return std::unique_ptr<ProgressPoint>(std::move(counter));
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
