// SPDX-License-Identifier: MIT
#include "engine/sites.h"

#include <link.h>

// The first instruction of each decides how the kernel gets past the probe
// (arch/x86/kernel/uprobes.c, arch/arm64/kernel/probes/simulate-insn.c).
#if defined(__x86_64__)
#define SPEEDBUMP_OPTIMIZED_NOP ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n ret"
#define SPEEDBUMP_EMULATED "push %rbp\n pop %rbp\n ret"
#define SPEEDBUMP_SINGLE_STEP "mov %edi, %eax\n ret"
#elif defined(__aarch64__)
#define SPEEDBUMP_OPTIMIZED_NOP "nop\n ret"
#define SPEEDBUMP_EMULATED "nop\n ret"
#define SPEEDBUMP_SINGLE_STEP "mov w0, w1\n ret"
#else
#error "speedbump runs on x86-64 and aarch64"
#endif

#define SPEEDBUMP_SITE(name, code)                                                             \
    asm(".text\n .p2align 6\n .type " #name ", @function\n" #name ":\n" code "\n .size " #name \
        ", .-" #name "\n");                                                                    \
    extern "C" void name()

SPEEDBUMP_SITE(speedbump_calibrate_optimized_nop, SPEEDBUMP_OPTIMIZED_NOP);
SPEEDBUMP_SITE(speedbump_calibrate_emulated, SPEEDBUMP_EMULATED);
SPEEDBUMP_SITE(speedbump_calibrate_single_step, SPEEDBUMP_SINGLE_STEP);
SPEEDBUMP_SITE(speedbump_feature_optimized_nop, SPEEDBUMP_OPTIMIZED_NOP);
SPEEDBUMP_SITE(speedbump_feature_emulated, SPEEDBUMP_EMULATED);
SPEEDBUMP_SITE(speedbump_feature_single_step, SPEEDBUMP_SINGLE_STEP);

namespace speedbump::engine {

std::array<CalibrationSite, 3> calibration_sites() {
    return {{{elf::SiteKind::kOptimizedNop, speedbump_calibrate_optimized_nop},
             {elf::SiteKind::kEmulated, speedbump_calibrate_emulated},
             {elf::SiteKind::kSingleStep, speedbump_calibrate_single_step}}};
}

std::array<CalibrationSite, 3> feature_sites() {
    return {{{elf::SiteKind::kOptimizedNop, speedbump_feature_optimized_nop},
             {elf::SiteKind::kEmulated, speedbump_feature_emulated},
             {elf::SiteKind::kSingleStep, speedbump_feature_single_step}}};
}

uint64_t own_file_offset(const void* address) {
    struct Search {
        uint64_t address;
        uint64_t offset;
    } search{reinterpret_cast<uint64_t>(address), 0};
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* data) {
            auto* wanted = static_cast<Search*>(data);
            for (int i = 0; i < info->dlpi_phnum; ++i) {
                const ElfW(Phdr)& header = info->dlpi_phdr[i];
                const uint64_t start = info->dlpi_addr + header.p_vaddr;
                if (header.p_type == PT_LOAD && wanted->address >= start &&
                    wanted->address < start + header.p_filesz)
                    wanted->offset = wanted->address - start + header.p_offset;
            }
            return 1; // the first object is the program itself
        },
        &search);
    return search.offset;
}

} // namespace speedbump::engine
