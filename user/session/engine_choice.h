// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/features.h"
#include "engine/kmod/kmod_engine.h"
#include "session/types.h"
#include "targets/target.h"
#include "util/result.h"

namespace speedbump::session {

// The kernel module's engine, when it is to delay for this session; nullptr: BPF does. With kAuto
// it is taken when it is loaded and can do what is asked; where it is loaded and can't, `warn`
// hears why. With kKmod an error says why it can't.
Result<std::unique_ptr<engine::KmodEngine>> open_chosen_module(
    const SessionOptions& options, const targets::TargetsFile& file,
    const engine::Features& features, const std::function<void(const std::string&)>& warn);

// What of the session the module can't do; empty when it can all of it.
std::string unfit_for_module(const SessionOptions& options, const targets::TargetsFile& file);

} // namespace speedbump::session
