// SPDX-License-Identifier: MIT
#include "process/ifunc.h"

#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "elf/dynamic.h"
#include "elf/image.h"
#include "elf/machine.h"
#include "util/page.h"

namespace speedbump::process {

using elf::ElfFile;
using elf::Function;

namespace {

// The process may be hostile: nothing it says makes us read more than this.
constexpr uint64_t kMaxProgramHeaders = 128;
constexpr uint64_t kMaxDynamicBytes = 64u << 10;
constexpr uint64_t kMaxRelocationBytes = 64u << 20;
constexpr uint64_t kMaxSymbols = 64u << 20;
constexpr uint64_t kMaxStrings = 64u << 20;
constexpr size_t kMaxModules = 4096;
constexpr size_t kBatch = 512;                 // below IOV_MAX
constexpr uint64_t kReadSteps = 1024;          // that a read of a word is worth
constexpr size_t kMaxName = 4096, kNode = 128; // bytes

} // namespace

IfuncResolver::IfuncResolver(pid_t pid, std::vector<Mapping> mappings, const Limits& limits)
    : memory_(pid), mappings_(std::move(mappings)), left_(limits) {}

bool IfuncResolver::read(uint64_t address, void* to, size_t size) {
    const Piece whole = piece(address, size);
    const ssize_t got = memory_.gather({&whole, 1}, static_cast<char*>(to));
    if (got == -EPERM || got == -EACCES || got == -ESRCH) read_error_ = static_cast<int>(-got);
    return got >= 0 && static_cast<size_t>(got) == size;
}

std::optional<std::vector<unsigned char>> IfuncResolver::read_bytes(uint64_t address, uint64_t size,
                                                                    uint64_t limit) {
    if (size > limit) return std::nullopt;
    // Only what is mapped is worth room for it.
    auto holds = [&](const Mapping& one) { return address >= one.start && address < one.end; };
    if (std::none_of(mappings_.begin(), mappings_.end(), holds)) return std::nullopt;
    if (is_cut_ |= size > left_.read_bytes; is_cut_) return std::nullopt;
    left_.read_bytes -= size;
    std::vector<unsigned char> bytes(size);
    if (!read(address, bytes.data(), bytes.size())) return std::nullopt;
    return bytes;
}

// The program headers of the module of which `first` maps the start of its file.
std::vector<Elf64_Phdr> IfuncResolver::read_programs(const Mapping& first) {
    Elf64_Ehdr header;
    if (!read(first.start, &header, sizeof header) ||
        std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_phentsize != sizeof(Elf64_Phdr) ||
        header.e_phnum > kMaxProgramHeaders)
        return {};
    std::vector<Elf64_Phdr> programs(header.e_phnum);
    if (!read(first.start + header.e_phoff, programs.data(), programs.size() * sizeof(Elf64_Phdr)))
        return {};
    return programs;
}

// Collects what the slots of one module hold. `first` maps the start of its file.
void IfuncResolver::read_module(const Mapping& first) {
    std::optional<uint64_t> bias;
    const Elf64_Phdr* at = nullptr;
    const std::vector<Elf64_Phdr> programs = read_programs(first);
    for (const Elf64_Phdr& program : programs) {
        if (program.p_type == PT_LOAD && program.p_offset < kPage && !bias)
            bias = first.start - (program.p_vaddr - program.p_offset);
        if (program.p_type == PT_DYNAMIC) at = &program;
    }
    if (!bias || at == nullptr) return;
    auto bytes = read_bytes(*bias + at->p_vaddr, at->p_memsz, kMaxDynamicBytes);
    if (!bytes) return;
    const elf::Dynamic dynamic = elf::read_dynamic(elf::as_table<Elf64_Dyn>(*bytes));
    if (dynamic.symbols == 0 || dynamic.strings == 0) return;
    // glibc relocates these pointers in place, musl and others do not.
    const auto pointer = [&bias](uint64_t value) { return value < *bias ? *bias + value : value; };
    std::vector<Slot> slots;
    if (dynamic.jump != 0) add_slots(slots, pointer(dynamic.jump), dynamic.jump_size, *bias);
    if (dynamic.rela != 0) add_slots(slots, pointer(dynamic.rela), dynamic.rela_size, *bias);
    if (slots.empty()) return;
    const auto last =
        std::max_element(slots.begin(), slots.end(),
                         [](const Slot& a, const Slot& b) { return a.symbol < b.symbol; });
    auto symbols =
        read_bytes(pointer(dynamic.symbols), (last->symbol + 1) * sizeof(Elf64_Sym), kMaxSymbols);
    auto text = read_bytes(pointer(dynamic.strings), dynamic.strings_size, kMaxStrings);
    if (!symbols || !text || text->empty()) return;
    text->back() = 0;
    read_slots(slots, elf::as_table<Elf64_Sym>(*symbols), *text);
}

// The slots that a table of relocations has the dynamic linker fill.
void IfuncResolver::add_slots(std::vector<Slot>& slots, uint64_t table, uint64_t size,
                              uint64_t bias) {
    if (size == 0) return;
    const auto bytes = read_bytes(table, size, kMaxRelocationBytes);
    if (!bytes) return;
    for (const Elf64_Rela& entry : elf::as_table<Elf64_Rela>(*bytes)) {
        const auto type = static_cast<uint32_t>(ELF64_R_TYPE(entry.r_info));
        if ((type != elf::kJumpSlot && type != elf::kGlobalData && type != elf::kAbsolute) ||
            entry.r_addend != 0)
            continue;
        slots.push_back({bias + entry.r_offset, ELF64_R_SYM(entry.r_info)});
    }
}

// Notes what the slots hold, by the names of their symbols.
void IfuncResolver::read_slots(const std::vector<Slot>& slots, const std::vector<Elf64_Sym>& names,
                               const std::vector<unsigned char>& text) {
    for (size_t at = 0; at < slots.size(); at += kBatch) {
        size_t count = std::min(kBatch, slots.size() - at);
        std::vector<uint64_t> values(count);
        std::vector<Piece> pieces(count);
        for (size_t i = 0; i < count; ++i)
            pieces[i] = piece(slots[at + i].address, sizeof(uint64_t));
        const ssize_t got = memory_.gather(pieces, reinterpret_cast<char*>(values.data()));
        for (size_t i = 0; i < count && got >= static_cast<ssize_t>((i + 1) * 8); ++i) {
            const Elf64_Sym& symbol = names[slots[at + i].symbol];
            if (symbol.st_name >= text.size()) continue;
            const auto* name = reinterpret_cast<const char*>(text.data()) + symbol.st_name;
            const size_t length = strnlen(name, kMaxName); // the text ends with a NUL
            if (length == kMaxName) continue;
            if (is_cut_ |= length + kNode > left_.name_bytes; is_cut_) return;
            left_.name_bytes -= length + kNode;
            values_.emplace(std::string(name, length), values[i]);
        }
    }
}

void IfuncResolver::read_modules() {
    if (modules_read_) return;
    modules_read_ = true;
    size_t count = 0;
    for (const Mapping& mapping : mappings_)
        if (mapping.file_offset == 0 && !is_cut_ && ++count <= kMaxModules) read_module(mapping);
}

std::optional<uint64_t> IfuncResolver::implementation_at(uint64_t address, const ElfFile& file,
                                                         uint64_t device, uint64_t inode) const {
    for (const Mapping& mapping : mappings_) {
        if (address < mapping.start || address >= mapping.end) continue;
        if (!mapping.executable || mapping.device != device || mapping.inode != inode)
            return std::nullopt;
        uint64_t offset = mapping.file_offset + (address - mapping.start);
        auto code = file.code_at(offset, 16);
        if (code.empty() || elf::is_linkage_stub(code)) return std::nullopt;
        return offset;
    }
    return std::nullopt;
}

bool IfuncResolver::may_step(uint64_t count) {
    if (count > left_.steps) {
        is_cut_ = true;
        left_.steps = 0;
        return false;
    }
    left_.steps -= count;
    return true;
}

Result<void> IfuncResolver::read_own_slots(const Asked& asked) {
    if (asked_ == asked) return {};
    asked_ = {};
    own_slots_.clear();
    times_named_.clear();
    auto relocations = asked.file->relocations();
    if (!relocations) return std::move(relocations.error());
    for (const elf::Relocation& relocation : *relocations)
        if (relocation.type == elf::kIrelative)
            own_slots_.emplace(relocation.addend, relocation.address);
    asked_ = asked;
    return {};
}

// Whether it is the name of several functions: another version of the symbol may be another one,
// and slots do not tell which.
bool IfuncResolver::is_ambiguous(const ElfFile& file, std::string_view name) {
    if (times_named_.empty()) {
        for (const Function& function : file.functions())
            if (function.is_ifunc)
                for (const std::string_view one : function.names) times_named_.emplace(one, 0);
        for (const Function& function : file.functions())
            for (const std::string_view one : function.names)
                if (const auto known = times_named_.find(one); known != times_named_.end())
                    ++known->second;
    }
    const auto times = times_named_.find(name);
    return times != times_named_.end() && times->second > 1;
}

// What the slots that the file's own relocations name hold, in each place where it is mapped.
// False: it is mapped nowhere.
bool IfuncResolver::look_at_own_slots(const ElfFile& file, uint64_t device, uint64_t inode,
                                      const Function& function, std::set<uint64_t>& found) {
    bool is_mapped = false;
    auto [own, own_end] = own_slots_.equal_range(function.address);
    if (!may_step(mappings_.size())) return true; // as far as is known
    for (const Mapping& mapping : mappings_) {
        if (!mapping.executable || mapping.device != device || mapping.inode != inode) continue;
        is_mapped = true;
        if (own == own_end) break;
        if (!may_step(file.segments().size())) break;
        for (const elf::Segment& segment : file.segments()) {
            if (!segment.executable || segment.offset < mapping.file_offset ||
                segment.offset - mapping.file_offset >= mapping.end - mapping.start)
                continue;
            uint64_t bias =
                mapping.start + (segment.offset - mapping.file_offset) - segment.address;
            for (auto slot = own; slot != own_end; ++slot) {
                uint64_t value = 0;
                if (!may_step(kReadSteps + mappings_.size())) return is_mapped;
                if (!read(bias + slot->second, &value, sizeof value)) continue;
                if (value == bias + function.address) continue;
                if (auto offset = implementation_at(value, file, device, inode); offset)
                    found.insert(*offset);
            }
        }
    }
    return is_mapped;
}

// What the slots of all modules hold for the function's names.
IfuncResolver::NamedSlots IfuncResolver::look_at_named_slots(const ElfFile& file, uint64_t device,
                                                             uint64_t inode,
                                                             const Function& function,
                                                             std::set<uint64_t>& found) {
    NamedSlots slots;
    read_modules();
    for (std::string_view alias : function.names) {
        auto [value, end] = values_.equal_range(std::string(alias));
        if (value == end) continue;
        if (is_ambiguous(file, alias)) {
            slots.ambiguous = true;
            continue;
        }
        for (; value != end && may_step(mappings_.size()); ++value) {
            auto offset = implementation_at(value->second, file, device, inode);
            // A slot may hold the resolver itself only by mistake of ours.
            if (offset && *offset != function.file_offset)
                found.insert(*offset);
            else if (value->second != 0 && !offset)
                slots.elsewhere = true;
        }
    }
    return slots;
}

Result<uint64_t> IfuncResolver::resolve(const ElfFile& file, uint64_t device, uint64_t inode,
                                        const Function& function) {
    std::string name = function.names.empty() ? fmt::format("{:#x}", function.address)
                                              : std::string(function.names[0]);
    auto not_found = [&](const std::string& why) {
        return make_error(ErrorKind::kNotFound,
                          fmt::format("indirect function {} of {}: {}", name, file.path(), why));
    };
    if (auto own = read_own_slots({&file, device, inode}); !own)
        return std::move(own.error()).with_context(name);
    std::set<uint64_t> found; // offsets of implementations
    if (!look_at_own_slots(file, device, inode, function, found))
        return not_found("the process does not map this file");
    NamedSlots named;
    if (found.empty()) named = look_at_named_slots(file, device, inode, function, found);
    if (found.size() == 1) return *found.begin();
    if (found.size() > 1) return not_found("the process uses several implementations");
    if (read_error_ != 0)
        return errno_error(fmt::format("indirect function {} of {}: read the memory of process {}",
                                       name, file.path(), memory_.pid()),
                           read_error_)
            .with_hint("this needs CAP_SYS_PTRACE, or to be the process's user");
    if (is_cut_) return not_found("the process has more to look through than is read");
    if (named.ambiguous) return not_found("several functions of the file have this name");
    if (named.elsewhere)
        return not_found("not bound yet (nothing has called it), or bound to another file");
    return not_found("nothing in the process refers to it");
}

} // namespace speedbump::process
