// SPDX-License-Identifier: MIT
#include "elf/jump_site.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <set>

#include "elf/moved_code.h"
#include "elf_workshop.h"
#include "executed.h"

namespace speedbump::elf {
namespace {

using testing::HasSubstr;

class JumpSiteTest : public testing::Test {
  protected:
    // Assembles the text into a library; `f` is the function that is asked for.
    Result<ProbeSite> try_place(const std::string& text) {
        shop_.write(
            "f.s",
            "        .text\n        .globl f\n        .hidden f\n        .type f, @function\n" +
                text + "\n        .section .note.GNU-stack,\"\",@progbits\n");
        shop_.run("gcc -shared -nostdlib f.s -o f.so");
        const auto file = shop_.open("f.so");
        const Function* found = find_function(*file, "f");
        if (found == nullptr) {
            ADD_FAILURE() << "no function f";
            return make_error(ErrorKind::kNotFound, "f");
        }
        entry_ = found->file_offset;
        PlacementOptions options;
        options.jump = true;
        options.entry_only = entry_only_;
        return place_probe(*file, entry_, options);
    }
    void expect(const std::string& text, uint64_t distance, const std::string& instruction) {
        SCOPED_TRACE(text);
        const auto site = try_place(text);
        ASSERT_TRUE(site) << site.error().message;
        EXPECT_EQ(site->file_offset - entry_, distance) << site->reason;
        EXPECT_EQ(site->kind, SiteKind::kJump);
        EXPECT_THAT(site->instruction, HasSubstr(instruction));
    }
    void expect_refused(const std::string& text, const std::string& reason) {
        SCOPED_TRACE(text);
        const auto site = try_place(text);
        ASSERT_FALSE(site) << site->reason;
        EXPECT_THAT(site.error().message, HasSubstr(reason));
    }

    Workshop shop_;
    uint64_t entry_ = 0;
    bool entry_only_ = false;
};

TEST_F(JumpSiteTest, BehindTheFirstInstruction) {
    expect("f: push %rbp; mov %rsp,%rbp; push %rbx; push %r12; ret; .size f,.-f", 1, "mov");
    expect("f: endbr64; push %rbp; mov %rsp,%rbp; push %rbx; push %r12; ret; .size f,.-f", 5,
           "mov");
}

TEST_F(JumpSiteTest, WithBranchesInIt) {
    expect(
        "f: push %rbx; test %edi,%edi; je 1f; mov %edi,%eax; pop %rbx; ret\n"
        "1: pop %rbx; ret; .size f,.-f",
        1, "test");
    expect("f: push %rbx; cmp %edi,%esi; jne f; pop %rbx; ret; .p2align 4; .size f,.-f", 1, "cmp");
}

// Exceptions may continue in it.
TEST_F(JumpSiteTest, RefusedWhereUnwindInformationCannotBeRead) {
    const std::string text = "f: push %rbp; mov %rsp,%rbp; push %rbx; push %r12; ret; .size f,.-f";
    expect(text, 1, "mov");
    expect_refused(text + "\n .section .eh_frame,\"a\",@progbits; .long 0xffffffff; .quad 8, 0",
                   "the unwind information of its file can't be read in full");
}

TEST_F(JumpSiteTest, WithPaddingBehindAReturn) {
    expect("f: push %rbx; pop %rbx; ret; .size f,.-f; .p2align 4", 1, "pop");
    expect_refused("f: push %rbx; pop %rbx; ret; .size f,.-f\n g: push %rbp; ret", "no five bytes");
    expect_refused(
        ".p2align 4; nop; nop; f: push %rbx; pop %rbx; ret; .size f,.-f\n"
        " .p2align 3; .type g,@function\n g: push %rbp; ret",
        "no five bytes");
}

TEST_F(JumpSiteTest, CallsAndJumpsThatAreRedirected) {
    // In place of the first instruction as well: its first byte stays.
    expect("f: jmp g; .size f,.-f; .p2align 4; .skip 256\n g: ret", 0, "jmp");
    expect("f: endbr64; jmp g; .size f,.-f; .p2align 4; .skip 256\n g: ret", 4, "jmp");
    expect("f: push %rbx; call g; pop %rbx; ret; .size f,.-f; .skip 256\n g: ret", 1, "call");
}

TEST_F(JumpSiteTest, NothingLeadsBehindItsBeginning) {
    expect_refused(
        "f: push %rbp\n1: mov %rsp,%rbp; push %rbx; push %r12; dec %edi; jne 1b; ret\n"
        " .size f,.-f",
        "something may jump past");
    expect_refused("f: push %rbx; mov %edi,%eax\n1: dec %eax; jne 1b; pop %rbx; ret; .size f,.-f",
                   "something may jump past"); // a branch of the range itself
    expect_refused(
        "f: push %rbx; jmp g; .size f,.-f; .skip 256\n g: ret\n"
        " .globl h; .type h,@function\n h: jmp f+3; .size h,.-h",
        "something may jump past"); // into a redirected one
}

TEST_F(JumpSiteTest, ApartFromProbesOfTheBpfEngine) {
    // The kernel emulates je, and steps over test. Progress points go there and other sessions do,
    // wherever the one that is asked for has its probes.
    for (const bool entry_only : {false, true}) {
        entry_only_ = entry_only;
        expect_refused(
            "f: test %rdi,%rdi; je 1f; mov %edi,%eax; ret\n1: ret; .p2align 4; .size f,.-f",
            "a probe of the BPF engine");
    }
}

TEST_F(JumpSiteTest, WhatCallsTheKernelStays) {
    expect_refused("f: mov $39,%eax; syscall; mov %rax,%rdi; ret; .size f,.-f", "no five bytes");
}

// Of every function that was entered its site was passed exactly as often, and within the range
// that a jump takes the place of nothing was executed that does not come from its beginning.
void compare_with_execution(const std::vector<std::string>& arguments) {
    SCOPED_TRACE(arguments[0]);
    const Executed executed = execute_by_steps(arguments);
    size_t functions = 0, calls = 0;
    std::set<std::string> done;
    PlacementOptions options;
    options.jump = true;
    for (const process::Mapping& mapping : executed.mappings) {
        if (!mapping.executable || !done.insert(mapping.path).second) continue;
        const auto file = Workshop::try_open(mapping.path);
        if (!file) continue; // of the kernel
        std::vector<uint64_t> entries;
        for (const Function& function : (*file)->functions())
            if (function.file_offset >= mapping.file_offset &&
                function.file_offset - mapping.file_offset < mapping.end - mapping.start)
                entries.push_back(function.file_offset);
        const auto sites = place_probes(**file, entries, options);
        for (size_t i = 0; i < sites.size(); ++i) {
            if (!sites[i]) continue;
            const uint64_t site = mapping.start + sites[i]->file_offset - mapping.file_offset;
            const uint64_t entered =
                executed.times(mapping.start + entries[i] - mapping.file_offset);
            const auto range =
                movable_range((*file)->code_at(sites[i]->file_offset, kRangeSight), site);
            ASSERT_TRUE(range);
            uint64_t before = executed.times(site);
            EXPECT_EQ(entered, before) << mapping.path << std::hex << " " << entries[i];
            size_t next = 0;
            for (uint64_t at = 0; at < range->length; ++at) {
                const uint64_t now = executed.times(site + at);
                const bool is_place = next < range->places.size() && range->places[next] == at;
                next += is_place;
                EXPECT_LE(now, is_place ? before : 0)
                    << mapping.path << std::hex << " " << sites[i]->file_offset + at;
                if (is_place) before = now;
            }
            functions += entered > 0;
            calls += entered;
        }
    }
    EXPECT_GT(functions, 20u);
    std::printf("%s: %zu instructions stepped, %zu calls of %zu functions with a site\n",
                arguments[0].c_str(), static_cast<size_t>(executed.steps), calls, functions);
}

TEST(JumpSiteReal, AgreesWithExecution) {
    compare_with_execution({"/bin/true"});
    compare_with_execution({"/bin/sh", "-c", "for i in 1 2 3; do echo $((i * i)); done"});
}

// How far above the stack pointer the return address lies, by the unwind information of a file as
// readelf prints it: of each address from which on it is that far.
std::map<uint64_t, uint64_t> unwound_distances(const std::string& path) {
    std::map<uint64_t, uint64_t> distances; // 0: not counted from there
    std::FILE* const pipe = ::popen(("readelf --debug-dump=frames-interp " + path).c_str(), "r");
    char line[4096];
    while (std::fgets(line, sizeof line, pipe) != nullptr) {
        unsigned long address = 0, end = 0, offset = 0;
        const char* const range = std::strstr(line, " FDE cie=");
        if (range != nullptr) {
            const char* const pc = std::strstr(range, "pc=");
            if (pc != nullptr && std::sscanf(pc, "pc=%lx..%lx", &address, &end) == 2) {
                distances[address] = 0; // one without a row says nothing: assembler may have none
                distances.try_emplace(end, 0);
            }
            continue;
        }
        char base[8] = {};
        const int found = std::sscanf(line, "%16lx %7[a-z]+%lu", &address, base, &offset);
        if (found >= 2 && line[16] == ' ')
            distances[address] = found == 3 && std::string(base) == "rsp" ? offset : 0;
    }
    ::pclose(pipe);
    return distances;
}

TEST(JumpSiteReal, ReturnAddressLiesWhereItIsUnwoundFrom) {
    PlacementOptions options;
    options.jump = true;
    for (const char* path :
         {"/lib/x86_64-linux-gnu/libc.so.6", "/usr/bin/bash", "/usr/bin/python3",
          "/usr/lib/x86_64-linux-gnu/libstdc++.so.6", "/usr/lib/x86_64-linux-gnu/libcrypto.so.3"}) {
        const auto file = Workshop::try_open(path);
        if (!file) continue;
        const auto unwound = unwound_distances(path);
        std::vector<uint64_t> entries, addresses;
        for (const Function& function : (*file)->functions())
            entries.push_back(function.file_offset);
        const auto sites = place_probes(**file, entries, options);
        size_t known = 0, unknown = 0, compared = 0;
        for (const auto& site : sites) {
            if (!site) continue;
            (site->return_distance ? known : unknown) += 1;
            const uint64_t address = (*file)->address_of_offset(site->file_offset).value_or(0);
            auto row = unwound.upper_bound(address);
            if (!site->return_distance || row == unwound.begin()) continue;
            --row;
            if (row->second == 0) continue;
            ++compared;
            EXPECT_EQ(*site->return_distance + 8, row->second)
                << path << std::hex << " " << address;
        }
        std::printf("%s: known at %zu of %zu sites, %zu of them compared\n", path, known,
                    known + unknown, compared);
        EXPECT_GT(compared, 0u) << path;
        EXPECT_LT(unknown, (known + unknown) / 20) << path;
    }
}

} // namespace
} // namespace speedbump::elf
