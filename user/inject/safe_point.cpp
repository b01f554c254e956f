// SPDX-License-Identifier: MIT
#include "inject/safe_point.h"

#include <algorithm>
#include <string_view>

namespace speedbump::inject {
namespace {

using process::RemoteModule;

// Or of what may be called with its locks or an allocator's, as clocks of the vDSO are.
bool is_libc_part(const RemoteModule& module) {
    std::string_view name = module.soname();
    for (std::string_view part :
         {"libc.so", "libpthread.so", "libdl.so", "librt.so", "libc.musl", "linux-vdso.so"})
        if (name.starts_with(part)) return true;
    return false;
}

bool is_loader(const RemoteModule& module) {
    return module.soname().starts_with("ld-") || module.soname().starts_with("ld64") ||
           (module.find("_dl_get_tls_static_info") && !is_libc_part(module));
}

} // namespace

bool is_leaf_function(std::string_view name) {
    for (std::string_view leaf : {"memmove", "memcpy", "memset", "memcmp", "memchr", "memrchr",
                                  "strlen", "strcmp", "strncmp", "strchr", "rawmemchr"})
        if (name == leaf) return true;
    return false;
}

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

Stand SafePoints::judge(const Stopped& stopped, bool has_made_a_call_outside_locks) const {
    if (!stopped.is_64_bit || stopped.is_unclear) return Stand::kUnsafe;
    const uint64_t counter = program_counter_of(stopped.regs);
    if (stopped.call || has_made_a_call_outside_locks) {
        if (!is_user_code(counter) && !in_ranges(libc_, counter)) return Stand::kUnsafe;
        if (called_from_allocator(stopped.regs)) return Stand::kUnsafe;
        return Stand::kBlockedCall;
    }
    if (is_user_code(counter)) return Stand::kUserCode;
    return in_ranges(libc_, counter) && is_leaf(stopped.regs) ? Stand::kLeaf : Stand::kUnsafe;
}

} // namespace speedbump::inject
