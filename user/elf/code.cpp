// SPDX-License-Identifier: MIT
#include "elf/code.h"

#include <algorithm>

#include "util/page.h"
#include "util/parallel.h"

namespace speedbump::elf {
namespace {

// Bounds on what one file may make us hold: far above Chromium's own figures.
constexpr uint64_t kMaxCodeBytes = uint64_t{1} << 30;    // in memory
constexpr uint64_t kMaxAddressSpace = uint64_t{2} << 30; // with holes; what 32-bit distances reach
constexpr size_t kPartBytes = 4u << 20;                  // what a thread takes at a time
constexpr uint64_t kEdge = 17;                           // more than the longest instruction
constexpr uint64_t kGrain = 64;

uint64_t memory_for(const std::vector<Extent>& data) {
    uint64_t pages = 0;
    for (const Extent& one : data) pages += (one.end - 1) / kPage - one.begin / kPage + 1;
    return pages * kPage;
}

bool read_into(const Source& source, const Segment& segment, const std::vector<Extent>& data,
               unsigned char* to) {
    for (const Extent& one : data) {
        const auto parts =
            in_parts(one.end - one.begin, kPartBytes, [&](size_t begin, size_t end) -> size_t {
                const uint64_t offset = one.begin + begin;
                const bool ok = source.read(offset, to + (offset - segment.offset), end - begin);
                return ok ? end - begin : 0;
            });
        if (std::find(parts.begin(), parts.end(), 0u) != parts.end()) return false;
    }
    // A file that was cut short meanwhile seems to end with a hole.
    unsigned char last;
    return source.read(segment.offset + segment.file_size - 1, &last, 1);
}

} // namespace

Code::Code(const Image& image) {
    uint64_t space = kMaxAddressSpace;
    uint64_t memory = kMaxCodeBytes;
    for (const Segment& segment : image.segments()) {
        if (!segment.executable || segment.file_size == 0) continue;
        if (segment.file_size > space) {
            is_too_large_ = true;
            continue;
        }
        Part part{segment, image.source().data_in(segment.offset, segment.file_size), {}};
        const uint64_t needed = memory_for(part.data);
        if (needed > memory) {
            is_too_large_ = true;
            continue;
        }
        part.bytes = ZeroPages(segment.file_size);
        if (part.bytes.data() == nullptr) {
            is_too_large_ = true;
            continue;
        }
        if (needed < segment.file_size) part.bytes.stay_small();
        auto* to = static_cast<unsigned char*>(part.bytes.data());
        if (!read_into(image.source(), segment, part.data, to)) continue;
        space -= segment.file_size;
        memory -= needed;
        parts_.push_back(std::move(part));
    }
}

std::basic_string_view<unsigned char> Code::at(uint64_t offset, size_t size) const {
    for (const Part& part : parts_) {
        const Segment& segment = part.segment;
        if (offset < segment.offset || offset - segment.offset >= segment.file_size) continue;
        const uint64_t within = offset - segment.offset;
        return {static_cast<const unsigned char*>(part.bytes.data()) + within,
                std::min<uint64_t>(size, segment.file_size - within)};
    }
    return {};
}

std::vector<Extent> Code::data_in(const Segment& segment) const {
    for (const Part& part : parts_)
        if (part.segment.address == segment.address) return widened(part.data, segment);
    return {};
}

std::vector<Extent> widened(const std::vector<Extent>& data, const Segment& segment) {
    std::vector<Extent> wide;
    for (const Extent& one : data) {
        const uint64_t begin = one.begin - segment.offset;
        const uint64_t end = one.end - segment.offset + kEdge + kGrain - 1;
        const Extent next{(begin - std::min(begin, kEdge)) / kGrain * kGrain,
                          std::min(end / kGrain * kGrain, segment.file_size)};
        if (!wide.empty() && next.begin <= wide.back().end)
            wide.back().end = next.end;
        else
            wide.push_back(next);
    }
    return wide;
}

} // namespace speedbump::elf
