// SPDX-License-Identifier: MIT
// Which functions the processes have: each is asked once its hooks are in.
#include <algorithm>

#include "engine/python/python_engine.h"
#include "engine/python/python_texts.h"
#include "util/channel.h"
#include "util/clock.h"

namespace speedbump::engine {

namespace {

constexpr size_t kLooksAtOnce = 8;
// One that takes longer, as a call into C holds its interpreter lock, does not keep others waiting.
constexpr auto kLookPatience = std::chrono::milliseconds(50);
constexpr size_t kMaxKnownModules = 65'536; // processes may say what they like

} // namespace

bool PythonEngine::is_looking() const {
    return std::any_of(processes_.begin(), processes_.end(),
                       [](const auto& entry) { return entry.second.look != Process::Look::kDone; });
}

int PythonEngine::send_look(const Process& process) {
    constexpr std::string_view kLook = R"({"op":"look"})";
    if (known_in_file_ != known_modules_.size()) {
        // Without the file all functions are looked at.
        auto sealed = sealed_text("speedbump-modules", text_of(known_modules_));
        known_file_ = sealed ? std::move(*sealed) : Fd();
        known_in_file_ = known_modules_.size();
    }
    const int file = known_file_.get();
    return send_packet(process.channel.get(), kLook,
                       std::span<const int>(&file, known_file_.valid() ? 1 : 0));
}

void PythonEngine::start_looks() {
    const Clock::time_point now = Clock::now();
    size_t under_way = 0;
    bool are_slow = true;
    for (const auto& [pid, process] : processes_) {
        if (process.look != Process::Look::kUnderWay) continue;
        ++under_way;
        are_slow = are_slow && now - process.look_begun > kLookPatience;
    }
    for (auto& [pid, process] : processes_) {
        if (under_way > 0 && (!are_slow || under_way >= kLooksAtOnce)) return;
        if (process.look != Process::Look::kWanted) continue;
        // One that has hung up is gone, of which poll() tells.
        const bool is_asked = send_look(process) == 0;
        process.look = is_asked ? Process::Look::kUnderWay : Process::Look::kDone;
        process.look_begun = now;
        if (!is_asked) continue;
        ++under_way;
        are_slow = false;
    }
}

void PythonEngine::take_looked(Process& process, const std::vector<uint64_t>& modules, bool more) {
    for (const uint64_t key : modules)
        if (known_modules_.size() < kMaxKnownModules) known_modules_.insert(key);
    if (!more) process.look = Process::Look::kDone;
}

} // namespace speedbump::engine
