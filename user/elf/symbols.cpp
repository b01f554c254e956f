// SPDX-License-Identifier: MIT
#include "elf/symbols.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "elf/code.h"
#include "elf/debug_file.h"
#include "elf/dynamic.h"
#include "elf/image.h"
#include "elf/last_above.h"
#include "elf/relocations.h"
#include "elf/symbol_tables.h"

namespace speedbump::elf {

struct ElfFile::Impl {
    std::string path;
    Image image;
    Dynamic dynamic;
    std::string soname;
    std::string build_id;
    std::vector<std::string> sources;
    std::vector<std::string> warnings;
    Names names; // of the functions
    std::vector<Function> functions;
    std::vector<uint64_t> labels;
    LastAbove ends; // of functions, by their indexes

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
    SymbolCollector collector(image);
    auto full = collector.add_sections(image, SHT_SYMTAB, path);
    if (!full) return full.error();
    if (*full) sources.push_back(".symtab");
    auto exported = collector.add_sections(image, SHT_DYNSYM, path);
    if (!exported) return exported.error();
    if (!*exported) exported = collector.add_dynamic(image, dynamic, path);
    if (!exported) return exported.error();
    if (*exported) sources.push_back(".dynsym");
    if (!*full) {
        auto add_extra = [&](const Image& extra, const char* source) {
            auto added = collector.add_sections(extra, SHT_SYMTAB, path);
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
    names = collector.take_names();
    std::vector<uint64_t> all_ends;
    all_ends.reserve(functions.size());
    for (const Function& function : functions)
        all_ends.push_back(function.address + std::max<uint64_t>(function.size, 1));
    ends = LastAbove(std::move(all_ends));
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
    const auto found = impl_->ends.find(static_cast<size_t>(after - all.begin()), *address);
    return found ? &all[*found] : nullptr;
}

Result<std::vector<unsigned char>> ElfFile::read(uint64_t offset, size_t size) const {
    return impl_->image.read(offset, size, UINT64_MAX, "data");
}

Result<std::vector<Relocation>> ElfFile::relocations() const {
    return read_relocations(impl_->image, impl_->dynamic);
}

} // namespace speedbump::elf
