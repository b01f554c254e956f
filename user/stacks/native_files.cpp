// SPDX-License-Identifier: MIT
#include "stacks/native_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "elf/demangle.h"
#include "elf/image.h"
#include "stacks/address_space.h"

namespace speedbump::stacks {

namespace {

constexpr uint64_t kMaxTableBytes = uint64_t{1} << 28; // of one table
constexpr uint64_t kMaxKeptBytes = uint64_t{1} << 30;  // of all files
constexpr double kMaxLooking = 0.005;                  // of a CPU
constexpr double kMaxLookingLost = 0.02;
constexpr std::chrono::milliseconds kFirstLooks(50); // libraries are loaded at the beginning

Fd duplicate(const Fd& fd) {
    return Fd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
}

// libdwfl maps what it reads, and a file that is cut short under a mapping would end this program
// (SIGBUS). `kept`: of all files so far; holes of a file are no holes of the copy.
Fd copy_tables_of(const elf::Image& image, uint64_t& kept) {
    Elf64_Ehdr header;
    if (!image.source().read(0, &header, sizeof(header))) return {};
    Fd copy(memfd_create("unwind-tables", MFD_CLOEXEC));
    if (!copy.valid() || ftruncate(copy.get(), static_cast<off_t>(image.size())) != 0) return {};
    const auto add = [&](uint64_t offset, uint64_t size) {
        if (size > kMaxKeptBytes - std::min(kept, kMaxKeptBytes)) return false;
        kept += size;
        const auto bytes = image.read(offset, size, kMaxTableBytes, "unwind tables");
        return bytes && pwrite(copy.get(), bytes->data(), bytes->size(),
                               static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes->size());
    };
    if (!add(0, sizeof(header)) ||
        !add(header.e_phoff, image.program_headers().size() * sizeof(Elf64_Phdr)) ||
        !add(header.e_shoff, image.sections().size() * sizeof(Elf64_Shdr)))
        return {};
    for (const char* name : {".shstrtab", ".eh_frame_hdr", ".eh_frame", ".debug_frame"}) {
        const Elf64_Shdr* section = image.section(name);
        if (section != nullptr && section->sh_type != SHT_NOBITS &&
            !add(section->sh_offset, section->sh_size))
            return {};
    }
    return copy;
}

Fd copy_own_vdso(uint64_t size) {
    const VdsoPlace own = find_vdso(getpid());
    Fd file(memfd_create("vdso", MFD_CLOEXEC));
    if (!file.valid() || own.end - own.start != size) return {};
    const auto* bytes = reinterpret_cast<const char*>(own.start); // NOLINT: where the kernel put it
    if (write(file.get(), bytes, size) != static_cast<ssize_t>(size)) return {};
    return file;
}

// The interpreter's loop, or (since 3.14, with compilers that can) what it hops through.
bool is_loop(const elf::Function& function) {
    return std::any_of(function.names.begin(), function.names.end(), [](std::string_view name) {
        return name == "_PyEval_EvalFrameDefault" || name.starts_with("_TAIL_CALL_");
    });
}

} // namespace

NativeFile::NativeFile(std::string path, Fd fd, bool is_copy, std::shared_ptr<uint64_t> kept)
    : path_(std::move(path)), fd_(std::move(fd)), is_copy_(is_copy), kept_(std::move(kept)) {
    if (fd_.valid() && fstat(fd_.get(), &status_) != 0) status_ = {};
}

NativeFile::~NativeFile() {
    *kept_ -= own_kept_;
}

bool NativeFile::is_as_opened() const {
    struct stat now {};
    if (is_copy_) return true;
    return fd_.valid() && fstat(fd_.get(), &now) == 0 && now.st_size == status_.st_size &&
           now.st_ctim.tv_sec == status_.st_ctim.tv_sec &&
           now.st_ctim.tv_nsec == status_.st_ctim.tv_nsec;
}

void NativeFile::copy_tables() {
    were_copied_ = true;
    if (!fd_.valid()) return;
    const auto source = elf::make_file_source(duplicate(fd_), path_);
    if (!source) return;
    const auto image = elf::Image::parse(*source, path_, elf::ImageRole::kProgram);
    if (!image) return;
    segments_ = image->segments();
    const uint64_t before = *kept_;
    tables_ = is_copy_ ? duplicate(fd_) : copy_tables_of(*image, *kept_);
    if (!tables_.valid()) *kept_ = before; // what there was of them is gone
    own_kept_ = *kept_ - before;
}

Fd NativeFile::unwind_tables() {
    if (!were_copied_) copy_tables();
    return tables_.valid() ? duplicate(tables_) : Fd();
}

std::optional<uint64_t> NativeFile::bias_of(uint64_t start, uint64_t file_offset) {
    if (!were_copied_) copy_tables();
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    for (const elf::Segment& one : segments_)
        if (one.executable && file_offset >= one.offset / page * page &&
            file_offset < one.offset + one.file_size)
            return start - file_offset + one.offset - one.address;
    return std::nullopt;
}

const NativeFunction* NativeFile::function_at(uint64_t file_offset, pid_t pid) {
    if (!was_opened_) {
        was_opened_ = true;
        if (fd_.valid()) {
            auto opened = elf::ElfFile::open(
                fd_.get(), path_,
                {"/proc/" + std::to_string(pid) + "/root", elf::DebugSearch{}.directories});
            if (opened) {
                symbols_ = std::move(*opened);
                const auto& functions = symbols_->functions();
                has_loop_ = std::any_of(functions.begin(), functions.end(), is_loop);
            }
        }
    }
    const elf::Function* function = symbols_ ? symbols_->function_at_offset(file_offset) : nullptr;
    if (function == nullptr) {
        if (unnamed_ == nullptr) {
            functions_.push_back({path_, "", 0, has_loop_, false});
            unnamed_ = &functions_.back();
        }
        return unnamed_;
    }
    auto [entry, is_new] = by_symbol_.try_emplace(function, nullptr);
    if (is_new) {
        const std::string symbol(function->names.front());
        const std::string demangled = elf::demangle(symbol).without_signature;
        functions_.push_back({path_, demangled.empty() ? symbol : demangled, function->file_offset,
                              has_loop_, is_loop(*function)});
        entry->second = &functions_.back();
    }
    return entry->second;
}

std::shared_ptr<NativeFile> NativeFiles::file_of(pid_t pid, const process::Mapping& mapping) {
    std::string path = process::path_within(process::root_of(pid), mapping.path);
    auto opened = process::open_mapped_file(pid, mapping);
    struct stat status = {};
    if (opened && fstat(opened->get(), &status) != 0) status = {};
    std::weak_ptr<NativeFile>& known = files_[{mapping.device, mapping.inode, path, status.st_size,
                                               status.st_ctim.tv_sec, status.st_ctim.tv_nsec}];
    auto file = known.lock();
    if (file) return file;
    file = std::make_shared<NativeFile>(std::move(path), opened ? std::move(*opened) : Fd(), false,
                                        kept_);
    known = file;
    if (files_.size() > clean_at_) {
        std::erase_if(files_, [](const auto& one) { return one.second.expired(); });
        clean_at_ = 2 * files_.size() + 64;
    }
    return file;
}

Result<std::shared_ptr<AddressSpace>> NativeFiles::space_of(pid_t pid, const MappedCode& code) {
    if (const auto known = spaces_.find(code.key); known != spaces_.end()) {
        auto space = known->second.lock();
        if (space && space->is_unchanged()) return space;
    }
    std::erase_if(spaces_, [](const auto& one) { return one.second.expired(); });
    auto space = AddressSpace::open(pid, code, *this);
    if (space) spaces_[code.key] = *space;
    return space;
}

std::shared_ptr<NativeFile> NativeFiles::vdso(uint64_t size) {
    auto [entry, is_new] = vdso_.try_emplace(size, nullptr);
    if (is_new)
        entry->second = std::make_shared<NativeFile>(kVdso, copy_own_vdso(size), true, kept_);
    return entry->second;
}

bool NativeFiles::may_look(bool is_lost) const {
    const double share = is_lost ? kMaxLookingLost : kMaxLooking;
    const double first = is_lost ? ns(kFirstLooks) : 0;
    return ns(looking_) <= first + share * ns(Clock::now() - start_);
}

} // namespace speedbump::stacks
