// SPDX-License-Identifier: MIT
// A session over engines that fail: each error reaches the user.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "../cpu_time.h"
#include "engine/engines.h"
#include "fake_engines.h"
#include "session/session.h"
#include "targets/parser.h"
#include "util/clock.h"
#include "waiting_process.h"

// What the sessions slow, in processes of this program.
extern "C" {
__attribute__((noinline, used, visibility("default"))) int fakes_test_first(int x) noexcept {
    __asm__ volatile("");
    return x + 1;
}
__attribute__((noinline, used, visibility("default"))) int fakes_test_second(int x) noexcept {
    __asm__ volatile("");
    return x + 2;
}
}

namespace speedbump::session {
namespace {

using namespace std::chrono_literals;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using tree::TreeEvent;

using test::WaitingProcess;
using testing::IsEmpty;

constexpr auto kNative = "+exe:fakes_test_first delay=1ms\n";
constexpr auto kMixed = "+exe:fakes_test_first delay=1ms\napp:work delay=2ms\n";

class SessionOverFakes : public testing::Test {
  protected:
    // `pid`: 0 stands for child_.
    Result<std::unique_ptr<Session>> try_attach(const std::string& text, pid_t pid = 0) {
        const targets::ParseOutcome parsed = targets::parse_targets(text, "t");
        EXPECT_THAT(parsed.errors, IsEmpty());
        engine::Engines engines;
        tree_ = std::make_shared<engine::FakeTree>(faults_);
        if (pid == 0) pid = child_.pid();
        tree_->exists(pid, getpid());
        probes_ = std::make_shared<engine::FakeProbes>(faults_);
        probes_->able = able_;
        if (columns_ > 0) probes_->make_schedule(columns_);
        auto mappings = std::make_unique<engine::FakeMappings>();
        mappings_ = mappings.get();
        auto hooks = std::make_unique<engine::FakeHooks>(faults_);
        hooks_ = hooks.get();
        if (columns_ > 0) hooks_->make_schedule(columns_);
        for (size_t line = 0; line < parsed.file.lines.size(); ++line)
            if (parsed.file.lines[line].runtime == targets::Runtime::kPython)
                hooks->own_lines.push_back(line);
        engines.tree = tree_;
        engines.probes = probes_;
        engines.mappings = std::move(mappings);
        if (!hooks->own_lines.empty()) engines.hooks = std::move(hooks);
        SessionOptions options;
        options.pids = {pid};
        options.columns = columns_;
        return Session::over(std::move(engines), options, parsed.file,
                             [this](const std::string& text_) { warnings_.push_back(text_); });
    }
    std::unique_ptr<Session> attach(const std::string& text, pid_t pid = 0) {
        auto session = try_attach(text, pid);
        if (!session) throw std::runtime_error(session.error().message);
        return std::move(*session);
    }
    // The error of an attach() with a call that fails.
    std::string failure_of(const std::string& call, const std::string& text) {
        faults_.begin(call);
        const auto session = try_attach(text);
        faults_.end();
        return session ? "none" : session.error().message;
    }
    // Goes on until it is so, for as long as a machine that is busy may take.
    static bool soon(Session& session, const std::function<bool()>& is_so) {
        const auto end = Clock::now() + kWithoutEnd;
        while (!is_so())
            if (Clock::now() > end || !session.run_for(1ms)) return false;
        return true;
    }
    bool is_wide() const {
        const auto places = probes_->in_place();
        return places.size() == 1 && !places[0].only;
    }

    engine::Faults faults_;
    engine::Capabilities able_{.name = "fake", .title = "the fake", .narrow = true};
    uint32_t columns_ = 0; // of the schedule
    std::shared_ptr<engine::FakeTree> tree_;
    std::shared_ptr<engine::FakeProbes> probes_;
    engine::FakeMappings* mappings_ = nullptr; // the session's
    engine::FakeHooks* hooks_ = nullptr;       // the session's
    std::vector<std::string> warnings_;
    WaitingProcess child_;
};

TEST_F(SessionOverFakes, DelaysWhatItIsAskedTo) {
    const auto session = attach(kMixed);
    Snapshot snapshot = session->snapshot();
    ASSERT_EQ(snapshot.targets.size(), 2u);
    EXPECT_EQ(snapshot.targets[0].name, "fakes_test_first");
    EXPECT_EQ(snapshot.targets[1].name, "work");
    EXPECT_EQ(snapshot.engine, "fake");
    EXPECT_FALSE(snapshot.nothing_matched);
    EXPECT_EQ(probes_->told[0].settings.delay, 1ms);
    EXPECT_EQ(hooks_->told[1].settings.delay, 2ms);
    EXPECT_THAT(hooks_->hooked, ElementsAre(child_.pid()));
    EXPECT_FALSE(probes_->armed);
    session->arm();
    EXPECT_TRUE(probes_->armed && hooks_->armed && session->snapshot().armed);
    session->pause();
    EXPECT_FALSE(probes_->armed || hooks_->armed || session->snapshot().armed);
    EXPECT_EQ(session->floor(0), 100ns);
    EXPECT_EQ(session->floor(1), 50ns);
    EXPECT_EQ(*session->python_path_entry(), "/fake.zip");
    EXPECT_TRUE(soon(*session, [this] { return is_wide(); }));
    EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(SessionOverFakes, EndsDisarmedWithNothingInPlace) {
    auto session = attach(kNative);
    session->arm();
    EXPECT_TRUE(soon(*session, [this] { return is_wide(); })); // the narrow one leaves by and by
    session.reset();
    EXPECT_FALSE(probes_->armed);
    EXPECT_THAT(probes_->in_place(), IsEmpty());
}

TEST_F(SessionOverFakes, WhatFailsWhenItAttachesIsItsError) {
    for (const char* const call : {"calibrate", "list_processes", "add_member", "open hooks"}) {
        EXPECT_THAT(failure_of(call, kMixed), HasSubstr(std::string("fake ") + call));
        EXPECT_THAT(probes_->in_place(), IsEmpty()) << call;
    }
    EXPECT_THAT(failure_of("attach narrow", kNative),
                HasSubstr("process " + std::to_string(child_.pid()) + " (fake): fake attach"));
    able_.narrow = false;
    EXPECT_THAT(failure_of("attach wide", kNative), HasSubstr("fake attach wide"));
}

TEST_F(SessionOverFakes, ATargetThatCannotBeConfiguredIsSkippedWithTheReason) {
    faults_.begin("configure");
    faults_.begin("configure hooks");
    const auto session = attach(kMixed);
    EXPECT_THAT(warnings_, ElementsAre(HasSubstr("configure work: fake configure hooks")));
    EXPECT_THAT(probes_->in_place(), IsEmpty());
    const Snapshot snapshot = session->snapshot();
    ASSERT_EQ(snapshot.skipped.size(), 1u);
    EXPECT_EQ(snapshot.skipped[0].name, "fakes_test_first");
    EXPECT_THAT(snapshot.skipped[0].reason, HasSubstr("fake configure"));
    ASSERT_EQ(snapshot.targets.size(), 1u);
    EXPECT_EQ(snapshot.targets[0].name, "work");
}

TEST_F(SessionOverFakes, ASettingThatCannotBeChangedIsWarnedOf) {
    const auto session = attach(kNative);
    targets::Options change;
    change.delay = 3ms;
    EXPECT_EQ(*session->set("fakes_*", change), 1u);
    EXPECT_EQ(probes_->told[0].settings.delay, 3ms);
    faults_.begin("configure");
    EXPECT_EQ(*session->set("fakes_*", change), 0u);
    EXPECT_THAT(warnings_, Contains(HasSubstr("configure fakes_test_first: fake")).Times(1));
}

TEST_F(SessionOverFakes, ADoseTellsTheEnginesOfWhatChangesAlone) {
    const auto session = attach(kMixed);
    session->arm();
    const uint64_t armed_ns = monotonic_ns();
    EXPECT_TRUE(session->apply({}, 0)); // their own delays end
    EXPECT_EQ(probes_->told[0].settings.delay, 0ns);
    EXPECT_EQ(hooks_->told[1].settings.delay, 0ns);
    probes_->told.clear();
    hooks_->told.clear();
    const std::vector<nanoseconds> dose = {0ns, 20us};
    EXPECT_TRUE(session->apply(dose, armed_ns + 1'000'000'000));
    EXPECT_THAT(probes_->told, IsEmpty());
    EXPECT_EQ(hooks_->told[1].settings.delay, 20us);
    EXPECT_GE(hooks_->told[1].settings.duration, 1s); // since it was armed
    EXPECT_LT(hooks_->told[1].settings.duration, 60s);
    hooks_->told.clear();
    EXPECT_TRUE(session->apply({}, armed_ns + 2'000'000'000));
    EXPECT_THAT(probes_->told, IsEmpty());
    EXPECT_EQ(hooks_->told[1].settings.delay, 0ns);
}

TEST_F(SessionOverFakes, ADoseThatCannotBeTakenBackIsTriedAgain) {
    const auto session = attach(kNative);
    session->arm();
    const std::vector<nanoseconds> dose = {20us};
    EXPECT_TRUE(session->apply(dose, monotonic_ns() + 1'000'000'000));
    faults_.begin("configure");
    EXPECT_FALSE(session->apply({}, 0));
    EXPECT_THAT(warnings_, ElementsAre(HasSubstr("configure fakes_test_first: fake configure")));
    EXPECT_EQ(session->snapshot().targets[0].settings.delay, 20us);
    faults_.end();
    EXPECT_TRUE(session->apply({}, 0));
    EXPECT_EQ(probes_->told[0].settings.delay, 0ns);
}

TEST_F(SessionOverFakes, TotalsAreOfAllProcessesAndEngines) {
    const auto session = attach(kMixed);
    probes_->counts = {{.target = 0, .process = child_.pid(), .hits = 5, .measured = 2us},
                       {.target = 0, .process = 0, .hits = 4, .measured = 1us}};
    hooks_->counts = {{.target = 1, .process = child_.pid(), .hits = 7},
                      {.target = 9, .process = child_.pid(), .hits = 3}}; // of no target
    const auto totals = session->totals();
    ASSERT_TRUE(totals);
    ASSERT_EQ(totals->size(), 2u);
    EXPECT_EQ((*totals)[0].hits, 9u);
    EXPECT_EQ((*totals)[0].measured, 3us);
    EXPECT_EQ((*totals)[1].hits, 7u);
    faults_.begin("read_counts");
    EXPECT_FALSE(session->totals());
}

TEST_F(SessionOverFakes, WhatTheEngineCannotDoIsRefusedByName) {
    able_.every = false;
    const auto session = attach(kNative);
    targets::Options change;
    change.every = 2;
    const auto set = session->set("*", change);
    ASSERT_FALSE(set);
    EXPECT_EQ(set.error().kind, ErrorKind::kUsage);
    EXPECT_EQ(set.error().message, "the fake delays each call: no every=");
}

TEST_F(SessionOverFakes, AScheduleIsTheSameInAllEngines) {
    columns_ = 2;
    able_.schedule = true;
    const auto session = attach(kMixed);
    EXPECT_TRUE(session->set_column(0, 1u));
    EXPECT_TRUE(session->set_column(1, 1u));
    EXPECT_EQ(probes_->told.at(0).settings.column, 1u);
    EXPECT_EQ(hooks_->told.at(1).settings.column, 1u);
    Schedule& schedule = *session->schedule();
    schedule.clear();
    schedule.begin(monotonic_ns() + nanoseconds(1h).count(), 1ms);
    EXPECT_TRUE(schedule.add(std::vector<nanoseconds>{3ns, 5ns}));
    EXPECT_EQ(schedule.room(), Schedule::kRing - 1);
    for (const engine::FakeSettings* part : {static_cast<engine::FakeSettings*>(probes_.get()),
                                             static_cast<engine::FakeSettings*>(hooks_)}) {
        EXPECT_EQ(part->shared.end_slice, 1u);
        EXPECT_EQ(part->doses[0], 3u);
        EXPECT_EQ(part->doses[1], 5u);
    }
    probes_->by_slice[1] = {
        .hits = 4, .since_ns = 7, .delays = 2, .measured_ns = 10, .undelayed_ns = 0};
    hooks_->by_slice[1] = {
        .hits = 5, .since_ns = 4, .delays = 3, .measured_ns = 15, .undelayed_ns = 0};
    const std::vector<engine::SliceCounts> counts = schedule.take();
    EXPECT_EQ(counts.at(0).hits, 0u);
    EXPECT_EQ(counts.at(1).hits, 9u);
    EXPECT_EQ(counts.at(1).since, 11ns);
    EXPECT_EQ(counts.at(1).delays, 5u);
    EXPECT_EQ(counts.at(1).measured, 25ns);
    EXPECT_EQ(schedule.room(), Schedule::kRing);
    schedule.clear();
    schedule.begin(monotonic_ns() - 10, 1ns);
    EXPECT_FALSE(schedule.add(std::vector<nanoseconds>{3ns, 5ns})); // it has begun already
    schedule.end();
    EXPECT_EQ(probes_->shared.end_slice, 0u);
}

TEST_F(SessionOverFakes, AColumnThatTheEngineCannotHaveIsRefused) {
    columns_ = 1;
    const auto session = attach(kMixed);
    EXPECT_FALSE(session->set_column(0, 0u)); // these probes have no schedule
    EXPECT_TRUE(session->set_column(1, 0u));
    EXPECT_FALSE(session->set_column(1, 1u));
    EXPECT_FALSE(probes_->told.at(0).settings.column);
    EXPECT_TRUE(session->set_column(1, std::nullopt));
    EXPECT_FALSE(hooks_->told.at(1).settings.column);
}

TEST_F(SessionOverFakes, WindowsThatCannotBeginAreWarnedOf) {
    const auto session = attach("+exe:fakes_test_first delay=1ms start=1s\n");
    EXPECT_EQ(probes_->told[0].armed_at_ns, 0u);
    faults_.begin("configure");
    session->arm();
    EXPECT_THAT(warnings_, ElementsAre(HasSubstr("configure fakes_test_first: fake configure")));
}

TEST_F(SessionOverFakes, CountsThatCannotBeReadAreOldAndWarnedOf) {
    for (const char* const call : {"read_counts", "read_counts of hooks"}) {
        warnings_.clear();
        const auto session = attach(kMixed);
        probes_->counts = {{.target = 0, .process = child_.pid(), .hits = 5}};
        hooks_->counts = {{.target = 1, .process = child_.pid(), .hits = 7}};
        ASSERT_EQ(session->counts()->size(), 2u);
        faults_.begin(call);
        const auto counts = session->counts();
        ASSERT_FALSE(counts);
        EXPECT_THAT(counts.error().message, HasSubstr(std::string("fake ") + call));
        const Snapshot snapshot = session->snapshot();
        EXPECT_TRUE(snapshot.counts_are_old);
        ASSERT_EQ(snapshot.counts.size(), 2u);
        EXPECT_EQ(snapshot.counts[0].hits + snapshot.counts[1].hits, 12u);
        EXPECT_THAT(warnings_, ElementsAre(HasSubstr("shown as they were last read: fake")));
        faults_.end();
        EXPECT_FALSE(session->snapshot().counts_are_old);
    }
}

TEST_F(SessionOverFakes, AFileThatCannotBeWideIsNamedAndStaysNarrow) {
    faults_.begin("attach wide");
    const auto session = attach(kNative);
    EXPECT_TRUE(soon(*session, [this] { return !warnings_.empty(); }));
    EXPECT_THAT(warnings_, ElementsAre(HasSubstr("for all its processes at once: fake attach")));
    ASSERT_EQ(probes_->in_place().size(), 1u);
    EXPECT_EQ(probes_->in_place()[0].only, child_.pid());
}

TEST_F(SessionOverFakes, AnOutsiderThatMapsTheFileMakesItNarrow) {
    const auto session = attach(kNative);
    ASSERT_TRUE(soon(*session, [this] { return is_wide(); }));
    const WaitingProcess outsider;
    faults_.begin("attach narrow");
    mappings_->records = {{outsider.pid(), 0, ""}};
    EXPECT_TRUE(soon(*session, [this] { return !warnings_.empty(); }));
    EXPECT_THAT(warnings_, ElementsAre(HasSubstr("it is not slowed everywhere; trying again")));
    faults_.end();
    EXPECT_TRUE(soon(*session, [this] {
        const auto places = probes_->in_place();
        return places.size() == 1 && places[0].only == child_.pid();
    }));
    EXPECT_TRUE(soon(*session, [this] {
        const auto& sets = probes_->told[0].sets;
        return sets.older == 2 && sets.newer == 2;
    }));
}

// However many others have mapped something before it.
TEST_F(SessionOverFakes, AnOutsiderIsLookedAtAfterManyOthers) {
    const auto session = attach(kNative);
    ASSERT_TRUE(soon(*session, [this] { return is_wide(); }));
    const WaitingProcess outsider;
    std::vector<tree::NewMapping> records;
    for (int i = 0; i < 20'000; ++i) records.push_back({i % 2 == 0 ? 1 : (1 << 22) + i, 0, ""});
    records.push_back({outsider.pid(), 0, ""});
    mappings_->records = records;
    EXPECT_TRUE(soon(*session, [this] {
        const auto places = probes_->in_place();
        return places.size() == 1 && places[0].only == child_.pid();
    }));
}

// Without root, that it is the caller's can't be seen any more.
TEST_F(SessionOverFakes, AMemberThatEndsInAnExecHasNoOtherRights) {
    const auto session = attach(kNative);
    pid_t pid = 0;
    {
        const WaitingProcess child;
        pid = child.pid();
        tree_->exists(pid, child_.pid());
        tree_->happens(TreeEvent::Type::kFork, pid, child_.pid());
        EXPECT_TRUE(session->run_for(10ms));
    }
    tree_->happens(TreeEvent::Type::kExec, pid, 0);
    EXPECT_TRUE(session->run_for(10ms));
    for (const std::string& warning : warnings_) EXPECT_THAT(warning, Not(HasSubstr("rights")));
}

// A process that maps this program's copy when it is told to, and forks then.
class LateMapper {
  public:
    explicit LateMapper(const std::string& path) {
        int asks[2], answers[2];
        if (pipe(asks) != 0 || pipe(answers) != 0) throw std::runtime_error("pipe");
        pid_ = fork();
        if (pid_ == 0) {
            char ask = 0;
            if (read(asks[0], &ask, 1) != 1) _exit(1);
            const int file = open(path.c_str(), O_RDONLY);
            if (mmap(nullptr, std::filesystem::file_size(path), PROT_READ | PROT_EXEC, MAP_PRIVATE,
                     file, 0) == MAP_FAILED)
                _exit(1);
            const pid_t child = fork();
            if (child != 0 && write(answers[1], &child, sizeof child) != sizeof child) _exit(1);
            for (;;) pause();
        }
        asks_ = asks[1];
        answers_ = answers[0];
        close(asks[0]);
        close(answers[1]);
    }
    ~LateMapper() {
        for (const pid_t pid : {child_, pid_})
            if (pid > 0) kill(pid, SIGKILL);
        waitpid(pid_, nullptr, 0);
        close(asks_);
        close(answers_);
    }
    pid_t pid() const { return pid_; }
    // Its child, which has the mapping too.
    pid_t map_and_fork() {
        if (write(asks_, "m", 1) != 1 || read(answers_, &child_, sizeof child_) != sizeof child_)
            throw std::runtime_error("the process has ended");
        return child_;
    }

  private:
    int asks_ = -1, answers_ = -1;
    pid_t pid_ = -1, child_ = -1;
};

TEST_F(SessionOverFakes, AChildHasWhatItsParentMappedJustBefore) {
    const std::string folder = testing::TempDir() + "speedbump-late-" + std::to_string(getpid());
    std::filesystem::create_directory(folder);
    const std::string path = folder + "/late_copy";
    std::filesystem::copy_file("/proc/self/exe", path);
    LateMapper parent(path);
    faults_.begin("attach wide"); // it stays narrow
    const auto session = attach("+*/late_copy:fakes_test_first delay=1ms\n", parent.pid());
    EXPECT_THAT(probes_->in_place(), IsEmpty());
    const pid_t child = parent.map_and_fork();
    mappings_->records = {{parent.pid(), 0, ""}}; // there is none of the child
    tree_->exists(child, parent.pid());
    tree_->happens(TreeEvent::Type::kFork, child, parent.pid());
    for (const pid_t pid : {parent.pid(), child})
        EXPECT_TRUE(soon(*session, [&] {
            const auto places = probes_->in_place();
            return std::any_of(places.begin(), places.end(),
                               [&](const auto& place) { return place.only == pid; });
        })) << (pid == child ? "the child" : "the parent");
    std::filesystem::remove_all(folder);
}

TEST_F(SessionOverFakes, AChildThatCannotBeProbedIsNamedAndTriedAgain) {
    faults_.begin("attach wide"); // it stays narrow
    const auto session = attach(kNative);
    ASSERT_TRUE(soon(*session, [this] { return !warnings_.empty(); }));
    const WaitingProcess child;
    tree_->exists(child.pid(), child_.pid());
    faults_.begin("attach narrow");
    tree_->happens(TreeEvent::Type::kFork, child.pid(), child_.pid());
    EXPECT_TRUE(soon(*session, [&] {
        return std::any_of(warnings_.begin(), warnings_.end(), [&](const std::string& text) {
            return text.starts_with("process " + std::to_string(child.pid()) + " (fake): fake");
        });
    }));
    faults_.end();
    EXPECT_TRUE(soon(*session, [&] {
        const auto places = probes_->in_place();
        return std::any_of(places.begin(), places.end(),
                           [&](const auto& place) { return place.only == child.pid(); });
    }));
}

TEST_F(SessionOverFakes, TheTreeThatCannotBeLookedAtAgainIsWarnedOf) {
    const auto session = attach(kNative);
    tree_->lost = 3;
    faults_.begin("list_processes");
    EXPECT_TRUE(soon(*session, [this] { return warnings_.size() == 2; }));
    EXPECT_THAT(warnings_, ElementsAre(HasSubstr("3 events of the process tree"),
                                       HasSubstr("look at the process tree: list the processes: "
                                                 "fake list_processes")));
}

TEST_F(SessionOverFakes, EndsWithTheLastMember) {
    const auto session = attach(kNative);
    tree_->happens(TreeEvent::Type::kExit, child_.pid());
    const auto ran = session->run_for(1s);
    ASSERT_FALSE(ran);
    EXPECT_EQ(ran.error().kind, ErrorKind::kNotFound);
}

TEST_F(SessionOverFakes, WhatCannotBePutBackIsSaid) {
    const auto session = attach(kMixed);
    for (const char* const call : {"attach wide", "open hooks", "configure hooks"}) {
        session->take_out(false, {});
        EXPECT_THAT(probes_->in_place(), IsEmpty());
        EXPECT_THAT(hooks_->hooked, IsEmpty());
        faults_.begin(call);
        const auto put = session->put_back();
        ASSERT_FALSE(put);
        EXPECT_THAT(put.error().message, HasSubstr(std::string("fake ") + call));
        faults_.end();
    }
    ASSERT_TRUE(session->put_back());
    EXPECT_EQ(probes_->in_place().size(), 1u);
    EXPECT_EQ(hooks_->told[1].settings.delay, 2ms);
}

TEST_F(SessionOverFakes, InterpretersThatAreKeptAreDisabledButForLines) {
    const auto session = attach(kMixed);
    session->take_out(true, {});
    EXPECT_FALSE(hooks_->told[1].settings.enabled);
    EXPECT_THAT(hooks_->hooked, ElementsAre(child_.pid()));
    ASSERT_TRUE(session->put_back());
    EXPECT_TRUE(hooks_->told[1].settings.enabled);
}

TEST_F(SessionOverFakes, FunctionsAreToldApartByTheHooksAndTheirErrorIsTheSessions) {
    const auto native = attach("+exe:work\n");
    EXPECT_TRUE(native->regroup({})); // there are none to tell apart
    const auto session = attach(kMixed);
    engine::Regrouping asked;
    asked.lines = {1};
    asked.line_of = {1};
    asked.groups.resize(1);
    ASSERT_TRUE(session->regroup(asked));
    EXPECT_THAT(hooks_->regrouping.lines, ElementsAre(1u));
    EXPECT_EQ(hooks_->regrouping.groups.size(), 1u);
    faults_.begin("regroup");
    const auto refused = session->regroup(asked);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, HasSubstr("fake regroup"));
}

TEST_F(SessionOverFakes, AnInterpreterThatCannotBeHookedIsReported) {
    faults_.begin("hook");
    const auto session = attach("app:work delay=2ms\n");
    const Snapshot snapshot = session->snapshot();
    ASSERT_TRUE(snapshot.hook_failure);
    EXPECT_THAT(snapshot.hook_failure->message, HasSubstr("fake hook"));
    EXPECT_TRUE(snapshot.nothing_matched);
    faults_.begin("path_entry");
    EXPECT_FALSE(session->python_path_entry());
}

} // namespace
} // namespace speedbump::session
