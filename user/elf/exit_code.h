// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "elf/exits.h"
#include "elf/frames.h"
#include "elf/refusal.h"
#include "elf/symbols.h"
#include "util/result.h"

// What ways out are looked for in, on every processor.
namespace speedbump::elf {

inline constexpr uint64_t kMaxPartBytes = 256u << 10;
inline constexpr uint64_t kTableBudget = 64u << 20; // bytes of tables that are read for a function

// A file's code, and what is read once for all its functions.
struct ExitCode {
    ExitCode(std::shared_ptr<const ElfFile> elf, const SiteOptions& its_options)
        : file(std::move(elf)),
          options(its_options),
          frames(*file),
          is_go(find_section(*file, ".go.buildinfo").has_value()) {}

    std::basic_string_view<unsigned char> code(uint64_t address, size_t size) const {
        const auto offset = file->offset_of_address(address);
        return offset ? file->code_at(*offset, size) : std::basic_string_view<unsigned char>();
    }

    // The function symbol that starts there.
    const Function* function_at(uint64_t address) const {
        const auto offset = file->offset_of_address(address);
        const Function* found = offset ? file->function_at_offset(*offset) : nullptr;
        return found != nullptr && found->address == address ? found : nullptr;
    }

    // Whether it is a part that a compiler moved away from a function (f.cold).
    static bool is_cold(const Function& function) {
        return std::any_of(function.names.begin(), function.names.end(),
                           [](std::string_view name) { return name.find(".cold") != name.npos; });
    }

    // The part of a function around an address that it jumps to, of which `known` others are known;
    // kUnsupported, with the reason, where it can't be followed.
    Result<CodePart> next_part(uint64_t address, size_t known) const {
        const auto part = part_of(address);
        if (!part) return refusal("the extent of code that it jumps to is not known");
        if (part->end - part->begin > kMaxPartBytes) return refusal("the function is too large");
        if (known == kMaxCodeParts) return refusal("the function is spread over too many parts");
        return *part;
    }

    // Where exceptions may continue in the part around an address. kUnsupported likewise.
    Result<std::vector<uint64_t>> landing_pads(uint64_t address) const {
        const FramePart* frame = frames.find(address);
        if (frame == nullptr && !frames.is_whole())
            return refusal("the unwind information of the file can't be read in full");
        if (frame == nullptr) return std::vector<uint64_t>();
        auto pads = frames.landing_pads(*frame);
        if (!pads) return refusal("its exception tables can't be read");
        return std::move(*pads);
    }

    // The code that belongs together around an address.
    std::optional<CodePart> part_of(uint64_t address) const {
        if (const FramePart* frame = frames.find(address))
            return CodePart{frame->begin, frame->end};
        const auto offset = file->offset_of_address(address);
        const Function* function = offset ? file->function_at_offset(*offset) : nullptr;
        if (function == nullptr || function->size == 0) return std::nullopt;
        return CodePart{function->address, function->address + function->size};
    }

    // The addresses of code that the dynamic linker writes somewhere, ascending; nullptr: the
    // relocations can't be read.
    const std::vector<uint64_t>* pointers() const {
        std::call_once(pointers_once, [this] {
            auto relocations = file->relocations();
            if (!relocations) return;
            pointers_known = true;
            for (const Relocation& one : *relocations) pointers_.push_back(one.addend);
            std::sort(pointers_.begin(), pointers_.end());
        });
        return pointers_known ? &pointers_ : nullptr;
    }

    std::shared_ptr<const ElfFile> file;
    SiteOptions options;
    FrameTable frames;
    bool is_go;
    mutable std::once_flag pointers_once;
    mutable bool pointers_known = false;
    mutable std::vector<uint64_t> pointers_;
};

} // namespace speedbump::elf
