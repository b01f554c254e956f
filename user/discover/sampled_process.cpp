// SPDX-License-Identifier: MIT
#include "discover/sampled_process.h"

#include <algorithm>
#include <utility>

#include "cpython/interpreter.h"
#include "process/remote_elf.h"
#include "stacks/whole_stack.h"

namespace speedbump::discover {

using stacks::Sampled;
using stacks::Whole;

void SampledProcess::tell_threads(stacks::StackSampler& sampler) {
    auto now = reader->thread_states();
    const auto is_same = [](const auto& a, const auto& b) {
        return a.first == b.first && a.second.address == b.second.address &&
               a.second.gil == b.second.gil;
    };
    if (std::equal(now.begin(), now.end(), states.begin(), states.end(), is_same)) return;
    sampler.set_thread_states(pid, now);
    states = std::move(now);
}

Sampled SampledProcess::describe(pid_t tid) const {
    Sampled thread;
    thread.pid = pid;
    thread.tid = tid;
    thread.knows_qualified_names = !reader || reader->interpreter().minor >= 11;
    return thread;
}

std::optional<Whole> SampledProcess::combine(const Sampled& thread,
                                             const stacks::NativeStack& native,
                                             const std::vector<stacks::Frame>* python) const {
    static const std::vector<stacks::Frame> kNone;
    const bool has_loop =
        std::any_of(native.frames.begin(), native.frames.end(),
                    [](const auto& frame) { return frame.function->runs_python; });
    if (reader && python == nullptr && has_loop) return std::nullopt;
    if (python == nullptr) python = &kNone;
    if (auto merged = stacks::merge(native, *python)) return Whole{thread, *merged, true};
    // One of them, then: each is right by itself.
    Whole stack{thread, {}, false};
    for (const stacks::Frame& frame : *python) stack.frames.push_back({frame.function, nullptr});
    if (python->empty())
        for (const stacks::NativeStack::Frame& frame : native.frames)
            stack.frames.push_back({nullptr, frame.function});
    return stack;
}

bool SampledProcess::is_certain(std::vector<stacks::Frame>& python) {
    if (!python.empty() && reader->is_certain(python)) python.clear();
    return python.empty();
}

Still* SampledProcess::known_still(const sb_thread& thread) {
    const auto found = still.find(static_cast<pid_t>(thread.tid));
    return found != still.end() && stacks::is_same(found->second.since, thread.still)
               ? &found->second
               : nullptr;
}

bool SampledProcess::open_python() {
    may_start_python = false;
    code_changes = unwinder ? unwinder->changes() : 0;
    const auto modules = process::load_modules(pid);
    if (!modules) {
        why_no_python = modules.error().message;
        return modules.error().kind != ErrorKind::kNotFound;
    }
    const auto interpreters = cpython::interpreters_of(process::RemoteMemory(pid), *modules);
    if (interpreters.empty()) return true;
    may_start_python = !interpreters.front().initialized;
    auto opened = stacks::StackReader::open(pid, *modules, interpreters.front(), {});
    if (opened)
        reader = std::move(*opened);
    else
        why_no_python = opened.error().message;
    return opened || opened.error().kind != ErrorKind::kNotFound;
}

bool SampledProcess::is_python_due() const {
    return !reader && (may_start_python || (unwinder && unwinder->changes() != code_changes));
}

Result<void> SampledProcess::add_to(stacks::StackSampler& sampler) {
    if (!reader) return sampler.add_process(pid, nullptr);
    (void)reader->list_threads(); // each look lists them
    tell_threads(sampler);
    const sb_python_layout layout = reader->bpf_layout();
    lost = 0;
    return sampler.add_process(pid, &layout);
}

namespace {

// What the sampler says of it before anything is read: what is read is of that program, or a later
// one, which the first look tells. False: it has ended.
bool count_execs(SampledProcess& process, stacks::StackSampler& sampler) {
    const auto threads = sampler.threads(process.pid);
    if (!threads) return true; // to add it says what is wrong
    for (const sb_thread& thread : *threads)
        if (thread.ended == 0) process.execs = thread.execs;
    return process.execs.has_value();
}

} // namespace

std::optional<SampledProcess> open_sampled(pid_t pid, const SampledWith& with, bool is_new,
                                           std::vector<std::string>& notes) {
    SampledProcess process;
    process.pid = pid;
    if (with.sampler != nullptr) {
        if (!count_execs(process, *with.sampler)) return std::nullopt;
        auto unwinder = stacks::NativeUnwinder::open(pid, with.files);
        if (unwinder)
            process.unwinder = std::move(*unwinder);
        else if (unwinder.error().kind == ErrorKind::kNotFound)
            return std::nullopt;
        else
            notes.push_back(unwinder.error().message);
    }
    if (with.python && !process.open_python()) return std::nullopt;
    process.may_start_python |= is_new && with.python;
    if (with.sampler != nullptr) {
        if (auto added = process.add_to(*with.sampler); !added) {
            notes.push_back("process " + std::to_string(pid) + ": " + added.error().message);
            return std::nullopt;
        }
    }
    if (!process.reader && !process.unwinder) {
        if (!process.why_no_python.empty()) notes.push_back(process.why_no_python);
        return std::nullopt;
    }
    return process;
}

} // namespace speedbump::discover
