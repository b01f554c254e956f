// SPDX-License-Identifier: MIT
#include "inject/frame.h"

#include <cpuid.h>
#include <elf.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace speedbump::inject {
namespace {

constexpr uint64_t kRedZone = 128;
constexpr uint64_t kXsaveAlign = 64;
// Of a signal's frame, beside the extended state: ucontext, siginfo, and the handler's first words.
constexpr uint64_t kSignalFrameRest = 2048;
constexpr uint64_t kAmxFeatures = 3ULL << 17; // XTILECFG, XTILEDATA
constexpr size_t kLegacyXsave = 512;
constexpr size_t kXsaveHeader = 64;
constexpr size_t kSoftwareBytes = 464; // in the legacy area: struct _fpx_sw_bytes
constexpr uint32_t kXstateMagic1 = 0x46505853;
constexpr uint32_t kXstateMagic2 = 0x46505845;
// The kernel's struct ucontext of x86-64 as 64-bit words.
constexpr size_t kContextWords = 38;
enum ContextWord : size_t {
    kFlags = 0,
    kStackFlags = 3,
    kR8 = 5,
    kSelectors = 23,
    kFpState = 28,
    kSignalMask = 37,
};
constexpr uint64_t kContextFlags = 1 | 2 | 4; // UC_FP_XSTATE, UC_SIGCONTEXT_SS, STRICT_RESTORE_SS

size_t frame_size_of(uint64_t features) {
    size_t size = kLegacyXsave + kXsaveHeader;
    for (unsigned i = 2; i < 63; ++i) {
        if (!(features >> i & 1)) continue;
        unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
        __cpuid_count(0xd, i, eax, ebx, ecx, edx);
        if (!(ecx & 1)) size = std::max<size_t>(size, size_t{ebx} + eax);
    }
    return size;
}

} // namespace

const size_t kStackPointerWord = kR8 + 15;

std::optional<ExtendedState> read_extended_state(pid_t tid) {
    ExtendedState state;
    state.bytes.resize(16384);
    iovec buffer{state.bytes.data(), state.bytes.size()};
    if (ptrace(PTRACE_GETREGSET, tid, NT_X86_XSTATE, &buffer) != 0) return std::nullopt;
    if (buffer.iov_len < kLegacyXsave + kXsaveHeader) return std::nullopt;
    uint64_t enabled = 0; // XCR0: the kernel puts it where the frame has the software bytes
    uint64_t in_use = 0;
    std::memcpy(&enabled, state.bytes.data() + kSoftwareBytes, 8);
    std::memcpy(&in_use, state.bytes.data() + kLegacyXsave, 8);
    // A frame that claims more than the task's own size is restored without AVX: leave out AMX,
    // which a task has only on request (arch_prctl, 5.16).
    state.can_be_restored = (in_use & kAmxFeatures) == 0;
    uint64_t features = enabled & ~kAmxFeatures;
    size_t size = std::min(frame_size_of(features), buffer.iov_len);
    state.bytes.resize(size + 4);
    struct {
        uint32_t magic1, extended_size;
        uint64_t features;
        uint32_t state_size, padding[7];
    } software = {
        kXstateMagic1, static_cast<uint32_t>(size + 4), features, static_cast<uint32_t>(size), {}};
    static_assert(sizeof(software) == 48);
    std::memcpy(state.bytes.data() + kSoftwareBytes, &software, sizeof(software));
    std::memcpy(state.bytes.data() + size, &kXstateMagic2, 4);
    return state;
}

Image make_image(const Resumption& resumption, const ExtendedState& extended, uint64_t signal_mask,
                 const Block& common) {
    const user_regs_struct& regs = resumption.regs;
    const Bytes payload = payload_bytes();
    Image image;
    image.end = (regs.rsp - kRedZone) & ~(kXsaveAlign - 1);
    const uint64_t code = image.end - common.code_size;
    const uint64_t fp_state = (code - extended.bytes.size()) & ~(kXsaveAlign - 1);
    image.context = (fp_state - kContextWords * 8) & ~uint64_t{15};
    image.block = (image.context - sizeof(Block)) & ~uint64_t{15};
    image.entry = image.block - 16;
    const uint64_t canary_size = (extended.bytes.size() + kSignalFrameRest) & ~uint64_t{15};
    image.start = image.entry - kRedZone - canary_size;
    image.bytes.resize(image.end - image.start);
    const auto place = [&](uint64_t address, const void* data, size_t size) {
        std::memcpy(image.bytes.data() + (address - image.start), data, size);
    };
    for (uint64_t at = image.start; at < image.entry - kRedZone; at += 8) place(at, &kCanary, 8);
    place(code, payload.data, payload.size);
    place(fp_state, extended.bytes.data(), extended.bytes.size());

    uint64_t words[kContextWords] = {};
    words[kFlags] = kContextFlags;
    words[kStackFlags] = 2; // SS_DISABLE until the thread itself has filled it in
    const uint64_t general[] = {regs.r8,  regs.r9,  regs.r10, regs.r11, regs.r12, regs.r13,
                                regs.r14, regs.r15, regs.rdi, regs.rsi, regs.rbp, regs.rbx,
                                regs.rdx, regs.rax, regs.rcx, regs.rsp, regs.rip, regs.eflags};
    std::copy(std::begin(general), std::end(general), words + kR8);
    words[kSelectors] = (regs.cs & 0xffff) | (regs.ss & 0xffff) << 48;
    words[kFpState] = fp_state;
    words[kSignalMask] = signal_mask;
    place(image.context, words, sizeof(words));

    Block full = common;
    full.code = code;
    full.frame = image.context;
    full.mode = resumption.mode;
    full.extended_state = fp_state;
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
