// SPDX-License-Identifier: MIT
// Samples a trees.py process and judges each stack by what its mode can have.
//
//   stack_check PID MODE SAMPLES [DIFFERENT]
//
// With DIFFERENT samples are taken by BPF of the threads on a CPU and off, as `discover` does, and
// more until as many different stacks were seen; else read from outside. Prints a line of JSON:
// samples, still (of them, of threads off the CPUs), failed (reported as such by the reader), lost
// (for want of room: this program did not come to read them), waited_ns (for a CPU, by this
// program, and for the host to give one back), wrong, stacks (how many different ones were seen),
// seconds, and the first wrong stack. Writes "reads" to stderr when the first sample from outside
// was taken.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "stacks/native_stack.h"
#include "stacks/sampler.h"
#include "stacks/stack_reader.h"

using speedbump::stacks::Frame;
using speedbump::stacks::StackFault;
using speedbump::stacks::StackReader;
using speedbump::stacks::ThreadStack;

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

// How long this program has waited for a CPU so far.
long waited_ns() {
    long worked = 0;
    long waited = 0;
    std::ifstream("/proc/thread-self/schedstat") >> worked >> waited;
    return waited;
}

// What the host has taken of this machine's CPUs so far (steal time, proc_stat(5)).
long stolen_ns() {
    std::string cpu;
    long ticks[8] = {}; // user, nice, system, idle, iowait, irq, softirq, steal
    std::ifstream file("/proc/stat");
    file >> cpu;
    for (long& one : ticks) file >> one;
    return ticks[7] * (1'000'000'000 / sysconf(_SC_CLK_TCK));
}

class Judge {
  public:
    explicit Judge(std::string mode) : mode_(std::move(mode)) {}

    // False when the reader could not tell the stack.
    bool take(const ThreadStack& stack) {
        if (stack.fault != StackFault::kFine) return false;
        if (stack.frames.size() < 10) ++seen_[join(names_of(stack))];
        if (is_right(mode_, stack)) return true;
        ++wrong_;
        if (first_wrong_.empty()) first_wrong_ = join(names_of(stack));
        return true;
    }
    size_t different() const { return seen_.size(); }
    int report(long samples, long still, long failed, long lost, double seconds) const {
        std::printf(
            "{\"samples\": %ld, \"still\": %ld, \"failed\": %ld, \"lost\": %ld, \"waited_ns\": "
            "%ld, "
            "\"wrong\": %ld, \"stacks\": %zu, \"seconds\": %.2f, \"first_wrong\": \"%s\"}\n",
            samples, still, failed, lost, waited_ns() + stolen_ns() - stolen_before_, wrong_,
            seen_.size(), seconds, first_wrong_.c_str());
        if (std::getenv("STACK_CHECK_SHOW") != nullptr)
            for (const auto& [stack, count] : seen_)
                std::printf("%8ld %s\n", count, stack.substr(0, 200).c_str());
        return wrong_ == 0 ? 0 : 1;
    }

  private:
    std::string mode_;
    const long stolen_before_ = stolen_ns();
    long wrong_ = 0;
    std::map<std::string, long> seen_;
    std::string first_wrong_;
};

int fail(const std::string& message) {
    std::fprintf(stderr, "%s\n", message.c_str());
    return 2;
}

// Takes `wanted` samples, and goes on until `different` stacks were seen.
int judge_running(pid_t pid, StackReader& reader, std::chrono::microseconds period, long wanted,
                  size_t different, Judge& judge) {
    using speedbump::stacks::ThreadSample;
    auto sampler = speedbump::stacks::StackSampler::open(period);
    if (!sampler) return fail(sampler.error().message);
    auto unwinder = speedbump::stacks::NativeUnwinder::open(pid);
    if (!unwinder) return fail(unwinder.error().message);
    const sb_python_layout layout = reader.bpf_layout();
    long samples = 0;
    long still = 0;
    long failed = 0;
    std::vector<ThreadStack> pending;
    const auto start = std::chrono::steady_clock::now();
    const std::function<void(const ThreadSample&)> take = [&](const ThreadSample& sample) {
        ++samples;
        still += sample.head.on_cpu == 0 ? 1 : 0;
        const auto native = unwinder->unwind(sample.head.registers, sample.stack);
        const ThreadStack stack =
            reader.interpret(static_cast<pid_t>(sample.head.tid), sample.frames, native.loop_pc);
        if (sample.head.python_fault != SB_PYTHON_FINE)
            ++failed;
        else if (stack.fault == StackFault::kFine && !reader.is_certain(stack.frames))
            pending.push_back(stack);
        else
            failed += judge.take(stack) ? 0 : 1;
    };
    // A moment of some nanoseconds of a loop is met now and then: its stack may need many samples.
    constexpr long kMoreSamples = 20;
    const auto is_enough = [&] {
        return samples >= wanted * kMoreSamples ||
               (samples >= wanted && judge.different() >= different);
    };
    for (bool is_added = false; !is_enough();) {
        if (auto sampled = reader.list_threads(); !sampled) return fail(sampled.error().message);
        (*sampler)->set_thread_states(pid, reader.thread_states());
        if (!is_added) {
            if (auto added = (*sampler)->add_process(pid, &layout); !added)
                return fail(added.error().message);
            is_added = true;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (auto listed = (*sampler)->threads(pid); !listed) return fail(listed.error().message);
        (*sampler)->drain(take, std::chrono::milliseconds(100));
    }
    for (const ThreadStack& stack : pending)
        failed += reader.is_certain(stack.frames) && judge.take(stack) ? 0 : 1;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return judge.report(samples, still, failed, static_cast<long>((*sampler)->lost(pid)),
                        took.count());
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 4 && argc != 5) return 2;
    const auto pid = static_cast<pid_t>(std::atoi(argv[1]));
    const std::string mode = argv[2];
    const long samples = std::atol(argv[3]);
    auto reader = StackReader::open(pid, {});
    if (!reader) return fail(reader.error().message);
    Judge judge(mode);
    // Samples of 1,000 frames would not find room.
    const std::chrono::microseconds period(mode == "recursion" ? 1000 : 100);
    if (argc == 5) {
        const auto different = static_cast<size_t>(std::atol(argv[4]));
        return judge_running(pid, *reader, period, samples, different, judge);
    }
    long failed = 0;
    const auto start = std::chrono::steady_clock::now();
    for (long i = 0; i < samples; ++i) {
        if (auto sampled = reader->sample(); !sampled) return fail(sampled.error().message);
        if (i == 0) std::fputs("reads\n", stderr);
        bool is_complete = true;
        for (const ThreadStack* stack : reader->stacks())
            is_complete = judge.take(*stack) && is_complete;
        failed += is_complete ? 0 : 1;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return judge.report(samples, 0, failed, 0, took.count());
}
