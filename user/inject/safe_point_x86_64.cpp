// SPDX-License-Identifier: MIT
#include "inject/safe_point.h"

#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "inject/blocking_call.h"

namespace speedbump::inject {
namespace {

using process::RemoteModule;

// The kernel's, never seen by a program: include/linux/errno.h.
constexpr int64_t kErestartSys = 512;
constexpr int64_t kErestartNoIntr = 513;
constexpr int64_t kErestartNoHand = 514;
constexpr int64_t kErestartBlock = 516;

constexpr uint64_t kUserCodeSelector = 0x33;
constexpr size_t kMaxStackScan = 16 << 20;
// cs, gs, fs and ss as the kernel stores them in a 64-bit signal frame, and the distance from the
// frame's first word (the restorer's address) to them.
constexpr uint64_t kFrameSelectors = 0x002b000000000033ULL;
constexpr size_t kSelectorsIndex = 24;

bool is_libc_part(const RemoteModule& module) {
    std::string_view name = module.soname();
    for (std::string_view part : {"libc.so", "libpthread.so", "libdl.so", "librt.so", "libc.musl"})
        if (name.starts_with(part)) return true;
    return false;
}

bool is_loader(const RemoteModule& module) {
    return module.soname().starts_with("ld-") || module.soname().starts_with("ld64") ||
           (module.find("_dl_get_tls_static_info") && !is_libc_part(module));
}

bool is_leaf_function(std::string_view name) {
    for (std::string_view leaf : {"memmove", "memcpy", "memset", "memcmp", "memchr", "memrchr",
                                  "strlen", "strcmp", "strncmp", "strchr", "rawmemchr"})
        if (name == leaf) return true;
    return false;
}

} // namespace

SafePoints::SafePoints(process::RemoteMemory memory, const std::vector<RemoteModule>& modules)
    : memory_(memory), modules_(&modules) {
    for (const RemoteModule& module : modules) {
        std::vector<RemoteModule::Range>* list = &user_code_;
        if (is_loader(module)) {
            list = &loader_;
        } else if (is_libc_part(module)) {
            list = &libc_;
        } else if (module.find("malloc")) {
            list = &allocator_;
        }
        list->insert(list->end(), module.code().begin(), module.code().end());
    }
}

bool SafePoints::in_ranges(const std::vector<RemoteModule::Range>& ranges, uint64_t address) const {
    return std::any_of(ranges.begin(), ranges.end(),
                       [&](const RemoteModule::Range& range) { return range.contains(address); });
}

bool SafePoints::is_user_code(uint64_t address) const {
    return in_ranges(user_code_, address);
}

bool SafePoints::called_from_allocator(uint64_t stack_pointer) const {
    if (allocator_.empty()) return false;
    std::array<uint64_t, 64> words = {};
    size_t bytes = memory_.read_some(stack_pointer, words.data(), sizeof(words));
    return std::any_of(words.begin(), words.begin() + bytes / 8,
                       [&](uint64_t word) { return in_ranges(allocator_, word); });
}

Stand SafePoints::judge(const user_regs_struct& regs) const {
    if (regs.cs != kUserCodeSelector) return Stand::kUnsafe;
    if (was_interrupted(regs)) {
        if (!is_user_code(regs.rip) && !in_ranges(libc_, regs.rip)) return Stand::kUnsafe;
        if (called_from_allocator(regs.rsp)) return Stand::kUnsafe;
        return Stand::kBlockedCall;
    }
    if (is_user_code(regs.rip)) return Stand::kUserCode;
    return in_ranges(libc_, regs.rip) && is_leaf(regs) ? Stand::kLeaf : Stand::kUnsafe;
}

// memmove and its kin push nothing, so the word at the stack pointer is their return address. That
// alone is no proof (it may be left over from an earlier call), so the call in front of it is
// followed through the PLT to the name it was linked to.
bool SafePoints::is_leaf(const user_regs_struct& regs) const {
    std::optional<uint64_t> back = memory_.value<uint64_t>(regs.rsp);
    if (!back || !is_user_code(*back)) return false;
    auto module = std::find_if(modules_->begin(), modules_->end(),
                               [&](const RemoteModule& m) { return m.contains_code(*back); });
    if (module == modules_->end()) return false;
    std::array<uint8_t, 6> call = {};
    if (memory_.read_some(*back - 6, call.data(), 6) != 6) return false;
    auto displacement = [](const uint8_t* bytes) {
        int32_t value;
        std::memcpy(&value, bytes, 4);
        return static_cast<uint64_t>(int64_t{value});
    };
    uint64_t slot = 0;
    if (call[0] == 0xff && call[1] == 0x15) { // call *disp(%rip)
        slot = *back + displacement(&call[2]);
    } else if (call[1] == 0xe8) { // call rel32, to a PLT entry: [endbr64] [bnd] jmp *disp(%rip)
        uint64_t entry = *back + displacement(&call[2]);
        std::array<uint8_t, 16> code = {};
        if (memory_.read_some(entry, code.data(), code.size()) != code.size()) return false;
        size_t at = 0;
        constexpr std::array<uint8_t, 4> kEndbr = {0xf3, 0x0f, 0x1e, 0xfa};
        if (std::equal(kEndbr.begin(), kEndbr.end(), code.begin())) at = kEndbr.size();
        if (code[at] == 0xf2) ++at;
        if (code[at] != 0xff || code[at + 1] != 0x25) return false;
        slot = entry + at + 6 + displacement(&code[at + 2]);
    } else {
        return false;
    }
    // The function may stand some way after its entry, but never before it.
    std::optional<uint64_t> target = memory_.value<uint64_t>(slot);
    constexpr uint64_t kLongestLeaf = 4096;
    if (!target || regs.rip < *target || regs.rip - *target > kLongestLeaf) return false;
    std::optional<std::string> name = module->symbol_of_slot(slot);
    return name && is_leaf_function(*name);
}

bool SafePoints::has_signal_frame(uint64_t stack_pointer, uint64_t stack_end) const {
    uint64_t from = stack_pointer & ~uint64_t{7};
    size_t size = std::min<uint64_t>(stack_end > from ? stack_end - from : 0, kMaxStackScan);
    std::vector<uint64_t> words(size / 8);
    words.resize(memory_.read_some(from, words.data(), words.size() * 8) / 8);
    for (size_t i = kSelectorsIndex; i < words.size(); ++i) {
        if (words[i] != kFrameSelectors) continue;
        uint64_t restorer = words[i - kSelectorsIndex];
        for (const RemoteModule& module : *modules_)
            if (module.contains_code(restorer)) return true;
    }
    return false;
}

BlockedCall call_of(const user_regs_struct& regs) {
    return {static_cast<long>(regs.orig_rax),
            {regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9},
            regs.rsp,
            regs.rip};
}

bool was_interrupted(const user_regs_struct& regs) {
    if (static_cast<int64_t>(regs.orig_rax) < 0) return false;
    switch (-static_cast<int64_t>(regs.rax)) {
        case kErestartSys:
        case kErestartNoIntr:
        case kErestartNoHand:
        case kErestartBlock:
        case EINTR:
            return true;
        default:
            return false;
    }
}

std::optional<Resumption> resumption_of(const process::RemoteMemory& memory,
                                        const user_regs_struct& regs, uint64_t waited_ms) {
    Resumption result;
    result.regs = regs;
    if (!was_interrupted(regs)) return result;
    const bool failed = -static_cast<int64_t>(regs.rax) == EINTR;
    if (failed && !may_be_issued_again(static_cast<long>(regs.orig_rax))) return std::nullopt;
    std::optional<uint16_t> instruction = memory.value<uint16_t>(regs.rip - 2);
    constexpr uint16_t kSyscall = 0x050f;
    if (!instruction || *instruction != kSyscall) return std::nullopt;
    result.regs.rip = regs.rip - 2;
    result.regs.rax = regs.orig_rax;
    switch (-static_cast<int64_t>(regs.rax)) {
        case kErestartBlock:
            result.mode = kResumeRestart;
            result.regs.rax = SYS_restart_syscall;
            break;
        case kErestartNoIntr:
            break;
        case kErestartSys:
            result.repeat = kRepeatUnlessSignal;
            break;
        default:
            result.repeat = kRepeatUnlessAnySignal;
            break;
    }
    if (failed && regs.orig_rax != SYS_epoll_pwait2) {
        auto timeout = static_cast<int32_t>(regs.r10);
        if (timeout > 0) {
            const auto left = static_cast<uint64_t>(timeout);
            result.regs.r10 = left - std::min(left, waited_ms);
            result.time_left = Resumption::TimeLeft{};
        }
    }
    // These leave what is left in memory, and the kernel starts them over with it.
    if (-static_cast<int64_t>(regs.rax) == kErestartNoHand) {
        const uint64_t time = regs.orig_rax == SYS_ppoll ? regs.rdx
                              : regs.orig_rax == SYS_pselect6 || regs.orig_rax == SYS_select
                                  ? regs.r8
                                  : 0;
        const uint64_t unit_ns = regs.orig_rax == SYS_select ? 1000 : 1;
        if (time != 0) result.time_left = Resumption::TimeLeft{time, unit_ns};
    }
    if (failed) {
        result.released = regs;
        result.released->r10 = result.regs.r10;
        result.released->rax = static_cast<uint64_t>(-kErestartNoHand);
    }
    return result;
}

} // namespace speedbump::inject
