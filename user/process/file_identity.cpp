// SPDX-License-Identifier: MIT
#include "process/file_identity.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <vector>

#include "elf/dynamic.h"
#include "elf/image.h"
#include "process/maps.h"

namespace speedbump::process {

bool FileBelow::is_that_of(const FileBelow& other) const {
    return (is_overlaid || other.is_overlaid) && number == other.number && size == other.size &&
           changed_s == other.changed_s && changed_ns == other.changed_ns;
}

FileBelow file_below(int descriptor) {
    struct statfs file_system {};
    struct stat status {};
    if (::fstatfs(descriptor, &file_system) != 0 || ::fstat(descriptor, &status) != 0) return {};
    return {file_system.f_type == OVERLAYFS_SUPER_MAGIC, static_cast<uint32_t>(status.st_ino),
            status.st_size, status.st_ctim.tv_sec, status.st_ctim.tv_nsec};
}

std::string read_link(const std::string& path) {
    std::array<char, PATH_MAX> buffer;
    const ssize_t length = ::readlink(path.c_str(), buffer.data(), buffer.size());
    return length < 0 ? std::string() : std::string(buffer.data(), static_cast<size_t>(length));
}

std::string path_of_descriptor(const Fd& fd) {
    return read_link(fmt::format("/proc/self/fd/{}", fd.get()));
}

Result<FileKey> mapped_key(const Fd& fd, const std::string& path) {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    void* const start = ::mmap(nullptr, page, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (start == MAP_FAILED) return errno_error("map " + path, errno);
    Result<std::vector<Mapping>> maps = read_maps(::getpid());
    ::munmap(start, page);
    if (!maps) return std::move(maps).error();
    const auto address = reinterpret_cast<uintptr_t>(start);
    for (const Mapping& mapping : *maps) {
        if (address >= mapping.start && address < mapping.end) {
            return FileKey{mapping.device, mapping.inode};
        }
    }
    return make_error(ErrorKind::kIo, path + ": its mapping is not listed");
}

std::string read_soname(const Fd& fd, const std::string& path) {
    Fd own(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
    if (!own.valid()) return {};
    auto source = elf::make_file_source(std::move(own), path);
    if (!source) return {};
    auto image = elf::Image::parse(std::move(*source), path, elf::ImageRole::kProgram);
    return image ? elf::read_soname(*image, elf::read_dynamic(*image)) : std::string();
}

} // namespace speedbump::process
