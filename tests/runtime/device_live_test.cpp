// SPDX-License-Identifier: MIT
// Devices, as their interface shows them, against a device that knows the truth
// (tests/programs/device). Needs root.
//
//   SPEEDBUMP_DEVICE_CONFIGS=N  so many random configurations [4]
//   SPEEDBUMP_DEVICE_SEED=N     the first one's [random]
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "experiment/device_verdict.h"
#include "experiment/host.h"
#include "experiment/progress.h"
#include "session/session.h"

namespace speedbump::experiment {
namespace {

constexpr auto kSlice = std::chrono::milliseconds(100);
constexpr int kSlices = 12;
// Of a time, and of all the time: what probes take within what is measured.
constexpr double kRelative = 0.05, kAbsolute = 0.01;

// tests/programs/device/device_steps.c
class Steps {
  public:
    explicit Steps(const std::vector<std::string>& arguments) {
        const std::string path = std::string(std::getenv("SPEEDBUMP_PROGRAMS")) + "/device_steps";
        std::vector<char*> words = {const_cast<char*>(path.c_str())};
        for (const std::string& one : arguments) words.push_back(const_cast<char*>(one.c_str()));
        words.push_back(nullptr);
        int in[2], out[2];
        if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
            throw std::runtime_error("pipe");
        pid_ = fork();
        if (pid_ == 0) {
            dup2(in[0], STDIN_FILENO);
            dup2(out[1], STDOUT_FILENO);
            execv(path.c_str(), words.data());
            _exit(127);
        }
        close(in[0]);
        close(out[1]);
        to_ = fdopen(in[1], "w");
        from_ = fdopen(out[0], "r");
        char line[64];
        if (!std::fgets(line, sizeof(line), from_)) throw std::runtime_error(path + " fails");
    }
    Steps(const Steps&) = delete;
    Steps& operator=(const Steps&) = delete;
    ~Steps() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        std::fclose(to_);
        std::fclose(from_);
    }

    nlohmann::json totals() {
        std::fputs("\n", to_);
        std::fflush(to_);
        char line[1024];
        if (!std::fgets(line, sizeof(line), from_)) throw std::runtime_error("it ended");
        return nlohmann::json::parse(line);
    }
    pid_t pid() const { return pid_; }

  private:
    pid_t pid_ = -1;
    std::FILE* to_ = nullptr;
    std::FILE* from_ = nullptr;
};

// What the library says just before a reading and just after it: either may have to wait for a CPU.
struct Bracket {
    nlohmann::json before, after;
};

// What the library says of a time, and what its interface showed of the same time.
struct Seen {
    Bracket begin, end;
    Document document;
    DeviceResult result;

    // The time that was seen lies within this one, and around that of least().
    double truth(const std::string& key) const { return between(begin.before, end.after, key); }
    double least(const std::string& key) const { return between(begin.after, end.before, key); }
    double share(const std::string& key) const { return truth(key) / truth("now_ns"); }
    double units() const {
        double sum = 0;
        for (const Slice& slice : document.blocks.front().slices)
            sum += static_cast<double>(slice.progress[0]);
        return sum;
    }

  private:
    static double between(const nlohmann::json& from, const nlohmann::json& to,
                          const std::string& key) {
        return to.at(key).get<double>() - from.at(key).get<double>();
    }
};

Result<Seen> look(const std::vector<std::string>& arguments, const std::string& device) {
    Steps steps(arguments);
    session::SessionOptions options;
    options.pids = {steps.pid()};
    options.missing = session::MissingPolicy::kIgnore;
    auto session = session::Session::attach(options, targets::TargetsFile{"none", {}},
                                            [](const std::string&) {});
    if (!session) return std::move(session).error();
    std::vector<ProgressSpec> specs;
    for (const std::string& text : {std::string("native:exe:step_done"), device}) {
        auto spec = parse_progress(text);
        if (!spec) return std::move(spec).error();
        specs.push_back(*spec);
    }
    auto points = open_progress(specs, {}, **session, [](const std::string&) {});
    if (!points) return std::move(points).error();
    // Until somebody has waited, and what is queued is known; nobody may.
    for (int looks = 0; looks < 200 && !(*points)[1]->device()->watched.count(); ++looks) {
        usleep(10'000);
        if (auto launches = (*points)[1]->read({}); !launches) return std::move(launches).error();
    }

    Seen seen;
    seen.document.progress = {specs[0].text, specs[1].text};
    seen.document.blocks.emplace_back();
    std::vector<Reading> readings;
    std::vector<DeviceReading> devices;
    std::vector<std::map<pid_t, nanoseconds>> waits;
    for (int slice = 0; slice <= kSlices; ++slice) {
        if (slice > 0) usleep(std::chrono::microseconds(kSlice).count());
        if (slice == 0) seen.begin.before = steps.totals();
        if (slice == kSlices) seen.end.before = steps.totals();
        auto units = (*points)[0]->read({});
        if (!units) return std::move(units).error();
        auto launches = (*points)[1]->read({});
        if (!launches) return std::move(launches).error();
        readings.push_back(*units);
        devices.push_back((*points)[1]->device().value());
        waits.push_back(read_waits({steps.pid()}));
        if (slice == 0) seen.begin.after = steps.totals();
        if (slice == kSlices) seen.end.after = steps.totals();
    }
    for (int i = 0; i < kSlices; ++i) {
        Slice slice;
        slice.progress = {readings[i + 1].units - readings[i].units, 1};
        slice.progress_time.assign(2, nanoseconds(readings[i + 1].at_ns - readings[i].at_ns));
        slice.length = slice.progress_time[0];
        slice.waited = waited_between(waits[i], waits[i + 1]);
        slice.latency.resize(2);
        slice.device = {std::nullopt, device_between(devices[i], devices[i + 1])};
        seen.document.blocks.front().slices.push_back(slice);
    }
    seen.result = examine_devices(seen.document).at(0);
    return seen;
}

// The library's clock and the probes stand within the same calls, which the host has timed from
// without: they differ by no more than that.
double within_calls(const Seen& seen) {
    return std::max(kAbsolute * seen.truth("now_ns"), seen.truth("beyond_ns"));
}

// Per unit of what was seen, against the truth.
void expect_near(double seen_per_unit, const Seen& seen, const std::string& key) {
    const double shown = seen_per_unit * seen.units(), least = seen.least(key),
                 most = seen.truth(key);
    EXPECT_GE(shown, least - kRelative * least - within_calls(seen)) << key;
    EXPECT_LE(shown, most + kRelative * most + within_calls(seen)) << key;
}

void expect_truth(const Seen& seen) {
    const DeviceResult& result = seen.result;
    expect_near(result.wait, seen, "wait_ns");
    const double all = seen.truth("now_ns");
    if (result.unsure == 0)
        expect_near(result.held, seen, "held_ns");
    else
        EXPECT_GE((result.held + result.unsure) * seen.units(),
                  seen.least("held_ns") * (1 - kRelative));
    expect_near(result.idle, seen, "seen_idle_ns");
    // A host that sleeps on after the device has ended waits, for all that its calls show.
    const double idle = seen.truth("idle_ns"), least = seen.least("idle_ns"),
                 late = seen.truth("late_ns"), most = (result.idle + result.unseen) * seen.units();
    EXPECT_LE(result.idle * seen.units(), idle + kRelative * idle + kAbsolute * all);
    EXPECT_GE(most + late, least - kRelative * least - within_calls(seen));
}

// Whether this is right of shares that are known as well as here they are.
bool may_be_judged(const Seen& seen, DeviceVerdict verdict) {
    const double waits = seen.share("wait_ns") + seen.share("held_ns"),
                 idle = seen.share("idle_ns") - seen.share("late_ns");
    for (const double w : {-1.0, 0.0, 1.0})
        for (const double i : {-1.0, 0.0, 1.0}) {
            const double waiting = std::max(0.0, waits + w * (kRelative * waits + kAbsolute));
            const double idling = std::max(0.0, idle + i * (kRelative * idle + kAbsolute));
            if (judge_device({waiting, waiting}, {idling, idling}) == verdict) return true;
        }
    return false;
}

// Others had the CPUs: then nobody can say what the host waited for.
bool is_contended(const Seen& seen) {
    double waited = 0;
    for (const Slice& slice : seen.document.blocks.front().slices)
        waited += static_cast<double>(slice.waited.count());
    return waited > 0.05 * seen.truth("now_ns");
}

struct Config {
    std::vector<std::string> arguments;
    std::string device;
    std::string text;
};

// One that is clear: one side has several times the other's work, or they take turns.
Config draw(uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto number = [&](long low, long high) {
        return std::uniform_int_distribution<long>(low, high)(random);
    };
    const long side = number(0, 2);
    // What a launch takes by itself is taken off the time that it is held for.
    const long kernels = number(1, side == 1 ? 4 : 8), kernel = number(800, 1600) / kernels,
               on_device = kernels * kernel;
    long prepare = 0, between = 0, finish = 0, every = 1, depth = 0, streams = 1;
    std::string sync = std::vector<std::string>{"ctx", "stream", "event"}[number(0, 2)];
    if (side == 0) { // the host has the work
        const long host = on_device * number(4, 8);
        const long place = number(0, 2);
        (place == 0 ? prepare : finish) = place == 2 ? host / 2 : host;
        if (place == 2) between = host / 2 / kernels;
        every = place == 0 ? 1 : number(1, 4);
    } else if (side == 1) { // the device has it
        const long host = on_device / number(8, 16);
        (number(0, 1) == 0 ? prepare : finish) = host;
        every = number(1, 4);
        if (number(0, 1) == 0) depth = number(2, 6);
    } else { // one after the other
        prepare = on_device * number(5, 15) / 10;
        sync = number(0, 1) == 0 ? "ctx" : "stream";
    }
    if (depth > 0 && sync == "event") depth = 0; // see LaunchesThatAlwaysFindAFullQueue
    if (sync != "event" && side != 1) streams = number(1, 2);
    const std::string launch = std::vector<std::string>{"plain", "grid", "config"}[number(0, 2)];
    const std::string launches = launch == "plain"  ? "fdLaunchKernel(stream)"
                                 : launch == "grid" ? "fdLaunchGrid(_,_,_,_,_,_,_,_,stream)"
                                                    : "fdLaunchKernelEx(stream@32)";
    Config config;
    const auto add = [&](const char* key, long value) {
        config.arguments.push_back(std::string(key) + "=" + std::to_string(value));
    };
    add("prepare", prepare);
    add("between", between);
    add("finish", finish);
    add("kernels", kernels);
    add("kernel", kernel);
    add("every", every);
    add("depth", depth);
    add("streams", streams);
    add("seed", number(0, 1) * number(1, 1 << 30));
    config.arguments.push_back("sync=" + sync);
    config.arguments.push_back("launch=" + launch);
    config.device = "device:libfakedevice.so:" + launches + ",fdEventRecord(event,stream):" +
                    "fdCtxSynchronize,fdStreamSynchronize(stream),fdEventSynchronize(event)";
    if (depth > 0) config.device += "," + launches;
    for (const std::string& one : config.arguments) config.text += one + " ";
    return config;
}

long from_environment(const char* name, long otherwise) {
    const char* text = std::getenv(name);
    return text != nullptr ? std::atol(text) : otherwise;
}

} // namespace

TEST(DeviceLive, RandomConfigurationsAreJudgedAsTheyAre) {
    const long count = from_environment("SPEEDBUMP_DEVICE_CONFIGS", 4);
    const long first = from_environment("SPEEDBUMP_DEVICE_SEED", std::random_device()() % 1000000);
    long uncertain = 0, contended = 0, right = 0;
    for (long seed = first; seed < first + count; ++seed) {
        const Config config = draw(static_cast<uint64_t>(seed));
        SCOPED_TRACE("seed " + std::to_string(seed) + ": " + config.text);
        auto seen = look(config.arguments, config.device);
        ASSERT_TRUE(seen) << seen.error().message;
        const double unit = seen->truth("now_ns") / seen->truth("steps");
        std::printf(
            "  seed %ld: %-12s waits %4.1f%% (truth %4.1f), idle %4.1f to %4.1f%% (truth "
            "%4.1f) of %.0f us; %s\n",
            seed, to_string(seen->result.verdict).c_str(),
            100 * (seen->result.wait + seen->result.held) / seen->result.unit,
            100 * (seen->share("wait_ns") + seen->share("held_ns")), 100 * seen->result.idling.low,
            100 * seen->result.idling.high, 100 * seen->share("idle_ns"), unit / 1000,
            config.text.c_str());
        std::fflush(stdout);
        expect_truth(*seen);
        if (seen->result.verdict == DeviceVerdict::kUncertain) {
            ++uncertain;
            contended += is_contended(*seen);
            continue;
        }
        const bool is_right = may_be_judged(*seen, seen->result.verdict);
        EXPECT_TRUE(is_right);
        right += is_right;
    }
    std::printf("  %ld right, %ld wrong, %ld uncertain (of these %ld without a CPU) of %ld\n",
                right, count - right - uncertain, uncertain, contended, count);
    EXPECT_LE(uncertain - contended, count / 20);
}

TEST(DeviceLive, WhatIsMissingOrMistypedIsToldByName) {
    const auto missing = look({}, "device:libfakedevice.so:fdLaunchKernel:fdNothing");
    ASSERT_FALSE(missing);
    EXPECT_EQ(missing.error().kind, ErrorKind::kNotFound);
    EXPECT_NE(missing.error().message.find("fdNothing"), std::string::npos)
        << missing.error().message;
    const auto elsewhere = look({}, "device:cuda");
    ASSERT_FALSE(elsewhere);
    EXPECT_EQ(elsewhere.error().kind, ErrorKind::kNotFound) << elsewhere.error().message;
}

TEST(DeviceLive, LaunchesThatAlwaysFindAFullQueue) {
    const auto seen = look({"kernels=2", "kernel=400", "finish=50", "depth=2", "sync=event"},
                           "device:libfakedevice.so:fdLaunchKernel(stream),fdEventRecord(event,"
                           "stream):fdEventSynchronize(event),fdLaunchKernel(stream)");
    ASSERT_TRUE(seen) << seen.error().message;
    expect_truth(*seen);
    EXPECT_GT(seen->result.unsure, 0);
    EXPECT_EQ(seen->result.verdict, DeviceVerdict::kUncertain);
}

TEST(DeviceLive, NobodyWaits) {
    const auto seen = look({"kernels=1", "kernel=100", "prepare=1000", "every=1000000"},
                           "device:libfakedevice.so:fdLaunchKernel(stream):fdCtxSynchronize");
    ASSERT_TRUE(seen) << seen.error().message;
    EXPECT_EQ(seen->result.verdict, DeviceVerdict::kUncertain);
    ASSERT_FALSE(seen->result.notes.empty());
    EXPECT_NE(seen->result.notes[0].find("nobody waited"), std::string::npos);
    EXPECT_EQ(seen->result.idle, 0);
}

} // namespace speedbump::experiment
