// SPDX-License-Identifier: MIT
// Samples a trees.py process and judges each stack by what its mode can have.
//
//   stack_check PID MODE SAMPLES
//
// Prints a line of JSON: samples, failed (reported as such by the reader), wrong, stacks (how many
// different ones were seen), seconds, and the first wrong stack.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "inspect/stack_reader.h"

using speedbump::inspect::Frame;
using speedbump::inspect::StackFault;
using speedbump::inspect::StackReader;
using speedbump::inspect::ThreadStack;

namespace {

using Names = std::vector<std::string>;

// Outermost first, without the parts that say where a function was defined.
Names names_of(const ThreadStack& stack) {
    Names names;
    for (size_t i = stack.frames.size(); i-- > 0;) {
        const std::string& name = stack.frames[i].function->name;
        names.push_back(name.substr(name.rfind('.') + 1));
    }
    return names;
}

bool is_beginning(const Names& names, const Names& whole) {
    if (names.size() > whole.size()) return false;
    for (size_t i = 0; i < names.size(); ++i)
        if (names[i] != whole[i]) return false;
    return true;
}

bool is_recursion(const Names& names) {
    constexpr size_t kDepth = 1001;
    if (names.empty()) return true;
    const std::string down = names[0];
    if (down != "a_down" && down != "b_down") return false;
    size_t depth = 0;
    while (depth < names.size() && names[depth] == down) ++depth;
    if (depth == names.size()) return depth <= kDepth;
    return depth == kDepth && depth + 1 == names.size() &&
           names[depth] == down.substr(0, 2) + "end";
}

// <module> of "<a12>", a_12, aa_12
bool is_reuse(const Names& names, const ThreadStack& stack) {
    if (names.empty()) return true;
    const Frame& module = stack.frames[names.size() - 1];
    const std::string file = module.function->file;
    if (names[0] != "<module>" || file.size() < 4) return false;
    const std::string letter = file.substr(1, 1);
    const std::string number = file.substr(2, file.size() - 3);
    for (size_t i = 0; i < names.size(); ++i)
        if (stack.frames[i].function->file != file) return false;
    return is_beginning(names, {"<module>", letter + "_" + number, letter + letter + "_" + number});
}

bool is_right(const std::string& mode, const ThreadStack& stack) {
    static const std::map<std::string, std::vector<Names>> kTrees = {
        {"alternating", {{"a1", "a2", "a3"}, {"b1", "b2", "b3"}}},
        {"shared",
         {{"a1", "helper", "a_leaf"},
          {"a1", "helper", "leaf"},
          {"b1", "helper", "b_leaf"},
          {"b1", "helper", "leaf"}}},
        {"generators",
         {{"a1", "a_outer", "a_inner", "step"}, {"b1", "b_outer", "b_inner", "step"}}},
        {"oversized", {{"a1", "a_big", "a_leaf"}, {"b1", "b_leaf"}}},
        {"threads", {{"a0", "a1", "a2", "a3"}, {"b0", "b1", "b2", "b3"}, {"c0", "c1", "c2", "c3"}}},
    };
    Names names = names_of(stack);
    // What starts a program or a thread, and the function of the mode itself.
    static const std::set<std::string> kFrame = {"<module>", "_bootstrap", "_bootstrap_inner",
                                                 "run",      "_context",   mode};
    size_t first = 0;
    while (first < names.size() && kFrame.contains(names[first]) &&
           !(mode == "reuse" && first > 0 && names[first - 1] == mode))
        ++first;
    names.erase(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(first));
    if (mode == "recursion") return is_recursion(names);
    if (mode == "reuse") return is_reuse(names, stack);
    for (const Names& tree : kTrees.at(mode))
        if (is_beginning(names, tree)) return true;
    return false;
}

std::string join(const Names& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ";") + name;
    return text;
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    const auto pid = static_cast<pid_t>(std::atoi(argv[1]));
    const std::string mode = argv[2];
    const long samples = std::atol(argv[3]);
    auto reader = StackReader::open(pid, {});
    if (!reader) {
        std::fprintf(stderr, "%s\n", reader.error().message.c_str());
        return 1;
    }
    long failed = 0;
    long wrong = 0;
    std::map<std::string, long> seen;
    std::string first_wrong;
    const auto start = std::chrono::steady_clock::now();
    for (long i = 0; i < samples; ++i) {
        if (auto sampled = reader->sample(); !sampled) {
            std::fprintf(stderr, "%s\n", sampled.error().message.c_str());
            return 1;
        }
        bool is_complete = true;
        for (const ThreadStack* stack : reader->stacks()) {
            if (stack->fault != StackFault::kFine) {
                is_complete = false;
                continue;
            }
            if (stack->frames.size() < 10) ++seen[join(names_of(*stack))];
            if (is_right(mode, *stack)) continue;
            ++wrong;
            if (first_wrong.empty()) first_wrong = join(names_of(*stack));
        }
        failed += is_complete ? 0 : 1;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf(
        "{\"samples\": %ld, \"failed\": %ld, \"wrong\": %ld, \"stacks\": %zu, "
        "\"seconds\": %.2f, \"first_wrong\": \"%s\"}\n",
        samples, failed, wrong, seen.size(), took.count(), first_wrong.c_str());
    if (std::getenv("STACK_CHECK_SHOW") != nullptr)
        for (const auto& [stack, count] : seen)
            std::printf("%8ld %s\n", count, stack.substr(0, 200).c_str());
    return wrong == 0 ? 0 : 1;
}
