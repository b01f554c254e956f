// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "engine/engine.h"
#include "process/resolver.h"
#include "session/late_files.h"
#include "session/members.h"
#include "session/outsiders.h"
#include "session/reaper.h"
#include "session/target_set.h"
#include "tree/process_tree.h"
#include "util/clock.h"
#include "util/result.h"

namespace speedbump::session {

// The probes of a session, by file. Narrow: each member has probes of its own, and nobody else pays
// for them, but a new child runs unprobed until the session has heard of it. Wide: one set of
// probes for whoever maps the file, children included from their first instruction; right as long
// as no process outside the tree maps it, or as the engine can't do otherwise. Files that are one
// below overlayfs, as containers of one image have them, stay narrow: the probes of one are hit by
// the calls of both.
class ProbeSet {
  public:
    struct Rules {
        bool may_widen = false; // it will be told of mappings, and children belong to the tree
        // A member that could not be given its probes; it is to be probed again later.
        std::function<void(const Member& member, const Error& error)> put_off;
        Warn warn;
    };
    // All must outlive this.
    ProbeSet(engine::ProbeEngine& engine, tree::ProcessTree& tree, Members& members,
             TargetSet& targets, Rules rules);

    // Probes that are new in a file (an open descriptor of it), found in `member`. Where the file
    // is probed already they are put in place at once.
    void add(const process::FileKey& key, int descriptor, const std::vector<engine::Probe>& probes,
             const Member& member);
    // Puts in place what is missing for a member.
    Result<void> probe(const Member& member);
    // The same for all members that have no probes of a file, where that can be done at once; the
    // rest is left to probe().
    void probe_together();
    // Warns of files whose probes in each member by itself will take the kernel long.
    void warn_of_many() const;
    // A member is gone, or its probes have no effect any more.
    void drop(uint32_t tgid);

    Result<void> widen(const process::FileKey& key);
    void narrow(const process::FileKey& key);
    engine::ProbeSets sets_of(const process::FileKey& key) const;
    bool has_narrow() const;
    // A process outside the tree has mapped something.
    void outsider_maps(pid_t pid);
    // Looks for some milliseconds which narrow files no outsider maps, and widens them.
    void look_for_outsiders();
    bool is_looking() const { return scan_.running() || !scan_.files().empty(); }
    // Ends changes between narrow and wide whose older probes are out.
    void end_changes();
    bool is_changing() const;
    // Files that could not be wide when a process was born are warned of.
    void born() { late_.born(); }
    void warn_of_late_files();
    const std::vector<std::string>& late_files() const { return late_.told(); }

    // Takes all probes out and waits until they are gone; until put_back() none is put in place.
    void take_out();
    Result<void> put_back();

  private:
    // Of a file's probes the first so many are in place.
    struct Placed {
        std::vector<engine::Attached> attached;
        size_t count = 0;
    };
    struct File {
        int descriptor = -1;
        std::vector<engine::Probe> probes; // only ever more
        process::FileBelow below;
        bool has_twin = false; // another one here is the same below overlayfs
        bool wide = false;
        engine::ProbeSets sets;
        std::optional<uint64_t> leaving; // while it changes: the last of the older set to be out
        Placed for_all;
        std::map<uint32_t, Placed> narrow; // by tgid
    };

    void note_twins(const process::FileKey& key, File& file);
    const File* wide_twin(const File& file) const;
    bool has_twin(const std::string& name) const;
    Result<void> place(File& file, Placed& placed, std::optional<pid_t> only);
    Result<void> probe(const Member& member, const process::FileKey& key);
    void probe_together(const process::FileKey& key, File& file);
    size_t count_who_map(const process::FileKey& key) const;
    // A newer set of probes may be put in place beside the one that counts; it counts now, and the
    // older one may be taken out; or it was taken out again.
    Result<void> begin_change(File& file);
    void flip(File& file);
    void give_up_change(File& file);
    void publish_sets(const File& file);
    void release(Placed placed);
    void begin_look();
    void end_look();
    const std::string& name_of(const File& file) const;

    engine::ProbeEngine& engine_;
    tree::ProcessTree& tree_;
    Members& members_;
    TargetSet& targets_;
    const Rules rules_;
    const bool can_narrow_;
    bool is_out_ = false;
    std::map<process::FileKey, File> files_;
    OutsiderScan scan_;
    Clock::time_point last_scan_{};
    bool has_new_files_ = false;               // since then
    std::set<process::FileKey> warned_narrow_; // that could not be made wide
    LateFiles late_;
    Reaper reaper_;
};

} // namespace speedbump::session
