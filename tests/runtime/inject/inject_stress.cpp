// SPDX-License-Identifier: MIT
// Attaches to and detaches from one target again and again, and fails when the target dies, hangs,
// or keeps anything:
//   inject_stress [--cycles N] [--kills N] [--core FILE] TARGETS.PY KIND PYTHON...
// --kills: also SIGKILL the attaching process N times at random moments. Without --core the cores
// of the build tree are used. One line per interpreter: counts, median and 95th percentile.
#include <dirent.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "engine/python/cores.h"
#include "engine/python/python_engine.h"
#include "target_process.h"

namespace {

using namespace std::chrono_literals;
using speedbump::engine::PythonEngine;
using speedbump::engine::PythonSession;
using speedbump::test::TargetProcess;

struct Options {
    int cycles = 20;
    int kills = 0;
    std::string core;
    std::string program;
    std::string kind;
    std::vector<std::string> pythons;
};

size_t count_entries(const std::string& path) {
    size_t count = 0;
    if (DIR* directory = opendir(path.c_str())) {
        while (const dirent* entry = readdir(directory)) count += entry->d_name[0] != '.';
        closedir(directory);
    }
    return count;
}

size_t count_lines(const std::string& path) {
    FILE* file = fopen(path.c_str(), "re");
    size_t lines = 0;
    for (int c = file ? fgetc(file) : EOF; c != EOF; c = fgetc(file)) lines += c == '\n';
    if (file) fclose(file);
    return lines;
}

// What a process owns that an attach could leave behind.
struct Belongings {
    size_t descriptors = 0;
    size_t threads = 0;
    size_t mappings = 0;
};

Belongings look_at(pid_t pid) {
    std::string base = fmt::format("/proc/{}/", pid);
    return {count_entries(base + "fd"), count_entries(base + "task"), count_lines(base + "maps")};
}

double at(std::vector<double> values, double share) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    return values[std::min(values.size() - 1,
                           static_cast<size_t>(share * static_cast<double>(values.size())))];
}

std::unique_ptr<PythonEngine> make_engine(const speedbump::test::TableFiles& table) {
    PythonSession session;
    session.identity = "stress";
    session.targets = "nowhere:nothing\n";
    session.lines = {0};
    session.settings = table.settings.get();
    session.counters = table.counters.get();
    auto engine = PythonEngine::create(std::move(session), speedbump::engine::core_directories());
    return engine ? std::move(*engine) : nullptr;
}

bool complain(const Options& options, const std::string& python, const std::string& text) {
    fmt::print(stderr, "{} {}: {}\n", options.kind, python, text);
    return false;
}

// An attaching process that is killed somewhere on its way.
void kill_one(const Options& options, pid_t target, const speedbump::test::TableFiles& table,
              std::mt19937& random) {
    pid_t attacher = fork();
    if (attacher == 0) {
        speedbump::inject::InjectOptions inject;
        inject.core = options.core;
        for (;;) {
            auto engine = make_engine(table);
            if (engine && engine->attach(target, ~uint64_t{0}, inject))
                (void)engine->detach(target, 5s);
        }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 25000));
    kill(attacher, SIGKILL);
    waitpid(attacher, nullptr, 0);
}

bool stress(const Options& options, const std::string& python) {
    TargetProcess target({python, options.program, options.kind});
    if (!target.alive() || target.beats() == 0)
        return complain(options, python, "the target does not start");
    const speedbump::test::TableFiles table = speedbump::test::make_table(1, 0);
    std::unique_ptr<PythonEngine> engine = make_engine(table);
    if (!engine) return complain(options, python, "no engine");
    speedbump::inject::InjectOptions inject;
    inject.core = options.core;

    std::vector<double> stopped;
    std::vector<double> to_code;
    std::vector<double> looks;
    Belongings before;
    for (int cycle = 0; cycle < options.cycles; ++cycle) {
        auto attachment = engine->attach(target.pid(), ~uint64_t{0}, inject);
        if (!attachment)
            return complain(options, python,
                            fmt::format("cycle {}: {}", cycle, attachment.error().message));
        if (auto detached = engine->detach(target.pid(), 10s); !detached)
            return complain(options, python,
                            fmt::format("cycle {}: {}", cycle, detached.error().message));
        stopped.push_back(static_cast<double>(attachment->timing.stopped.count()) / 1e3);
        to_code.push_back(static_cast<double>(attachment->timing.to_code.count()) / 1e6);
        looks.push_back(attachment->timing.stops);
        if (!target.alive())
            return complain(
                options, python,
                fmt::format("cycle {}: the target died, status {:#x}", cycle, target.status()));
        // The first cycle brings the core and malloc's arenas.
        if (cycle == 0) before = look_at(target.pid());
    }
    if (!target.beats_in(10s)) return complain(options, python, "the target hangs");
    // The core says goodbye just before its thread ends, which needs the interpreter lock.
    Belongings after = look_at(target.pid());
    for (int i = 0; i < 500 && after.threads > before.threads; ++i) {
        std::this_thread::sleep_for(10ms);
        after = look_at(target.pid());
    }
    // glibc keeps some stacks and arenas for reuse: a few, however many cycles there were.
    constexpr size_t kReuse = 40;
    if (after.threads > before.threads || after.descriptors > before.descriptors + 1 ||
        after.mappings > before.mappings + kReuse)
        return complain(options, python,
                        fmt::format("left behind: threads {} to {}, descriptors {} to {}, "
                                    "mappings {} to {}",
                                    before.threads, after.threads, before.descriptors,
                                    after.descriptors, before.mappings, after.mappings));

    std::mt19937 random(4711);
    for (int i = 0; i < options.kills; ++i) {
        kill_one(options, target.pid(), table, random);
        if (!target.alive())
            return complain(
                options, python,
                fmt::format("kill {}: the target died, status {:#x}", i, target.status()));
    }
    if (!target.beats_in(10s)) return complain(options, python, "the target hangs after kills");
    fmt::print(
        "{:9} {:44} cycles {} kills {} | stopped us: median {:.0f} p95 {:.0f} max {:.0f}, "
        "looks {:.0f} p95 {:.0f} | to code ms: median {:.1f} p95 {:.1f} max {:.1f} | "
        "mappings {} to {}\n",
        options.kind, python, options.cycles, options.kills, at(stopped, 0.5), at(stopped, 0.95),
        at(stopped, 1), at(looks, 0.5), at(looks, 0.95), at(to_code, 0.5), at(to_code, 0.95),
        at(to_code, 1), before.mappings, after.mappings);
    fflush(stdout);
    return true;
}

} // namespace

int main(int argc, char** argv) {
    Options options;
    int index = 1;
    for (; index + 1 < argc && argv[index][0] == '-'; index += 2) {
        std::string name = argv[index];
        if (name == "--cycles") options.cycles = std::atoi(argv[index + 1]);
        if (name == "--kills") options.kills = std::atoi(argv[index + 1]);
        if (name == "--core") options.core = argv[index + 1];
    }
    if (argc - index < 3) {
        fmt::print(stderr,
                   "usage: {} [--cycles N] [--kills N] [--core FILE] TARGETS.PY KIND "
                   "PYTHON...\n",
                   argv[0]);
        return 2;
    }
    options.program = argv[index];
    options.kind = argv[index + 1];
    options.pythons.assign(argv + index + 2, argv + argc);
    bool good = true;
    for (const std::string& python : options.pythons) good = stress(options, python) && good;
    return good ? 0 : 1;
}
