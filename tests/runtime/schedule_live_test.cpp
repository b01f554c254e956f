// SPDX-License-Identifier: MIT
// The clock switches delays: each runtime's, against what the slowed program sees itself. A
// seccomp filter lets no system call of it pass, and this program sleeps meanwhile. Needs
// root.
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <thread>

#include "../programs/call_log.h"
#include "experiment/progress.h"
#include "live.h"
#include "util/clock.h"
#include "util/fd.h"

namespace speedbump::session {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kTolerance = 20'000; // ns that a switch may be early or late
constexpr nanoseconds kSlice = 5ms;
constexpr nanoseconds kDose = 100us;
constexpr uint64_t kSlices = 100;

// A log that a program writes.
class LogFile {
  public:
    LogFile() {
        file_ = Fd(memfd_create("calls", MFD_CLOEXEC));
        if (ftruncate(file_.get(), sizeof(CallLog)) != 0) throw std::runtime_error("ftruncate");
        memory_ = mmap(nullptr, sizeof(CallLog), PROT_READ, MAP_SHARED, file_.get(), 0);
        if (memory_ == MAP_FAILED) throw std::runtime_error("mmap");
    }
    LogFile(const LogFile&) = delete;
    LogFile& operator=(const LogFile&) = delete;
    ~LogFile() { munmap(memory_, sizeof(CallLog)); }

    std::string path() const {
        return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file_.get());
    }
    uint64_t count() const { return __atomic_load_n(&log().count, __ATOMIC_ACQUIRE); }
    // All but the oldest, which are being overwritten meanwhile.
    std::vector<LoggedCall> calls() const {
        const uint64_t end = count();
        std::vector<LoggedCall> calls;
        constexpr uint64_t kKept = kLoggedCalls - kLoggedCalls / 16;
        for (uint64_t i = end > kKept ? end - kKept : 0; i < end; ++i)
            calls.push_back(log().calls[i % kLoggedCalls]);
        return calls;
    }

  private:
    const CallLog& log() const { return *static_cast<const CallLog*>(memory_); }

    Fd file_;
    void* memory_ = nullptr;
};

// A Python program that logs calls.
class LoggingPython {
  public:
    explicit LoggingPython(const std::string& log) {
        int in[2], out[2];
        if (pipe(in) != 0 || pipe(out) != 0) throw std::runtime_error("pipe");
        pid_ = fork();
        if (pid_ == 0) {
            dup2(in[0], STDIN_FILENO);
            dup2(out[1], STDOUT_FILENO);
            for (const int fd : {in[0], in[1], out[0], out[1]})
                if (fd > STDOUT_FILENO) close(fd); // the runner may have closed standard input
            const char* const python = SPEEDBUMP_TEST_PYTHON;
            execl(python, python, "-B", SPEEDBUMP_SOURCE_DIR "/tests/programs/call_log.py",
                  log.c_str(), static_cast<char*>(nullptr));
            _exit(127);
        }
        close(in[0]);
        close(out[1]);
        to_ = Fd(in[1]);
        from_ = Fd(out[0]);
        for (char c = 0; c != '\n';)
            if (read(from_.get(), &c, 1) != 1) throw std::runtime_error("no answer of Python");
    }
    LoggingPython(const LoggingPython&) = delete;
    LoggingPython& operator=(const LoggingPython&) = delete;
    ~LoggingPython() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    pid_t pid() const { return pid_; }
    void begin() {
        if (write(to_.get(), "\n", 1) != 1) throw std::runtime_error("write");
    }

  private:
    pid_t pid_ = -1;
    Fd to_, from_;
};

class ScheduleLive : public LiveSession {
  protected:
    std::unique_ptr<Session> attach_with_columns(const std::string& text, pid_t pid) {
        const targets::ParseOutcome parsed = targets::parse_targets(text, "targets.txt");
        SessionOptions options;
        options.pids = {pid};
        options.engine = EngineChoice::kBpf;
        options.columns = 2; // the second one's delays are nobody's
        auto session = Session::attach(options, parsed.file, [this](const std::string& warning) {
            warnings.push_back(warning);
        });
        if (!session) throw std::runtime_error(session.error().message);
        if (!(*session)->set_column(0, 0u)) throw std::runtime_error("no column");
        return std::move(*session);
    }

    // Half of the slices have a delay. All are there before the first one begins, however long
    // others have the CPU.
    void write(Schedule& schedule) {
        std::mt19937_64 random(testing::UnitTest::GetInstance()->random_seed());
        bool in_time = false;
        for (auto lead = 20ms; !in_time; lead *= 2) {
            has_dose.clear();
            schedule.clear();
            schedule.begin(monotonic_ns() + nanoseconds(lead).count(), kSlice);
            in_time = true;
            for (uint64_t slice = 0; slice < kSlices; ++slice) {
                has_dose.push_back(random() % 2 == 0);
                const std::vector<nanoseconds> doses = {has_dose.back() ? kDose : 0ns, 1ms};
                schedule.add(doses);
                in_time = in_time && monotonic_ns() < schedule.start_of(0);
            }
        }
    }

    static void sleep_until(uint64_t time_ns) {
        std::this_thread::sleep_for(nanoseconds(time_ns - std::min(monotonic_ns(), time_ns)));
    }

    // Until the schedule has run out, and with it the last of its hits has ended.
    static void sleep_through(const Schedule& schedule, const LogFile& log) {
        sleep_until(schedule.start_of(kSlices));
        await_calls(log, 2);
    }

    // So many more, however long others have the CPU.
    static void await_calls(const LogFile& log, uint64_t more) {
        const uint64_t calls = log.count();
        while (log.count() < calls + more) std::this_thread::sleep_for(1ms);
    }

    // When the hits of a slice came, all together: of a call that lies within it one came after its
    // begin and before its end, and of those at its edges anywhen.
    static void expect_times(nanoseconds since, uint64_t hits, int64_t begin, int64_t end,
                             const std::vector<LoggedCall>& calls) {
        int64_t earliest = 0, latest = 0;
        uint64_t within = 0;
        for (const LoggedCall& call : calls) {
            if (call.begin_ns < begin + kTolerance || call.end_ns > end - kTolerance) continue;
            ++within;
            earliest += call.begin_ns - begin;
            latest += call.end_ns - begin;
        }
        EXPECT_GE(since.count(), earliest);
        EXPECT_LE(since.count(), latest + static_cast<int64_t>(hits - within) * (end - begin));
    }

    // What the program saw of each slice agrees with what was counted.
    void compare(Schedule& schedule, const std::vector<LoggedCall>& calls) {
        ASSERT_FALSE(calls.empty());
        ASSERT_LT(static_cast<uint64_t>(calls.front().begin_ns), schedule.start_of(0));
        size_t judged[2] = {0, 0}; // slices without a delay, and with it
        for (uint64_t slice = 0; slice < kSlices; ++slice) {
            const auto begin = static_cast<int64_t>(schedule.start_of(slice));
            const auto end = static_cast<int64_t>(schedule.start_of(slice + 1));
            const SliceCounts counted = schedule.take()[0];
            uint64_t within = 0, touching = 0;
            int64_t shortest = INT64_MAX;
            for (const LoggedCall& call : calls) {
                const bool is_within =
                    call.begin_ns >= begin + kTolerance && call.end_ns <= end - kTolerance;
                within += is_within;
                touching += call.end_ns >= begin - kTolerance && call.begin_ns <= end + kTolerance;
                if (is_within) shortest = std::min(shortest, call.end_ns - call.begin_ns);
            }
            judged[has_dose[slice]] += within > 0;
            EXPECT_GE(counted.hits, within) << slice;
            EXPECT_LE(counted.hits, touching) << slice;
            expect_times(counted.since, counted.hits, begin, end, calls);
            EXPECT_EQ(counted.delays, has_dose[slice] ? counted.hits : 0) << slice;
            // No call that is slower is wrong: others use the CPU as well.
            if (within > 0 && has_dose[slice]) {
                EXPECT_GE(shortest, kDose.count() * 9 / 10);
            }
            // No delay outlasts the schedule: in its last slice one is cut, and the next has no
            // room.
            const uint64_t cut = slice + 1 < kSlices ? 0 : std::min<uint64_t>(counted.delays, 2);
            EXPECT_GE(counted.measured, (counted.delays - cut) * kDose) << slice;
        }
        EXPECT_GT(judged[false], 0u);
        EXPECT_GT(judged[true], 0u);
    }

    using SliceCounts = engine::SliceCounts;
    std::vector<bool> has_dose; // by slice
};

uint64_t delays_of(Session& session) {
    uint64_t delays = 0;
    const auto all = session.counts();
    for (const engine::Counts& counts : *all) delays += counts.delays;
    return delays;
}

TEST_F(ScheduleLive, TheClockSwitchesNativeDelays) {
    const LogFile log;
    const auto session = attach_with_columns("+exe:work_push", puppet.pid());
    session->arm();
    puppet.send("log work_push " + log.path());
    puppet.hear();
    while (log.count() == 0) std::this_thread::sleep_for(1ms);
    write(*session->schedule());
    sleep_through(*session->schedule(), log);
    compare(*session->schedule(), log.calls());
    // It has run out, and nothing is delayed any more; the calls go on.
    const uint64_t delays = delays_of(*session);
    await_calls(log, 1000);
    EXPECT_EQ(delays_of(*session), delays);
}

TEST_F(ScheduleLive, TheClockSwitchesPythonDelays) {
    const LogFile log;
    LoggingPython python(log.path());
    const auto session = attach_with_columns("__main__:logged", python.pid());
    session->arm();
    python.begin();
    while (log.count() == 0) {
        ASSERT_EQ(waitpid(python.pid(), nullptr, WNOHANG), 0);
        std::this_thread::sleep_for(1ms);
    }
    write(*session->schedule());
    sleep_until(session->schedule()->start_of(kSlices));
    ASSERT_EQ(waitpid(python.pid(), nullptr, WNOHANG), 0); // no system call has ended it
    sleep_through(*session->schedule(), log);
    compare(*session->schedule(), log.calls());
    const uint64_t delays = delays_of(*session);
    await_calls(log, 1000);
    EXPECT_EQ(delays_of(*session), delays);
}

TEST_F(ScheduleLive, CountsUnitsOfProgressBySlice) {
    const LogFile log;
    const auto session = attach_with_columns("+exe:work_nop", puppet.pid());
    const auto spec = experiment::parse_progress("native:exe:work_push");
    ASSERT_TRUE(spec);
    auto points = experiment::open_progress({*spec}, {}, *session, [](const std::string&) {});
    ASSERT_TRUE(points) << points.error().message;
    session->arm();
    puppet.send("log work_push " + log.path());
    puppet.hear();
    while (log.count() == 0) std::this_thread::sleep_for(1ms);
    Schedule& schedule = *session->schedule();
    ASSERT_TRUE(points->front()->clear_slices());
    write(schedule);
    sleep_through(schedule, log);
    const std::vector<LoggedCall> calls = log.calls();
    ASSERT_LT(static_cast<uint64_t>(calls.front().begin_ns), schedule.start_of(0));
    for (uint64_t slice = 0; slice < kSlices; ++slice) {
        const auto begin = static_cast<int64_t>(schedule.start_of(slice));
        const auto end = static_cast<int64_t>(schedule.start_of(slice + 1));
        uint64_t within = 0, touching = 0;
        for (const LoggedCall& call : calls) {
            within += call.begin_ns >= begin + kTolerance && call.end_ns <= end - kTolerance;
            touching += call.end_ns >= begin - kTolerance && call.begin_ns <= end + kTolerance;
        }
        const auto done = points->front()->take_slice(slice);
        ASSERT_TRUE(done);
        EXPECT_GE(done->units, within) << slice;
        EXPECT_LE(done->units, touching) << slice;
        expect_times(done->since, done->units, begin, end, calls);
    }
}

// A new schedule begins while hits of the one before are under way, with other slices.
TEST_F(ScheduleLive, OneScheduleFollowsAnother) {
    const LogFile log;
    const auto session = attach_with_columns("+exe:work_push", puppet.pid());
    session->arm();
    puppet.send("log work_push " + log.path());
    puppet.hear();
    Schedule& schedule = *session->schedule();
    for (int round = 0; round < 20; ++round) {
        const nanoseconds length = round % 2 == 0 ? 1ms : 3ms;
        schedule.clear();
        schedule.begin(monotonic_ns() + 5'000'000, length);
        const std::vector<nanoseconds> doses = {round % 2 == 0 ? 20us : 0ns, 0ns};
        for (int slice = 0; slice < 20; ++slice) schedule.add(doses);
        sleep_until(schedule.start_of(10));
    }
    schedule.end();
    session->pause();
    std::this_thread::sleep_for(20ms);
    for (int slice = 0; slice < 10; ++slice) {
        const engine::SliceCounts counted = schedule.take()[0];
        EXPECT_EQ(counted.delays, 0u) << slice; // the last round has none
    }
}

// What others can't have is refused.
TEST_F(ScheduleLive, ATargetHasOneOfTheColumns) {
    const auto session = attach_with_columns("+exe:work_push", puppet.pid());
    EXPECT_FALSE(session->set_column(0, 2u));
    EXPECT_TRUE(session->set_column(0, 1u));
    EXPECT_TRUE(session->set_column(0, std::nullopt));
    targets::Options change;
    change.delay = 20ms;
    session->arm();
    EXPECT_EQ(*session->set("", change), 1u);
    EXPECT_GE(puppet.call("work_push"), 19ms);
    EXPECT_EQ(attach("+exe:work_push delay=0")->schedule(), nullptr);
}

} // namespace
} // namespace speedbump::session
