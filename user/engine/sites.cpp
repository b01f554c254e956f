// SPDX-License-Identifier: MIT
#include "engine/sites.h"

#include <link.h>

// The first instruction of each decides how the kernel gets past the probe
// (arch/x86/kernel/uprobes.c, arch/arm64/kernel/probes/simulate-insn.c).
#if defined(__x86_64__)
asm(R"(
    .text
    .p2align 6
    .type speedbump_site_optimized_nop, @function
speedbump_site_optimized_nop:
    .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
    ret
    .size speedbump_site_optimized_nop, .-speedbump_site_optimized_nop
    .p2align 6
    .type speedbump_site_emulated, @function
speedbump_site_emulated:
    push %rbp
    pop %rbp
    ret
    .size speedbump_site_emulated, .-speedbump_site_emulated
    .p2align 6
    .type speedbump_site_single_step, @function
speedbump_site_single_step:
    mov %edi, %eax
    ret
    .size speedbump_site_single_step, .-speedbump_site_single_step
)");
#elif defined(__aarch64__)
asm(R"(
    .text
    .p2align 6
    .type speedbump_site_optimized_nop, %function
speedbump_site_optimized_nop:
    nop
    ret
    .p2align 6
    .type speedbump_site_emulated, %function
speedbump_site_emulated:
    nop
    ret
    .p2align 6
    .type speedbump_site_single_step, %function
speedbump_site_single_step:
    mov w0, w1
    ret
)");
#else
#error "speedbump runs on x86-64 and aarch64"
#endif

extern "C" {
void speedbump_site_optimized_nop();
void speedbump_site_emulated();
void speedbump_site_single_step();
}

namespace speedbump::engine {

std::array<CalibrationSite, 3> calibration_sites() {
    return {{{elf::SiteKind::kOptimizedNop, speedbump_site_optimized_nop},
             {elf::SiteKind::kEmulated, speedbump_site_emulated},
             {elf::SiteKind::kSingleStep, speedbump_site_single_step}}};
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
