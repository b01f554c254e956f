// SPDX-License-Identifier: MIT
#include "stacks/profile.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "util/proc.h"

namespace speedbump::stacks {

namespace {

std::string name_of(const Sampled& thread) {
    std::string name(thread.name.data(), strnlen(thread.name.data(), thread.name.size()));
    if (name.empty())
        name = read_proc("/proc/" + std::to_string(thread.pid) + "/task/" +
                         std::to_string(thread.tid) + "/comm");
    if (name.ends_with('\n')) name.pop_back();
    return name.empty() ? "thread" : name;
}

} // namespace

std::vector<const Profile::NativeKey*> Profile::busiest_native() const {
    std::vector<std::pair<const NativeKey*, const FunctionUse*>> uses;
    for (const auto& [key, use] : native_functions_) uses.emplace_back(&key, &use);
    std::stable_sort(uses.begin(), uses.end(), [](const auto& a, const auto& b) {
        return std::tuple(a.second->active, a.second->self, a.second->total) >
               std::tuple(b.second->active, b.second->self, b.second->total);
    });
    std::vector<const NativeKey*> keys;
    for (const auto& [key, use] : uses) keys.push_back(key);
    return keys;
}

FunctionUse& Profile::use_of(const WholeFrame& frame, bool knows_qualified_names) {
    if (frame.python != nullptr) {
        const Function& function = *frame.python;
        const auto [entry, is_new] = functions_.try_emplace(
            {function.name, function.file, function.first_line, knows_qualified_names});
        if (is_new)
            entry->second.frame =
                tree_.frame({function.name, function.file, function.first_line, true});
        return entry->second;
    }
    const NativeFunction& function = *frame.native;
    const auto [entry, is_new] =
        native_functions_.try_emplace({function.path, function.name, function.entry_offset});
    if (is_new) entry->second.frame = tree_.frame({function.name, function.path, 0, false});
    return entry->second;
}

void Profile::add(const Sampled& thread, const std::vector<WholeFrame>& frames) {
    if (frames.empty()) return;
    stacks_ += thread.times;
    if (thread.active) {
        active_stacks_ += thread.times;
        active_by_process_[thread.pid] += thread.times;
    }
    const uint32_t sampled =
        tree_.thread(thread.pid, thread.tid, [&thread] { return name_of(thread); });
    const std::string& name = tree_.threads()[sampled].name;
    uint32_t node = CallTree::kRoot;
    std::set<FunctionUse*> seen;
    FunctionUse* innermost = nullptr;
    FunctionUse* innermost_python = nullptr;
    bool has_native = false;
    for (size_t i = frames.size(); i-- > 0;) {
        const WholeFrame& frame = frames[i];
        innermost = nullptr;
        has_native |= frame.native != nullptr;
        if (frame.native != nullptr && frame.native->name.empty()) {
            node = tree_.callee(node, tree_.frame({"", frame.native->path, 0, false}));
            continue;
        }
        FunctionUse& use = use_of(frame, thread.knows_qualified_names);
        node = tree_.callee(node, use.frame);
        (frame.python != nullptr ? innermost_python : innermost) = &use;
        seen.insert(&use);
    }
    if (innermost_python != nullptr) python_stacks_ += thread.times;
    if (has_native) native_stacks_ += thread.times;
    for (FunctionUse* use : seen) {
        use->total += thread.times;
        use->threads[name] += thread.times;
    }
    for (FunctionUse* use : {innermost, innermost_python}) {
        if (use == nullptr) continue;
        use->self += thread.times;
        if (thread.active) use->active += thread.times;
        if (thread.holds_gil) use->gil += thread.times;
    }
    tree_.add(sampled, node, thread.active, thread.times);
}

void Profile::add(pid_t pid, const StackReader& reader) {
    for (const ThreadStack* stack : reader.stacks()) {
        if (stack->fault != StackFault::kFine) {
            add_failed(Unread::kUnreadable, 1);
            continue;
        }
        std::vector<WholeFrame> frames;
        for (const Frame& frame : stack->frames) frames.push_back({frame.function, nullptr});
        add({pid,
             stack->tid,
             !stack->asleep,
             stack->holds_gil,
             reader.interpreter().minor >= 11,
             1,
             {}},
            frames);
    }
}

} // namespace speedbump::stacks
