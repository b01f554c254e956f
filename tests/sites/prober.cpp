// SPDX-License-Identifier: MIT
#include "prober.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include "engine/bpf/bpf_engine.h"
#include "engine/kmod/kmod_engine.h"
#include "sbctl/client.h"

namespace speedbump::sites {

namespace {

class BpfProber : public Prober {
  public:
    BpfProber(engine::Features features, std::unique_ptr<engine::BpfEngine> engine)
        : features_(std::move(features)), engine_(std::move(engine)) {}

    Result<void> attach(int file, const std::vector<uint64_t>& offsets, pid_t process,
                        std::vector<int>& refused) override {
        std::vector<engine::Probe> probes;
        for (uint64_t offset : offsets) {
            const auto target = static_cast<uint32_t>(probes.size());
            if (auto done = engine_->configure(target, {}, 0, {}); !done) return done;
            probes.push_back({target, offset, elf::SiteKind::kSingleStep});
        }
        std::vector<engine::RefusedProbe> failed;
        auto links =
            engine_->attach_narrow(fmt::format("/proc/self/fd/{}", file), probes, process, failed);
        if (!links) return links.error();
        links_ = std::move(*links);
        refused.assign(offsets.size(), 0);
        for (const engine::RefusedProbe& one : failed) refused[one.probe.target] = one.error_number;
        count_ = offsets.size();
        engine_->arm(true);
        return {};
    }

    Result<std::vector<uint64_t>> hits() override {
        std::vector<uint64_t> hits(count_);
        const auto all = engine_->read_counts();
        if (!all) return all.error();
        for (const engine::Counts& counts : *all) {
            if (counts.target < count_) hits[counts.target] += counts.hits;
            engine_->forget_counts(counts.target, static_cast<uint32_t>(counts.process));
        }
        return hits;
    }

    void detach() override { links_ = {}; }
    const char* name() const override { return "bpf"; }
    bool has_a_list() const override { return false; }
    bool turns_nops_into_calls() const override { return features_.nop5_optimized; }
    size_t capacity() const override { return 1024; }

  private:
    engine::Features features_;
    std::unique_ptr<engine::BpfEngine> engine_;
    engine::Links links_;
    size_t count_ = 0;
};

class KmodProber : public Prober {
  public:
    KmodProber(engine::Features features, size_t capacity)
        : features_(std::move(features)), capacity_(capacity) {}

    Result<void> attach(int file, const std::vector<uint64_t>& offsets, pid_t process,
                        std::vector<int>& refused) override {
        auto engine = engine::KmodEngine::open([](const std::string&) {});
        if (!engine) return engine.error();
        engine_ = std::move(*engine);
        engine_->arm(true);
        count_ = offsets.size();
        refused.assign(count_, 0);
        for (size_t i = 0; i < count_; ++i) {
            const auto target = static_cast<uint32_t>(i);
            if (auto done = engine_->configure(target, {}, 0, {}); !done) return done;
            const engine::Probe probe{target, offsets[i], elf::SiteKind::kSingleStep};
            if (auto done = engine_->add(file, probe, {process}); !done) {
                refused[i] = done.error().error_number;
                if (refused[i] == ENOSPC || refused[i] == 0) return done;
            }
        }
        return {};
    }

    Result<std::vector<uint64_t>> hits() override {
        std::vector<uint64_t> hits(count_);
        const auto all = engine_->read_counts();
        if (!all) return all.error();
        for (const engine::Counts& counts : *all) hits[counts.target] = counts.hits;
        return hits;
    }

    void detach() override { engine_.reset(); }
    const char* name() const override { return "kmod"; }
    bool has_a_list() const override { return true; }
    bool turns_nops_into_calls() const override { return features_.nop5_optimized; }
    size_t capacity() const override { return capacity_; }

  private:
    engine::Features features_;
    size_t capacity_;
    std::unique_ptr<engine::KmodEngine> engine_;
    size_t count_ = 0;
};

} // namespace

Result<std::unique_ptr<Prober>> make_bpf_prober() {
    rlimit open_files{}; // before uprobe_multi each probe is a descriptor
    if (getrlimit(RLIMIT_NOFILE, &open_files) == 0) {
        open_files.rlim_cur = open_files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &open_files);
    }
    engine::Features features = engine::probe_features();
    if (auto able = engine::require_attach_rights(features); !able) return able.error();
    auto engine = engine::BpfEngine::load(features);
    if (!engine) return engine.error();
    // What this process forks belongs to the tree, as it does.
    if (auto added = (*engine)->add_member((*engine)->own_tgid(), 1); !added) return added.error();
    return std::unique_ptr<Prober>(
        std::make_unique<BpfProber>(std::move(features), std::move(*engine)));
}

Result<std::unique_ptr<Prober>> make_kmod_prober() {
    const auto status = sbctl::status();
    if (!status) return status.error();
    return std::unique_ptr<Prober>(
        std::make_unique<KmodProber>(engine::probe_features(), status->max_targets));
}

} // namespace speedbump::sites
