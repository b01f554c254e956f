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
#include "elf/symbols.h"
#include "util/result.h"

// What ways out are looked for in, on every processor.
namespace speedbump::elf {

inline Error refusal(std::string reason) {
    return make_error(ErrorKind::kUnsupported, std::move(reason));
}

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

    // The same, of a function and not of the part that a compiler moved away from one (f.cold).
    bool is_function(uint64_t address) const {
        const Function* function = function_at(address);
        return function != nullptr &&
               std::none_of(function->names.begin(), function->names.end(),
                            [](std::string_view name) { return name.find(".cold") != name.npos; });
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
