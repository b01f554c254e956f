// SPDX-License-Identifier: MIT
#include "stacks/snapshot_reader.h"

#include <algorithm>

#include "util/clock.h"

namespace speedbump::stacks {
namespace {

constexpr int kMinTries = 16;
constexpr int kProof = 4;    // tries in a row that give the same new path prove it,
constexpr int kOften = 12;   // or as many of the first
constexpr int kOftenOf = 64; // tries

// Of code objects that were freed, over all interpreters.
uint64_t sum_of(const char* generations, size_t size) {
    uint64_t sum = 0;
    for (size_t i = 0; i < size; i += 8) sum += load_at<uint64_t>(generations + i);
    return sum;
}

} // namespace

SnapshotReader::SnapshotReader(const Source& source, const Layout& layout, Gathering& gathering,
                               ThreadList& list, CodeTable& codes, CallPaths& paths,
                               std::chrono::microseconds patience)
    : source_(source),
      layout_(layout),
      gathering_(gathering),
      list_(list),
      codes_(codes),
      paths_(paths),
      patience_(patience) {
    thread_low_ = std::min(layout.thread_next, layout.thread_frame);
    thread_size_ = std::max(layout.thread_next, layout.thread_frame) + 8 - thread_low_;
}

bool SnapshotReader::read(Thread& thread, bool with_chain) {
    streak_ = 0;
    candidates_.clear();
    is_candidate_new_ = false;
    Clock::time_point deadline{};
    for (int tries = 0;; ++tries) {
        if (tries == 1) deadline = Clock::now() + patience_;
        if (is_candidate_new_) wait_a_random_while(); // between the readings that are to prove it
        is_candidate_new_ = false;
        const Outcome outcome = try_once(thread, with_chain, tries);
        if (outcome == Outcome::kDone) accept(thread);
        if (outcome != Outcome::kAgain) return outcome == Outcome::kDone;
        if (!is_candidate_new_) streak_ = 0; // in a row: no failure in between
        if (tries < kMinTries || Clock::now() < deadline) continue;
        thread.stack.fault = fault_;
        thread.stack.asleep = false;
        thread.read_at = 0;
        return true;
    }
}

SnapshotReader::Outcome SnapshotReader::try_once(Thread& thread, bool with_chain, int tries) {
    const uint32_t asleep = thread.watch.asleep();
    Reading reading = ask(thread, with_chain);
    fault_ = StackFault::kChanging;
    if (!gathering_.run()) return forget_plan(thread);
    if (const Outcome taken = take_apart(thread, reading); taken != Outcome::kDone) return taken;
    // A generator that nobody called: in 3.10 one that has returned since the thread state was
    // read, and runs again when it is read again; in 3.11 and 3.12, which switch to a new C frame
    // before it has its innermost frame, for a moment a left-over one.
    const bool has_root = raw_.empty() || !sb_is_generator(&raw_.back().frame);
    if (!has_root || !is_unchanged(reading.second)) return Outcome::kAgain;
    if (reading.generation_bytes > 0)
        codes_.set_generation(sum_of(reading.generations_then, reading.generation_then_bytes),
                              sum_of(reading.generations_now, reading.generation_bytes));
    if (!identities_hold(thread, reading.identities) || !resolve(thread)) return Outcome::kAgain;
    thread.regions.drop_waste(layout_, raw_.size());

    // A thread that slept all the while can't have changed anything; what it shows is proof.
    const bool slept = asleep != 0 && thread.watch.asleep() == asleep;
    thread.stack.asleep = slept;
    thread.read_at = slept ? asleep : 0;
    return is_proven(slept, tries) ? Outcome::kDone : Outcome::kAgain;
}

// One reading of a thread's stack, in one system call: the list of threads (if that is asked for),
// the thread's innermost frame, all frames, the identity of doubtful code objects (and before it
// the counts of freed code objects), all frames again, the innermost frame again, the counts of
// freed code objects.
SnapshotReader::Reading SnapshotReader::ask(const Thread& thread, bool with_chain) {
    Reading reading;
    reading.with_chain = with_chain;
    reading.has_cframe = layout_.cframe_frame != kNone && thread.cframe != 0;
    std::vector<Piece>& wanted = gathering_.begin();
    if (with_chain) list_.add_chain(wanted, &thread);
    reading.chain_bytes = bytes_of(wanted);
    const Piece state = piece(thread.address + thread_low_, thread_size_);
    const Piece cframe = piece(thread.cframe + layout_.cframe_frame, 8);
    const bool has_generation = layout_.interpreter_generation != kNone;
    const auto add_generations = [&] {
        for (const InterpreterState& one : list_.interpreters())
            wanted.push_back(piece(one.address + layout_.interpreter_generation, 8));
    };
    reading.generation_bytes = has_generation ? list_.interpreters().size() * 8 : 0;
    reading.generation_then_bytes = thread.doubtful.empty() ? 0 : reading.generation_bytes;
    wanted.push_back(state);
    if (reading.has_cframe) wanted.push_back(cframe);
    thread.regions.add_pieces(wanted);
    if (reading.generation_then_bytes > 0) add_generations();
    for (const Code* code : thread.doubtful) codes_.add_identity(*code, wanted);
    thread.regions.add_pieces(wanted);
    if (reading.has_cframe) wanted.push_back(cframe);
    wanted.push_back(state);
    if (has_generation) add_generations();
    return reading;
}

// What was to be read is not all there: frames have gone, or the thread.
SnapshotReader::Outcome SnapshotReader::forget_plan(Thread& thread) {
    if (gathering_.is_gone()) return Outcome::kStaleList;
    fault_ = StackFault::kUnreadable;
    const bool has_plan = !thread.regions.empty() || thread.cframe != 0;
    thread.regions.clear();
    thread.cframe = 0;
    thread.doubtful.clear();
    return has_plan ? Outcome::kAgain : Outcome::kStaleList;
}

SnapshotReader::Outcome SnapshotReader::take_apart(Thread& thread, Reading& reading) {
    const char* at = gathering_.data() + reading.chain_bytes;
    const auto next = load_at<uint64_t>(at + layout_.thread_next - thread_low_);
    if (reading.with_chain && !list_.chain_holds(gathering_.data(), &thread, next))
        return Outcome::kStaleList;
    const auto head = load_at<uint64_t>(at + layout_.thread_frame - thread_low_);
    reading.innermost = head;
    at += thread_size_;
    if (layout_.cframe_frame != kNone) {
        if (head != thread.cframe) {
            thread.cframe = head;
            return Outcome::kAgain;
        }
        if (reading.has_cframe) {
            reading.innermost = load_at<uint64_t>(at);
            at += 8;
        }
    }
    reading.first = at;
    reading.generations_then = reading.first + thread.regions.bytes();
    reading.identities = reading.generations_then + reading.generation_then_bytes;
    size_t identity_bytes = 0;
    for (const Code* code : thread.doubtful) identity_bytes += codes_.identity_bytes(*code);
    reading.second = reading.identities + identity_bytes;
    at = reading.second + thread.regions.bytes();
    if (reading.has_cframe) {
        if (load_at<uint64_t>(at) != reading.innermost) return Outcome::kAgain;
        at += 8;
    }
    const auto head_again = load_at<uint64_t>(at + layout_.thread_frame - thread_low_);
    if (head_again != head) return Outcome::kAgain;
    reading.generations_now = at + thread_size_;
    return find_missing(thread, reading) ? Outcome::kAgain : Outcome::kDone;
}

// Follows the frames into raw_. True: they lead to where nothing was read, which is read the next
// time.
bool SnapshotReader::find_missing(Thread& thread, const Reading& reading) {
    uint64_t missing = 0;
    if (thread.regions.parse(layout_, reading.innermost, reading.first, raw_, &missing))
        return false;
    if (missing == 0) {
        fault_ = StackFault::kCircle;
        return true;
    }
    const uint64_t before = thread.regions.bytes();
    thread.regions.find(source_, layout_, missing);
    if (thread.regions.bytes() == before) fault_ = StackFault::kUnreadable;
    return true;
}

// Whether the second copy of the regions shows the same frames. The innermost one runs: its
// instruction may be another.
bool SnapshotReader::is_unchanged(const char* again) const {
    for (size_t i = 0; i < raw_.size(); ++i) {
        const RawFrame& before = raw_[i];
        const RawFrame now = parse_frame(layout_, again + before.offset);
        if (now.frame.code != before.frame.code || now.previous != before.previous ||
            now.frame.owner != before.frame.owner ||
            now.frame.is_generator != before.frame.is_generator ||
            now.frame.bytecode_copy != before.frame.bytecode_copy ||
            (i > 0 && now.frame.ip != before.frame.ip))
            return false;
    }
    return true;
}

// Whether the doubtful code objects are those that the table has; what isn't is forgotten.
bool SnapshotReader::identities_hold(Thread& thread, const char* bytes) {
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
bool SnapshotReader::resolve(Thread& thread) {
    fresh_.clear();
    bool is_certain = true;
    std::vector<Code*> checked;
    checked.swap(thread.doubtful);
    for (size_t i = raw_.size(); i-- > 0;) {
        const sb_python_frame& raw = raw_[i].frame;
        if (raw.owner >= SB_OWNER_NOT_PYTHON) continue;
        const size_t depth = fresh_.size();
        const bool as_before = depth < thread.resolved.size() &&
                               thread.resolved[depth].code == raw.code &&
                               !thread.resolved[depth].object->is_forgotten();
        Code* code = as_before ? thread.resolved[depth].object : nullptr;
        const uint64_t address = sb_code_address(&raw);
        if (code == nullptr) code = codes_.find(address);
        if (code == nullptr) code = codes_.load(address);
        if (code == nullptr) {
            fault_ = StackFault::kNoCode;
            return false;
        }
        if (!is_code_certain(thread, checked, code)) is_certain = false;
        if (!add_resolved(
                as_before ? &thread.resolved[depth] : nullptr,
                as_before && depth > 0 ? thread.resolved[depth - 1].path : CallPaths::kRoot, raw,
                code)) {
            fault_ = StackFault::kChanging;
            return false;
        }
    }
    return is_certain;
}

// Whether the code object is known to be the one that was read; else it is among the doubtful,
// which are read along the next time.
bool SnapshotReader::is_code_certain(Thread& thread, const std::vector<Code*>& checked,
                                     Code* code) {
    if (codes_.is_current(*code)) return true;
    const auto same = [code](const Code* one) { return one == code; };
    // Its memory was read while it was on the stack, hence alive.
    const bool is_certain = std::any_of(checked.begin(), checked.end(), same);
    if (is_certain) codes_.confirm(*code);
    if (std::none_of(thread.doubtful.begin(), thread.doubtful.end(), same))
        thread.doubtful.push_back(code);
    return is_certain;
}

// Adds a frame to fresh_. `before`: the one of the last stack in its place, when that ran the same
// code, and the path above that one. False: its instruction lies outside of its code.
bool SnapshotReader::add_resolved(const Resolved* before, uint32_t path_before,
                                  const sb_python_frame& raw, Code* code) {
    Resolved frame{raw.code, code, raw.ip, raw.bytecode_copy, 0, 0};
    const uint32_t path = fresh_.empty() ? CallPaths::kRoot : fresh_.back().path;
    if (raw.bytecode_copy != 0 && !code->knows_copy(raw.bytecode_copy))
        codes_.load_copy(*code, raw.bytecode_copy);
    if (before != nullptr && path == path_before)
        frame.path = before->path;
    else
        frame.path = paths_.step(path, code->function()->id);
    if (before != nullptr && before->ip == raw.ip && before->bytecode_copy == raw.bytecode_copy) {
        frame.line = before->line;
    } else {
        if (!code->contains(raw.ip, raw.bytecode_copy)) return false;
        frame.line = code->line_at(raw.ip, raw.bytecode_copy);
    }
    fresh_.push_back(frame);
    return true;
}

// Whether the path of this try is one that the thread has certainly taken.
bool SnapshotReader::is_proven(bool slept, int tries) {
    const uint32_t path = fresh_.empty() ? CallPaths::kRoot : fresh_.back().path;
    if (paths_.is_proven(path)) return true;
    if (path != candidate_) streak_ = 0;
    candidate_ = path;
    ++streak_;
    is_candidate_new_ = true;
    const bool is_frequent = ++candidates_[path] >= kOften && tries < kOftenOf;
    if (!slept && streak_ < kProof && !is_frequent) return false;
    paths_.prove(path);
    return true;
}

void SnapshotReader::accept(Thread& thread) {
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
void SnapshotReader::wait_a_random_while() {
    constexpr uint64_t kLongest = 2048; // ns
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    const uint64_t end = monotonic_ns() + random_ % kLongest;
    while (monotonic_ns() < end) {
    }
}

} // namespace speedbump::stacks
