// SPDX-License-Identifier: MIT
#include "stacks/profile.h"

#include <algorithm>
#include <fstream>
#include <set>

namespace speedbump::stacks {

namespace {

// ";" parts the frames of a collapsed stack and a newline the stacks.
std::string collapsible(std::string text) {
    for (char& c : text)
        if (c == ';' || static_cast<unsigned char>(c) < 0x20) c = '_';
    return text;
}

std::string label(const WholeFrame& frame) {
    if (frame.python != nullptr)
        return frame.python->name + " (" + frame.python->file + ":" +
               std::to_string(frame.python->first_line) + ")";
    const std::string& path = frame.native->path;
    const std::string file = path.substr(path.rfind('/') + 1);
    if (frame.native->name.empty()) return "[" + (file.empty() ? "unknown" : file) + "]";
    return frame.native->name + " (" + file + ")";
}

} // namespace

const std::string& Profile::thread_name(pid_t pid, pid_t tid) {
    auto [entry, is_new] = thread_names_.try_emplace({pid, tid});
    if (is_new) {
        std::ifstream file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(tid) +
                           "/comm");
        std::getline(file, entry->second);
        if (entry->second.empty()) entry->second = "thread";
    }
    return entry->second;
}

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

void Profile::add(const Sampled& thread, const std::vector<WholeFrame>& frames) {
    if (frames.empty()) return;
    stacks_ += thread.times;
    if (thread.active) active_stacks_ += thread.times;
    const std::string& name = thread_name(thread.pid, thread.tid);
    std::string line = collapsible(name) + " (" + std::to_string(thread.pid) + ")";
    std::set<FunctionUse*> seen;
    FunctionUse* innermost = nullptr;
    FunctionUse* innermost_python = nullptr;
    bool has_native = false;
    for (size_t i = frames.size(); i-- > 0;) {
        const WholeFrame& frame = frames[i];
        line += ";" + collapsible(label(frame));
        innermost = nullptr;
        if (frame.python != nullptr) {
            const Function& function = *frame.python;
            innermost_python = &functions_[{function.name, function.file, function.first_line,
                                            thread.knows_qualified_names}];
            seen.insert(innermost_python);
        } else {
            has_native = true;
            const NativeFunction& function = *frame.native;
            if (function.name.empty()) continue;
            innermost = &native_functions_[{function.path, function.name, function.entry_offset}];
            seen.insert(innermost);
        }
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
    collapsed_[line] += thread.times;
}

void Profile::add(pid_t pid, const StackReader& reader) {
    for (const ThreadStack* stack : reader.stacks()) {
        if (stack->fault != StackFault::kFine) {
            add_failed(1);
            continue;
        }
        std::vector<WholeFrame> frames;
        for (const Frame& frame : stack->frames) frames.push_back({frame.function, nullptr});
        add({pid, stack->tid, !stack->asleep, stack->holds_gil, reader.interpreter().minor >= 11,
             1},
            frames);
    }
}

} // namespace speedbump::stacks
