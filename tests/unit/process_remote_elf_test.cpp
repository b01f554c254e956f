// SPDX-License-Identifier: MIT
// Modules of a process that lies about itself.
#include "process/remote_elf.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>

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

// What a file exports, by name, as the dynamic linker of this process has it.
using Exports = std::map<std::string, std::set<uint64_t>>;
Exports exports_of(const link_map& file) {
    uint64_t symbols = 0;
    uint64_t strings = 0;
    for (const ElfW(Dyn)* entry = file.l_ld; entry->d_tag != DT_NULL; ++entry) {
        if (entry->d_tag == DT_SYMTAB) symbols = entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB) strings = entry->d_un.d_ptr;
    }
    Exports exports;
    const auto* first = reinterpret_cast<const Elf64_Sym*>(symbols);
    const auto* end = reinterpret_cast<const Elf64_Sym*>(strings); // which linkers put after them
    for (const Elf64_Sym* symbol = first; symbol + 1 <= end; ++symbol) {
        if (symbol->st_shndx == SHN_UNDEF || symbol->st_value == 0) continue;
        if (ELF64_ST_TYPE(symbol->st_info) == STT_TLS) continue;
        exports[reinterpret_cast<const char*>(strings) + symbol->st_name].insert(file.l_addr +
                                                                                 symbol->st_value);
    }
    return exports;
}

// The filter of libstdc++'s names is longer than what is kept of one, that of smaller ones is not.
TEST(RemoteElf, FindsEveryNameOfItsLibrariesAndNoOther) {
    const auto modules = load_modules(getpid());
    ASSERT_TRUE(modules);
    size_t names = 0;
    for (const RemoteModule& module : *modules) {
        if (module.soname().empty() || module.path().empty() || module.path()[0] == '[') continue;
        void* handle = dlopen(module.soname().c_str(), RTLD_NOW | RTLD_NOLOAD);
        ASSERT_NE(handle, nullptr) << module.soname();
        link_map* file = nullptr;
        ASSERT_EQ(dlinfo(handle, RTLD_DI_LINKMAP, &file), 0);
        const Exports exports = exports_of(*file);
        for (const auto& [name, addresses] : exports) {
            if (name.size() >= 255) continue; // longer ones are not looked for
            const auto found = module.find(name);
            ASSERT_TRUE(found) << module.soname() << " " << name;
            EXPECT_TRUE(addresses.contains(*found)) << module.soname() << " " << name;
            EXPECT_EQ(module.find(name + "x").has_value(), exports.contains(name + "x")) << name;
        }
        names += exports.size();
        dlclose(handle);
    }
    EXPECT_GT(names, 5000u);
}

void code_of_ours() {}

TEST(RemoteModule, FindsWhatTheDynamicLinkerFinds) {
    auto modules = load_modules(getpid());
    ASSERT_TRUE(modules) << modules.error().message;
    // Functions that no sanitizer puts its own in front of.
    for (const char* name : {"getppid", "umask", "gnu_get_libc_version"}) {
        auto expected = reinterpret_cast<uint64_t>(dlsym(RTLD_DEFAULT, name));
        bool found = false;
        for (const RemoteModule& module : *modules)
            found = found || (module.soname() == "libc.so.6" && module.find(name) == expected);
        EXPECT_TRUE(found) << name;
    }
    for (const RemoteModule& module : *modules)
        EXPECT_FALSE(module.find("no_such_symbol_anywhere")) << module.path();
}

TEST(RemoteModule, KnowsItsOwnExecutable) {
    auto modules = load_modules(getpid());
    ASSERT_TRUE(modules);
    size_t executables = 0;
    auto here = reinterpret_cast<uint64_t>(&code_of_ours);
    for (const RemoteModule& module : *modules) {
        executables += module.is_executable();
        EXPECT_EQ(module.contains_code(here), module.is_executable() &&
                                                  module.path().find("libc") == std::string::npos &&
                                                  module.path().find("/ld-") == std::string::npos);
    }
    EXPECT_GE(executables, 1u);
}

} // namespace
} // namespace speedbump::process
