// SPDX-License-Identifier: MIT
#include "elf/symbols.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_set>

#include "elf/code.h"
#include "elf/debug_file.h"
#include "elf/image.h"

namespace speedbump::elf {
namespace {

// Bounds on what one file may make us hold: far above Chromium's own figures.
constexpr uint64_t kMaxSymbolBytes = 256u << 20;
constexpr uint64_t kMaxStringBytes = 512u << 20;
constexpr uint64_t kMaxNameBytes = 64u << 10;
constexpr uint64_t kMaxRelocationBytes = 256u << 20;
constexpr uint64_t kMaxRelocations = 32u << 20;
constexpr uint64_t kMaxHashBytes = 256u << 20;
constexpr uint64_t kRelocatedBlock = 4096;

#if defined(__x86_64__)
constexpr uint32_t kRelativeType = R_X86_64_RELATIVE;
#elif defined(__aarch64__)
constexpr uint32_t kRelativeType = R_AARCH64_RELATIVE;
#else
constexpr uint32_t kRelativeType = 0;
#endif

// One symbol that may become a function. The name points into a string table that is kept.
struct Candidate {
    uint64_t address;
    uint64_t size;
    std::string_view name;
    uint8_t rank; // of the name among its aliases; lower is better
    bool typed;   // FUNC or GNU_IFUNC
    bool is_ifunc;
    bool is_label; // only to be known of, no function
};

// One symbol table with what belongs to it.
struct Table {
    std::vector<Elf64_Sym> symbols;
    const std::vector<unsigned char>* strings = nullptr; // ends with NUL
    std::vector<uint32_t> extended_sections;             // SHT_SYMTAB_SHNDX, or empty
    std::vector<uint16_t> versions;                      // SHT_GNU_versym, or empty
    bool is_dynamic = false;
};

constexpr uint16_t kHiddenVersion = 0x8000;

uint8_t rank_of(const Elf64_Sym& symbol, bool default_version, std::string_view name) {
    unsigned rank = default_version ? 0 : 16;
    unsigned binding = ELF64_ST_BIND(symbol.st_info);
    rank += binding == STB_GLOBAL || binding == STB_GNU_UNIQUE ? 0 : binding == STB_WEAK ? 2 : 4;
    if (name.starts_with('_') && !name.starts_with("_Z") && !name.starts_with("_R")) rank += 1;
    return static_cast<uint8_t>(rank);
}

// "f.cold", "f.cold.1": the unlikely part of a function, which its other part jumps to.
bool is_cold_part(std::string_view name) {
    size_t at = name.rfind(".cold");
    if (at == std::string_view::npos || at == 0) return false;
    name.remove_prefix(at + 5);
    return name.empty() || name.front() == '.';
}

// Gathers candidates of all tables; owns the string tables that their names point into.
class Collector {
  public:
    explicit Collector(const Image& program) : program_(program) {}

    const std::vector<unsigned char>* keep(std::vector<unsigned char> strings) {
        strings.push_back(0);
        strings_.push_back(std::make_unique<std::vector<unsigned char>>(std::move(strings)));
        return strings_.back().get();
    }

    // `sections` belong to the file the table is from, whose addresses are the program's.
    Result<void> add(const Table& table, const std::vector<Elf64_Shdr>& sections,
                     const std::string& name) {
        // Names may overlap; without a bound a small file could make us look for ends forever.
        uint64_t budget = (uint64_t{64} << 20) + 64 * table.strings->size();
        for (size_t i = 1; i < table.symbols.size(); ++i) {
            const Elf64_Sym& symbol = table.symbols[i];
            unsigned type = ELF64_ST_TYPE(symbol.st_info);
            bool typed = type == STT_FUNC || type == STT_GNU_IFUNC;
            if (!typed && type != STT_NOTYPE) continue;
            if (symbol.st_shndx == SHN_UNDEF) continue;
            uint32_t index = symbol.st_shndx;
            if (index == SHN_XINDEX && i < table.extended_sections.size())
                index = table.extended_sections[i];
            else if (index >= SHN_LORESERVE)
                continue;
            // A table from PT_DYNAMIC may come without sections: then only segments tell.
            const Elf64_Shdr* section = index < sections.size() ? &sections[index] : nullptr;
            if (section != nullptr && (section->sh_flags & SHF_EXECINSTR) == 0) continue;
            if (!typed && (section == nullptr || symbol.st_value < section->sh_addr ||
                           symbol.st_value - section->sh_addr >= section->sh_size))
                continue;
            const Segment* segment = program_.segment_of_address(symbol.st_value);
            if (segment == nullptr || !segment->executable) continue;
            if (symbol.st_name >= table.strings->size()) {
                if (!typed) continue;
                return make_error(ErrorKind::kInvalid,
                                  fmt::format("{}: damaged ELF file: a symbol's name lies behind "
                                              "the end of its string table",
                                              name));
            }
            const char* text =
                reinterpret_cast<const char*>(table.strings->data()) + symbol.st_name;
            size_t room = table.strings->size() - symbol.st_name;
            size_t length = ::strnlen(text, std::min<size_t>(room, kMaxNameBytes));
            if (length > budget)
                return make_error(
                    ErrorKind::kInvalid,
                    fmt::format("{}: damaged ELF file: overlapping symbol names", name));
            budget -= length;
            std::string_view symbol_name(text, length);
            bool default_version =
                i >= table.versions.size() || (table.versions[i] & kHiddenVersion) == 0;
            if (size_t at = symbol_name.find('@', 1);
                !table.is_dynamic && at != std::string_view::npos) {
                default_version = symbol_name.substr(at).starts_with("@@");
                symbol_name = symbol_name.substr(0, at);
            }
            bool is_label = length == 0 || length == kMaxNameBytes || is_cold_part(symbol_name) ||
                            (!typed && (ELF64_ST_BIND(symbol.st_info) == STB_LOCAL ||
                                        symbol_name.starts_with('$')));
            candidates_.push_back({symbol.st_value, symbol.st_size, symbol_name,
                                   rank_of(symbol, default_version, symbol_name), typed,
                                   type == STT_GNU_IFUNC, is_label});
        }
        return {};
    }

    // Folds everything into functions by address; what is left over goes to `labels`.
    std::vector<Function> fold(std::vector<uint64_t>& labels) {
        std::stable_sort(
            candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
                return a.address != b.address ? a.address < b.address : a.rank < b.rank;
            });
        std::vector<Function> functions;
        uint64_t covered = 0; // end of the typed functions so far
        for (size_t i = 0; i < candidates_.size();) {
            size_t end = i;
            Function function;
            function.address = candidates_[i].address;
            bool typed = false;
            std::unordered_set<std::string_view> seen;
            for (; end < candidates_.size() && candidates_[end].address == function.address;
                 ++end) {
                const Candidate& candidate = candidates_[end];
                if (candidate.is_label) continue;
                typed = typed || candidate.typed;
                function.is_ifunc = function.is_ifunc || candidate.is_ifunc;
                function.size = std::max(function.size, candidate.size);
                bool is_new = function.names.size() < 8
                                  ? std::find(function.names.begin(), function.names.end(),
                                              candidate.name) == function.names.end()
                                  : true;
                if (function.names.size() >= 8) {
                    if (seen.empty()) seen.insert(function.names.begin(), function.names.end());
                    is_new = seen.insert(candidate.name).second;
                }
                if (is_new) function.names.push_back(candidate.name);
            }
            i = end;
            if (function.names.empty() || (!typed && function.address < covered)) {
                labels.push_back(function.address);
                continue;
            }
            const Segment* segment = program_.segment_of_address(function.address);
            uint64_t within = function.address - segment->address;
            function.file_offset = segment->offset + within;
            function.size = std::min(function.size, segment->file_size - within);
            function.is_typed = typed;
            if (typed) covered = std::max(covered, function.address + function.size);
            functions.push_back(std::move(function));
        }
        return functions;
    }

    std::vector<std::unique_ptr<std::vector<unsigned char>>> take_strings() {
        return std::move(strings_);
    }

  private:
    const Image& program_;
    std::vector<Candidate> candidates_;
    std::vector<std::unique_ptr<std::vector<unsigned char>>> strings_;
};

// Adds the symbol tables of this type that the section headers name; whether there was one.
Result<bool> add_sections(Collector& collector, const Image& image, uint32_t type,
                          const std::string& name) {
    const std::vector<Elf64_Shdr>& sections = image.sections();
    bool found = false;
    for (size_t i = 0; i < sections.size(); ++i) {
        const Elf64_Shdr& section = sections[i];
        // There is one of each type in a linked file; more are a way to make us read for long.
        if (section.sh_type != type || section.sh_size == 0 || found) continue;
        if (section.sh_link >= sections.size() || (sections[section.sh_link].sh_type != SHT_STRTAB))
            return make_error(
                ErrorKind::kInvalid,
                fmt::format("{}: damaged ELF file: a symbol table without strings", name));
        auto symbols = image.read(section, kMaxSymbolBytes, "the symbol table");
        if (!symbols) return symbols.error();
        auto strings = image.read(sections[section.sh_link], kMaxStringBytes, "the symbols' names");
        if (!strings) return strings.error();
        Table table;
        table.symbols = as_table<Elf64_Sym>(*symbols);
        table.strings = collector.keep(std::move(*strings));
        table.is_dynamic = type == SHT_DYNSYM;
        for (const Elf64_Shdr& other : sections) {
            if (other.sh_link != i) continue;
            bool is_index = other.sh_type == SHT_SYMTAB_SHNDX && table.extended_sections.empty();
            bool is_version = other.sh_type == SHT_GNU_versym && table.versions.empty();
            if (!is_index && !is_version) continue;
            auto bytes = image.read(other, kMaxSymbolBytes, "a table beside the symbols");
            if (!bytes) return bytes.error();
            if (is_index) table.extended_sections = as_table<uint32_t>(*bytes);
            if (is_version) table.versions = as_table<uint16_t>(*bytes);
        }
        if (auto done = collector.add(table, sections, name); !done) return done.error();
        found = true;
    }
    return found;
}

// How many dynamic symbols there are: nothing in PT_DYNAMIC says so but the hash tables.
uint64_t dynamic_symbol_count(const Image& image, uint64_t hash, uint64_t gnu_hash) {
    if (hash != 0) {
        uint32_t words[2];
        auto bytes = image.read_address(hash, sizeof words, sizeof words, "DT_HASH");
        if (bytes && bytes->size() == sizeof words) {
            std::memcpy(words, bytes->data(), sizeof words);
            return words[1];
        }
    }
    if (gnu_hash == 0) return 0;
    uint32_t header[4]; // buckets, first symbol, bloom words, bloom shift
    auto bytes = image.read_address(gnu_hash, sizeof header, sizeof header, "DT_GNU_HASH");
    if (!bytes || bytes->size() != sizeof header) return 0;
    std::memcpy(header, bytes->data(), sizeof header);
    uint64_t buckets_at = gnu_hash + sizeof header + uint64_t{header[2]} * 8;
    auto buckets =
        image.read_address(buckets_at, uint64_t{header[0]} * 4, kMaxHashBytes, "DT_GNU_HASH");
    if (!buckets) return 0;
    uint64_t last = 0;
    for (uint32_t first : as_table<uint32_t>(*buckets)) last = std::max<uint64_t>(last, first);
    if (last < header[1]) return header[1];
    // The chain of the last bucket ends with the last symbol; its final entry has bit 0 set.
    uint64_t chains_at = buckets_at + uint64_t{header[0]} * 4;
    const Segment* segment = image.segment_of_address(gnu_hash);
    uint64_t chain_at = chains_at + (last - header[1]) * 4;
    if (chain_at < segment->address || chain_at - segment->address >= segment->file_size) return 0;
    auto chain = image.read_address(chain_at, std::min<uint64_t>(segment->file_size, 4u << 20),
                                    kMaxHashBytes, "DT_GNU_HASH");
    if (!chain) return 0;
    for (uint32_t value : as_table<uint32_t>(*chain)) {
        ++last;
        if ((value & 1) != 0) return last;
    }
    return 0;
}

struct Dynamic {
    uint64_t symbols = 0, strings = 0, strings_size = 0, versions = 0, hash = 0, gnu_hash = 0;
    uint64_t rela = 0, rela_size = 0, jump = 0, jump_size = 0, relr = 0, relr_size = 0;
    std::optional<uint64_t> soname;
};

Dynamic read_dynamic(const Image& image) {
    Dynamic dynamic;
    for (const Elf64_Dyn& entry : image.dynamic()) {
        uint64_t value = entry.d_un.d_val;
        switch (entry.d_tag) {
            case DT_SYMTAB:
                dynamic.symbols = value;
                break;
            case DT_STRTAB:
                dynamic.strings = value;
                break;
            case DT_STRSZ:
                dynamic.strings_size = value;
                break;
            case DT_VERSYM:
                dynamic.versions = value;
                break;
            case DT_HASH:
                dynamic.hash = value;
                break;
            case DT_GNU_HASH:
                dynamic.gnu_hash = value;
                break;
            case DT_RELA:
                dynamic.rela = value;
                break;
            case DT_RELASZ:
                dynamic.rela_size = value;
                break;
            case DT_JMPREL:
                dynamic.jump = value;
                break;
            case DT_PLTRELSZ:
                dynamic.jump_size = value;
                break;
            case DT_RELR:
                dynamic.relr = value;
                break;
            case DT_RELRSZ:
                dynamic.relr_size = value;
                break;
            case DT_SONAME:
                dynamic.soname = value;
                break;
            default:
                break;
        }
    }
    return dynamic;
}

// Adds the dynamic symbols of a file without section headers; whether there were any.
Result<bool> add_dynamic(Collector& collector, const Image& image, const Dynamic& dynamic,
                         const std::string& name) {
    if (dynamic.symbols == 0 || dynamic.strings == 0) return false;
    uint64_t count = dynamic_symbol_count(image, dynamic.hash, dynamic.gnu_hash);
    if (count == 0) return false;
    auto symbols = image.read_address(dynamic.symbols, count * sizeof(Elf64_Sym), kMaxSymbolBytes,
                                      "DT_SYMTAB");
    if (!symbols) return symbols.error();
    auto strings =
        image.read_address(dynamic.strings, dynamic.strings_size, kMaxStringBytes, "DT_STRTAB");
    if (!strings) return strings.error();
    Table table;
    table.symbols = as_table<Elf64_Sym>(*symbols);
    table.strings = collector.keep(std::move(*strings));
    table.is_dynamic = true;
    if (dynamic.versions != 0) {
        auto versions =
            image.read_address(dynamic.versions, count * 2, kMaxSymbolBytes, "DT_VERSYM");
        if (!versions) return versions.error();
        table.versions = as_table<uint16_t>(*versions);
    }
    if (auto done = collector.add(table, {}, name); !done) return done.error();
    return true;
}

std::string read_soname(const Image& image, const Dynamic& dynamic) {
    if (!dynamic.soname || *dynamic.soname >= dynamic.strings_size) return {};
    auto bytes = image.read_address(
        dynamic.strings + *dynamic.soname,
        std::min<uint64_t>(dynamic.strings_size - *dynamic.soname, 4096), 4096, "DT_SONAME");
    if (!bytes) return {};
    auto end = std::find(bytes->begin(), bytes->end(), 0);
    return end == bytes->end() ? std::string() : std::string(bytes->begin(), end);
}

} // namespace

struct ElfFile::Impl {
    std::string path;
    Image image;
    Dynamic dynamic;
    std::string soname;
    std::string build_id;
    std::vector<std::string> sources;
    std::vector<std::string> warnings;
    std::vector<std::unique_ptr<std::vector<unsigned char>>> strings;
    std::vector<Function> functions;
    std::vector<uint64_t> labels;
    std::vector<uint64_t> furthest_end; // of functions[0..i]

    mutable std::once_flag code_once;
    mutable Code code; // read when it is first asked for

    mutable std::once_flag frames_once;
    mutable std::vector<std::pair<uint64_t, uint64_t>> frames; // Image::frames()

    Result<void> read_symbols(const DebugSearch& debug);
    const Code& read_code() const {
        std::call_once(code_once, [this] { code = Code(image); });
        return code;
    }
};

Result<void> ElfFile::Impl::read_symbols(const DebugSearch& debug) {
    Collector collector(image);
    auto full = add_sections(collector, image, SHT_SYMTAB, path);
    if (!full) return full.error();
    if (*full) sources.push_back(".symtab");
    auto exported = add_sections(collector, image, SHT_DYNSYM, path);
    if (!exported) return exported.error();
    if (!*exported) exported = add_dynamic(collector, image, dynamic, path);
    if (!exported) return exported.error();
    if (*exported) sources.push_back(".dynsym");
    if (!*full) {
        auto add_extra = [&](const Image& extra, const char* source) {
            auto added = add_sections(collector, extra, SHT_SYMTAB, path);
            if (!added) warnings.push_back(added.error().message);
            if (!added || !*added) return false;
            sources.push_back(source);
            return true;
        };
        auto separate = find_debug_file(image, path, debug, warnings);
        if (!separate || !add_extra(*separate, "debug-file")) {
            auto packed = open_debugdata(image, path);
            if (!packed) warnings.push_back(packed.error().message);
            if (packed && *packed) add_extra(**packed, ".gnu_debugdata");
        }
    }
    functions = collector.fold(labels);
    strings = collector.take_strings();
    uint64_t end = 0;
    furthest_end.reserve(functions.size());
    for (const Function& function : functions) {
        end = std::max(end, function.address + std::max<uint64_t>(function.size, 1));
        furthest_end.push_back(end);
    }
    return {};
}

ElfFile::ElfFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ElfFile::~ElfFile() = default;

Result<std::shared_ptr<const ElfFile>> ElfFile::open(int fd, std::string display_path,
                                                     const DebugSearch& debug) {
    Fd own(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    if (!own.valid()) return errno_error(fmt::format("duplicate {}", display_path), errno);
    auto source = make_file_source(std::move(own), display_path);
    if (!source) return source.error();
    auto image = Image::parse(std::move(*source), display_path, ImageRole::kProgram);
    if (!image) return image.error();
    auto impl = std::make_unique<Impl>();
    impl->path = std::move(display_path);
    impl->image = std::move(*image);
    impl->dynamic = read_dynamic(impl->image);
    impl->soname = read_soname(impl->image, impl->dynamic);
    impl->build_id = impl->image.build_id();
    if (auto done = impl->read_symbols(debug); !done) return done.error();
    return std::shared_ptr<const ElfFile>(new ElfFile(std::move(impl)));
}

const std::string& ElfFile::path() const {
    return impl_->path;
}
const std::string& ElfFile::soname() const {
    return impl_->soname;
}
const std::string& ElfFile::build_id() const {
    return impl_->build_id;
}
bool ElfFile::is_position_independent() const {
    return impl_->image.is_position_independent();
}
const std::vector<std::string>& ElfFile::symbol_sources() const {
    return impl_->sources;
}
const std::vector<std::string>& ElfFile::warnings() const {
    return impl_->warnings;
}
const std::vector<Function>& ElfFile::functions() const {
    return impl_->functions;
}
const std::vector<uint64_t>& ElfFile::labels() const {
    return impl_->labels;
}
const std::vector<Segment>& ElfFile::segments() const {
    return impl_->image.segments();
}

std::optional<uint64_t> ElfFile::frame_end(uint64_t address) const {
    std::call_once(impl_->frames_once, [this] { impl_->frames = impl_->image.frames(); });
    auto found = std::lower_bound(impl_->frames.begin(), impl_->frames.end(),
                                  std::pair<uint64_t, uint64_t>(address, 0));
    if (found == impl_->frames.end() || found->first != address) return std::nullopt;
    return impl_->image.frame_end(found->second, address);
}

bool ElfFile::has_section(const std::string& name) const {
    return impl_->image.section(name) != nullptr;
}

std::optional<uint64_t> ElfFile::offset_of_address(uint64_t address) const {
    return impl_->image.offset_of_address(address);
}

std::optional<uint64_t> ElfFile::address_of_offset(uint64_t offset) const {
    const Segment* best = nullptr;
    // Two segments may share bytes of the file; code is what offsets are asked for.
    for (const Segment& segment : segments()) {
        if (offset < segment.offset || offset - segment.offset >= segment.file_size) continue;
        if (best == nullptr || (segment.executable && !best->executable)) best = &segment;
    }
    if (best == nullptr) return std::nullopt;
    return best->address + (offset - best->offset);
}

std::basic_string_view<unsigned char> ElfFile::code_at(uint64_t offset, size_t size) const {
    return impl_->read_code().at(offset, size);
}

const char* ElfFile::why_no_code(uint64_t offset) const {
    const bool is_code =
        std::any_of(segments().begin(), segments().end(), [offset](const Segment& segment) {
            return segment.executable && offset >= segment.offset &&
                   offset - segment.offset < segment.file_size;
        });
    if (!is_code) return "the file holds no code at this offset";
    return impl_->read_code().is_too_large()
               ? "the file has more code than is read (1 GiB, with holes 2 GiB)"
               : "its code could not be read";
}

std::vector<Extent> ElfFile::data_in(const Segment& segment) const {
    if (segment.executable) return impl_->read_code().data_in(segment);
    return widened(impl_->image.source().data_in(segment.offset, segment.file_size), segment);
}

const Function* ElfFile::function_at_offset(uint64_t offset) const {
    std::optional<uint64_t> address = address_of_offset(offset);
    if (!address) return nullptr;
    const std::vector<Function>& all = impl_->functions;
    auto after = std::upper_bound(
        all.begin(), all.end(), *address,
        [](uint64_t value, const Function& function) { return value < function.address; });
    for (size_t i = static_cast<size_t>(after - all.begin()); i-- > 0;) {
        if (impl_->furthest_end[i] <= *address) return nullptr;
        if (*address - all[i].address < std::max<uint64_t>(all[i].size, 1)) return &all[i];
    }
    return nullptr;
}

Result<std::vector<unsigned char>> ElfFile::read(uint64_t offset, size_t size) const {
    return impl_->image.read(offset, size, UINT64_MAX, "data");
}

Result<std::vector<Relocation>> ElfFile::relocations() const {
    const Image& image = impl_->image;
    std::vector<Relocation> relocations;
    auto add_rela = [&](const std::vector<unsigned char>& bytes) {
        for (const Elf64_Rela& entry : as_table<Elf64_Rela>(bytes)) {
            relocations.push_back({entry.r_offset, static_cast<uint64_t>(entry.r_addend),
                                   static_cast<uint32_t>(ELF64_R_TYPE(entry.r_info))});
        }
    };
    auto add_relr = [&](const std::vector<unsigned char>& bytes) {
        uint64_t next = 0;
        std::vector<unsigned char> block; // of the data that is relocated, at block_address
        uint64_t block_address = 0;
        auto add = [&](uint64_t address) {
            uint64_t value = 0;
            if (address < block_address || address - block_address + 8 > block.size()) {
                auto data = image.read_address(address, kRelocatedBlock, kRelocatedBlock, "data");
                block = data ? std::move(*data) : std::vector<unsigned char>();
                block_address = address;
            }
            if (block.size() < 8) return;
            std::memcpy(&value, block.data() + (address - block_address), sizeof value);
            relocations.push_back({address, value, kRelativeType});
        };
        for (uint64_t entry : as_table<uint64_t>(bytes)) {
            if (relocations.size() > kMaxRelocations) return;
            if ((entry & 1) == 0) {
                add(entry);
                next = entry + 8;
                continue;
            }
            for (unsigned bit = 1; bit < 64; ++bit)
                if ((entry >> bit & 1) != 0) add(next + (bit - 1) * 8);
            next += uint64_t{63} * 8;
        }
    };
    bool from_sections = false;
    uint64_t room = kMaxRelocationBytes;
    for (const Elf64_Shdr& section : image.sections()) {
        bool is_rela = section.sh_type == SHT_RELA;
        // Relocations kept for other tools (ld --emit-relocs) are not loaded; their addresses
        // are offsets or were applied by the linker.
        if ((!is_rela && section.sh_type != SHT_RELR) || (section.sh_flags & SHF_ALLOC) == 0)
            continue;
        auto bytes = image.read(section, room, "relocations");
        if (!bytes) return bytes.error();
        room -= bytes->size();
        from_sections = true;
        if (is_rela)
            add_rela(*bytes);
        else
            add_relr(*bytes);
    }
    if (from_sections) return relocations;
    const Dynamic& dynamic = impl_->dynamic;
    struct Part {
        uint64_t address, size;
        bool is_rela;
    };
    for (const Part& part :
         {Part{dynamic.rela, dynamic.rela_size, true}, Part{dynamic.jump, dynamic.jump_size, true},
          Part{dynamic.relr, dynamic.relr_size, false}}) {
        if (part.size == 0) continue;
        auto bytes =
            image.read_address(part.address, part.size, kMaxRelocationBytes, "relocations");
        if (!bytes) return bytes.error();
        if (part.is_rela)
            add_rela(*bytes);
        else
            add_relr(*bytes);
    }
    return relocations;
}

} // namespace speedbump::elf
