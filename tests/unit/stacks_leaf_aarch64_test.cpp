// SPDX-License-Identifier: MIT
// What is said of code without unwind tables, held against the tables of code that has some: of
// each instruction of all functions of the libraries that are mapped here.
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "elf/symbols.h"
#include "process/maps.h"
#include "stacks/leaf.h"
#include "util/fd.h"

namespace speedbump::stacks {
namespace {

constexpr int kLink = 30;
constexpr int kStack = 31;

struct ElfEnd {
    void operator()(Elf* elf) const { elf_end(elf); }
};
struct CfiEnd {
    void operator()(Dwarf_CFI* cfi) const { dwarf_cfi_end(cfi); }
};

// Whether the caller is at what the link register says, by the table: with the stack pointer as it
// is.
std::optional<bool> is_leaf_by_table(Dwarf_CFI* table, uint64_t pc) {
    Dwarf_Frame* frame = nullptr;
    if (dwarf_cfi_addrframe(table, pc, &frame) != 0) return std::nullopt;
    const std::unique_ptr<Dwarf_Frame, decltype(&std::free)> end(frame, std::free);
    Dwarf_Op* ops = nullptr;
    size_t count = 0;
    if (dwarf_frame_cfa(frame, &ops, &count) != 0 || count != 1) return false;
    const bool is_stack =
        (ops[0].atom == DW_OP_bregx && ops[0].number == kStack && ops[0].number2 == 0) ||
        (ops[0].atom == DW_OP_breg31 && ops[0].number == 0);
    Dwarf_Op space[3];
    if (dwarf_frame_register(frame, kLink, space, &ops, &count) != 0) return false;
    return is_stack && count == 0 && ops == nullptr; // the value that it has
}

struct Found {
    size_t leaves = 0;    // said to be, and are
    size_t unnoticed = 0; // are, and were not said to be
    size_t others = 0;
};

void judge(const std::string& path, Found& found) {
    const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(fd.valid()) << path;
    auto file = elf::ElfFile::open(fd.get(), path);
    ASSERT_TRUE(file) << file.error().message;
    elf_version(EV_CURRENT);
    const std::unique_ptr<Elf, ElfEnd> elf(elf_begin(fd.get(), ELF_C_READ, nullptr));
    const std::unique_ptr<Dwarf_CFI, CfiEnd> table(dwarf_getcfi_elf(elf.get()));
    ASSERT_NE(table, nullptr) << path;
    for (const elf::Function& function : (*file)->functions()) {
        if (function.names.front() == "setcontext")
            continue; // its last instruction is never reached
        const uint64_t bias = function.address - function.file_offset; // within its segment
        const ReadCode code = [&](uint64_t address) -> std::optional<uint32_t> {
            uint32_t word = 0;
            const auto at = static_cast<off_t>(address - bias);
            if (pread(fd.get(), &word, sizeof word, at) != sizeof word) return std::nullopt;
            return word;
        };
        for (uint64_t pc = function.address; pc + 4 <= function.address + function.size; pc += 4) {
            const auto is_leaf = is_leaf_by_table(table.get(), pc);
            if (!is_leaf) continue;
            if (is_in_leaf(pc, code)) {
                ASSERT_TRUE(*is_leaf)
                    << path << ": " << function.names.front() << " + " << pc - function.address;
                ++found.leaves;
            } else {
                ++(*is_leaf ? found.unnoticed : found.others);
            }
        }
    }
}

TEST(Leaf, AgreesWithTheTablesOfAllFunctions) {
    const auto maps = process::read_maps(getpid());
    ASSERT_TRUE(maps);
    std::set<std::string> paths;
    for (const process::Mapping& mapping : *maps)
        if (mapping.executable && mapping.path.starts_with('/')) paths.insert(mapping.path);
    Found found;
    for (const std::string& path : paths) judge(path, found);
    std::printf("%zu files: %zu instructions in leaves, %zu unnoticed, %zu others\n", paths.size(),
                found.leaves, found.unnoticed, found.others);
    EXPECT_GT(found.leaves, 10'000U);
    EXPECT_LT(found.unnoticed, found.leaves / 2);
}

} // namespace
} // namespace speedbump::stacks
