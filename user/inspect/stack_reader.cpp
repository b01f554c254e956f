// SPDX-License-Identifier: MIT
#include "inspect/stack_reader.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <span>

#include "inspect/call_paths.h"
#include "process/remote_elf.h"
#include "process/threads.h"
#include "util/proc.h"

namespace speedbump::inspect {
namespace {

constexpr size_t kMostFrames = 1 << 16;
constexpr size_t kMostThreads = 1 << 14;
constexpr size_t kMostInterpreters = 1 << 10;
constexpr size_t kMostForgotten = 1024;
constexpr size_t kMostPaths = 1 << 22;
constexpr uint64_t kNear = 2048;          // frames nearer than this are read in one piece
constexpr uint64_t kMostRegion = 1 << 20; // bytes
constexpr uint64_t kPageSize = 4096;
constexpr uint64_t kMostAddress = uint64_t{1} << 57; // of a program (5-level page tables)
constexpr int kLeastTries = 16;
constexpr int kListTries = 16;
constexpr int kProof = 4;                   // tries in a row that give the same new path prove it,
constexpr int kOften = 12;                  // or as many of the first
constexpr int kOftenOf = 64;                // tries
constexpr uint64_t kFarInLoop = 256;        // bytes of code between two moments in the loop
constexpr uint8_t kGeneratorOwner = 1;      // FRAME_OWNED_BY_GENERATOR
constexpr uint8_t kFirstNonPythonOwner = 3; // FRAME_OWNED_BY_INTERPRETER, _BY_CSTACK
constexpr uint64_t kTagBits = 7;            // of a _PyStackRef (3.14, free-threaded)

template <typename T>
T load_at(const char* bytes) {
    T value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
}

size_t bytes_of(std::span<const Piece> pieces) {
    size_t size = 0;
    for (const Piece& one : pieces) size += one.iov_len;
    return size;
}

// A frame as it was read.
struct RawFrame {
    size_t offset = 0; // of its bytes in the first copy of the stack
    uint64_t code = 0; // as it lies there, tags included
    uint64_t previous = 0;
    uint64_t ip = 0;
    int32_t bytecode_copy = 0;
    uint8_t owner = 0;
};

// A frame of the last stack that was read, outermost first.
struct Resolved {
    uint64_t code = 0;
    Code* object = nullptr;
    uint64_t ip = 0;
    int32_t bytecode_copy = 0;
    int line = 0;
    uint32_t path = CallPaths::kRoot;
};

// A part of the memory that holds frames; read as a whole with each sample.
struct Region {
    uint64_t low = 0;
    uint64_t size = 0;
    uint64_t offset = 0;  // where it lies among the bytes of all regions
    uint64_t used_in = 0; // the thread's turn in which a frame lay in it
};

struct Thread {
    Thread(uint64_t where, pid_t process, pid_t thread_id)
        : address(where), watch(process, thread_id) {
        stack.tid = thread_id;
    }

    uint64_t address;
    SleepWatch watch;
    ThreadStack stack;
    uint32_t read_at = 0;        // the watch's number under which `stack` was read
    uint64_t cframe = 0;         // 3.11, 3.12
    std::vector<Region> regions; // where its frames lie
    uint64_t region_bytes = 0;
    std::vector<Code*> doubtful; // whose identity is read along
    std::vector<Resolved> resolved;
    unsigned wasteful = 0; // samples in a row that read much more than needed
    uint64_t turn = 0;     // samples so far
};

void place_regions(Thread& thread) {
    thread.region_bytes = 0;
    for (Region& region : thread.regions) {
        region.offset = thread.region_bytes;
        thread.region_bytes += region.size;
    }
}

struct InterpreterState {
    uint64_t address = 0;
    uint64_t gil = 0;
    size_t first_thread = 0; // in the list of all
    // What is read of it and its lock: one piece when they lie near each other.
    uint64_t low = 0;
    uint64_t size = 0;
    bool has_lock_in_it = false;
};

// Where the bytes of a frame lie among those of the regions. `hint`: the region of its callee.
std::optional<uint64_t> locate(Thread& thread, uint64_t address, uint64_t bytes, size_t& hint) {
    for (size_t i = 0; i < thread.regions.size(); ++i) {
        const size_t at = (hint + i) % thread.regions.size();
        Region& region = thread.regions[at];
        // Written so that no sum can pass the end of the numbers: `address` is the target's.
        if (address < region.low || region.size < bytes ||
            address - region.low > region.size - bytes)
            continue;
        hint = at;
        region.used_in = thread.turn;
        return region.offset + (address - region.low);
    }
    return std::nullopt;
}

RawFrame parse_frame(const Layout& layout, const char* bytes) {
    RawFrame frame;
    frame.code = load_at<uint64_t>(bytes + layout.frame_code);
    frame.previous = load_at<uint64_t>(bytes + layout.frame_previous);
    if (layout.minor == 10)
        frame.ip = static_cast<uint64_t>(int64_t{load_at<int32_t>(bytes + layout.frame_ip)});
    else
        frame.ip = load_at<uint64_t>(bytes + layout.frame_ip);
    if (layout.frame_owner != kNone) frame.owner = load_at<uint8_t>(bytes + layout.frame_owner);
    if (layout.frame_generator != kNone && load_at<uint64_t>(bytes + layout.frame_generator) != 0)
        frame.owner = kGeneratorOwner;
    if (layout.frame_bytecode_copy != kNone)
        frame.bytecode_copy = load_at<int32_t>(bytes + layout.frame_bytecode_copy);
    return frame;
}

// Pages of the target, for the search for frames. What it gives is only where to look.
class Pages {
  public:
    explicit Pages(const Source& source) : source_(source) {}
    bool read(uint64_t address, char* out, size_t size) {
        while (size > 0) {
            const uint64_t page = address & ~(kPageSize - 1);
            auto [entry, is_new] = pages_.try_emplace(page);
            if (is_new) fetch(page);
            const std::string& bytes = pages_[page];
            if (bytes.empty()) return false;
            const size_t part = std::min<size_t>(size, page + kPageSize - address);
            std::memcpy(out, &bytes[address - page], part);
            out += part;
            address += part;
            size -= part;
        }
        return true;
    }

  private:
    // The page and those below it, where the frames of the callers are.
    void fetch(uint64_t page) {
        std::array<Piece, 4> wanted;
        std::array<char, 4 * kPageSize> bytes;
        for (size_t i = 0; i < wanted.size(); ++i)
            wanted[i] = piece(page - i * kPageSize, kPageSize);
        const ssize_t got = source_.gather(wanted, bytes.data());
        for (size_t i = 0; got > 0 && (i + 1) * kPageSize <= static_cast<size_t>(got); ++i)
            pages_[page - i * kPageSize].assign(&bytes[i * kPageSize], kPageSize);
    }

    const Source& source_;
    std::unordered_map<uint64_t, std::string> pages_;
};

void raise_file_limit() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

// The thread ids of a process inside its own PID namespace, where that is another than ours.
std::unordered_map<pid_t, pid_t> inner_thread_ids(pid_t pid) {
    std::unordered_map<pid_t, pid_t> ids;
    for (const pid_t outer : process::read_threads(pid)) {
        const pid_t inner =
            innermost_id(read_proc(fmt::format("/proc/{}/task/{}/status", pid, outer)));
        if (inner != 0) ids[inner] = outer;
    }
    return ids;
}

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
            return "a frame runs what is no code object";
    }
    return "";
}

class StackReader::Impl {
  public:
    Impl(std::unique_ptr<Source> source, const Layout& layout,
         const process::Interpreter& interpreter, uint64_t code_type, pid_t pid,
         const ReaderOptions& options)
        : source_(std::move(source)),
          layout_(layout),
          interpreter_(interpreter),
          pid_(pid),
          options_(options),
          codes_(*source_, layout, code_type) {
        thread_low_ = std::min(layout.thread_next, layout.thread_frame);
        thread_size_ = std::max(layout.thread_next, layout.thread_frame) + 8 - thread_low_;
        frame_bytes_ = layout.frame_bytes();
        interpreter_low_ = std::min(layout.interpreter_next, layout.interpreter_threads);
        interpreter_size_ =
            std::max(layout.interpreter_next, layout.interpreter_threads) + 8 - interpreter_low_;
        gil_low_ = std::min(layout.gil_holder, layout.gil_locked);
        gil_size_ = std::max(layout.gil_holder, layout.gil_locked) + 8 - gil_low_;
    }

    Result<void> sample();
    Result<void> look_at_list();
    std::optional<ThreadStack> read_still(pid_t tid, uint64_t loop_pc);
    bool holds_gil(pid_t tid) const;
    ThreadStack interpret(pid_t tid, std::span<const sb_python_frame> frames, uint64_t loop_pc);
    bool is_certain(const std::vector<Frame>& frames) { return paths_.is_proven(path_of(frames)); }
    sb_python_layout bpf_layout() const;
    std::vector<std::pair<pid_t, sb_thread_state>> thread_states() const;

    std::vector<const ThreadStack*> stacks;
    const std::deque<Function>& functions() const { return codes_.functions(); }
    const process::Interpreter& interpreter() const { return interpreter_; }

  private:
    enum class Outcome { kDone, kAgain, kStaleList };

    uint32_t path_of(const std::vector<Frame>& frames);
    Result<void> list_threads();
    pid_t tid_of(uint64_t thread, const std::unordered_map<pid_t, pid_t>& inner) const;
    bool is_wanted(const Thread& thread) const;
    void add_chain(const Thread* read_anyway);
    bool chain_holds(const char* bytes, const Thread* read_anyway, uint64_t its_next);
    bool check_chain();
    bool gather();
    Outcome read_thread(Thread& thread, bool with_chain);
    Outcome try_thread(Thread& thread, bool with_chain, int tries);
    bool parse(Thread& thread, uint64_t innermost, const char* bytes, uint64_t* missing);
    bool is_unchanged(const char* again) const;
    void find_frames(Thread& thread, uint64_t address);
    void cover(Thread& thread, uint64_t address) const;
    void drop_waste(Thread& thread) const;
    bool identities_hold(Thread& thread, const char* bytes);
    bool resolve(Thread& thread);
    void accept(Thread& thread);
    void forget_stacks();
    Error failure(const std::string& what) const;
    void wait_a_random_while();

    std::unique_ptr<Source> source_;
    Layout layout_;
    process::Interpreter interpreter_;
    pid_t pid_;
    ReaderOptions options_;
    CodeTable codes_;
    CallPaths paths_;
    std::unordered_map<uint32_t, uint64_t> loop_pcs_; // where a path was first seen in the loop
    uint32_t thread_low_;
    uint32_t thread_size_;
    uint32_t frame_bytes_;
    uint32_t interpreter_low_;
    uint32_t interpreter_size_;
    uint32_t gil_low_;
    uint32_t gil_size_;

    std::vector<InterpreterState> interpreters_;
    std::vector<std::unique_ptr<Thread>> threads_; // in the order of the target's lists

    // Of the try that is made.
    std::vector<Piece> wanted_;
    std::vector<char> bytes_;
    std::vector<RawFrame> raw_; // innermost first
    std::vector<Resolved> fresh_;
    StackFault fault_ = StackFault::kFine;
    uint32_t candidate_ = CallPaths::kRoot;
    int streak_ = 0;
    std::unordered_map<uint32_t, int> candidates_; // how many of this sample's tries gave each
    bool is_candidate_new_ = false;                // this try gave one
    std::vector<Thread*> to_read_;
    bool is_gone_ = false;
    std::vector<uint64_t> heads_;
    std::vector<uint64_t> holders_;
    uint64_t random_ = 0x9e3779b97f4a7c15;
};

pid_t StackReader::Impl::tid_of(uint64_t thread,
                                const std::unordered_map<pid_t, pid_t>& inner) const {
    uint64_t tid = 0;
    if (layout_.thread_native_id != kNone) {
        tid = source_->value<uint64_t>(thread + layout_.thread_native_id).value_or(0);
    } else {
        const auto pthread = source_->value<uint64_t>(thread + layout_.thread_id);
        tid = source_->value<uint32_t>(pthread.value_or(0) + process::kPthreadTid).value_or(0);
    }
    const auto outer = inner.find(static_cast<pid_t>(tid));
    return outer == inner.end() ? static_cast<pid_t>(tid) : outer->second;
}

Result<void> StackReader::Impl::list_threads() {
    std::vector<InterpreterState> interpreters;
    std::vector<std::unique_ptr<Thread>> threads;
    std::unordered_map<uint64_t, std::unique_ptr<Thread>> known;
    for (auto& thread : threads_) known[thread->address] = std::move(thread);
    threads_.clear();
    const auto inner = pid_ != 0 ? inner_thread_ids(pid_) : std::unordered_map<pid_t, pid_t>();
    std::unordered_set<uint64_t> seen;
    auto state = source_->value<uint64_t>(interpreter_.runtime_address + layout_.runtime_head);
    while (state && *state != 0) {
        if (!seen.insert(*state).second || interpreters.size() >= kMostInterpreters)
            return failure("its list of interpreters forms a circle");
        const auto id = source_->value<int64_t>(*state + layout_.interpreter_id);
        const auto next = source_->value<uint64_t>(*state + layout_.interpreter_next);
        auto thread = source_->value<uint64_t>(*state + layout_.interpreter_threads);
        if (!id || !next || !thread) return failure("an interpreter's state is not there");
        InterpreterState interpreter;
        interpreter.address = *state;
        interpreter.first_thread = threads.size();
        interpreter.gil = layout_.minor <= 11
                              ? interpreter_.runtime_address + layout_.gil
                              : source_->value<uint64_t>(*state + layout_.gil).value_or(0);
        const uint64_t low = *state + interpreter_low_;
        const uint64_t lock = interpreter.gil + gil_low_;
        interpreter.low = std::min(low, lock);
        interpreter.size = std::max(low + interpreter_size_, lock + gil_size_) - interpreter.low;
        interpreter.has_lock_in_it = interpreter.size <= kNear;
        if (!interpreter.has_lock_in_it) {
            interpreter.low = low;
            interpreter.size = interpreter_size_;
        }
        while (thread && *thread != 0) {
            if (!seen.insert(*thread).second || threads.size() >= kMostThreads)
                return failure("its list of threads forms a circle");
            const pid_t tid = tid_of(*thread, inner);
            auto old = known.find(*thread);
            const bool is_same = old != known.end() && old->second->stack.tid == tid;
            threads.push_back(is_same ? std::move(old->second)
                                      : std::make_unique<Thread>(*thread, pid_, tid));
            if (is_same) known.erase(old);
            threads.back()->stack.interpreter = *id;
            thread = source_->value<uint64_t>(*thread + layout_.thread_next);
        }
        if (!thread) return failure("a thread's state is not there");
        interpreters.push_back(interpreter);
        state = next;
    }
    if (!state || interpreters.empty()) return failure("its list of interpreters is not there");
    interpreters_ = std::move(interpreters);
    threads_ = std::move(threads);
    codes_.set_several_interpreters(interpreters_.size() > 1);
    return {};
}

bool StackReader::Impl::is_wanted(const Thread& thread) const {
    switch (options_.threads) {
        case WhichThreads::kAll:
            return true;
        case WhichThreads::kMain:
            return pid_ != 0 ? thread.stack.tid == pid_ : &thread == threads_.back().get();
        case WhichThreads::kOnlyActive:
            return layout_.free_threaded || thread.stack.holds_gil;
    }
    return false;
}

// What tells that the list of threads still is the same, and who holds a GIL.
void StackReader::Impl::add_chain(const Thread* read_anyway) {
    wanted_.push_back(piece(interpreter_.runtime_address + layout_.runtime_head, 8));
    for (const InterpreterState& one : interpreters_) {
        wanted_.push_back(piece(one.low, one.size));
        if (!one.has_lock_in_it) wanted_.push_back(piece(one.gil + gil_low_, gil_size_));
    }
    for (const auto& thread : threads_)
        if (thread.get() != read_anyway)
            wanted_.push_back(piece(thread->address + layout_.thread_next, 8));
}

bool StackReader::Impl::chain_holds(const char* bytes, const Thread* read_anyway,
                                    uint64_t its_next) {
    auto take = [&bytes] {
        const auto value = load_at<uint64_t>(bytes);
        bytes += sizeof(value);
        return value;
    };
    uint64_t next_interpreter = take();
    heads_.clear();
    holders_.clear();
    for (const InterpreterState& one : interpreters_) {
        if (one.address != next_interpreter) return false;
        const char* state = bytes + (one.address - one.low);
        const char* lock =
            one.has_lock_in_it ? bytes + (one.gil - one.low) : bytes + (one.size - gil_low_);
        bytes += one.size + (one.has_lock_in_it ? 0 : gil_size_);
        next_interpreter = load_at<uint64_t>(state + layout_.interpreter_next);
        heads_.push_back(load_at<uint64_t>(state + layout_.interpreter_threads));
        const bool is_locked = load_at<int32_t>(lock + layout_.gil_locked) == 1;
        holders_.push_back(is_locked ? load_at<uint64_t>(lock + layout_.gil_holder) : 0);
    }
    if (next_interpreter != 0) return false;
    size_t interpreter = 0;
    uint64_t expected = 0;
    for (size_t i = 0; i <= threads_.size(); ++i) {
        while (interpreter < interpreters_.size() && interpreters_[interpreter].first_thread == i) {
            if (expected != 0) return false;
            expected = heads_[interpreter++];
            if (i == threads_.size() && expected != 0) return false;
        }
        if (i == threads_.size()) break;
        Thread& thread = *threads_[i];
        if (thread.address != expected) return false;
        expected = &thread == read_anyway ? its_next : take();
        thread.stack.holds_gil = holders_[interpreter - 1] == thread.address;
    }
    return expected == 0;
}

// Reads what was asked for into bytes_.
bool StackReader::Impl::gather() {
    const size_t size = bytes_of(wanted_);
    if (bytes_.size() < size) bytes_.resize(size);
    const ssize_t got = source_->gather(wanted_, bytes_.data());
    is_gone_ = got < 0;
    return got == static_cast<ssize_t>(size);
}

bool StackReader::Impl::check_chain() {
    wanted_.clear();
    add_chain(nullptr);
    return gather() && chain_holds(bytes_.data(), nullptr, 0);
}

// Follows the frames through the first copy of the regions into raw_. False: the frame at
// `missing` lies in none of them (0: they form a circle).
bool StackReader::Impl::parse(Thread& thread, uint64_t innermost, const char* bytes,
                              uint64_t* missing) {
    raw_.clear();
    size_t hint = 0;
    for (uint64_t address = innermost; address != 0;) {
        const auto offset = locate(thread, address, frame_bytes_, hint);
        *missing = offset ? 0 : address;
        if (!offset || raw_.size() >= kMostFrames) return false;
        raw_.push_back(parse_frame(layout_, bytes + *offset));
        raw_.back().offset = *offset;
        address = raw_.back().previous;
    }
    return true;
}

// Whether the second copy of the regions shows the same frames. The innermost one runs: its
// instruction may be another.
bool StackReader::Impl::is_unchanged(const char* again) const {
    for (size_t i = 0; i < raw_.size(); ++i) {
        const RawFrame& before = raw_[i];
        const RawFrame now = parse_frame(layout_, again + before.offset);
        if (now.code != before.code || now.previous != before.previous ||
            now.owner != before.owner || now.bytecode_copy != before.bytecode_copy ||
            (i > 0 && now.ip != before.ip))
            return false;
    }
    return true;
}

void StackReader::Impl::cover(Thread& thread, uint64_t address) const {
    if (address > kMostAddress) return;
    const uint64_t end = address + frame_bytes_;
    for (Region& region : thread.regions) {
        const uint64_t low = std::min(region.low, address);
        const uint64_t high = std::max(region.low + region.size, end);
        if (address > region.low + region.size + kNear || end + kNear < region.low ||
            high - low > kMostRegion)
            continue;
        region.low = low;
        region.size = high - low;
        return;
    }
    thread.regions.push_back({address, frame_bytes_, 0, thread.turn});
}

// Looks for the frames from `address` on, to be read with the next try.
void StackReader::Impl::find_frames(Thread& thread, uint64_t address) {
    Pages pages(*source_);
    std::string bytes(frame_bytes_, '\0');
    for (size_t count = 0; address != 0 && count < kMostFrames; ++count) {
        if (!pages.read(address, bytes.data(), bytes.size())) break;
        cover(thread, address);
        address = parse_frame(layout_, bytes.data()).previous;
    }
    place_regions(thread);
}

// Frames that are long gone need not be read for ever.
void StackReader::Impl::drop_waste(Thread& thread) const {
    constexpr unsigned kPatience = 64;
    constexpr uint64_t kUsualFrame = 160;
    ++thread.turn;
    // Each piece costs the kernel some 0.25 us, however short: a region for one frame that was seen
    // once (a generator's, or a left-over one) must not stay for ever. Those of many frames are
    // dear to find again, and a deep recursion soon comes back.
    const auto is_unused = [&](const Region& one) {
        return one.size == frame_bytes_ && one.used_in + kPatience < thread.turn;
    };
    if (std::erase_if(thread.regions, is_unused) > 0) place_regions(thread);
    if (thread.region_bytes <= 4 * kUsualFrame * raw_.size() + 2 * kNear) {
        thread.wasteful = 0;
    } else if (++thread.wasteful > kPatience) {
        thread.wasteful = 0;
        thread.regions.clear();
        thread.region_bytes = 0;
    }
}

// Whether the doubtful code objects are those that the table has; what isn't is forgotten.
bool StackReader::Impl::identities_hold(Thread& thread, const char* bytes) {
    bool all_hold = true;
    for (Code* code : thread.doubtful) {
        const size_t size = codes_.identity_bytes(*code);
        if (!codes_.matches(*code, bytes)) {
            codes_.forget(*code);
            all_hold = false;
        }
        bytes += size;
    }
    if (!all_hold) thread.doubtful.clear();
    return all_hold;
}

// From raw_ to fresh_: what the frames run. False when not all of it is certain yet.
bool StackReader::Impl::resolve(Thread& thread) {
    fresh_.clear();
    bool is_certain = true;
    std::vector<Code*> checked;
    checked.swap(thread.doubtful);
    uint32_t path = CallPaths::kRoot;
    for (size_t i = raw_.size(); i-- > 0;) {
        const RawFrame& raw = raw_[i];
        if (raw.owner >= kFirstNonPythonOwner) continue;
        Resolved frame{raw.code, nullptr, raw.ip, raw.bytecode_copy, 0, 0};
        const size_t depth = fresh_.size();
        const bool as_before = depth < thread.resolved.size() &&
                               thread.resolved[depth].code == raw.code &&
                               !thread.resolved[depth].object->is_forgotten();
        if (as_before) frame.object = thread.resolved[depth].object;
        const uint64_t address = raw.code & ~kTagBits;
        if (frame.object == nullptr) frame.object = codes_.find(address);
        if (frame.object == nullptr) frame.object = codes_.load(address);
        if (frame.object == nullptr) {
            fault_ = StackFault::kNoCode;
            return false;
        }
        if (!codes_.is_current(*frame.object)) {
            const auto same = [&](const Code* code) { return code == frame.object; };
            // Its memory was read while it was on the stack, hence alive.
            if (std::any_of(checked.begin(), checked.end(), same))
                codes_.confirm(*frame.object);
            else
                is_certain = false;
            if (std::none_of(thread.doubtful.begin(), thread.doubtful.end(), same))
                thread.doubtful.push_back(frame.object);
        }
        if (frame.bytecode_copy != 0 && !frame.object->knows_copy(frame.bytecode_copy))
            codes_.load_copy(*frame.object, frame.bytecode_copy);
        if (as_before && path == (depth == 0 ? CallPaths::kRoot : thread.resolved[depth - 1].path))
            frame.path = thread.resolved[depth].path;
        else
            frame.path = paths_.step(path, frame.object->function()->id);
        if (as_before && thread.resolved[depth].ip == raw.ip &&
            thread.resolved[depth].bytecode_copy == raw.bytecode_copy) {
            frame.line = thread.resolved[depth].line;
        } else {
            if (!frame.object->contains(raw.ip, raw.bytecode_copy)) {
                fault_ = StackFault::kChanging;
                return false;
            }
            frame.line = frame.object->line_at(raw.ip, raw.bytecode_copy);
        }
        path = frame.path;
        fresh_.push_back(frame);
    }
    return is_certain;
}

void StackReader::Impl::accept(Thread& thread) {
    thread.resolved.swap(fresh_);
    ThreadStack& stack = thread.stack;
    stack.fault = StackFault::kFine;
    stack.frames.resize(thread.resolved.size());
    for (size_t i = 0; i < stack.frames.size(); ++i) {
        const Resolved& frame = thread.resolved[stack.frames.size() - 1 - i];
        stack.frames[i] = {frame.object->function(), frame.line, false, 0};
    }
}

// So that the tries don't keep step with what the thread does.
void StackReader::Impl::wait_a_random_while() {
    constexpr uint64_t kLongest = 2048; // ns
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    const uint64_t end = monotonic_ns() + random_ % kLongest;
    while (monotonic_ns() < end) {
    }
}

// One reading of a thread's stack, in one system call: the list of threads (if that is asked for),
// the thread's innermost frame, all frames, the identity of doubtful code objects (and before it
// the counts of freed code objects), all frames again, the innermost frame again, the counts of
// freed code objects.
StackReader::Impl::Outcome StackReader::Impl::try_thread(Thread& thread, bool with_chain,
                                                         int tries) {
    const uint32_t asleep = thread.watch.asleep();
    const bool has_cframe = layout_.cframe_frame != kNone && thread.cframe != 0;
    wanted_.clear();
    if (with_chain) add_chain(&thread);
    const size_t chain_bytes = bytes_of(wanted_);
    auto add_innermost = [&](bool again) {
        const Piece state = piece(thread.address + thread_low_, thread_size_);
        const Piece cframe = piece(thread.cframe + layout_.cframe_frame, 8);
        if (!again) wanted_.push_back(state);
        if (has_cframe) wanted_.push_back(cframe);
        if (again) wanted_.push_back(state);
    };
    auto add_regions = [&] {
        for (const Region& region : thread.regions)
            wanted_.push_back(piece(region.low, region.size));
    };
    const bool has_generation = layout_.interpreter_generation != kNone;
    const auto add_generations = [&] {
        for (const InterpreterState& one : interpreters_)
            wanted_.push_back(piece(one.address + layout_.interpreter_generation, 8));
    };
    const size_t generation_bytes = has_generation ? interpreters_.size() * 8 : 0;
    const size_t generation_then_bytes = thread.doubtful.empty() ? 0 : generation_bytes;
    add_innermost(false);
    add_regions();
    if (generation_then_bytes > 0) add_generations();
    for (const Code* code : thread.doubtful) codes_.add_identity(*code, wanted_);
    add_regions();
    add_innermost(true);
    if (has_generation) add_generations();

    fault_ = StackFault::kChanging;
    if (!gather()) {
        if (is_gone_) return Outcome::kStaleList;
        fault_ = StackFault::kUnreadable;
        const bool has_plan = !thread.regions.empty() || thread.cframe != 0;
        thread.regions.clear();
        thread.region_bytes = 0;
        thread.cframe = 0;
        thread.doubtful.clear();
        return has_plan ? Outcome::kAgain : Outcome::kStaleList;
    }
    const char* at = bytes_.data() + chain_bytes;
    const auto next = load_at<uint64_t>(at + layout_.thread_next - thread_low_);
    if (with_chain && !chain_holds(bytes_.data(), &thread, next)) return Outcome::kStaleList;
    auto innermost = load_at<uint64_t>(at + layout_.thread_frame - thread_low_);
    at += thread_size_;
    const uint64_t cframe = innermost;
    if (layout_.cframe_frame != kNone) {
        if (cframe != thread.cframe) {
            thread.cframe = cframe;
            return Outcome::kAgain;
        }
        if (has_cframe) {
            innermost = load_at<uint64_t>(at);
            at += 8;
        }
    }
    const char* first = at;
    const char* generations_then = first + thread.region_bytes;
    const char* identities = generations_then + generation_then_bytes;
    size_t identity_bytes = 0;
    for (const Code* code : thread.doubtful) identity_bytes += codes_.identity_bytes(*code);
    const char* second = identities + identity_bytes;
    at = second + thread.region_bytes;
    if (has_cframe) {
        if (load_at<uint64_t>(at) != innermost) return Outcome::kAgain;
        at += 8;
    }
    const auto innermost_again = load_at<uint64_t>(at + layout_.thread_frame - thread_low_);
    if (innermost_again != (layout_.cframe_frame != kNone ? cframe : innermost))
        return Outcome::kAgain;
    at += thread_size_;

    uint64_t missing = 0;
    if (!parse(thread, innermost, first, &missing)) {
        if (missing == 0) {
            fault_ = StackFault::kCircle;
        } else {
            const uint64_t before = thread.region_bytes;
            find_frames(thread, missing);
            if (thread.region_bytes == before) fault_ = StackFault::kUnreadable;
        }
        return Outcome::kAgain;
    }
    // A generator that nobody called: in 3.10 one that has returned since the thread state was
    // read, and runs again when it is read again; in 3.11 and 3.12, which switch to a new C frame
    // before it has its innermost frame, for a moment a left-over one.
    const bool has_root = raw_.empty() || raw_.back().owner != kGeneratorOwner;
    if (!has_root || !is_unchanged(second)) return Outcome::kAgain;
    if (has_generation) {
        const auto sum = [](const char* bytes, size_t size) {
            uint64_t generation = 0;
            for (size_t i = 0; i < size; i += 8) generation += load_at<uint64_t>(bytes + i);
            return generation;
        };
        codes_.set_generation(sum(generations_then, generation_then_bytes),
                              sum(at, generation_bytes));
    }
    if (!identities_hold(thread, identities) || !resolve(thread)) return Outcome::kAgain;
    drop_waste(thread);

    // A thread that slept all the while can't have changed anything; what it shows is proof.
    const bool slept = asleep != 0 && thread.watch.asleep() == asleep;
    thread.stack.asleep = slept;
    thread.read_at = slept ? asleep : 0;
    const uint32_t path = fresh_.empty() ? CallPaths::kRoot : fresh_.back().path;
    if (paths_.is_proven(path)) return Outcome::kDone;
    if (path != candidate_) streak_ = 0;
    candidate_ = path;
    ++streak_;
    is_candidate_new_ = true;
    const bool is_frequent = ++candidates_[path] >= kOften && tries < kOftenOf;
    if (!slept && streak_ < kProof && !is_frequent) return Outcome::kAgain;
    paths_.prove(path);
    return Outcome::kDone;
}

StackReader::Impl::Outcome StackReader::Impl::read_thread(Thread& thread, bool with_chain) {
    streak_ = 0;
    candidates_.clear();
    is_candidate_new_ = false;
    Clock::time_point deadline{};
    for (int tries = 0;; ++tries) {
        if (tries == 1) deadline = Clock::now() + options_.patience;
        if (is_candidate_new_) wait_a_random_while(); // between the readings that are to prove it
        is_candidate_new_ = false;
        const Outcome outcome = try_thread(thread, with_chain, tries);
        if (outcome == Outcome::kDone) accept(thread);
        if (outcome != Outcome::kAgain) return outcome;
        if (!is_candidate_new_) streak_ = 0; // in a row: no failure in between
        if (tries < kLeastTries || Clock::now() < deadline) continue;
        thread.stack.fault = fault_;
        thread.stack.asleep = false;
        thread.read_at = 0;
        return Outcome::kDone;
    }
}

Result<void> StackReader::Impl::sample() {
    for (int tries = 0; tries < kListTries; ++tries) {
        bool list_holds = !threads_.empty() && paths_.size() < kMostPaths;
        if (paths_.size() >= kMostPaths) {
            paths_ = CallPaths();
            loop_pcs_.clear();
        }
        if (!list_holds || tries > 0) {
            if (auto listed = list_threads(); !listed) {
                if (tries + 1 < kListTries) continue;
                return listed;
            }
        }
        if (options_.threads == WhichThreads::kOnlyActive && !check_chain()) continue;
        if (codes_.forgotten() > kMostForgotten) forget_stacks();
        stacks.clear();
        to_read_.clear();
        for (const auto& thread : threads_) {
            if (!is_wanted(*thread)) continue;
            const uint32_t asleep = thread->watch.asleep();
            if (options_.threads == WhichThreads::kOnlyActive && layout_.free_threaded &&
                asleep != 0)
                continue;
            stacks.push_back(&thread->stack);
            if (asleep == 0 || asleep != thread->read_at) to_read_.push_back(thread.get());
        }
        const bool alone = to_read_.size() == 1;
        list_holds = true;
        for (Thread* thread : to_read_)
            list_holds = list_holds && read_thread(*thread, alone) != Outcome::kStaleList;
        if (list_holds && (alone || check_chain())) return {};
        if (is_gone_) break;
    }
    return failure("its list of threads changed each time while it was read");
}

uint32_t StackReader::Impl::path_of(const std::vector<Frame>& frames) {
    uint32_t path = CallPaths::kRoot;
    for (size_t i = frames.size(); i-- > 0;) path = paths_.step(path, frames[i].function->id);
    return path;
}

ThreadStack StackReader::Impl::interpret(pid_t tid, std::span<const sb_python_frame> frames,
                                         uint64_t loop_pc) {
    ThreadStack stack;
    stack.tid = tid;
    if (codes_.forgotten() > kMostForgotten) forget_stacks();
    const auto fail = [&stack](StackFault fault) {
        stack.fault = fault;
        stack.frames.clear();
        return stack;
    };
    // As in try_thread: nobody called it, so it is a left-over.
    if (!frames.empty() &&
        (frames.back().is_generator != 0 || frames.back().owner == kGeneratorOwner))
        return fail(StackFault::kChanging);
    for (size_t i = 0; i < frames.size(); ++i) {
        const sb_python_frame& raw = frames[i];
        if (raw.owner >= kFirstNonPythonOwner) continue;
        Code* code = codes_.find_identical(raw.code & ~kTagBits, raw.identity);
        if (code == nullptr) return fail(StackFault::kNoCode);
        if (raw.bytecode_copy != 0 && !code->knows_copy(raw.bytecode_copy))
            codes_.load_copy(*code, raw.bytecode_copy);
        if (!code->contains(raw.ip, raw.bytecode_copy)) return fail(StackFault::kChanging);
        Frame frame{code->function(), code->line_at(raw.ip, raw.bytecode_copy), false, 0};
        // From 3.12 on the loop keeps a frame of its own on the C stack, the caller of the first
        // that it runs; 3.11 marks that one; in 3.10 each frame has a call of the loop.
        if (layout_.minor >= 12 && i + 1 < frames.size() &&
            frames[i + 1].owner >= kFirstNonPythonOwner) {
            frame.is_entry = true;
            frame.c_stack = frames[i + 1].address;
        } else if (layout_.minor < 12) {
            frame.is_entry = layout_.minor == 10 || raw.is_entry != 0;
        }
        stack.frames.push_back(frame);
    }
    const uint32_t path = path_of(stack.frames);
    if (paths_.is_proven(path)) return stack;
    // Outside of its loop the interpreter has done what it was doing to the frames, and in 3.10 a
    // frame is whole before it is linked. Within the loop a wrong link lasts for a few
    // instructions.
    const auto [seen, is_new] = loop_pcs_.try_emplace(path, loop_pc);
    const uint64_t distance =
        seen->second > loop_pc ? seen->second - loop_pc : loop_pc - seen->second;
    if (layout_.minor == 10 || loop_pc == 0 || distance >= kFarInLoop) paths_.prove(path);
    return stack;
}

// What bpf/stacks.bpf.c does for a thread that runs.
std::optional<ThreadStack> StackReader::Impl::read_still(pid_t tid, uint64_t loop_pc) {
    const auto thread = std::find_if(threads_.begin(), threads_.end(),
                                     [tid](const auto& one) { return one->stack.tid == tid; });
    if (thread == threads_.end()) return std::nullopt;
    ThreadStack broken;
    broken.tid = tid;
    broken.fault = StackFault::kUnreadable;
    auto address = source_->value<uint64_t>((*thread)->address + layout_.thread_frame);
    if (address && *address != 0 && layout_.cframe_frame != kNone)
        address = source_->value<uint64_t>(*address + layout_.cframe_frame);
    std::vector<sb_python_frame> frames;
    std::unordered_map<uint64_t, uint64_t> digests;
    std::string bytes(frame_bytes_, '\0');
    while (address && *address != 0) {
        if (!source_->read(*address, bytes.data(), bytes.size())) return broken;
        const RawFrame raw = parse_frame(layout_, bytes.data());
        sb_python_frame frame{};
        frame.address = *address;
        frame.code = raw.code;
        frame.ip = raw.ip;
        frame.bytecode_copy = raw.bytecode_copy;
        frame.owner = raw.owner;
        if (layout_.frame_entry != kNone)
            frame.is_entry = load_at<uint8_t>(&bytes[layout_.frame_entry]);
        const uint64_t code = raw.code & ~kTagBits;
        const auto [digest, is_new] = digests.try_emplace(code, 0);
        if (is_new) digest->second = codes_.digest_at(code).value_or(0);
        frame.identity = digest->second;
        frames.push_back(frame);
        if (frames.size() > kMostFrames) {
            broken.fault = StackFault::kCircle;
            return broken;
        }
        address = raw.previous;
    }
    return address ? interpret(tid, frames, loop_pc) : broken;
}

bool StackReader::Impl::holds_gil(pid_t tid) const {
    return std::any_of(threads_.begin(), threads_.end(), [tid](const auto& one) {
        return one->stack.tid == tid && one->stack.holds_gil;
    });
}

Result<void> StackReader::Impl::look_at_list() {
    stacks.clear();
    if (!threads_.empty() && check_chain()) return {};
    for (int tries = 0;; ++tries) {
        auto listed = list_threads();
        if (listed && check_chain()) return listed;
        if (tries == kListTries)
            return listed ? failure("its list of threads changed each time while it was read")
                          : std::move(listed);
    }
}

sb_python_layout StackReader::Impl::bpf_layout() const {
    static_assert(kNone == SB_NO_FIELD);
    sb_python_layout layout{};
    layout.is_python = 1;
    layout.thread_frame = layout_.thread_frame;
    layout.cframe_frame = layout_.cframe_frame;
    layout.frame_previous = layout_.frame_previous;
    layout.frame_code = layout_.frame_code;
    layout.frame_ip = layout_.frame_ip;
    layout.frame_owner = layout_.frame_owner;
    layout.frame_entry = layout_.frame_entry;
    layout.frame_generator = layout_.frame_generator;
    layout.frame_bytecode_copy = layout_.frame_bytecode_copy;
    layout.code_version = layout_.code_version;
    layout.code_name = layout_.code_name;
    layout.code_file = layout_.code_file;
    layout.code_lines = layout_.code_lines;
    layout.code_first_line = layout_.code_first_line;
    layout.text_length = layout_.text_length;
    layout.text_state = layout_.text_state;
    layout.text_ascii = layout_.text_ascii_bit();
    layout.text_data = layout_.text_ascii_data;
    layout.gil_locked = layout_.gil_locked;
    layout.gil_holder = layout_.gil_holder;
    layout.ip_is_int = layout_.minor == 10 ? 1 : 0;
    return layout;
}

std::vector<std::pair<pid_t, sb_thread_state>> StackReader::Impl::thread_states() const {
    std::vector<std::pair<pid_t, sb_thread_state>> states;
    size_t interpreter = 0;
    for (size_t i = 0; i < threads_.size(); ++i) {
        while (interpreter + 1 < interpreters_.size() &&
               interpreters_[interpreter + 1].first_thread <= i)
            ++interpreter;
        states.push_back(
            {threads_[i]->stack.tid, {threads_[i]->address, interpreters_[interpreter].gil}});
    }
    return states;
}

// Lets go of all code objects that are no more.
void StackReader::Impl::forget_stacks() {
    for (const auto& thread : threads_) {
        thread->resolved.clear();
        thread->doubtful.clear();
        thread->read_at = 0;
    }
    codes_.bury();
}

Error StackReader::Impl::failure(const std::string& what) const {
    const std::string name = "process " + std::to_string(pid_);
    if (pid_ != 0) {
        char byte = 0;
        const Piece runtime = piece(interpreter_.runtime_address, 1);
        const ssize_t got = source_->gather({&runtime, 1}, &byte);
        if (got == -ESRCH || access(("/proc/" + std::to_string(pid_)).c_str(), F_OK) != 0)
            return make_error(ErrorKind::kNotFound, name + " has ended");
        if (got < 0) return process::access_error(pid_, "read its memory", static_cast<int>(-got));
        const auto now = process::find_interpreters(pid_);
        if (now && (now->empty() || now->front().runtime_address != interpreter_.runtime_address ||
                    now->front().path != interpreter_.path))
            return make_error(ErrorKind::kNotFound,
                              name + " runs another program than before (exec)");
    }
    return make_error(ErrorKind::kIo, name + ": " + what);
}

StackReader::StackReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StackReader::StackReader(StackReader&&) noexcept = default;
StackReader& StackReader::operator=(StackReader&&) noexcept = default;
StackReader::~StackReader() = default;

Result<StackReader> StackReader::open(std::unique_ptr<Source> source,
                                      const process::Interpreter& interpreter, uint64_t code_type,
                                      pid_t pid, const ReaderOptions& options) {
    const auto layout = layout_of(*source, interpreter);
    if (!layout) return layout.error();
    return StackReader(
        std::make_unique<Impl>(std::move(source), *layout, interpreter, code_type, pid, options));
}

Result<StackReader> StackReader::open(pid_t pid, const ReaderOptions& options) {
    const auto modules = process::load_modules(pid);
    if (!modules) return modules.error();
    const auto interpreters = process::interpreters_of(process::RemoteMemory(pid), *modules);
    const std::string name = "process " + std::to_string(pid);
    if (interpreters.empty()) return make_error(ErrorKind::kUnsupported, name + " runs no Python");
    const process::Interpreter& interpreter = interpreters.front();
    if (!interpreter.initialized && interpreter.is_supported())
        return make_error(ErrorKind::kUnsupported,
                          name + ": " + interpreter.describe() + " has not started");
    uint64_t code_type = 0;
    for (const process::RemoteModule& module : *modules)
        if (module.path() == interpreter.path) code_type = module.find("PyCode_Type").value_or(0);
    raise_file_limit();
    auto opened = open(std::make_unique<ProcessSource>(pid), interpreter, code_type, pid, options);
    if (!opened) return std::move(opened.error()).with_context(name);
    return opened;
}

Result<void> StackReader::sample() {
    return impl_->sample();
}

Result<void> StackReader::list_threads() {
    return impl_->look_at_list();
}

std::optional<ThreadStack> StackReader::read_still(pid_t tid, uint64_t loop_pc) {
    return impl_->read_still(tid, loop_pc);
}

bool StackReader::holds_gil(pid_t tid) const {
    return impl_->holds_gil(tid);
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
    return impl_->thread_states();
}

const std::vector<const ThreadStack*>& StackReader::stacks() const {
    return impl_->stacks;
}

const std::deque<Function>& StackReader::functions() const {
    return impl_->functions();
}

const process::Interpreter& StackReader::interpreter() const {
    return impl_->interpreter();
}

} // namespace speedbump::inspect
