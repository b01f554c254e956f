// SPDX-License-Identifier: MIT
#include "process/remote_elf.h"

#include <elf.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "elf/dynamic.h"
#include "util/page.h"

namespace speedbump::process {
namespace {

constexpr size_t kMaxSegments = 256;
constexpr uint64_t kMaxDynamic = 64 * 1024; // bytes
constexpr size_t kMaxSymbolName = 256;
constexpr uint32_t kMaxChain = 1 << 16;       // a damaged hash table must not hold us
constexpr uint64_t kMaxRelocations = 1 << 22; // nor one that says it has no end

uint64_t page_up(uint64_t address) {
    return (address + kPage - 1) & ~(kPage - 1);
}

uint32_t gnu_hash(std::string_view name) {
    uint32_t hash = 5381;
    for (char c : name) hash = hash * 33 + static_cast<unsigned char>(c);
    return hash;
}

uint32_t sysv_hash(std::string_view name) {
    uint32_t hash = 0;
    for (char c : name) {
        hash = (hash << 4) + static_cast<unsigned char>(c);
        hash ^= (hash >> 24) & 0xf0;
        hash &= 0x0fffffff;
    }
    return hash;
}

} // namespace

bool RemoteModule::contains_code(uint64_t address) const {
    return std::any_of(code_.begin(), code_.end(),
                       [&](const Range& range) { return range.contains(address); });
}

uint64_t RemoteModule::pointer(uint64_t value) const {
    // glibc relocates the pointers of PT_DYNAMIC in place, musl and the vdso don't.
    return value < start_ ? value + bias_ : value;
}

bool RemoteModule::load(const std::vector<Mapping>& mappings, size_t first, size_t last) {
    const Mapping& head = mappings[first];
    start_ = head.start;
    path_ = head.path;
    for (size_t i = first; i < last; ++i)
        if (mappings[i].executable) code_.push_back({mappings[i].start, mappings[i].end});
    if (code_.empty() || head.file_offset != 0) return false;
    std::vector<Elf64_Phdr> segments;
    if (!read_segments(segments)) return false;
    const auto first_load = std::find_if(segments.begin(), segments.end(),
                                         [](const Elf64_Phdr& s) { return s.p_type == PT_LOAD; });
    if (first_load == segments.end()) return false;
    bias_ = start_ - (first_load->p_vaddr - first_load->p_offset);
    uint64_t dynamic = 0;
    uint64_t dynamic_size = 0;
    for (const Elf64_Phdr& segment : segments) {
        if (segment.p_type == PT_INTERP) is_executable_ = true;
        if (segment.p_type == PT_DYNAMIC) {
            dynamic = bias_ + segment.p_vaddr;
            dynamic_size = std::min<uint64_t>(segment.p_memsz, kMaxDynamic);
        }
        if (segment.p_type == PT_LOAD && (segment.p_flags & PF_X)) {
            uint64_t end = bias_ + segment.p_vaddr + segment.p_memsz;
            if (end % kPage != 0 && contains_code(end - 1)) padding_.push_back({end, page_up(end)});
        }
    }
    if (dynamic != 0) load_dynamic(dynamic, dynamic_size);
    return true;
}

// Header and segments both lie in the first page nearly always.
bool RemoteModule::read_segments(std::vector<Elf64_Phdr>& segments) {
    std::array<std::byte, kPage> page;
    const size_t got = memory_.read_some(start_, page.data(), page.size());
    Elf64_Ehdr header;
    if (got < sizeof(header)) return false;
    std::memcpy(&header, page.data(), sizeof(header));
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_phentsize != sizeof(Elf64_Phdr) ||
        header.e_phnum == 0 || header.e_phnum > kMaxSegments)
        return false;
    is_executable_ = header.e_type == ET_EXEC;
    segments.resize(header.e_phnum);
    const size_t size = segments.size() * sizeof(Elf64_Phdr);
    if (header.e_phoff <= got && size <= got - header.e_phoff) {
        std::memcpy(segments.data(), page.data() + header.e_phoff, size);
        return true;
    }
    return memory_.read(start_ + header.e_phoff, segments.data(), size).has_value();
}

// What PT_DYNAMIC says, which lies there.
void RemoteModule::load_dynamic(uint64_t address, uint64_t size) {
    std::vector<Elf64_Dyn> entries(size / sizeof(Elf64_Dyn));
    const size_t got =
        memory_.read_some(address, entries.data(), entries.size() * sizeof(Elf64_Dyn));
    entries.resize(got / sizeof(Elf64_Dyn));
    const elf::Dynamic dynamic = elf::read_dynamic(entries);
    if (dynamic.symbols != 0) symbols_ = pointer(dynamic.symbols);
    if (dynamic.strings != 0) strings_ = pointer(dynamic.strings);
    if (dynamic.hash != 0) sysv_hash_ = pointer(dynamic.hash);
    if (dynamic.gnu_hash != 0) gnu_hash_ = read_gnu_hash(pointer(dynamic.gnu_hash));
    for (const auto& [table, table_size] :
         {std::pair(dynamic.jump, dynamic.jump_size), std::pair(dynamic.rela, dynamic.rela_size)})
        if (table != 0) relocations_.push_back({pointer(table), pointer(table) + table_size});
    if (dynamic.soname && *dynamic.soname != 0 && strings_ != 0) {
        char name[kMaxSymbolName] = {};
        memory_.read_some(strings_ + *dynamic.soname, name, sizeof(name) - 1);
        soname_ = name;
    }
}

bool RemoteModule::is_named(uint64_t symbol_index, std::string_view name, uint64_t* address) const {
    auto symbol = memory_.value<Elf64_Sym>(symbols_ + symbol_index * sizeof(Elf64_Sym));
    if (!symbol || symbol->st_shndx == SHN_UNDEF || symbol->st_value == 0) return false;
    if (ELF64_ST_TYPE(symbol->st_info) == STT_TLS) return false;
    char text[kMaxSymbolName];
    if (memory_.read_some(strings_ + symbol->st_name, text, name.size() + 1) != name.size() + 1)
        return false;
    if (std::string_view(text, name.size()) != name || text[name.size()] != '\0') return false;
    *address = bias_ + symbol->st_value;
    return true;
}

std::optional<RemoteModule::GnuHash> RemoteModule::read_gnu_hash(uint64_t address) const {
    struct Header {
        uint32_t buckets, first_symbol, filter_words, filter_shift;
    };
    std::array<std::byte, kPage> bytes;
    const size_t got = memory_.read_some(address, bytes.data(), bytes.size());
    Header header;
    if (got < sizeof(header)) return std::nullopt;
    std::memcpy(&header, bytes.data(), sizeof(header));
    if (header.buckets == 0 || header.filter_words == 0) return std::nullopt;
    GnuHash table;
    table.bucket_count = header.buckets;
    table.first_symbol = header.first_symbol;
    table.filter_words = header.filter_words;
    table.filter_shift = header.filter_shift % 32;
    table.filter = address + sizeof(header);
    table.buckets = table.filter + uint64_t{header.filter_words} * sizeof(uint64_t);
    table.chains = table.buckets + uint64_t{header.buckets} * sizeof(uint32_t);
    if (table.buckets - address <= got) {
        table.kept_filter.resize(header.filter_words);
        std::memcpy(table.kept_filter.data(), bytes.data() + sizeof(header),
                    table.buckets - table.filter);
    }
    return table;
}

std::optional<uint64_t> RemoteModule::find(std::string_view name) const {
    if (symbols_ == 0 || strings_ == 0 || name.size() >= kMaxSymbolName) return std::nullopt;
    return gnu_hash_ ? find_gnu(*gnu_hash_, name) : find_sysv(name);
}

bool RemoteModule::may_define(const GnuHash& table, uint32_t hash) const {
    const uint64_t at = hash / 64 % table.filter_words;
    const auto word = table.kept_filter.empty()
                          ? memory_.value<uint64_t>(table.filter + at * sizeof(uint64_t))
                          : std::optional(table.kept_filter[at]);
    return word && (*word >> (hash % 64) & 1) && (*word >> ((hash >> table.filter_shift) % 64) & 1);
}

std::optional<uint64_t> RemoteModule::find_gnu(const GnuHash& table, std::string_view name) const {
    const uint32_t hash = gnu_hash(name);
    if (!may_define(table, hash)) return std::nullopt;
    auto index = memory_.value<uint32_t>(table.buckets + uint64_t{hash % table.bucket_count} * 4);
    if (!index || *index < table.first_symbol) return std::nullopt;
    uint64_t address = 0;
    for (uint32_t i = *index, steps = 0; steps < kMaxChain; ++i, ++steps) {
        auto chain = memory_.value<uint32_t>(table.chains + uint64_t{i - table.first_symbol} * 4);
        if (!chain) return std::nullopt;
        if ((*chain | 1) == (hash | 1) && is_named(i, name, &address)) return address;
        if (*chain & 1) break;
    }
    return std::nullopt;
}

std::optional<uint64_t> RemoteModule::find_sysv(std::string_view name) const {
    if (sysv_hash_ == 0) return std::nullopt;
    struct Header {
        uint32_t buckets, chains;
    };
    auto header = memory_.value<Header>(sysv_hash_);
    if (!header || header->buckets == 0) return std::nullopt;
    uint64_t buckets = sysv_hash_ + sizeof(Header);
    uint64_t chains = buckets + uint64_t{header->buckets} * 4;
    auto index = memory_.value<uint32_t>(buckets + uint64_t{sysv_hash(name) % header->buckets} * 4);
    uint64_t address = 0;
    for (uint32_t steps = 0; index && *index != 0 && steps < kMaxChain; ++steps) {
        if (*index >= header->chains) break;
        if (is_named(*index, name, &address)) return address;
        index = memory_.value<uint32_t>(chains + uint64_t{*index} * 4);
    }
    return std::nullopt;
}

std::optional<std::string> RemoteModule::symbol_at(const Elf64_Rela& entry) const {
    auto symbol =
        memory_.value<Elf64_Sym>(symbols_ + ELF64_R_SYM(entry.r_info) * sizeof(Elf64_Sym));
    if (!symbol) return std::nullopt;
    char name[kMaxSymbolName] = {};
    memory_.read_some(strings_ + symbol->st_name, name, sizeof(name) - 1);
    return std::string(name);
}

std::optional<std::string> RemoteModule::symbol_of_slot(uint64_t slot) const {
    std::array<Elf64_Rela, 1024> entries;
    for (const Range& range : relocations_) {
        // The size is what the target says: memory is taken for what is there.
        const uint64_t stated = (range.end - range.start) / sizeof(Elf64_Rela);
        const uint64_t count = std::min(stated, kMaxRelocations);
        for (uint64_t first = 0; first < count; first += entries.size()) {
            const uint64_t wanted = std::min<uint64_t>(count - first, entries.size());
            const size_t bytes = memory_.read_some(range.start + first * sizeof(Elf64_Rela),
                                                   entries.data(), wanted * sizeof(Elf64_Rela));
            const uint64_t got = bytes / sizeof(Elf64_Rela);
            for (uint64_t i = 0; i < got; ++i)
                if (bias_ + entries[i].r_offset == slot) return symbol_at(entries[i]);
            if (got < wanted) break;
        }
    }
    return std::nullopt;
}

Result<std::vector<RemoteModule>> load_modules(pid_t pid) {
    Result<std::vector<Mapping>> mappings = read_maps(pid);
    if (!mappings) return std::move(mappings.error());
    RemoteMemory memory(pid);
    if (!mappings->empty()) {
        char byte;
        Result<void> probe = memory.read(mappings->front().start, &byte, 1);
        if (!probe && probe.error().kind == ErrorKind::kPermission) return std::move(probe.error());
    }
    std::vector<RemoteModule> modules;
    for (size_t first = 0; first < mappings->size();) {
        const Mapping& head = (*mappings)[first];
        size_t last = first + 1;
        while (last < mappings->size() && (*mappings)[last].inode == head.inode &&
               (*mappings)[last].device == head.device && (*mappings)[last].path == head.path &&
               (*mappings)[last].file_offset != 0)
            ++last;
        RemoteModule module(memory);
        if (module.load(*mappings, first, last)) modules.push_back(std::move(module));
        first = last;
    }
    return modules;
}

} // namespace speedbump::process
