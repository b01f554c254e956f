// SPDX-License-Identifier: MIT
// The frame is the kernel's struct rt_sigframe (arch/arm64/kernel/signal.c): a siginfo, a ucontext,
// and behind that records, each of which begins with a number and its size; one without either ends
// them. Documented in arch/arm64/include/uapi/asm/sigcontext.h.
#include "inject/frame.h"

#include <elf.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace speedbump::inject {
namespace {

constexpr size_t kSiginfoSize = 128;
constexpr size_t kRecordsRoom = 4096; // for the records, before those that lie beyond
// The ucontext up to the records, as 64-bit words.
constexpr size_t kContextWords = 58;
enum ContextWord : size_t {
    kLink = 1,
    kStackFlags = 3,
    kSignalMask = 5,
    kGeneral = 23, // x0 to x30
    kStackPointer = 54,
    kProgramCounter = 55,
    kState = 56,
};
// Of a signal's frame, beside the records: siginfo, ucontext, the room that may be left unused, and
// the handler's first words.
constexpr uint64_t kSignalFrameRest = kSiginfoSize + kContextWords * 8 + kRecordsRoom + 2048;
// In uc_link, where the kernel writes zero and from where it reads nothing: what tells this frame
// from those that has_signal_frame() looks for.
constexpr uint64_t kImageMark = 0x53424652414d4531;

// Kinds of records, and the sets of registers (ptrace) that they hold. Those of newer kernels are
// absent in older headers.
constexpr uint32_t kFpsimdRecord = 0x46508001;
constexpr uint32_t kSveRecord = 0x53564501;
constexpr uint32_t kExtraRecord = 0x45585401;
constexpr uint32_t kFpmrRecord = 0x46504d52;
constexpr uint32_t kPoeRecord = 0x504f4530;
constexpr int kFpsimdSet = NT_PRFPREG;
constexpr int kSveSet = 0x405;
constexpr int kStreamingSet = 0x40b;
constexpr int kMatrixSet = 0x40c;
constexpr int kFpmrSet = 0x40e;
constexpr int kPoeSet = 0x40f;

struct RecordHead {
    uint32_t kind;
    uint32_t size;
};

struct SveSetHead { // struct user_sve_header, that of the matrix set too
    uint32_t size, max_size;
    uint16_t vector_length, max_vector_length, flags, reserved;
};
constexpr uint16_t kHasSve = 1; // SVE_PT_REGS_SVE

struct FpsimdSet { // struct user_fpsimd_state
    unsigned char vectors[512];
    uint32_t fpsr, fpcr, reserved[2];
};

// A set of registers of a thread; empty where this processor or kernel has none.
std::vector<std::byte> read_set(pid_t tid, int which, size_t size) {
    std::vector<std::byte> bytes(size);
    iovec buffer{bytes.data(), bytes.size()};
    if (ptrace(PTRACE_GETREGSET, tid, which, &buffer) != 0) return {};
    bytes.resize(buffer.iov_len);
    return bytes;
}

SveSetHead head_of(pid_t tid, int which) {
    SveSetHead head{};
    const auto bytes = read_set(tid, which, sizeof(head));
    if (bytes.size() == sizeof(head)) std::memcpy(&head, bytes.data(), sizeof(head));
    return head;
}

size_t round_up(size_t size) {
    return (size + 15) & ~size_t{15};
}

// Adds a record, and returns where its contents begin.
size_t add_record(std::vector<std::byte>& records, uint32_t kind, size_t contents) {
    const RecordHead head{kind, static_cast<uint32_t>(round_up(sizeof(RecordHead) + contents))};
    const size_t at = records.size();
    records.resize(at + head.size);
    std::memcpy(records.data() + at, &head, sizeof(head));
    return at + sizeof(head);
}

void end_records(std::vector<std::byte>& records) {
    records.resize(records.size() + 16); // zeros
}

// A register that a kernel may not know: its record is as new.
void add_if_there(std::vector<std::byte>& records, pid_t tid, int which, uint32_t kind) {
    const auto bytes = read_set(tid, which, 8);
    if (bytes.size() != 8) return;
    const size_t at = add_record(records, kind, 8);
    std::memcpy(records.data() + at, bytes.data(), 8);
}

// The scalable registers, where they hold more than the vectors: Z, P and FFR lie in the set as in
// the record. Nothing when they can't be had.
std::optional<std::vector<std::byte>> sve_record(pid_t tid) {
    const SveSetHead head = head_of(tid, kSveSet);
    std::vector<std::byte> record;
    if ((head.flags & kHasSve) == 0) return record;
    const auto set = read_set(tid, kSveSet, head.size);
    const size_t quadwords = head.vector_length / 16;
    const size_t size = quadwords * (32 * 16 + 16 * 2 + 2);
    if (quadwords == 0 || set.size() < sizeof(head) + size) return std::nullopt;
    const size_t at = add_record(record, kSveRecord, 8 + size);
    std::memcpy(record.data() + at, &head.vector_length, sizeof(head.vector_length));
    std::memcpy(record.data() + at + 8, set.data() + sizeof(head), size);
    return record;
}

} // namespace

const size_t kStackPointerWord = kStackPointer;

std::optional<ExtendedState> read_extended_state(pid_t tid) {
    FpsimdSet vectors{};
    const auto bytes = read_set(tid, kFpsimdSet, sizeof(vectors));
    if (bytes.size() != sizeof(vectors)) return std::nullopt;
    std::memcpy(&vectors, bytes.data(), sizeof(vectors));
    const auto sve = sve_record(tid);
    if (!sve) return std::nullopt;

    ExtendedState state;
    // The matrix registers (SME), and the mode in which the vectors are those of the matrix unit.
    state.can_be_restored = (head_of(tid, kStreamingSet).flags & kHasSve) == 0 &&
                            head_of(tid, kMatrixSet).size <= sizeof(SveSetHead);
    const size_t at = add_record(state.bytes, kFpsimdRecord, 8 + sizeof(vectors.vectors));
    std::memcpy(state.bytes.data() + at, &vectors.fpsr, 8);
    std::memcpy(state.bytes.data() + at + 8, vectors.vectors, sizeof(vectors.vectors));
    add_if_there(state.bytes, tid, kFpmrSet, kFpmrRecord);
    add_if_there(state.bytes, tid, kPoeSet, kPoeRecord);
    if (state.bytes.size() + sve->size() + 16 > kRecordsRoom) {
        const size_t beyond = add_record(state.bytes, kExtraRecord, 24);
        const auto size = static_cast<uint32_t>(sve->size() + 16);
        std::memcpy(state.bytes.data() + beyond + 8, &size, sizeof(size));
        end_records(state.bytes);
        state.beyond = beyond;
    }
    state.bytes.insert(state.bytes.end(), sve->begin(), sve->end());
    end_records(state.bytes);
    return state;
}

Image make_image(const Resumption& resumption, const ExtendedState& extended, uint64_t signal_mask,
                 const Block& common) {
    const user_regs_struct& regs = resumption.regs;
    const Bytes payload = payload_bytes();
    Image image;
    image.end = regs.sp & ~uint64_t{15};
    const uint64_t code = (image.end - common.code_size) & ~uint64_t{15};
    const uint64_t records = code - extended.bytes.size();
    image.context = records - kContextWords * 8;
    image.block = (image.context - kSiginfoSize - sizeof(Block)) & ~uint64_t{15};
    image.entry = image.block;
    const uint64_t canary_size = (extended.bytes.size() + kSignalFrameRest) & ~uint64_t{15};
    image.start = image.entry - canary_size;
    image.bytes.resize(image.end - image.start);
    const auto place = [&](uint64_t address, const void* data, size_t size) {
        std::memcpy(image.bytes.data() + (address - image.start), data, size);
    };
    for (uint64_t at = image.start; at < image.entry; at += 8) place(at, &kCanary, 8);
    place(code, payload.data, payload.size);
    place(records, extended.bytes.data(), extended.bytes.size());
    if (extended.beyond != 0) { // behind the record that says so, and the end after that
        const uint64_t beyond = records + extended.beyond + 24 + 16;
        place(records + extended.beyond, &beyond, sizeof(beyond));
    }

    uint64_t words[kContextWords] = {};
    words[kLink] = kImageMark;
    words[kStackFlags] = 2; // SS_DISABLE until the thread itself has filled it in
    words[kSignalMask] = signal_mask;
    std::copy(std::begin(regs.regs), std::end(regs.regs), words + kGeneral);
    words[kStackPointer] = regs.sp;
    words[kProgramCounter] = regs.pc;
    words[kState] = regs.pstate;
    place(image.context, words, sizeof(words));

    Block full = common;
    full.code = code;
    full.frame = image.context;
    full.mode = resumption.mode;
    full.extended_state = records;
    full.canary = image.start;
    full.canary_words = canary_size / 8;
    full.repeats_call = resumption.repeat;
    if (resumption.time_left) {
        const std::chrono::nanoseconds now = std::chrono::system_clock::now().time_since_epoch();
        full.waits_since = static_cast<uint64_t>(now.count());
        full.time_left = resumption.time_left->address;
        full.time_unit = resumption.time_left->unit_ns;
    }
    place(image.block, &full, sizeof(full));
    return image;
}

} // namespace speedbump::inject
