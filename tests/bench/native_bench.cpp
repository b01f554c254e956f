// SPDX-License-Identifier: MIT
// Prints the figures of the native engine, each with its rival or its plain counterpart measured in
// the same run, interleaved; medians with half the interquartile range.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "experiment/progress.h"
#include "session/session.h"
#include "targets/parser.h"
#include "util/clock.h"
#include "util/fd.h"

using namespace speedbump;
using namespace std::chrono_literals;

namespace {

struct Sample {
    std::vector<double> values;
    double quartile(size_t number) const {
        std::vector<double> sorted = values;
        std::sort(sorted.begin(), sorted.end());
        return sorted[sorted.size() * number / 4];
    }
    double low() const { return quartile(1); }
    double median() const { return quartile(2); }
    double spread() const { return (quartile(3) - quartile(1)) / 2; }
    std::string text(double unit = 1) const {
        return fmt::format("{:.1f} +- {:.1f}", median() / unit, spread() / unit);
    }
};

[[noreturn]] void fail(const std::string& what) {
    fmt::print(stderr, "bench: {}\n", what);
    std::exit(1);
}

// A bench_target process that is asked questions over pipes.
class Target {
  public:
    // PATH, run by `loader` (a dynamic linker and its options) where there is one.
    explicit Target(const std::string& path, std::vector<std::string> loader = {}) {
        int to[2], from[2];
        if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) fail("pipe");
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, to[0], 0);
        posix_spawn_file_actions_adddup2(&actions, from[1], 1);
        loader.push_back(path);
        std::vector<char*> arguments;
        for (std::string& one : loader) arguments.push_back(one.data());
        arguments.push_back(nullptr);
        if (posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ) != 0)
            fail("cannot start " + path);
        posix_spawn_file_actions_destroy(&actions);
        close(to[0]);
        close(from[1]);
        to_ = fdopen(to[1], "w");
        from_ = fdopen(from[0], "r");
    }
    Target(const Target&) = delete;
    Target& operator=(const Target&) = delete;
    ~Target() {
        fclose(to_);
        fclose(from_);
        waitpid(pid_, nullptr, 0);
    }
    double ask(const std::string& question) {
        fmt::print(to_, "{}\n", question);
        fflush(to_);
        double answer = -1;
        if (fscanf(from_, "%lf", &answer) != 1) fail("the target died at: " + question);
        return answer;
    }
    double calls(const std::string& name, long count) {
        return ask(fmt::format("calls {} {}", name, count));
    }
    pid_t pid() const { return pid_; }

  private:
    pid_t pid_ = -1;
    FILE* to_ = nullptr;
    FILE* from_ = nullptr;
};

std::unique_ptr<session::Session> attach(pid_t pid, const std::string& text, uint32_t columns = 0) {
    auto parsed = targets::parse_targets(text, "bench");
    if (!parsed.errors.empty()) fail(targets::format_diagnostics("bench", parsed.errors));
    session::SessionOptions options;
    options.pids = {pid};
    options.columns = columns;
    auto attached = session::Session::attach(options, parsed.file, [](const std::string&) {});
    if (!attached) fail(attached.error().message);
    (*attached)->arm();
    return std::move(*attached);
}

// Lets the session settle: the change to wide probes, events of the start.
void settle(session::Session& session) {
    if (auto ran = session.run_for(300ms); !ran) fail(ran.error().message);
}

// All targets are of one column, which has no delay in the one slice that there is.
void begin_schedule(session::Session& session) {
    for (uint32_t target = 0; target < session.snapshot().targets.size(); ++target)
        if (!session.set_column(target, 0)) fail("no column");
    session.schedule()->clear();
    session.schedule()->begin(monotonic_ns() + 1'000'000, 1h);
    session.schedule()->add(std::vector<session::nanoseconds>{0ns});
}

// bpftrace with one counting probe on a process, until destruction.
class Bpftrace {
  public:
    Bpftrace(const std::string& program, pid_t target) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0) fail("pipe");
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
        posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
        const std::string number = std::to_string(target);
        const char* arguments[] = {"bpftrace",      "-p",   number.c_str(), "-e",
                                   program.c_str(), nullptr};
        if (posix_spawnp(&pid_, "bpftrace", &actions, nullptr, const_cast<char**>(arguments),
                         environ) != 0)
            fail("bpftrace is not installed");
        posix_spawn_file_actions_destroy(&actions);
        close(ends[1]);
        const Fd reader(ends[0]);
        char text[256];
        if (read(reader.get(), text, sizeof(text)) <= 0) fail("bpftrace attached nothing");
        std::this_thread::sleep_for(300ms);
    }
    Bpftrace(const Bpftrace&) = delete;
    Bpftrace& operator=(const Bpftrace&) = delete;
    ~Bpftrace() {
        kill(pid_, SIGINT);
        waitpid(pid_, nullptr, 0);
    }

  private:
    pid_t pid_ = -1;
};

void cost_per_hit(const std::string& path) {
    struct Row {
        std::string name;
        Sample plain, ours, scheduled, theirs;
    };
    std::vector<Row> rows{{"nop5", {}, {}, {}, {}},
                          {"push", {}, {}, {}, {}},
                          {"endbr64", {}, {}, {}, {}},
                          {"mov", {}, {}, {}, {}},
                          {"leaf", {}, {}, {}, {}}};
    Target target(path);
    std::string ours, theirs;
    for (const Row& row : rows) {
        ours += "+exe:bench_" + row.name + " delay=0ns\n";
        theirs += "uprobe:" + path + ":bench_" + row.name + " { @" + row.name + " = count(); }\n";
    }
    const auto measure = [&](Sample Row::*side, long calls) {
        for (Row& row : rows) {
            target.calls(row.name, calls / 20);
            (row.*side).values.push_back(target.calls(row.name, calls));
        }
    };
    // A host may change its speed from second to second: who comes first changes, and the ratio is
    // that of the lower quartiles.
    const auto measure_ours = [&] {
        auto session = attach(target.pid(), ours);
        settle(*session);
        measure(&Row::ours, 10000);
    };
    const auto measure_scheduled = [&] {
        auto session = attach(target.pid(), ours, 1);
        begin_schedule(*session);
        settle(*session);
        measure(&Row::scheduled, 10000);
    };
    const auto measure_theirs = [&] {
        const Bpftrace other(theirs, target.pid());
        measure(&Row::theirs, 10000);
    };
    for (int round = 0; round < 20; ++round) {
        measure(&Row::plain, 200000);
        if (round % 2 == 0) measure_ours();
        measure_scheduled();
        measure_theirs();
        if (round % 2 == 1) measure_ours();
    }
    fmt::print("\nCost of a call with a probe of delay 0, ns\n");
    fmt::print("{:10} {:>16} {:>20} {:>20} {:>22} {:>8}\n", "function", "plain", "speedbump",
               "with a schedule", "bpftrace count()", "ratio");
    for (const Row& row : rows)
        fmt::print("{:10} {:>16} {:>20} {:>20} {:>22} {:>8.2f}\n", row.name, row.plain.text(),
                   row.ours.text(), row.scheduled.text(), row.theirs.text(),
                   row.ours.low() / row.theirs.low());
    fmt::print(
        "single-stepped entry (mov) against an emulated one (push): {:.2f} times here, "
        "{:.2f} times with bpftrace\n",
        rows[3].ours.low() / rows[1].ours.low(), rows[3].theirs.low() / rows[1].theirs.low());
}

void net_error(const std::string& path) {
    Target target(path);
    fmt::print("\nNet delay per call, ns\n{:10} {:>10} {:>24} {:>10} {:>8}\n", "function", "asked",
               "added", "error", "%");
    for (const std::string name : {"nop5", "push", "endbr64", "mov", "leaf"}) {
        for (const long asked : {1000L, 10000L, 100000L, 1000000L}) {
            Sample added;
            const double plain = target.calls(name, 1'000'000);
            auto session =
                attach(target.pid(), fmt::format("+exe:bench_{} delay={}ns\n", name, asked));
            const auto snapshot = session->snapshot();
            if (snapshot.targets.empty()) fail("no target");
            if (snapshot.targets[0].below_floor) {
                fmt::print("{:10} {:>10} {:>24}\n", name, asked, "below the floor");
                continue;
            }
            settle(*session);
            const long calls = std::clamp(100'000'000L / asked, 50L, 20000L);
            for (int round = 0; round < 15; ++round) {
                session->pause();
                session->resume();
                added.values.push_back(target.calls(name, calls));
            }
            const double error = added.median() - plain - static_cast<double>(asked);
            fmt::print("{:10} {:>10} {:>24} {:>+10.0f} {:>8.2f}\n", name, asked, added.text(),
                       error, 100 * error / static_cast<double>(asked));
        }
    }
}

void outsider(const std::string& path) {
    Target inside(path), outside(path);
    Sample plain, beside;
    for (int round = 0; round < 9; ++round) {
        plain.values.push_back(outside.calls("push", 2'000'000));
        auto session = attach(inside.pid(), "+exe:bench_push delay=10us\n");
        settle(*session);
        beside.values.push_back(outside.calls("push", 2'000'000));
    }
    fmt::print(
        "\nA process outside the tree, ns a call: {} without, {} with a session elsewhere "
        "({:+.2f})\n",
        plain.text(), beside.text(), beside.median() - plain.median());
}

// What progress points that are system calls cost a process outside the tree.
void system_calls(const std::string& path) {
    struct Row {
        std::string what, progress, without;
        Sample taken{};
    };
    std::vector<Row> rows{{"none", "", ""},
                          {"another call", "syscall:getuid", ""},
                          {"this call", "syscall:getppid", ""},
                          {"at every call", "syscall:getuid", "fentry"}};
    Target inside(path), outside(path);
    for (int round = 0; round < 15; ++round)
        for (Row& row : rows) {
            ::setenv("SPEEDBUMP_WITHOUT", row.without.c_str(), 1);
            auto session = attach(inside.pid(), "+exe:bench_push delay=0ns\n");
            ::unsetenv("SPEEDBUMP_WITHOUT");
            std::vector<experiment::ProgressSpec> specs;
            if (!row.progress.empty()) {
                auto spec = experiment::parse_progress(row.progress);
                if (!spec) fail(spec.error().message);
                specs.push_back(std::move(*spec));
            }
            const auto points =
                experiment::open_progress(specs, {}, *session, [](const std::string&) {});
            if (!points) fail(points.error().message);
            outside.ask("getppids 200000");
            row.taken.values.push_back(outside.ask("getppids 2000000"));
        }
    fmt::print("\nA system call (getppid) outside the tree, ns, by what is counted\n");
    for (const Row& row : rows)
        fmt::print("{:>16} {:>20} {:>+8.1f}\n", row.what, row.taken.text(),
                   row.taken.low() - rows[0].taken.low());
}

struct ManyFunctions {
    std::string label;
    std::string targets;
    std::string library{};             // that the target maps for it
    std::vector<std::string> loader{}; // of the target, where that library needs another
};

// The root that scripts/torch-root.sh makes, with PyTorch and what it needs; the target runs on its
// libraries.
std::vector<std::string> loader_of_torch(const std::filesystem::path& libraries) {
    std::string folders;
    for (const char* folder : {"", "blas", "lapack", ".."})
        folders += (folders.empty() ? "" : ":") + (libraries / folder).string();
    return {libraries / "ld-linux-x86-64.so.2", "--library-path", folders};
}

std::filesystem::path torch_libraries() {
    const auto variable = [](const char* name) -> std::filesystem::path {
        const char* value = std::getenv(name);
        return value != nullptr ? value : "";
    };
    auto cache = variable("XDG_CACHE_HOME");
    if (cache.empty()) cache = variable("HOME") / ".cache";
    return cache / "speedbump/torch-root/usr/lib/x86_64-linux-gnu";
}

void attach_one(const std::string& path, const ManyFunctions& many) {
    Sample attached, detached, paused;
    size_t targets = 0, skipped = 0;
    for (int round = 0; round < 5; ++round) {
        if (!many.loader.empty() && !std::filesystem::exists(many.loader[0])) {
            fmt::print("{:>12}: {} is not here\n", many.label, many.loader[0]);
            return;
        }
        Target target(path, many.loader);
        if (!many.library.empty() && target.ask("load " + many.library) != 1) {
            fmt::print("{:>12}: {} is not here\n", many.label, many.library);
            return;
        }
        target.ask("gap 1");
        std::this_thread::sleep_for(50ms);
        const auto begin = Clock::now();
        auto session = attach(target.pid(), many.targets);
        attached.values.push_back(
            std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
        settle(*session);
        const auto snapshot = session->snapshot();
        targets = snapshot.targets.size();
        skipped = snapshot.skipped.size();
        const auto end = Clock::now();
        session.reset();
        detached.values.push_back(
            std::chrono::duration<double, std::milli>(Clock::now() - end).count());
        paused.values.push_back(target.ask("longest") / 1e6);
    }
    fmt::print("{:>12} {:>10} {:>8} {:>20} {:>20} {:>20}\n", many.label, targets, skipped,
               attached.text(), detached.text(), paused.text());
}

// Its own functions, and whole libraries of the distribution.
void attach_many(const std::string& path) {
    fmt::print(
        "\nAttach and detach, ms (from the command to armed; from the end to detached), and "
        "the longest time the target stood still\n");
    fmt::print("{:>12} {:>10} {:>8} {:>20} {:>20} {:>20}\n", "what", "functions", "skipped",
               "attach", "detach", "pause");
    const std::filesystem::path torch = torch_libraries();
    const std::string torch_cpu = torch / "libtorch_cpu.so.2.6";
    for (const ManyFunctions& many : {
             ManyFunctions{"one", "+exe:many_5000 delay=0ns\n"},
             ManyFunctions{"some", "+exe:many_50[0-9][0-9] delay=0ns\n"},
             ManyFunctions{"many", "+exe:many_* delay=0ns\n"},
             ManyFunctions{"libc", "+libc.so.6:* delay=0ns\n"},
             ManyFunctions{"libsqlite3", "+libsqlite3.so.0:* delay=0ns\n", "libsqlite3.so.0"},
             ManyFunctions{"libcrypto", "+libcrypto.so.3:* delay=0ns\n", "libcrypto.so.3"},
             ManyFunctions{"four",
                           "+libcrypto.so.3:* delay=0ns\n+libc.so.6:* delay=0ns\n"
                           "+libm.so.6:* delay=0ns\n+libstdc++.so.6:* delay=0ns\n",
                           "libcrypto.so.3"},
             ManyFunctions{"libtorch_ops",
                           "+libtorch_cpu.so.2.6:at::_ops::* delay=0ns\n"
                           "+libtorch_cpu.so.2.6:at::native::* delay=0ns\n",
                           torch_cpu, loader_of_torch(torch)},
             ManyFunctions{"libtorch_cpu", "+libtorch_cpu.so.2.6:* delay=0ns\n", torch_cpu,
                           loader_of_torch(torch)},
         })
        attach_one(path, many);
}

// One function of many processes: each of them is probed by itself at first.
void attach_family(const std::string& path) {
    constexpr long kChildren = 49;
    Sample attached, detached;
    for (int round = 0; round < 9; ++round) {
        Target target(path);
        target.ask(fmt::format("family {}", kChildren));
        std::this_thread::sleep_for(50ms);
        const auto begin = Clock::now();
        auto session = attach(target.pid(), "+exe:many_5000 delay=0ns\n");
        attached.values.push_back(
            std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
        settle(*session);
        const auto end = Clock::now();
        session.reset();
        detached.values.push_back(
            std::chrono::duration<double, std::milli>(Clock::now() - end).count());
    }
    fmt::print("\n{} processes, one function: attach {} ms, detach {} ms\n", kChildren + 1,
               attached.text(), detached.text());
}

void tree_cost(const std::string& path) {
    constexpr long kForks = 10000;
    Target target(path);
    const std::string forks = fmt::format("forks {}", kForks);
    const auto inside = [&](const std::string& text) {
        auto session = attach(target.pid(), text);
        settle(*session);
        std::atomic<bool> stop{false};
        std::thread loop([&] {
            while (!stop)
                if (!session->run_for(50ms)) return;
        });
        const double result = target.ask(forks);
        stop = true;
        loop.join();
        return result;
    };
    Sample plain, tree, probed;
    for (int round = 0; round < 5; ++round) {
        plain.values.push_back(target.ask(forks));
        // A file that nothing maps: the tree is followed, no memory of the target is changed.
        tree.values.push_back(inside("+/usr/bin/env:0x3000 delay=1us\n"));
        probed.values.push_back(inside("+exe:bench_push delay=1us\n"));
    }
    fmt::print(
        "\nfork + exit + wait, us, {} of them: {} without, {} inside a tree ({:+.1f} %), {} "
        "with a breakpoint to inherit as well ({:+.1f} %)\n",
        kForks, plain.text(1000), tree.text(1000), 100 * (tree.median() / plain.median() - 1),
        probed.text(1000), 100 * (probed.median() / plain.median() - 1));
}

// From its birth until a process is slowed in a file that processes outside the tree map as well.
void newborn(const std::string& path) {
    struct Row {
        std::string what, question;
        long storm;
        Sample taken{};
        int missed = 0;
    };
    std::vector<Row> rows{
        {"forked", "born", 0}, {"executed", "begun", 0}, {"in a storm", "born", 300}};
    Target inside(path), outside(path);
    auto session = attach(inside.pid(), "+exe:bench_push delay=1ms\n");
    settle(*session);
    std::atomic<bool> stop{false};
    std::thread loop([&] {
        while (!stop)
            if (!session->run_for(50ms)) return;
    });
    for (int round = 0; round < 50; ++round)
        for (Row& row : rows) {
            if (row.storm > 0) inside.ask(fmt::format("forks {}", row.storm));
            const double took = inside.ask(row.question);
            if (took < 0)
                ++row.missed;
            else
                row.taken.values.push_back(took);
            std::this_thread::sleep_for(row.storm > 0 ? 1s : 50ms); // until it looks eagerly again
        }
    stop = true;
    loop.join();
    fmt::print("\nFrom the birth of a process to its first slowed call, ms\n");
    fmt::print("{:>12} {:>20} {:>10} {:>10} {:>8}\n", "", "median", "95 %", "longest", "never");
    for (const Row& row : rows) {
        std::vector<double> sorted = row.taken.values;
        std::sort(sorted.begin(), sorted.end());
        if (sorted.empty()) fail("no new process was slowed");
        fmt::print("{:>12} {:>20} {:>10.1f} {:>10.1f} {:>8}\n", row.what, row.taken.text(1e6),
                   sorted[sorted.size() * 95 / 100] / 1e6, sorted.back() / 1e6, row.missed);
    }
}

} // namespace

int main(int count, char** arguments) {
    if (count < 2) {
        fmt::print(stderr,
                   "usage: native_bench BENCH_TARGET "
                   "[cost|error|outsider|syscall|attach|tree|newborn|family]...\n");
        return 2;
    }
    const std::string path = arguments[1];
    const std::vector<std::pair<std::string, std::function<void(const std::string&)>>> parts{
        {"cost", cost_per_hit},    {"error", net_error},     {"outsider", outsider},
        {"syscall", system_calls}, {"attach", attach_many},  {"tree", tree_cost},
        {"newborn", newborn},      {"family", attach_family}};
    for (const auto& [name, part] : parts)
        if (count == 2 || std::find(arguments + 2, arguments + count, name) != arguments + count)
            part(path);
    return 0;
}
