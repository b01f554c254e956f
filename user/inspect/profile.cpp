// SPDX-License-Identifier: MIT
#include "inspect/profile.h"

#include <fstream>
#include <set>

namespace speedbump::inspect {

namespace {

// ";" parts the frames of a collapsed stack and a newline the stacks.
std::string collapsible(std::string text) {
    for (char& c : text)
        if (c == ';' || static_cast<unsigned char>(c) < 0x20) c = '_';
    return text;
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

void Profile::add(pid_t pid, const StackReader& reader) {
    for (const ThreadStack* stack : reader.stacks()) {
        if (stack->fault != StackFault::kFine) {
            ++failed_;
            continue;
        }
        if (stack->frames.empty()) continue;
        ++stacks_;
        if (!stack->asleep) ++active_stacks_;
        const std::string& thread = thread_name(pid, stack->tid);
        std::string line = collapsible(thread) + " (" + std::to_string(pid) + ")";
        std::set<const Function*> seen;
        for (size_t i = stack->frames.size(); i-- > 0;) {
            const Function& function = *stack->frames[i].function;
            line += ";" + collapsible(function.name) + " (" + collapsible(function.file) + ":" +
                    std::to_string(function.first_line) + ")";
            seen.insert(&function);
        }
        auto use_of = [&](const Function& function) -> FunctionUse& {
            return functions_[{function.name, function.file, function.first_line,
                               reader.interpreter().minor >= 11}];
        };
        for (const Function* function : seen) {
            FunctionUse& use = use_of(*function);
            ++use.total;
            ++use.threads[thread];
        }
        FunctionUse& innermost = use_of(*stack->frames.front().function);
        ++innermost.self;
        if (!stack->asleep) ++innermost.active;
        if (stack->holds_gil) ++innermost.gil;
        ++collapsed_[line];
    }
}

} // namespace speedbump::inspect
