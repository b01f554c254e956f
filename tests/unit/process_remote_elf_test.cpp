// SPDX-License-Identifier: MIT
// Modules of a process that lies about itself.
#include "process/remote_elf.h"

#include <gtest/gtest.h>
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>

namespace speedbump::process {
namespace {

constexpr uint64_t kNoSlot = 0x1234;

// A child that has set the sizes of its program's relocations, and waits.
pid_t start_liar(uint64_t size) {
    int ready[2];
    if (pipe(ready) != 0) return -1;
    const pid_t child = fork();
    if (child == 0) {
        const auto page = reinterpret_cast<uintptr_t>(_DYNAMIC) & ~uintptr_t{4095};
        bool found = false;
        if (mprotect(reinterpret_cast<void*>(page), 8192, PROT_READ | PROT_WRITE) == 0) {
            for (ElfW(Dyn)* entry = _DYNAMIC; entry->d_tag != DT_NULL; ++entry) {
                if (entry->d_tag != DT_PLTRELSZ && entry->d_tag != DT_RELASZ) continue;
                entry->d_un.d_val = size;
                found = true;
            }
        }
        if (write(ready[1], &found, 1) != 1) _exit(1);
        for (;;) pause();
    }
    bool found = false;
    EXPECT_EQ(read(ready[0], &found, 1), 1);
    EXPECT_TRUE(found) << "no relocations to lie about";
    close(ready[0]);
    close(ready[1]);
    return child;
}

TEST(RemoteElf, StatedSizesOfRelocationsTakeNoMemory) {
    for (const uint64_t size : {uint64_t{24}, uint64_t{1} << 40, uint64_t{1} << 62, ~uint64_t{0}}) {
        const pid_t child = start_liar(size);
        ASSERT_GT(child, 0);
        auto modules = load_modules(child);
        EXPECT_TRUE(modules);
        if (modules) {
            for (const RemoteModule& module : *modules)
                EXPECT_FALSE(module.symbol_of_slot(kNoSlot)) << module.path();
        }
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
    }
}

} // namespace
} // namespace speedbump::process
