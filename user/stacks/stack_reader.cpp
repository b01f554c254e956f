// SPDX-License-Identifier: MIT
#include "stacks/stack_reader.h"

#include <algorithm>

#include "stacks/call_paths.h"
#include "stacks/copied_stacks.h"
#include "stacks/gathering.h"
#include "stacks/snapshot_reader.h"
#include "stacks/thread_list.h"
#include "util/descriptors.h"

namespace speedbump::stacks {
namespace {

constexpr size_t kMaxPaths = 1 << 20;
constexpr int kListTries = 16;
constexpr const char* kListChanges = "its list of threads changed each time while it was read";

} // namespace

const char* describe(StackFault fault) {
    switch (fault) {
        case StackFault::kFine:
            break;
        case StackFault::kChanging:
            return "it changed each time while it was read";
        case StackFault::kUnreadable:
            return "it points to memory that is not there";
        case StackFault::kCircle:
            return "its frames form a circle";
        case StackFault::kNoCode:
            return "a frame runs what is not a code object";
    }
    return "";
}

class StackReader::Impl {
  public:
    Impl(std::unique_ptr<Source> source, const Layout& layout,
         const cpython::Interpreter& interpreter, uint64_t code_type, pid_t pid,
         const ReaderOptions& options)
        : source_(std::move(source)),
          layout_(layout),
          interpreter_(interpreter),
          pid_(pid),
          options_(options),
          codes_(*source_, layout, code_type),
          gathering_(*source_),
          list_(*source_, layout, interpreter, pid),
          snapshots_(*source_, layout_, gathering_, list_, codes_, paths_, options.patience),
          copied_(layout_, codes_, paths_) {}

    Result<void> sample();
    Result<void> look_at_list();
    ThreadStack interpret(pid_t tid, std::span<const sb_python_frame> frames, uint64_t loop_pc);
    bool is_certain(const std::vector<Frame>& frames) { return copied_.is_certain(frames); }
    const sb_python_layout& bpf_layout() const { return layout_; }
    const ThreadList& list() const { return list_; }

    std::vector<const ThreadStack*> stacks;
    const std::deque<Function>& functions() const { return codes_.functions(); }
    const cpython::Interpreter& interpreter() const { return interpreter_; }

  private:
    Result<void> read_list();
    bool is_wanted(const Thread& thread) const;
    void choose_threads();
    void forget_much();

    std::unique_ptr<Source> source_;
    Layout layout_;
    cpython::Interpreter interpreter_;
    pid_t pid_;
    ReaderOptions options_;
    CodeTable codes_;
    CallPaths paths_;
    Gathering gathering_;
    ThreadList list_;
    SnapshotReader snapshots_;
    CopiedStacks copied_;
    std::vector<Thread*> to_read_;
};

Result<void> StackReader::Impl::read_list() {
    auto read = list_.read();
    if (read) codes_.set_several_interpreters(list_.interpreters().size() > 1);
    return read;
}

bool StackReader::Impl::is_wanted(const Thread& thread) const {
    switch (options_.threads) {
        case WhichThreads::kAll:
            return true;
        case WhichThreads::kMain:
            return pid_ != 0 ? thread.stack.tid == pid_ : &thread == list_.threads().back().get();
        case WhichThreads::kOnlyActive:
            return layout_.free_threaded || thread.stack.holds_gil;
    }
    return false;
}

// The stacks that are asked for, and the threads whose stacks may be others than they were.
void StackReader::Impl::choose_threads() {
    list_.name_threads();
    stacks.clear();
    to_read_.clear();
    for (const auto& thread : list_.threads()) {
        if (!is_wanted(*thread)) continue;
        const uint32_t asleep = thread->watch.asleep();
        if (options_.threads == WhichThreads::kOnlyActive && layout_.free_threaded && asleep != 0)
            continue;
        stacks.push_back(&thread->stack);
        if (asleep == 0 || asleep != thread->read_at) to_read_.push_back(thread.get());
    }
}

Result<void> StackReader::Impl::sample() {
    for (int tries = 0; tries < kListTries; ++tries) {
        forget_much();
        bool list_holds = !list_.threads().empty();
        if (!list_holds || tries > 0) {
            if (auto listed = read_list(); !listed) {
                if (tries + 1 < kListTries) continue;
                return listed;
            }
        }
        if (options_.threads == WhichThreads::kOnlyActive && !list_.holds(gathering_)) continue;
        choose_threads();
        const bool alone = to_read_.size() == 1;
        list_holds = true;
        for (Thread* thread : to_read_) list_holds = list_holds && snapshots_.read(*thread, alone);
        if (list_holds && (alone || list_.holds(gathering_))) return {};
        if (gathering_.is_gone()) break;
    }
    return list_.failure(kListChanges);
}

ThreadStack StackReader::Impl::interpret(pid_t tid, std::span<const sb_python_frame> frames,
                                         uint64_t loop_pc) {
    forget_much();
    return copied_.interpret(tid, frames, loop_pc);
}

Result<void> StackReader::Impl::look_at_list() {
    stacks.clear();
    if (!list_.threads().empty() && list_.holds(gathering_)) {
        list_.name_threads();
        return {};
    }
    for (int tries = 0;; ++tries) {
        auto listed = read_list();
        if (listed && list_.holds(gathering_)) return listed;
        if (tries == kListTries) return listed ? list_.failure(kListChanges) : std::move(listed);
    }
}

// Lets go of what a program can make ever more of: code objects that are no more, and paths.
void StackReader::Impl::forget_much() {
    const bool has_many_paths = paths_.size() >= kMaxPaths;
    if (!has_many_paths && !codes_.is_full()) return;
    for (const auto& thread : list_.threads()) {
        thread->resolved.clear();
        thread->doubtful.clear();
        thread->read_at = 0;
    }
    codes_.bury();
    if (!has_many_paths) return;
    paths_ = CallPaths();
    copied_.forget();
}

StackReader::StackReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StackReader::StackReader(StackReader&&) noexcept = default;
StackReader& StackReader::operator=(StackReader&&) noexcept = default;
StackReader::~StackReader() = default;

Result<StackReader> StackReader::open(std::unique_ptr<Source> source,
                                      const cpython::Interpreter& interpreter, uint64_t code_type,
                                      pid_t pid, const ReaderOptions& options) {
    const auto layout = layout_of(*source, interpreter);
    if (!layout) return layout.error();
    return StackReader(
        std::make_unique<Impl>(std::move(source), *layout, interpreter, code_type, pid, options));
}

Result<StackReader> StackReader::open(pid_t pid, const ReaderOptions& options) {
    const auto modules = process::load_modules(pid);
    if (!modules) return modules.error();
    const auto interpreters = cpython::interpreters_of(process::RemoteMemory(pid), *modules);
    if (interpreters.empty())
        return make_error(ErrorKind::kUnsupported,
                          "process " + std::to_string(pid) + " runs no Python");
    return open(pid, *modules, interpreters.front(), options);
}

Result<StackReader> StackReader::open(pid_t pid, const std::vector<process::RemoteModule>& modules,
                                      const cpython::Interpreter& interpreter,
                                      const ReaderOptions& options) {
    const std::string name = "process " + std::to_string(pid);
    if (!interpreter.initialized && interpreter.is_supported())
        return make_error(ErrorKind::kUnsupported,
                          name + ": " + interpreter.describe() + " has not started");
    uint64_t code_type = 0;
    for (const process::RemoteModule& module : modules)
        if (module.path() == interpreter.path) code_type = module.find("PyCode_Type").value_or(0);
    allow_many_descriptors();
    auto opened =
        open(std::make_unique<process::ProcessSource>(pid), interpreter, code_type, pid, options);
    if (!opened) return std::move(opened.error()).with_context(name);
    return opened;
}

Result<void> StackReader::sample() {
    return impl_->sample();
}

Result<void> StackReader::list_threads() {
    return impl_->look_at_list();
}

ThreadStack StackReader::interpret(pid_t tid, std::span<const sb_python_frame> frames,
                                   uint64_t loop_pc) {
    return impl_->interpret(tid, frames, loop_pc);
}

bool StackReader::is_certain(const std::vector<Frame>& frames) {
    return impl_->is_certain(frames);
}

sb_python_layout StackReader::bpf_layout() const {
    return impl_->bpf_layout();
}

std::vector<std::pair<pid_t, sb_thread_state>> StackReader::thread_states() const {
    return impl_->list().states();
}

const std::vector<const ThreadStack*>& StackReader::stacks() const {
    return impl_->stacks;
}

const std::deque<Function>& StackReader::functions() const {
    return impl_->functions();
}

const cpython::Interpreter& StackReader::interpreter() const {
    return impl_->interpreter();
}

} // namespace speedbump::stacks
