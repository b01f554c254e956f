// SPDX-License-Identifier: MIT
#include "forms.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <set>
#include <sstream>

#include "elf/image.h"
#include "elf/placement.h"
#include "elf/symbols.h"
#include "util/fd.h"

namespace speedbump::sites {

namespace {

constexpr size_t kLongest = 15;
constexpr uint64_t kLargestTable = 64u << 20;

// The first addresses of all functions, by the sorted table of .eh_frame_hdr; empty where there is
// none of the usual form.
std::vector<uint64_t> unwound_functions(const elf::Image& image) {
    constexpr uint8_t kRelativeToHeader = 0x3b; // DW_EH_PE_datarel | DW_EH_PE_sdata4
    std::vector<uint64_t> addresses;
    for (const Elf64_Phdr& header : image.program_headers()) {
        if (header.p_type != PT_GNU_EH_FRAME) continue;
        const auto bytes = image.read(header.p_offset, header.p_filesz, kLargestTable, "unwinding");
        if (!bytes || bytes->size() < 12 || (*bytes)[3] != kRelativeToHeader) continue;
        for (size_t at = 12; at + 8 <= bytes->size(); at += 8) {
            int32_t distance;
            std::memcpy(&distance, bytes->data() + at, sizeof distance);
            addresses.push_back(header.p_vaddr + distance);
        }
    }
    return addresses;
}

} // namespace

std::optional<Decoded> decode(const uint8_t* code, size_t size) {
    static const ZydisDecoder decoder = [] {
        ZydisDecoder made;
        ZydisDecoderInit(&made, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
        return made;
    }();
    Decoded decoded;
    if (!ZYAN_SUCCESS(
            ZydisDecoderDecodeFull(&decoder, code, size, &decoded.instruction, decoded.operands)))
        return std::nullopt;
    return decoded;
}

std::string text_of(const Decoded& decoded) {
    static const ZydisFormatter formatter = [] {
        ZydisFormatter made;
        ZydisFormatterInit(&made, ZYDIS_FORMATTER_STYLE_ATT);
        return made;
    }();
    char text[128];
    if (!ZYAN_SUCCESS(
            ZydisFormatterFormatInstruction(&formatter, &decoded.instruction, decoded.operands,
                                            decoded.instruction.operand_count_visible, text,
                                            sizeof text, ZYDIS_RUNTIME_ADDRESS_NONE, nullptr)))
        return "?";
    return text;
}

Bytes form_of(const Decoded& decoded, const uint8_t* code) {
    const ZydisDecodedInstruction& instruction = decoded.instruction;
    Bytes form(code, code + instruction.length);
    if (instruction.mnemonic == ZYDIS_MNEMONIC_NOP) return form;
    const auto clear = [&form](size_t offset, size_t bits) {
        std::fill_n(form.begin() + offset, bits / 8, uint8_t{0});
    };
    clear(instruction.raw.disp.offset, instruction.raw.disp.size);
    for (const auto& immediate : instruction.raw.imm) clear(immediate.offset, immediate.size);
    return form;
}

Bytes random_instruction(Random& random) {
    static constexpr uint8_t kPrefixes[] = {0x66, 0xf2, 0xf3, 0x64, 0x67, 0x2e, 0xf0};
    Bytes code;
    while (random.one_in(3)) code.push_back(kPrefixes[random.below(random.one_in(4) ? 7 : 3)]);
    if (random.one_in(10)) {
        static constexpr uint8_t kVector[] = {0xc5, 0xc4, 0x62};
        code.push_back(kVector[random.below(3)]);
    } else {
        if (random.one_in(2)) code.push_back(static_cast<uint8_t>(0x40 + random.below(16)));
        if (random.one_in(2)) code.push_back(0x0f);
    }
    while (code.size() < kLongest) code.push_back(static_cast<uint8_t>(random.next()));
    return code;
}

void Forms::add(const uint8_t* code, size_t size, const std::string& example, uint64_t count) {
    const auto decoded = decode(code, size);
    if (!decoded) return;
    const Bytes bytes = form_of(*decoded, code);
    Form& form = forms_.try_emplace(bytes, Form{bytes, 0, example}).first->second;
    form.count += count;
}

Result<size_t> Forms::collect(const std::string& path) {
    const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.valid()) return errno_error("open " + path, errno);
    const auto opened = elf::ElfFile::open(file.get(), path);
    if (!opened) return opened.error();
    const elf::ElfFile& elf = **opened;
    auto source = elf::make_file_source(Fd(dup(file.get())), path);
    if (!source) return source.error();
    const auto image = elf::Image::parse(*source, path, elf::ImageRole::kProgram);
    if (!image) return image.error();

    std::set<uint64_t> entries;
    for (const elf::Function& function : elf.functions()) entries.insert(function.file_offset);
    for (uint64_t address : unwound_functions(*image))
        if (const auto offset = elf.offset_of_address(address)) entries.insert(*offset);

    const std::vector<uint64_t> offsets(entries.begin(), entries.end());
    const auto sites = elf::place_probes(elf, offsets, {});
    for (size_t i = 0; i < offsets.size(); ++i) {
        const elf::Function* function = elf.function_at_offset(offsets[i]);
        const std::string example =
            fmt::format("{}:{}", path.substr(path.rfind('/') + 1),
                        function != nullptr ? std::string(function->names.front())
                                            : fmt::format("{:#x}", offsets[i]));
        const uint64_t site = sites[i] ? sites[i]->file_offset : offsets[i];
        for (uint64_t offset : std::set<uint64_t>{offsets[i], site}) {
            const auto code = elf.code_at(offset, kLongest);
            add(code.data(), code.size(), example);
        }
    }
    return entries.size();
}

Result<void> Forms::read(const std::string& path) {
    std::ifstream file(path);
    if (!file) return errno_error("open " + path, errno);
    std::string line;
    while (std::getline(file, line)) {
        std::istringstream words(line);
        std::string digits, example;
        uint64_t count = 0;
        if (!(words >> digits >> count >> example)) continue;
        Bytes code;
        for (size_t i = 0; i + 1 < digits.size(); i += 2)
            code.push_back(static_cast<uint8_t>(std::stoul(digits.substr(i, 2), nullptr, 16)));
        add(code.data(), code.size(), example, count);
    }
    return {};
}

Result<void> Forms::write(const std::string& path) const {
    std::ofstream file(path);
    for (const Form& form : sorted()) {
        for (uint8_t byte : form.code) file << fmt::format("{:02x}", byte);
        file << fmt::format(" {} {}\n", form.count, form.example);
    }
    file.flush();
    if (!file) return errno_error("write " + path, errno);
    return {};
}

std::vector<Form> Forms::sorted() const {
    std::vector<Form> sorted;
    for (const auto& [code, form] : forms_) sorted.push_back(form);
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const Form& a, const Form& b) { return a.count > b.count; });
    return sorted;
}

} // namespace speedbump::sites
