// SPDX-License-Identifier: MIT
#include "engine/sites.h"

#include <link.h>

namespace speedbump::engine {

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
