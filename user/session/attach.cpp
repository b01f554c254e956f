// SPDX-License-Identifier: MIT
#include "engine/engines.h"
#include "session/session.h"

// A session over the engines of this host.
namespace speedbump::session {

Result<std::unique_ptr<Session>> Session::attach(const SessionOptions& options,
                                                 const targets::TargetsFile& file, Warn warn) {
    auto engines = engine::open_engines({.choice = options.engine,
                                         .follow_children = options.follow_children,
                                         .is_of_cgroup = options.cgroup.has_value(),
                                         .every = options.defaults.every.value_or(1),
                                         .pids = options.pids,
                                         .columns = options.columns},
                                        file, warn);
    if (!engines) return std::move(engines).error();
    return over(std::move(*engines), options, file, std::move(warn));
}

} // namespace speedbump::session
