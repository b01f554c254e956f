// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tree/process_tree.h"

// Engines and a process tree that touch no process, and fail in each call that they are told to.
namespace speedbump::engine {

// Which calls fail.
class Faults {
  public:
    void begin(const std::string& call, int error_number = ENOMEM) { calls_[call] = error_number; }
    void end() { calls_.clear(); }
    std::optional<Error> of(const std::string& call) const {
        const auto found = calls_.find(call);
        if (found == calls_.end()) return std::nullopt;
        return errno_error("fake " + call, found->second);
    }

  private:
    std::map<std::string, int> calls_;
};

class FakeTree : public tree::ProcessTree {
  public:
    explicit FakeTree(Faults& faults) : faults_(faults) {}

    // A process of the system; its tgid is its PID.
    void exists(pid_t pid, pid_t parent) {
        const auto tgid = static_cast<uint32_t>(pid);
        listed.push_back({tgid, static_cast<uint32_t>(parent), pid, 1, false, false, "fake"});
    }
    void happens(tree::TreeEvent::Type type, pid_t pid, pid_t parent = 0) {
        const auto tgid = static_cast<uint32_t>(pid);
        if (type == tree::TreeEvent::Type::kFork) members[tgid] = 1;
        if (type == tree::TreeEvent::Type::kExit) members.erase(tgid);
        events.push_back({type, tgid, static_cast<uint32_t>(parent), pid, 1, 1, "fake"});
    }

    void follow_children(bool) override {}
    void set_cgroup(uint64_t, uint64_t) override {}
    void record_edges(bool) override {}
    void wake_on_fork(bool wake) override { wakes = wake; }
    Result<std::vector<tree::ListedProcess>> list_processes() override {
        if (auto error = faults_.of("list_processes")) return *error;
        return listed;
    }
    uint32_t own_tgid() const override { return static_cast<uint32_t>(getpid()); }
    Result<bool> add_member(uint32_t tgid, uint64_t roots) override {
        if (auto error = faults_.of("add_member")) return *error;
        const uint64_t before = member_roots(tgid);
        members[tgid] |= roots;
        return members[tgid] != before;
    }
    void remove_member(uint32_t tgid) override { members.erase(tgid); }
    uint64_t member_roots(uint32_t tgid) const override {
        const auto member = members.find(tgid);
        return member == members.end() ? 0 : member->second;
    }
    uint64_t member_count() const override { return members.size(); }
    int tree_map() const override { return -1; }
    int event_fd() const override { return -1; }
    std::vector<tree::TreeEvent> drain_events() override { return std::exchange(events, {}); }
    uint64_t lost_events() const override { return lost; }
    uint64_t lost_members() const override { return 0; }

    std::vector<tree::ListedProcess> listed;
    std::map<uint32_t, uint64_t> members;
    std::vector<tree::TreeEvent> events;
    uint64_t lost = 0;
    bool wakes = false;

  private:
    Faults& faults_;
};

class FakeMappings : public tree::MappingRecords {
  public:
    int fd() const override { return -1; }
    bool moderated() const override { return false; }
    std::vector<tree::NewMapping> drain(bool&) override { return std::exchange(records, {}); }

    std::vector<tree::NewMapping> records;
};

// What targets have been told.
class FakeSettings {
  public:
    struct Told {
        TargetSettings settings;
        uint64_t armed_at_ns = 0;
        engine::ProbeSets sets{};
    };
    std::map<uint32_t, Told> told; // by target
    bool armed = false;

    // A schedule whose memory is here.
    void make_schedule(uint32_t columns) {
        doses.resize(SB_RING_SLICES * columns);
        by_slice.resize(SB_RING_SLICES * columns);
        made = std::make_unique<Schedule>(shared, doses.data(), columns, 1,
                                          [this](size_t) { return by_slice.data(); });
    }
    sb_schedule shared{};
    std::vector<__u64> doses;
    std::vector<sb_slice_counts> by_slice;
    std::unique_ptr<Schedule> made;
};

class FakeProbes : public ProbeEngine, public FakeSettings {
  public:
    // A set of probes that is in place.
    struct Place {
        std::optional<pid_t> only;
        std::set<uint32_t> targets;
        auto operator<=>(const Place&) const = default;
    };

    explicit FakeProbes(Faults& faults) : faults_(faults) {}

    std::vector<std::string> steps; // what was told of sets, and each attach, in order

    Capabilities capabilities() const override { return able; }
    Schedule* schedule() override {
        std::this_thread::sleep_for(schedule_takes);
        return made.get();
    }
    Result<Floors> calibrate() override {
        if (auto error = faults_.of("calibrate")) return *error;
        return Floors{};
    }
    nanoseconds floor(elf::SiteKind) const override { return nanoseconds(100); }
    Result<void> configure(uint32_t target, const TargetSettings& settings, uint64_t armed_at_ns,
                           const engine::ProbeSets& sets) override {
        if (auto error = faults_.of("configure")) return *error;
        told[target] = {settings, armed_at_ns, sets};
        steps.push_back(
            fmt::format("{} to {}{}", sets.older, sets.newer, sets.newer_counts ? " counts" : ""));
        return {};
    }
    void arm(bool arms) override { armed = arms; }
    Result<Attached> attach(const FileProbes& probes, std::optional<pid_t> only,
                            std::vector<RefusedProbe>& refused) override {
        if (auto error = faults_.of(only ? "attach narrow" : "attach wide")) return *error;
        steps.push_back(fmt::format("attach {}", probes.set));
        Place place{only, {}};
        for (const Probe& probe : probes.probes) {
            if (auto error = faults_.of("probe"))
                refused.push_back({probe, error->error_number});
            else
                place.targets.insert(probe.target);
        }
        return put(std::move(place));
    }
    std::vector<Attached> attach_each(const FileProbes& probes,
                                      const std::vector<pid_t>& pids) override {
        std::vector<Attached> all(pids.size());
        if (faults_.of("attach each")) return all;
        steps.push_back(fmt::format("attach {}", probes.set));
        for (size_t i = 0; i < pids.size(); ++i) {
            Place place{pids[i], {}};
            for (const Probe& probe : probes.probes) place.targets.insert(probe.target);
            all[i] = put(std::move(place));
        }
        return all;
    }
    void release(std::vector<Attached>) override { std::this_thread::sleep_for(release_takes); }
    Result<std::vector<Counts>> read_counts() override {
        if (auto error = faults_.of("read_counts")) return *error;
        return counts;
    }
    void forget_counts(uint32_t, uint32_t) override {}

    // In order.
    std::vector<Place> in_place() const {
        const std::lock_guard lock(state_->mutex);
        std::vector<Place> places;
        for (const auto& [number, place] : state_->places) places.push_back(place);
        std::sort(places.begin(), places.end());
        return places;
    }

    Capabilities able{.name = "fake", .title = "the fake", .narrow = true};
    std::vector<Counts> counts;
    nanoseconds release_takes{0};  // as the kernel's grace period does
    nanoseconds schedule_takes{0}; // as where others have the CPU

  private:
    struct State {
        std::mutex mutex; // what is in place may be taken out by any thread
        std::map<int, Place> places;
        int next = 0;
    };
    class Held : public Attachment {
      public:
        Held(std::shared_ptr<State> state, int number)
            : state_(std::move(state)), number_(number) {}
        ~Held() override {
            const std::lock_guard lock(state_->mutex);
            state_->places.erase(number_);
        }

      private:
        std::shared_ptr<State> state_;
        int number_;
    };

    Attached put(Place place) {
        const std::lock_guard lock(state_->mutex);
        const int number = state_->next++;
        state_->places[number] = std::move(place);
        return std::make_unique<Held>(state_, number);
    }

    Faults& faults_;
    std::shared_ptr<State> state_ = std::make_shared<State>();
};

class FakeHooks : public HookEngine, public FakeSettings {
  public:
    explicit FakeHooks(Faults& faults) : faults_(faults) {}

    Capabilities capabilities() const override {
        return {.name = "hooks", .title = "hooks", .schedule = made != nullptr};
    }
    Schedule* schedule() override { return made.get(); }
    nanoseconds floor(elf::SiteKind) const override { return nanoseconds(50); }
    Result<void> configure(uint32_t target, const TargetSettings& settings, uint64_t armed_at_ns,
                           const engine::ProbeSets& sets) override {
        if (auto error = faults_.of("configure hooks")) return *error;
        if (is_open_) told[target] = {settings, armed_at_ns, sets};
        return {};
    }
    void arm(bool arms) override { armed = arms; }
    Result<std::vector<Counts>> read_counts() override {
        if (auto error = faults_.of("read_counts of hooks")) return *error;
        return counts;
    }

    std::vector<size_t> lines() const override { return own_lines; }
    void add_line(uint32_t target, size_t line) override { target_of[line] = target; }
    Result<void> regroup(engine::Regrouping asked) override {
        if (auto error = faults_.of("regroup")) return *error;
        regrouping = std::move(asked);
        return {};
    }
    Result<void> open() override {
        if (auto error = faults_.of("open hooks")) return *error;
        is_open_ = true;
        return {};
    }
    bool is_open() const override { return is_open_; }
    void close() override {
        is_open_ = false;
        told.clear();
        hooked.clear();
    }
    void attach(const std::vector<std::pair<pid_t, uint64_t>>& processes_and_roots, bool) override {
        for (const auto& [pid, roots] : processes_and_roots) {
            if (auto error = faults_.of("hook"))
                failure = std::move(*error);
            else
                hooked.insert(pid);
        }
    }
    void begin_events() override {}
    void end_events() override {}
    void forked(pid_t, pid_t child, uint64_t) override { hooked.insert(child); }
    void execed(pid_t pid) override { hooked.erase(pid); }
    void exited(pid_t pid) override { hooked.erase(pid); }
    Result<std::string> path_entry(pid_t) override {
        if (auto error = faults_.of("path_entry")) return *error;
        return std::string("/fake.zip");
    }
    HookReport report() const override { return {!hooked.empty(), failure, {}}; }

    std::vector<size_t> own_lines;
    std::map<size_t, uint32_t> target_of;
    std::set<pid_t> hooked;
    engine::Regrouping regrouping;
    std::optional<Error> failure;
    std::vector<Counts> counts;

  private:
    Faults& faults_;
    bool is_open_ = false;
};

} // namespace speedbump::engine
