// SPDX-License-Identifier: MIT
#include "elf/symbols.h"

#include <dlfcn.h>
#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <optional>
#include <random>
#include <thread>

#include "elf/image.h"
#include "elf/last_above.h"
#include "elf_workshop.h"

namespace speedbump::elf {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kProgram = R"(
int exported_data = 3;
static int hidden_function(int x) { return x * 3 + exported_data; }
__attribute__((noinline)) int exported_function(int x) { return hidden_function(x) + 1; }
int alias_function(int) __attribute__((alias("exported_function")));
__attribute__((weak)) int weak_function(int x) { return x + 7; }
_Thread_local int per_thread;
static int resolved(int x) { return x + 2; }
static int (*choose(void))(int) { return resolved; }
int indirect_function(int) __attribute__((ifunc("choose")));
int (*kept)(int) = hidden_function;
#ifdef MAIN
int main(void) { return exported_function(1) + per_thread; }
#endif
)";

class SymbolsTest : public testing::Test {
  protected:
    void build(const std::string& name, const std::string& options) {
        shop_.write("program.c", kProgram);
        shop_.run("gcc -O1 -g program.c -o " + name + " " + options);
    }
    Workshop shop_;
};

TEST_F(SymbolsTest, OnlyCodeWithAliasesFolded) {
    build("lib.so", "-shared -fPIC -Wl,-soname,libthing.so.1 -Wl,--build-id=0xabcdef0123");
    auto file = shop_.open("lib.so");
    EXPECT_TRUE(file->is_position_independent());
    EXPECT_EQ(file->soname(), "libthing.so.1");
    EXPECT_EQ(file->build_id(), "abcdef0123");
    EXPECT_THAT(file->symbol_sources(), ElementsAre(".symtab", ".dynsym"));
    const Function* exported = find_function(*file, "exported_function");
    ASSERT_NE(exported, nullptr);
    EXPECT_EQ(exported, find_function(*file, "alias_function"));
    EXPECT_EQ(exported->names.size(), 2u);
    EXPECT_GT(exported->size, 0u);
    EXPECT_FALSE(exported->is_ifunc);
    EXPECT_NE(find_function(*file, "hidden_function"), nullptr);
    EXPECT_NE(find_function(*file, "weak_function"), nullptr);
    EXPECT_TRUE(find_function(*file, "indirect_function")->is_ifunc);
    EXPECT_FALSE(find_function(*file, "resolved")->is_ifunc);
    for (const char* no_code : {"exported_data", "per_thread", "kept", "_end", "_edata",
                                "__bss_start", "program.c", "_GLOBAL_OFFSET_TABLE_", "_DYNAMIC"})
        EXPECT_EQ(find_function(*file, no_code), nullptr) << no_code;
    for (const Function& function : file->functions())
        for (std::string_view name : function.names) EXPECT_FALSE(name.empty());
}

TEST_F(SymbolsTest, OffsetsLeadToTheCode) {
    build("lib.so", "-shared -fPIC -Wl,-z,separate-code");
    auto file = shop_.open("lib.so");
    const Function* weak = find_function(*file, "weak_function");
    ASSERT_NE(weak, nullptr);
    EXPECT_EQ(file->offset_of_address(weak->address), weak->file_offset);
    EXPECT_EQ(file->address_of_offset(weak->file_offset), weak->address);
    auto code = file->code_at(weak->file_offset, weak->size);
    ASSERT_EQ(code.size(), weak->size);
    std::string bytes = Workshop::read(shop_.path("lib.so")).substr(weak->file_offset, weak->size);
    EXPECT_EQ(std::memcmp(code.data(), bytes.data(), bytes.size()), 0);
    EXPECT_EQ(file->function_at_offset(weak->file_offset), weak);
    EXPECT_EQ(file->function_at_offset(weak->file_offset + weak->size - 1), weak);
    EXPECT_NE(file->function_at_offset(weak->file_offset + weak->size), weak);
    EXPECT_EQ(file->function_at_offset(0), nullptr);
    EXPECT_TRUE(file->code_at(0, 16).empty()) << "the ELF header is no code";
    EXPECT_FALSE(file->offset_of_address(UINT64_MAX).has_value());
    EXPECT_FALSE(file->address_of_offset(UINT64_MAX).has_value());
}

// What the dynamic linker says is the truth.
TEST_F(SymbolsTest, AgreesWithTheDynamicLinker) {
    build("lib.so", "-shared -fPIC");
    auto file = shop_.open("lib.so");
    void* handle = ::dlopen(shop_.path("lib.so").c_str(), RTLD_NOW);
    ASSERT_NE(handle, nullptr) << ::dlerror();
    Dl_info info;
    void* symbol = ::dlsym(handle, "exported_function");
    ASSERT_NE(::dladdr(symbol, &info), 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(symbol) - reinterpret_cast<uintptr_t>(info.dli_fbase),
              find_function(*file, "exported_function")->address);
    ::dlclose(handle);
}

TEST_F(SymbolsTest, ExecutablesPieAndNot) {
    build("pie", "-DMAIN -pie -fPIE");
    build("fixed", "-DMAIN -no-pie -fno-pie");
    auto pie = shop_.open("pie");
    auto fixed = shop_.open("fixed");
    EXPECT_TRUE(pie->is_position_independent());
    EXPECT_FALSE(fixed->is_position_independent());
    const Function* main = find_function(*fixed, "main");
    ASSERT_NE(main, nullptr);
    EXPECT_GT(main->address, 0x400000u);
    EXPECT_LT(main->file_offset, 0x10000u);
    EXPECT_NE(find_function(*pie, "main"), nullptr);
    EXPECT_EQ(pie->soname(), "");
}

TEST_F(SymbolsTest, StrippedLibraryHasItsDynamicSymbols) {
    build("lib.so", "-shared -fPIC");
    shop_.run("strip -o stripped.so lib.so");
    auto file = shop_.open("stripped.so");
    EXPECT_THAT(file->symbol_sources(), ElementsAre(".dynsym"));
    EXPECT_NE(find_function(*file, "exported_function"), nullptr);
    EXPECT_EQ(find_function(*file, "hidden_function"), nullptr);
}

// Without section headers the size of the symbol table is only in the hash tables.
TEST_F(SymbolsTest, NoSectionHeadersAtAll) {
    for (const char* style : {"gnu", "sysv", "both"}) {
        build("lib.so", std::string("-shared -fPIC -Wl,--hash-style=") + style);
        auto whole = shop_.open("lib.so");
        std::string bytes = Workshop::read(shop_.path("lib.so"));
        Elf64_Ehdr header;
        std::memcpy(&header, bytes.data(), sizeof header);
        header.e_shoff = 0;
        header.e_shnum = header.e_shstrndx = 0;
        std::memcpy(bytes.data(), &header, sizeof header);
        shop_.write("bare.so", bytes);
        auto file = shop_.open("bare.so");
        EXPECT_THAT(file->symbol_sources(), ElementsAre(".dynsym")) << style;
        for (const char* name : {"exported_function", "alias_function", "weak_function"}) {
            const Function* function = find_function(*file, name);
            ASSERT_NE(function, nullptr) << style << " " << name;
            EXPECT_EQ(function->file_offset, find_function(*whole, name)->file_offset);
        }
        EXPECT_TRUE(find_function(*file, "indirect_function")->is_ifunc);
    }
}

TEST_F(SymbolsTest, DebugFileByBuildId) {
    build("lib.so", "-shared -fPIC -Wl,--build-id=0xaabbccddee");
    auto whole = shop_.open("lib.so");
    shop_.run(
        "mkdir -p root/usr/lib/debug/.build-id/aa && objcopy --only-keep-debug lib.so "
        "root/usr/lib/debug/.build-id/aa/bbccddee.debug && strip lib.so");
    EXPECT_EQ(find_function(*shop_.open("lib.so"), "hidden_function"), nullptr);
    DebugSearch search;
    search.root = shop_.path("root");
    auto file = shop_.open("lib.so", search);
    EXPECT_THAT(file->symbol_sources(), ElementsAre(".dynsym", "debug-file"));
    const Function* hidden = find_function(*file, "hidden_function");
    ASSERT_NE(hidden, nullptr);
    EXPECT_EQ(hidden->file_offset, find_function(*whole, "hidden_function")->file_offset);
    EXPECT_THAT(file->warnings(), testing::IsEmpty());
}

TEST_F(SymbolsTest, DebugFileOfAnotherBuildIsRefused) {
    build("lib.so", "-shared -fPIC -Wl,--build-id=0xaabbccddee");
    build("other.so", "-shared -fPIC -Wl,--build-id=0xaabbccddef");
    shop_.run(
        "mkdir -p root/usr/lib/debug/.build-id/aa && objcopy --only-keep-debug other.so "
        "root/usr/lib/debug/.build-id/aa/bbccddee.debug && strip lib.so");
    DebugSearch search;
    search.root = shop_.path("root");
    auto file = shop_.open("lib.so", search);
    EXPECT_THAT(file->symbol_sources(), ElementsAre(".dynsym"));
    ASSERT_EQ(file->warnings().size(), 1u);
    EXPECT_THAT(file->warnings()[0], HasSubstr("another build id"));
}

TEST_F(SymbolsTest, DebugFileByLinkOnlyWithTheRightChecksum) {
    build("lib.so", "-shared -fPIC -Wl,--build-id=none");
    shop_.run(
        "objcopy --only-keep-debug lib.so thing.debug && strip lib.so && "
        "objcopy --add-gnu-debuglink=thing.debug lib.so");
    auto file = shop_.open("lib.so");
    EXPECT_THAT(file->symbol_sources(), ElementsAre(".dynsym", "debug-file"));
    EXPECT_NE(find_function(*file, "hidden_function"), nullptr);

    shop_.run("mkdir .debug && mv thing.debug .debug/");
    EXPECT_NE(find_function(*shop_.open("lib.so"), "hidden_function"), nullptr);

    shop_.run("printf x >> .debug/thing.debug");
    file = shop_.open("lib.so");
    EXPECT_EQ(find_function(*file, "hidden_function"), nullptr);
    ASSERT_EQ(file->warnings().size(), 1u);
    EXPECT_THAT(file->warnings()[0], HasSubstr("CRC"));
}

// Which cost nothing to make.
TEST_F(SymbolsTest, DebugFilesOfHolesAreNotRead) {
    build("lib.so", "-shared -fPIC -Wl,--build-id=none");
    shop_.run(
        "objcopy --only-keep-debug lib.so thing.debug && strip lib.so && "
        "objcopy --add-gnu-debuglink=thing.debug lib.so");
    for (const char* size : {"200M", "3G"}) {
        shop_.run(std::string("truncate -s ") + size + " thing.debug");
        const auto file = shop_.open("lib.so");
        EXPECT_THAT(file->symbol_sources(), ElementsAre(".dynsym"));
        ASSERT_EQ(file->warnings().size(), 1u);
        EXPECT_THAT(file->warnings()[0], HasSubstr("mostly holes"));
    }
}

// An absolute link inside a container means the container's root, not ours.
TEST_F(SymbolsTest, DebugFileLinksStayBelowTheRoot) {
    build("lib.so", "-shared -fPIC -Wl,--build-id=0xaabbccddee");
    shop_.run(
        "objcopy --only-keep-debug lib.so outside.debug && strip lib.so && "
        "mkdir -p root/usr/lib/debug/.build-id/aa && ln -s $PWD/outside.debug "
        "root/usr/lib/debug/.build-id/aa/bbccddee.debug");
    DebugSearch search;
    search.root = shop_.path("root");
    EXPECT_THAT(shop_.open("lib.so", search)->symbol_sources(), ElementsAre(".dynsym"));
    shop_.run(
        "mv outside.debug root/ && ln -sf /outside.debug "
        "root/usr/lib/debug/.build-id/aa/bbccddee.debug");
    EXPECT_THAT(shop_.open("lib.so", search)->symbol_sources(),
                ElementsAre(".dynsym", "debug-file"));
}

TEST_F(SymbolsTest, MiniDebugInfo) {
    build("lib.so", "-shared -fPIC");
    auto whole = shop_.open("lib.so");
    shop_.run(
        "objcopy --only-keep-debug lib.so mini && strip -g mini && xz -k mini && "
        "strip lib.so && objcopy --add-section .gnu_debugdata=mini.xz lib.so");
    auto file = shop_.open("lib.so");
    EXPECT_THAT(file->symbol_sources(), ElementsAre(".dynsym", ".gnu_debugdata"));
    ASSERT_NE(find_function(*file, "hidden_function"), nullptr);
    EXPECT_EQ(find_function(*file, "hidden_function")->file_offset,
              find_function(*whole, "hidden_function")->file_offset);
}

TEST_F(SymbolsTest, DamagedMiniDebugInfoIsAWarning) {
    build("lib.so", "-shared -fPIC");
    shop_.run(
        "strip lib.so && head -c 100 /dev/urandom > bad && "
        "objcopy --add-section .gnu_debugdata=bad lib.so");
    auto file = shop_.open("lib.so");
    EXPECT_THAT(file->symbol_sources(), ElementsAre(".dynsym"));
    ASSERT_EQ(file->warnings().size(), 1u);
    EXPECT_THAT(file->warnings()[0], HasSubstr(".gnu_debugdata"));
}

TEST_F(SymbolsTest, MiniDebugInfoThatUnpacksToGigabytesIsRefused) {
    build("lib.so", "-shared -fPIC");
    shop_.run(
        "strip lib.so && head -c 300M /dev/zero | xz -0 > bomb && "
        "objcopy --add-section .gnu_debugdata=bomb lib.so");
    auto file = shop_.open("lib.so");
    ASSERT_EQ(file->warnings().size(), 1u);
    EXPECT_THAT(file->warnings()[0], HasSubstr("256 MiB"));
}

TEST_F(SymbolsTest, VersionsAreCutOffAndTheDefaultComesFirst) {
    shop_.write("v.c", R"(
        __asm__(".symver old_one,thing@V1");
        __asm__(".symver new_one,thing@@V2");
        int old_one(int x) { return x + 1; }
        int new_one(int x) { return x + 2; }
        __asm__(".symver same_old,same@V1");
        __asm__(".symver same_new,other@@V2");
        int same_old(int x) { return x + 3; }
        int same_new(int) __attribute__((alias("same_old"))); )");
    shop_.write("v.map", "V1 { global: thing; same; local: *; }; V2 { global: thing; other; } V1;");
    shop_.run("gcc -O1 -shared -fPIC v.c -o v.so -Wl,--version-script=v.map");
    for (bool stripped : {false, true}) {
        if (stripped) shop_.run("strip v.so");
        auto file = shop_.open("v.so");
        int things = 0;
        for (const Function& function : file->functions()) {
            for (std::string_view name : function.names) {
                EXPECT_EQ(name.find('@'), std::string_view::npos) << name;
                if (name == "thing") ++things;
            }
        }
        EXPECT_EQ(things, 2) << "each version is a function of that name";
        const Function* same = find_function(*file, "same");
        ASSERT_NE(same, nullptr);
        EXPECT_EQ(same->names[0], "other") << "the default version's name first";
    }
}

TEST_F(SymbolsTest, AssemblyWithoutTypes) {
    shop_.write("a.s", R"(
        .text
        .globl typeless
typeless:
        nop
inner:  ret
        .globl sized
        .type sized, @function
sized:  nop
        .globl within
within: ret
        .size sized, .-sized
        .section .rodata
        .globl no_code
no_code: .long 1
        .section .note.GNU-stack,"",@progbits
)");
    shop_.run("gcc -shared a.s -o a.so -nostdlib");
    auto file = shop_.open("a.so");
    const Function* typeless = find_function(*file, "typeless");
    ASSERT_NE(typeless, nullptr);
    EXPECT_EQ(typeless->size, 0u);
    EXPECT_NE(find_function(*file, "sized"), nullptr);
    EXPECT_EQ(find_function(*file, "within"), nullptr);
    EXPECT_EQ(find_function(*file, "inner"), nullptr);
    EXPECT_EQ(find_function(*file, "no_code"), nullptr);
    const uint64_t begin = typeless->address;
    EXPECT_THAT(file->labels(),
                Contains(testing::AllOf(testing::Gt(begin), testing::Le(begin + 4))));
}

// Nothing calls the part that the compiler moved away; its parent jumps to it.
TEST_F(SymbolsTest, ColdPartsAreNoFunctions) {
    shop_.write("c.s", R"(
        .text
        .type f.cold, @function
f.cold: ret
        .size f.cold, .-f.cold
        .type coldish, @function
coldish: ret
        .size coldish, .-coldish
        .type g.colder, @function
g.colder: ret
        .size g.colder, .-g.colder
        .section .note.GNU-stack,"",@progbits
)");
    shop_.run("gcc -shared c.s -o c.so -nostdlib");
    auto file = shop_.open("c.so");
    EXPECT_EQ(find_function(*file, "f.cold"), nullptr);
    EXPECT_EQ(file->labels().size(), 1u);
    EXPECT_NE(find_function(*file, "coldish"), nullptr);
    EXPECT_NE(find_function(*file, "g.colder"), nullptr);
}

// From 65,280 sections on the numbers move into the first section header and SHT_SYMTAB_SHNDX. GNU
// ld makes no such file, so one is made here: empty sections pushed in after the real ones.
TEST_F(SymbolsTest, ExtendedSectionNumbering) {
    build("lib.so", "-shared -fPIC");
    std::string bytes = Workshop::read(shop_.path("lib.so"));
    Elf64_Ehdr header;
    std::memcpy(&header, bytes.data(), sizeof header);
    std::vector<Elf64_Shdr> sections(header.e_shnum);
    std::memcpy(sections.data(), bytes.data() + header.e_shoff,
                header.e_shnum * sizeof(Elf64_Shdr));
    constexpr uint32_t kMany = 70000;
    Elf64_Shdr names = sections[header.e_shstrndx];
    Elf64_Shdr text{};
    size_t symbols = 0;
    for (size_t i = 0; i < sections.size(); ++i) {
        if (sections[i].sh_type == SHT_SYMTAB) symbols = i;
        if ((sections[i].sh_flags & SHF_EXECINSTR) != 0) text = sections[i];
    }
    // Every symbol of a section says "look there", and "there" is the true section, or, for code,
    // a copy of its header after all others.
    std::vector<uint32_t> indexes;
    for (size_t at = 0; at < sections[symbols].sh_size; at += sizeof(Elf64_Sym)) {
        Elf64_Sym symbol;
        char* where = bytes.data() + sections[symbols].sh_offset + at;
        std::memcpy(&symbol, where, sizeof symbol);
        bool is_code = symbol.st_shndx != 0 && symbol.st_shndx < sections.size() &&
                       (sections[symbol.st_shndx].sh_flags & SHF_EXECINSTR) != 0;
        indexes.push_back(is_code ? kMany + 1 : 0);
        if (is_code) symbol.st_shndx = SHN_XINDEX;
        std::memcpy(where, &symbol, sizeof symbol);
    }
    text.sh_addr = 0;
    text.sh_size = UINT64_MAX;
    Elf64_Shdr index{};
    index.sh_type = SHT_SYMTAB_SHNDX;
    index.sh_link = static_cast<uint32_t>(symbols);
    index.sh_offset = bytes.size();
    index.sh_size = indexes.size() * sizeof(uint32_t);
    bytes.append(reinterpret_cast<const char*>(indexes.data()), index.sh_size);
    sections.resize(kMany);
    sections.push_back(names);
    sections.push_back(text);
    sections.push_back(index);
    sections[0].sh_size = sections.size();
    sections[0].sh_link = kMany;
    header.e_shnum = 0;
    header.e_shstrndx = SHN_XINDEX;
    header.e_shoff = bytes.size();
    std::memcpy(bytes.data(), &header, sizeof header);
    bytes.append(reinterpret_cast<const char*>(sections.data()),
                 sections.size() * sizeof(Elf64_Shdr));
    shop_.write("many.so", bytes);
    auto file = shop_.open("many.so");
    EXPECT_NE(find_function(*file, "hidden_function"), nullptr) << "is only in .symtab";
}

TEST_F(SymbolsTest, BeyondTwoGigabytes) {
    build("lib.so", "-shared -fPIC");
    std::string bytes = Workshop::read(shop_.path("lib.so"));
    Elf64_Ehdr header;
    std::memcpy(&header, bytes.data(), sizeof header);
    uint64_t far = uint64_t{5} << 30;
    std::string sections = bytes.substr(header.e_shoff);
    header.e_shoff = far;
    std::memcpy(bytes.data(), &header, sizeof header);
    Fd fd(::open(shop_.write("far.so", bytes).c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::pwrite(fd.get(), sections.data(), sections.size(), static_cast<off_t>(far)),
              static_cast<ssize_t>(sections.size()));
    EXPECT_NE(find_function(*shop_.open("far.so"), "hidden_function"), nullptr);
}

class RefusedTest : public SymbolsTest {
  protected:
    // Opens the library with its header changed; gives the message.
    std::string refusal(const std::function<void(Elf64_Ehdr&)>& change) {
        if (bytes_.empty()) {
            build("lib.so", "-shared -fPIC");
            bytes_ = Workshop::read(shop_.path("lib.so"));
        }
        std::string copy = bytes_;
        Elf64_Ehdr header;
        std::memcpy(&header, copy.data(), sizeof header);
        change(header);
        std::memcpy(copy.data(), &header, sizeof header);
        return refusal_of(copy);
    }
    std::string refusal_of(const std::string& bytes) {
        auto file = Workshop::try_open(shop_.write("bad.so", bytes));
        if (file) return "accepted";
        EXPECT_EQ(file.error().kind, ErrorKind::kInvalid) << file.error().message;
        EXPECT_THAT(file.error().message, HasSubstr("bad.so"));
        return file.error().message;
    }
    std::string bytes_;
};

TEST_F(RefusedTest, WhatIsNoElfFileOfThisMachine) {
    EXPECT_THAT(refusal([](Elf64_Ehdr& h) { h.e_ident[EI_CLASS] = ELFCLASS32; }),
                HasSubstr("32-bit"));
    EXPECT_THAT(refusal([](Elf64_Ehdr& h) { h.e_ident[EI_DATA] ^= 3; }), HasSubstr("byte order"));
    EXPECT_THAT(refusal([](Elf64_Ehdr& h) { h.e_machine = EM_ALPHA; }),
                HasSubstr("another machine"));
    EXPECT_THAT(refusal([](Elf64_Ehdr& h) { h.e_type = ET_REL; }), HasSubstr("neither"));
    EXPECT_THAT(refusal([](Elf64_Ehdr& h) { h.e_ident[0] = 0; }), HasSubstr("not an ELF file"));
    EXPECT_THAT(refusal_of(""), HasSubstr("not an ELF file"));
    EXPECT_THAT(refusal_of("#!/bin/sh\n"), HasSubstr("not an ELF file"));
}

TEST_F(RefusedTest, DamagedHeaders) {
    EXPECT_THAT(refusal([](Elf64_Ehdr& h) { h.e_shoff = 1ull << 62; }), HasSubstr("damaged"));
    EXPECT_THAT(refusal([](Elf64_Ehdr& h) { h.e_shnum = 60000; }), HasSubstr("damaged"));
    EXPECT_THAT(refusal([](Elf64_Ehdr& h) { h.e_shentsize = 1; }), HasSubstr("damaged"));
    EXPECT_THAT(refusal([](Elf64_Ehdr& h) { h.e_phoff = ~0ull; }), HasSubstr("damaged"));
    EXPECT_THAT(refusal([](Elf64_Ehdr& h) { h.e_phnum = 0; }), HasSubstr("damaged"));
    EXPECT_THAT(refusal([](Elf64_Ehdr& h) { h.e_phentsize = 7; }), HasSubstr("damaged"));
    EXPECT_THAT(refusal([](Elf64_Ehdr& h) { h.e_shstrndx = 9999; }), HasSubstr("damaged"));
}

TEST_F(RefusedTest, EveryTruncationIsAnError) {
    refusal([](Elf64_Ehdr&) {});
    for (size_t size = 0; size < bytes_.size(); size += 61)
        EXPECT_NE(refusal_of(bytes_.substr(0, size)), "accepted") << size;
}

TEST_F(RefusedTest, NoRegularFile) {
    for (const char* path : {"/dev/null", "/proc"}) {
        auto file = Workshop::try_open(path);
        ASSERT_FALSE(file);
        EXPECT_EQ(file.error().kind, ErrorKind::kInvalid);
        EXPECT_THAT(file.error().message, HasSubstr("no regular file"));
    }
}

// A mapping would give SIGBUS here.
TEST_F(SymbolsTest, TruncatedAfterOpening) {
    build("lib.so", "-shared -fPIC");
    auto file = shop_.open("lib.so");
    const Function* function = find_function(*file, "exported_function");
    ASSERT_NE(function, nullptr);
    ASSERT_EQ(::truncate(shop_.path("lib.so").c_str(), 64), 0);
    EXPECT_TRUE(file->code_at(function->file_offset, 16).empty());
    EXPECT_FALSE(file->relocations());
    EXPECT_EQ(function, find_function(*file, "exported_function"));
}

TEST_F(SymbolsTest, Relocations) {
    shop_.write("r.c",
                "static int f(int x) { return x; }\n"
                "int (*table[])(int) = {f, f, f};\n");
    for (const char* option : {"", "-Wl,-z,pack-relative-relocs"}) {
        shop_.run(std::string("gcc -shared -fPIC r.c -o r.so ") + option);
        auto file = shop_.open("r.so");
        auto relocations = file->relocations();
        ASSERT_TRUE(relocations) << relocations.error().message;
        uint64_t wanted = find_function(*file, "f")->address;
        EXPECT_EQ(std::count_if(relocations->begin(), relocations->end(),
                                [&](const Relocation& one) { return one.addend == wanted; }),
                  3)
            << option;
    }
}

// Of a file that no loader would survive: found at once, and what other tables have stays.
TEST_F(SymbolsTest, RelocationsThatLeadNowhereEndTheirTable) {
    shop_.write("r.c",
                "static int f(int x) { return x; }\n"
                "int (*table[])(int) = {f, f, f};\n");
    shop_.run("gcc -shared -fPIC r.c -o r.so -Wl,-z,pack-relative-relocs");
    std::string bytes = Workshop::read(shop_.path("r.so"));
    Elf64_Ehdr header;
    std::memcpy(&header, bytes.data(), sizeof header);
    std::vector<uint64_t> words(1u << 18, UINT64_MAX); // each stands for 63 of them
    words.front() = uint64_t{1} << 40;
    for (uint16_t i = 0; i < header.e_shnum; ++i) {
        char* const place = bytes.data() + header.e_shoff + i * sizeof(Elf64_Shdr);
        Elf64_Shdr section;
        std::memcpy(&section, place, sizeof section);
        if (section.sh_type != SHT_RELR) continue;
        section.sh_offset = bytes.size();
        section.sh_size = words.size() * sizeof(uint64_t);
        std::memcpy(place, &section, sizeof section);
        break;
    }
    bytes.append(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint64_t));
    shop_.write("nowhere.so", bytes);
    const std::clock_t start = std::clock();
    auto relocations = shop_.open("nowhere.so")->relocations();
    ASSERT_TRUE(relocations) << relocations.error().message;
    EXPECT_FALSE(relocations->empty()) << "the RELA tables";
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 2);
}

TEST(LastAbove, FindsWhatASearchOfAllFinds) {
    std::mt19937_64 random(1);
    for (size_t count = 0; count < 300; ++count) {
        std::vector<uint64_t> numbers(count);
        for (uint64_t& number : numbers) number = random() % (1 + random() % 100);
        const LastAbove found(numbers);
        for (int ask = 0; ask < 50; ++ask) {
            const size_t end = random() % (count + 1);
            const uint64_t bound = random() % 100;
            std::optional<size_t> expected;
            for (size_t i = 0; i < end; ++i)
                if (numbers[i] > bound) expected = i;
            ASSERT_EQ(found.find(end, bound), expected) << count << " " << end << " " << bound;
        }
    }
}

TEST_F(SymbolsTest, SafeFromSeveralThreads) {
    build("lib.so", "-shared -fPIC");
    auto file = shop_.open("lib.so");
    uint64_t offset = find_function(*file, "exported_function")->file_offset;
    std::vector<std::thread> threads;
    std::array<bool, 4> right{};
    for (bool& one : right)
        threads.emplace_back([&one, &file, offset] {
            one =
                file->code_at(offset, 4).size() == 4 && file->function_at_offset(offset) != nullptr;
        });
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(right, testing::Each(true));
}

TEST_F(SymbolsTest, HundredThousandSymbolsInWellUnderASecond) {
    std::string text = ".text\n";
    for (int i = 0; i < 100000; ++i) {
        std::string name = "_ZN9namespace8LongName" + std::to_string(100000 + i) + "Ev";
        text += ".globl " + name + "\n.type " + name + ",@function\n" + name + ": ret\n.size " +
                name + ",.-" + name + "\n";
    }
    shop_.write("big.s", text + ".section .note.GNU-stack,\"\",@progbits\n");
    shop_.run("gcc -shared -nostdlib big.s -o big.so");
    std::clock_t start = std::clock(); // of this process: the machine may be busy
    auto file = shop_.open("big.so");
    double took = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    EXPECT_EQ(file->functions().size(), 100000u);
    std::printf("100,000 symbols, in .symtab and .dynsym: %.0f ms\n", took * 1e3);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    EXPECT_LT(took, 10);
#else
    EXPECT_LT(took, 0.5);
#endif
}

} // namespace
} // namespace speedbump::elf
