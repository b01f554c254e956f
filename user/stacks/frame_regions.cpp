// SPDX-License-Identifier: MIT
#include "stacks/frame_regions.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <unordered_map>

#include "util/page.h"

namespace speedbump::stacks {
namespace {

constexpr uint64_t kNear = 2048;                    // frames nearer than this are read in one piece
constexpr uint64_t kMaxRegion = 1 << 20;            // bytes
constexpr uint64_t kMaxBytes = 32 << 20;            // of all regions of a thread
constexpr size_t kMaxPages = 1024;                  // kept while frames are searched for
constexpr uint64_t kMaxAddress = uint64_t{1} << 57; // of a program (5-level page tables)

// Pages of the target, for the search for frames. What it gives is only where to look.
class Pages {
  public:
    explicit Pages(const Source& source) : source_(source) {}
    bool read(uint64_t address, char* out, size_t size) {
        while (size > 0) {
            const uint64_t page = address & ~(kPage - 1);
            if (!pages_.contains(page)) fetch(page);
            const std::string& bytes = pages_[page];
            if (bytes.empty()) return false;
            const size_t part = std::min<size_t>(size, page + kPage - address);
            std::memcpy(out, &bytes[address - page], part);
            out += part;
            address += part;
            size -= part;
        }
        return true;
    }

  private:
    // The page and those below it, where the frames of the callers are.
    void fetch(uint64_t page) {
        if (pages_.size() > kMaxPages) pages_.clear();
        std::array<Piece, 4> wanted;
        std::array<char, 4 * kPage> bytes;
        for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = piece(page - i * kPage, kPage);
        const ssize_t got = source_.gather(wanted, bytes.data());
        for (size_t i = 0; got > 0 && (i + 1) * kPage <= static_cast<size_t>(got); ++i)
            pages_[page - i * kPage].assign(&bytes[i * kPage], kPage);
    }

    const Source& source_;
    std::unordered_map<uint64_t, std::string> pages_;
};

} // namespace

RawFrame parse_frame(const Layout& layout, const char* bytes) {
    RawFrame raw;
    CopiedFrame copied{bytes};
    sb_read_frame(copied, &layout, 0, &raw.frame, &raw.previous);
    return raw;
}

void FrameRegions::clear() {
    regions_.clear();
    bytes_ = 0;
}

void FrameRegions::add_pieces(std::vector<Piece>& wanted) const {
    for (const Region& region : regions_) wanted.push_back(piece(region.low, region.size));
}

void FrameRegions::place() {
    bytes_ = 0;
    for (Region& region : regions_) {
        region.offset = bytes_;
        bytes_ += region.size;
    }
}

// Where the bytes of a frame lie among those of the regions. `hint`: the region of its callee.
std::optional<uint64_t> FrameRegions::locate(uint64_t address, uint64_t size, size_t& hint) {
    for (size_t i = 0; i < regions_.size(); ++i) {
        const size_t at = (hint + i) % regions_.size();
        Region& region = regions_[at];
        // Written so that no sum can pass the end of the numbers: `address` is the target's.
        if (address < region.low || region.size < size || address - region.low > region.size - size)
            continue;
        hint = at;
        region.used_in = turn_;
        return region.offset + (address - region.low);
    }
    return std::nullopt;
}

bool FrameRegions::parse(const Layout& layout, uint64_t innermost, const char* copy,
                         std::vector<RawFrame>& frames, uint64_t* missing) {
    frames.clear();
    size_t hint = 0;
    for (uint64_t address = innermost; address != 0;) {
        const auto offset = locate(address, layout.frame_bytes, hint);
        *missing = offset ? 0 : address;
        if (!offset || frames.size() >= kMaxFrames) return false;
        frames.push_back(parse_frame(layout, copy + *offset));
        frames.back().offset = *offset;
        address = frames.back().previous;
    }
    return true;
}

void FrameRegions::cover(uint64_t address, uint64_t size) {
    if (address > kMaxAddress || bytes_ >= kMaxBytes) return;
    const uint64_t end = address + size;
    for (Region& region : regions_) {
        const uint64_t low = std::min(region.low, address);
        const uint64_t high = std::max(region.low + region.size, end);
        if (address > region.low + region.size + kNear || end + kNear < region.low ||
            high - low > kMaxRegion)
            continue;
        bytes_ += high - low - region.size;
        region.low = low;
        region.size = high - low;
        return;
    }
    regions_.push_back({address, size, 0, turn_});
    bytes_ += size;
}

void FrameRegions::find(const Source& source, const Layout& layout, uint64_t address) {
    Pages pages(source);
    std::string bytes(layout.frame_bytes, '\0');
    for (size_t count = 0; address != 0 && count < kMaxFrames; ++count) {
        if (!pages.read(address, bytes.data(), bytes.size())) break;
        cover(address, layout.frame_bytes);
        address = parse_frame(layout, bytes.data()).previous;
    }
    place();
}

void FrameRegions::drop_waste(const Layout& layout, size_t frames) {
    constexpr unsigned kPatience = 64;
    constexpr uint64_t kUsualFrame = 160;
    ++turn_;
    // Each piece costs the kernel some 0.25 us, however short: a region for one frame that was seen
    // once (a generator's, or a left-over one) must not stay for ever. Those of many frames are
    // dear to find again, and a deep recursion soon comes back.
    const auto is_unused = [&](const Region& one) {
        return one.size == layout.frame_bytes && one.used_in + kPatience < turn_;
    };
    if (std::erase_if(regions_, is_unused) > 0) place();
    if (bytes_ <= 4 * kUsualFrame * frames + 2 * kNear) {
        wasteful_ = 0;
    } else if (++wasteful_ > kPatience) {
        wasteful_ = 0;
        clear();
    }
}

} // namespace speedbump::stacks
