// SPDX-License-Identifier: MIT
#include "engine/inprocess/callers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "inject/target_lock.h"
#include "util/clock.h"
#include "util/text.h"

namespace speedbump::engine::inprocess {

// Somebody else's turn may last; a look comes each second.
constexpr std::chrono::milliseconds kShortTurn{50};

void Callers::configure(uint32_t target, const std::optional<targets::Pattern>& caller) {
    if (!caller) return;
    const auto known = std::find_if(names_.begin(), names_.end(), [&](const auto& one) {
        return one->name().text == caller->text;
    });
    name_of_[target] = static_cast<size_t>(known - names_.begin());
    if (known == names_.end()) names_.push_back(std::make_unique<process::NamedCode>(*caller));
}

Result<Callers::Tables> Callers::choose(pid_t pid, std::vector<Site>& sites,
                                        std::vector<RefusedProbe>& refused) {
    Tables tables;
    std::erase_if(sites, [&](Site& site) {
        const auto name = name_of_.find(site.probe.target);
        if (name == name_of_.end()) return false;
        if (!site.probe.return_distance) {
            refused.push_back({site.probe, EOPNOTSUPP,
                               "it is not known where its return address lies, by which caller= "
                               "tells callers"});
            return true;
        }
        const auto place = std::find(tables.names.begin(), tables.names.end(), name->second);
        site.filter.callers = static_cast<size_t>(place - tables.names.begin());
        site.filter.return_distance = *site.probe.return_distance;
        if (place == tables.names.end()) tables.names.push_back(name->second);
        return false;
    });
    if (tables.names.empty()) return tables;
    const auto mappings = process::read_maps(pid);
    if (!mappings) return mappings.error();
    for (const size_t name : tables.names) {
        process::AddressRanges ranges = names_[name]->find(pid, *mappings);
        if (ranges.empty())
            warn_(
                fmt::format("process {}: caller={} names no function of what it has mapped, so "
                            "that no call of these targets is delayed",
                            pid, printable(names_[name]->name().text)));
        tables.ranges.push_back(std::move(ranges));
    }
    return tables;
}

void Callers::watch(pid_t pid, const std::shared_ptr<Batch>& batch, Tables tables) {
    if (!tables.names.empty()) watched_.push_back({pid, batch, std::move(tables)});
}

void Callers::watch_child(pid_t pid, const std::shared_ptr<Batch>& batch) {
    const auto parent = std::find_if(watched_.begin(), watched_.end(),
                                     [&](const Watched& one) { return one.batch.lock() == batch; });
    if (parent == watched_.end()) return;
    watch(pid, batch, {parent->tables.names, {}}); // whatever they are there
}

void Callers::refresh() {
    std::erase_if(watched_, [this](Watched& one) {
        const auto batch = one.batch.lock();
        if (!batch || !batch->is_in(one.pid)) return true;
        const auto mappings = process::read_maps(one.pid);
        if (!mappings) return true;
        one.tables.ranges.resize(one.tables.names.size());
        for (size_t i = 0; i < one.tables.names.size(); ++i) {
            process::AddressRanges ranges = names_[one.tables.names[i]]->find(one.pid, *mappings);
            if (ranges == one.tables.ranges[i]) continue;
            auto turn = inject::Turn::take(one.pid, Clock::now() + kShortTurn);
            if (!turn) continue; // at the next look
            if (auto set = batch->set_callers(*turn, i, ranges); !set) warn_(set.error().message);
            one.tables.ranges[i] = std::move(ranges);
        }
        return false;
    });
}

} // namespace speedbump::engine::inprocess
