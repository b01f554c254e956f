// SPDX-License-Identifier: MIT
#include "elf/debug_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <lzma.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "util/file.h"

namespace speedbump::elf {
namespace {

constexpr uint64_t kMaxPacked = 128u << 20;
constexpr uint64_t kMaxUnpacked = 256u << 20;
constexpr uint64_t kMaxUnpackMemory = 256u << 20;
constexpr uint64_t kMaxDebugLink = 4096;
constexpr uint64_t kMaxChecksummed = uint64_t{2} << 30;

std::optional<Image> open_image(const std::string& root, const std::string& path,
                                std::vector<std::string>& warnings) {
    Fd fd = open_below(root, path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (!fd.valid()) return std::nullopt;
    auto source = make_file_source(std::move(fd), path);
    if (!source) {
        warnings.push_back(source.error().message);
        return std::nullopt;
    }
    auto image = Image::parse(std::move(*source), path, ImageRole::kDebugFile);
    if (!image) {
        warnings.push_back(image.error().message);
        return std::nullopt;
    }
    return std::move(*image);
}

// A file that consists of holes costs its maker nothing, and whoever reads it as much as any.
bool is_worth_reading(const Source& source) {
    if (source.size() > kMaxChecksummed) return false;
    uint64_t data = 0;
    for (const Extent& one : source.data_in(0, source.size())) data += one.end - one.begin;
    return data >= source.size() / 2;
}

// The CRC of the whole file as .gnu_debuglink has it; nullopt when it can't be read.
std::optional<uint32_t> checksum(const Source& source) {
    std::vector<unsigned char> buffer(1u << 20);
    uLong crc = 0;
    for (uint64_t at = 0; at < source.size();) {
        size_t count = std::min<uint64_t>(buffer.size(), source.size() - at);
        if (!source.read(at, buffer.data(), count)) return std::nullopt;
        crc = ::crc32(crc, buffer.data(), static_cast<uInt>(count));
        at += count;
    }
    return static_cast<uint32_t>(crc);
}

} // namespace

Result<std::optional<Image>> open_debugdata(const Image& image, const std::string& name) {
    const Elf64_Shdr* section = image.section(".gnu_debugdata");
    if (section == nullptr || section->sh_type == SHT_NOBITS) return std::optional<Image>{};
    auto packed = image.read(*section, kMaxPacked, ".gnu_debugdata");
    if (!packed) return packed.error();
    auto damaged = [&](const std::string& what) {
        return make_error(ErrorKind::kInvalid, fmt::format("{}: .gnu_debugdata: {}", name, what));
    };
    lzma_stream stream = LZMA_STREAM_INIT;
    if (::lzma_stream_decoder(&stream, kMaxUnpackMemory, 0) != LZMA_OK)
        return damaged("the decoder did not start");
    std::vector<unsigned char> bytes;
    stream.next_in = packed->data();
    stream.avail_in = packed->size();
    lzma_ret status = LZMA_OK;
    while (status == LZMA_OK && bytes.size() < kMaxUnpacked) {
        size_t done = bytes.size();
        bytes.resize(std::max<size_t>(done * 2, 1u << 16));
        stream.next_out = bytes.data() + done;
        stream.avail_out = bytes.size() - done;
        status = ::lzma_code(&stream, LZMA_FINISH);
        bytes.resize(bytes.size() - stream.avail_out);
    }
    ::lzma_end(&stream);
    if (status == LZMA_OK) return damaged("unpacks to more than 256 MiB");
    if (status != LZMA_STREAM_END)
        return damaged(fmt::format("does not unpack (lzma error {})", static_cast<int>(status)));
    auto inner = Image::parse(make_memory_source(std::move(bytes)), name + " (.gnu_debugdata)",
                              ImageRole::kDebugFile);
    if (!inner) return inner.error();
    return std::optional<Image>(std::move(*inner));
}

std::optional<Image> find_debug_file(const Image& image, const std::string& path,
                                     const DebugSearch& search,
                                     std::vector<std::string>& warnings) {
    std::string build_id = image.build_id();
    if (build_id.size() > 2) {
        for (const std::string& directory : search.directories) {
            std::string candidate = fmt::format("{}/.build-id/{}/{}.debug", directory,
                                                build_id.substr(0, 2), build_id.substr(2));
            auto found = open_image(search.root, candidate, warnings);
            if (!found) continue;
            if (found->build_id() == build_id) return found;
            warnings.push_back(
                fmt::format("{}: another build id than {}: not used", candidate, path));
        }
    }
    const Elf64_Shdr* section = image.section(".gnu_debuglink");
    if (section == nullptr) return std::nullopt;
    auto bytes = image.read(*section, kMaxDebugLink, ".gnu_debuglink");
    if (!bytes) {
        warnings.push_back(bytes.error().message);
        return std::nullopt;
    }
    // A file name, padding to four bytes, a CRC.
    auto end = std::find(bytes->begin(), bytes->end(), 0);
    std::string link(bytes->begin(), end);
    size_t crc_at = (link.size() + 4) & ~size_t{3};
    if (end == bytes->end() || bytes->size() < crc_at + 4 || link.empty() || link == "." ||
        link == ".." || link.find('/') != std::string::npos) {
        warnings.push_back(fmt::format("{}: damaged .gnu_debuglink", path));
        return std::nullopt;
    }
    uint32_t crc;
    std::memcpy(&crc, bytes->data() + crc_at, sizeof crc);
    std::string folder = path.substr(0, path.rfind('/') + 1);
    std::vector<std::string> candidates = {folder + link, folder + ".debug/" + link};
    for (const std::string& directory : search.directories)
        if (folder.starts_with('/')) candidates.push_back(directory + folder + link);
    for (const std::string& candidate : candidates) {
        auto found = open_image(search.root, candidate, warnings);
        if (!found) continue;
        if (!is_worth_reading(found->source())) {
            warnings.push_back(fmt::format(
                "{}: larger than 2 GiB, or mostly holes, so that its CRC is not compared "
                "with the one that {} names: not used",
                candidate, path));
            continue;
        }
        if (checksum(found->source()) == crc) return found;
        warnings.push_back(
            fmt::format("{}: its CRC is not the one that {} names: not used", candidate, path));
    }
    return std::nullopt;
}

} // namespace speedbump::elf
