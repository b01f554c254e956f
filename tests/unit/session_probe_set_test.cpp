// SPDX-License-Identifier: MIT
#include "session/probe_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "../cpu_time.h"
#include "fake_engines.h"
#include "process/maps.h"
#include "targets/parser.h"
#include "waiting_process.h"

namespace speedbump::session {
namespace {

using engine::FakeProbes;
using engine::Probe;
using process::FileKey;
using test::WaitingProcess;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Places = std::vector<FakeProbes::Place>;

constexpr pid_t kFirst = 100'001; // members, of which there are no processes
constexpr pid_t kSecond = 100'002;

// The file that this program is.
FileKey own_file() {
    const auto maps = process::read_maps(getpid());
    const std::string path = std::filesystem::read_symlink("/proc/self/exe");
    for (const process::Mapping& mapping : *maps)
        if (mapping.path == path) return {mapping.device, mapping.inode};
    return {};
}

// Two members that map one file with a target.
class ProbeSetTest : public testing::Test {
  protected:
    void SetUp() override {
        file_ = targets::parse_targets("+lib.so:f delay=1ms\n", "t").file;
        make();
        for (const pid_t pid : {kFirst, kSecond})
            members_.add({static_cast<uint32_t>(pid), pid, "member", 1, true, {key_}});
    }

    void make() {
        set_.reset();
        targets_.emplace(options_, file_, engine_, nullptr, warn());
        ProbeSet::Rules rules{true,
                              [this](const Member& member, const Error& error) {
                                  put_off_.emplace_back(member.pid, error.message);
                              },
                              warn()};
        set_.emplace(engine_, tree_, members_, *targets_, std::move(rules));
    }
    Warn warn() {
        return [this](const std::string& text) { warnings_.push_back(text); };
    }

    Member& member(pid_t pid) { return *members_.find(static_cast<uint32_t>(pid)); }
    // A target of the file; its index.
    uint32_t add_target() {
        process::NativeMatch match;
        match.file = key_;
        match.path = "/usr/lib/lib.so";
        match.entry_offset = match.site.file_offset = 16 * targets_->all().size();
        match.name = "f" + std::to_string(targets_->all().size());
        const auto probe = targets_->add(match, set_->sets_of(key_));
        EXPECT_TRUE(probe);
        set_->add(key_, 0, {*probe}, member(kFirst));
        return probe->target;
    }
    void end_changes() {
        const auto end = Clock::now() + kWithoutEnd;
        while (set_->is_changing() && Clock::now() < end) set_->end_changes();
        EXPECT_FALSE(set_->is_changing());
    }
    void probe_both() {
        for (const pid_t pid : {kFirst, kSecond}) {
            auto probed = set_->probe(member(pid));
            EXPECT_TRUE(probed) << probed.error().message;
        }
    }
    void look() {
        do set_->look_for_outsiders();
        while (set_->is_looking());
    }
    // What is taken out meanwhile goes on a thread of its own.
    Places places_once_there_are(size_t count) {
        while (engine_.in_place().size() != count) std::this_thread::yield();
        return engine_.in_place();
    }

    const FileKey key_ = own_file();
    engine::Faults faults_;
    FakeProbes engine_{faults_};
    engine::FakeTree tree_{faults_};
    Members members_;
    SessionOptions options_;
    targets::TargetsFile file_;
    std::optional<TargetSet> targets_;
    std::optional<ProbeSet> set_;
    std::vector<std::string> warnings_;
    std::vector<std::pair<pid_t, std::string>> put_off_;
};

TEST_F(ProbeSetTest, IsNarrowAtFirst) {
    add_target();
    probe_both();
    EXPECT_EQ(engine_.in_place(), (Places{{kFirst, {0}}, {kSecond, {0}}}));
    EXPECT_TRUE(set_->has_narrow());
    probe_both(); // they are there
    EXPECT_EQ(engine_.in_place().size(), 2u);
}

TEST_F(ProbeSetTest, ProbesTogetherWhatItCanAndTheRestOneByOne) {
    add_target();
    faults_.begin("attach each");
    set_->probe_together();
    EXPECT_THAT(engine_.in_place(), IsEmpty());
    faults_.end();
    faults_.begin("attach narrow");
    set_->probe_together();
    EXPECT_EQ(engine_.in_place().size(), 2u);
    probe_both(); // nothing is left to attach
}

TEST_F(ProbeSetTest, NewTargetsOfAFileArePlacedWhereItIsProbed) {
    add_target();
    probe_both();
    add_target();
    EXPECT_EQ(engine_.in_place(),
              (Places{{kFirst, {0}}, {kFirst, {1}}, {kSecond, {0}}, {kSecond, {1}}}));
    faults_.begin("attach narrow");
    add_target();
    EXPECT_THAT(put_off_, ElementsAre(testing::Pair(kFirst, HasSubstr("fake attach narrow")),
                                      testing::Pair(kSecond, HasSubstr("fake attach narrow"))));
    faults_.end();
    probe_both(); // of what failed alone
    EXPECT_EQ(engine_.in_place().size(), 6u);
}

TEST_F(ProbeSetTest, WidensAFileThatNoOutsiderMaps) {
    add_target();
    probe_both();
    look();
    EXPECT_EQ(places_once_there_are(1), (Places{{std::nullopt, {0}}}));
    EXPECT_FALSE(set_->has_narrow());
    end_changes(); // the change ends by itself where the older probes are out before widen()
                   // returns
    EXPECT_EQ(engine_.told[0].sets.older, 1u);
    EXPECT_EQ(engine_.told[0].sets.newer, 1u);
    add_target();
    EXPECT_EQ(engine_.in_place(), (Places{{std::nullopt, {0}}, {std::nullopt, {1}}}));
    EXPECT_EQ(engine_.told[1].sets.word(), engine_.told[0].sets.word());
    EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(ProbeSetTest, StaysNarrowWhereWideningFailsAndSaysSoOnce) {
    add_target();
    probe_both();
    faults_.begin("attach wide");
    look();
    EXPECT_THAT(warnings_, ElementsAre(HasSubstr("probe /usr/lib/lib.so for all its processes at "
                                                 "once: fake attach wide: Cannot allocate")));
    EXPECT_EQ(engine_.in_place().size(), 2u);
    EXPECT_EQ(engine_.told[0].sets.newer, 0u);
    EXPECT_FALSE(set_->widen(key_));
    faults_.end();
    EXPECT_TRUE(set_->widen(key_));
    EXPECT_EQ(warnings_.size(), 1u);
    places_once_there_are(1);
}

TEST_F(ProbeSetTest, StaysAsItIsWhereATargetCannotBeToldOfTheChange) {
    add_target();
    probe_both();
    faults_.begin("configure");
    const auto widened = set_->widen(key_);
    ASSERT_FALSE(widened);
    EXPECT_THAT(widened.error().message, HasSubstr("configure f0: fake configure"));
    EXPECT_EQ(engine_.in_place().size(), 2u);
    faults_.end();
    ASSERT_TRUE(set_->widen(key_));
    places_once_there_are(1);
    faults_.begin("configure");
    set_->narrow(key_);
    EXPECT_FALSE(set_->has_narrow());
    EXPECT_THAT(warnings_, ElementsAre(HasSubstr("configure f0: fake configure")));
}

// So that each hit counts once (engine::ProbeSets).
TEST_F(ProbeSetTest, ChangesInStepsAndBack) {
    add_target();
    probe_both();
    engine_.steps.clear();
    ASSERT_TRUE(set_->widen(key_));
    places_once_there_are(1);
    end_changes();
    EXPECT_THAT(engine_.steps, ElementsAre("0 to 1", "attach 1", "0 to 1 counts", "1 to 1"));
    engine_.steps.clear();
    set_->narrow(key_);
    places_once_there_are(2);
    end_changes();
    EXPECT_THAT(engine_.steps, ElementsAre("1 to 2", "attach 2", "1 to 2 counts", "2 to 2"));
    engine_.steps.clear();
    faults_.begin("attach wide");
    EXPECT_FALSE(set_->widen(key_));
    EXPECT_THAT(engine_.steps, ElementsAre("2 to 3", "2 to 2"));
}

TEST_F(ProbeSetTest, WarnsOfManyFunctionsInEachOfManyProcesses) {
    add_target();
    set_->warn_of_many();
    EXPECT_THAT(warnings_, IsEmpty());
    const std::vector<engine::Probe> many(14'999);
    set_->add(key_, 0, many, member(kFirst));
    set_->warn_of_many();
    EXPECT_THAT(warnings_, ElementsAre(HasSubstr("15000 functions of /usr/lib/lib.so are probed in "
                                                 "each of 2 processes by itself, 30000 probes")));
    warnings_.clear();
    ASSERT_TRUE(set_->widen(key_)); // one set for all
    set_->warn_of_many();
    EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(ProbeSetTest, StaysNarrowWhileAnOutsiderMapsTheFile) {
    const WaitingProcess outsider;
    tree_.exists(outsider.pid(), getpid());
    add_target();
    probe_both();
    look();
    EXPECT_EQ(engine_.in_place().size(), 2u);
    set_->warn_of_late_files();
    EXPECT_THAT(warnings_, IsEmpty()); // nobody is born
    set_->born();
    set_->warn_of_late_files();
    set_->warn_of_late_files();
    EXPECT_THAT(warnings_, ElementsAre(HasSubstr("/usr/lib/lib.so is mapped by processes outside "
                                                 "the tree as well")));
    EXPECT_THAT(set_->late_files(), ElementsAre("/usr/lib/lib.so"));
}

TEST_F(ProbeSetTest, AMemberIsNoOutsider) {
    const WaitingProcess child;
    tree_.exists(child.pid(), getpid());
    tree_.members[static_cast<uint32_t>(child.pid())] = 1;
    add_target();
    probe_both();
    look();
    EXPECT_FALSE(set_->has_narrow());
    places_once_there_are(1);
}

TEST_F(ProbeSetTest, WhatCannotBeListedIsNotWidened) {
    add_target();
    probe_both();
    faults_.begin("list_processes");
    look();
    EXPECT_TRUE(set_->has_narrow());
}

TEST_F(ProbeSetTest, NarrowsAFileOnceAnOutsiderMapsIt) {
    add_target();
    ASSERT_TRUE(set_->widen(key_));
    probe_both();
    EXPECT_EQ(engine_.in_place(), (Places{{std::nullopt, {0}}}));
    const WaitingProcess outsider;
    set_->outsider_maps(outsider.pid());
    EXPECT_EQ(places_once_there_are(2), (Places{{kFirst, {0}}, {kSecond, {0}}}));
    EXPECT_TRUE(engine_.told[0].sets.newer_counts);
    EXPECT_THAT(put_off_, IsEmpty());
}

TEST_F(ProbeSetTest, AMemberThatLosesItsProbesToNarrowingIsPutOff) {
    add_target();
    ASSERT_TRUE(set_->widen(key_));
    faults_.begin("attach narrow");
    faults_.begin("attach each");
    set_->narrow(key_);
    EXPECT_EQ(put_off_.size(), 2u);
    EXPECT_THAT(places_once_there_are(0), IsEmpty());
    faults_.end();
    probe_both();
    EXPECT_EQ(engine_.in_place().size(), 2u);
}

TEST_F(ProbeSetTest, AnEngineThatCannotAimIsWideFromTheBeginning) {
    engine_.able.narrow = false;
    make();
    add_target();
    probe_both();
    EXPECT_EQ(engine_.in_place(), (Places{{std::nullopt, {0}}}));
    const WaitingProcess outsider;
    set_->outsider_maps(outsider.pid());
    set_->narrow(key_);
    EXPECT_FALSE(set_->has_narrow());
    EXPECT_EQ(engine_.in_place().size(), 1u);
}

TEST_F(ProbeSetTest, WhereItCannotAimEachFailureReachesTheCaller) {
    engine_.able.narrow = false;
    make();
    add_target();
    faults_.begin("attach wide", ENOSPC);
    const auto probed = set_->probe(member(kFirst));
    ASSERT_FALSE(probed);
    EXPECT_EQ(probed.error().error_number, ENOSPC);
    look(); // is not what tries it again
    EXPECT_THAT(warnings_, IsEmpty());
    faults_.end();
    probe_both();
    EXPECT_EQ(engine_.in_place().size(), 1u);
}

TEST_F(ProbeSetTest, ARefusedProbeIsListedOnce) {
    faults_.begin("probe", EINVAL);
    add_target();
    probe_both();
    ASSERT_EQ(targets_->skipped().size(), 1u);
    EXPECT_EQ(targets_->skipped()[0].name, "f0");
    EXPECT_THAT(targets_->skipped()[0].reason, HasSubstr("Invalid argument"));
}

TEST_F(ProbeSetTest, AMemberThatEndsMeanwhileIsNoFailure) {
    add_target();
    faults_.begin("attach narrow", ESRCH);
    probe_both();
    EXPECT_THAT(engine_.in_place(), IsEmpty());
}

TEST_F(ProbeSetTest, DropsTheProbesOfOneMemberAlone) {
    add_target();
    probe_both();
    set_->drop(static_cast<uint32_t>(kFirst));
    EXPECT_EQ(places_once_there_are(1), (Places{{kSecond, {0}}}));
}

TEST_F(ProbeSetTest, TakenOutNothingIsPutInPlaceUntilItIsPutBack) {
    add_target();
    probe_both();
    set_->take_out();
    EXPECT_THAT(engine_.in_place(), IsEmpty());
    add_target();
    probe_both();
    set_->probe_together();
    look();
    EXPECT_THAT(engine_.in_place(), IsEmpty());
    ASSERT_TRUE(set_->put_back());
    EXPECT_EQ(engine_.in_place(), (Places{{kFirst, {0, 1}}, {kSecond, {0, 1}}}));
}

TEST_F(ProbeSetTest, TakingOutWaitsForWhatIsOnItsWayOut) {
    add_target();
    probe_both();
    engine_.release_takes = std::chrono::milliseconds(50);
    ASSERT_TRUE(set_->widen(key_));
    EXPECT_EQ(engine_.in_place().size(), 3u);
    set_->take_out();
    EXPECT_THAT(engine_.in_place(), IsEmpty());
}

TEST_F(ProbeSetTest, PuttingBackNarrowProbesThatFailSaysWhose) {
    add_target();
    probe_both();
    set_->take_out();
    faults_.begin("attach narrow");
    faults_.begin("attach each");
    const auto put = set_->put_back();
    ASSERT_FALSE(put);
    EXPECT_EQ(put.error().error_number, ENOMEM);
    EXPECT_THAT(put.error().message, HasSubstr("process 100001 (member): fake attach narrow"));
    faults_.end();
    EXPECT_TRUE(set_->put_back());
    EXPECT_EQ(engine_.in_place().size(), 2u);
}

TEST_F(ProbeSetTest, PuttingBackWideProbesThatFailSaysSo) {
    add_target();
    ASSERT_TRUE(set_->widen(key_));
    set_->take_out();
    faults_.begin("attach wide");
    const auto put = set_->put_back();
    ASSERT_FALSE(put);
    EXPECT_THAT(put.error().message, HasSubstr("fake attach wide"));
    faults_.end();
    EXPECT_TRUE(set_->put_back());
    EXPECT_EQ(engine_.in_place(), (Places{{std::nullopt, {0}}}));
}

} // namespace
} // namespace speedbump::session
