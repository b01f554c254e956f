// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "elf/exits.h"
#include "elf_workshop.h"

namespace speedbump::elf {

// Tests of the ways out of functions that are written in assembler.
class ExitsTest : public testing::Test {
  protected:
    // `link`: more words for the linker.
    explicit ExitsTest(const SiteOptions& options = {}, std::string link = "")
        : options_(options), link_(std::move(link)) {}

    // Each function of the text ends where the next one begins; others are given as they are.
    std::shared_ptr<const ElfFile> assemble(const std::string& text) {
        workshop_.write("code.s", ".text\n" + text);
        workshop_.run("as -o code.o code.s && ld -shared " + link_ + " -o code.so code.o");
        return workshop_.open("code.so");
    }
    static std::string function(const std::string& name, const std::string& code,
                                bool unwinds = true) {
        const std::string begin = unwinds ? ".cfi_startproc\n" : "";
        const std::string end = unwinds ? ".cfi_endproc\n" : "";
        return ".globl " + name + "\n.type " + name + ", %function\n" + name + ":\n" + begin +
               code + "\n" + end + ".size " + name + ", .-" + name + "\n";
    }
    Result<WaysOut> find(const ElfFile& file, const std::string& name) const {
        return find(file, name, options_);
    }
    static Result<WaysOut> find(const ElfFile& file, const std::string& name,
                                const SiteOptions& options) {
        const std::shared_ptr<const ElfFile> borrowed(std::shared_ptr<const ElfFile>(), &file);
        return ExitFinder(borrowed, options).find(find_function(file, name)->file_offset);
    }
    std::vector<std::string> exits_of(const ElfFile& file, const std::string& name) const {
        std::vector<std::string> texts;
        const auto ways = find(file, name);
        EXPECT_TRUE(ways) << name << ": " << ways.error().message;
        if (!ways) return texts;
        for (const Exit& exit : ways->exits)
            texts.push_back(exit.instruction.substr(0, exit.instruction.find(' ')) +
                            (exit.operand ? " if it leads out" : "") +
                            (exit.condition == Exit::kAlways ? "" : " if taken"));
        return texts;
    }
    std::string refusal_of(const ElfFile& file, const std::string& name) const {
        const auto ways = find(file, name);
        return ways ? "accepted" : ways.error().message;
    }

    const SiteOptions options_;
    const std::string link_;
    Workshop workshop_;
};

} // namespace speedbump::elf
