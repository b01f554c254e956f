// SPDX-License-Identifier: MIT
#include "elf/relocations.h"

#include <algorithm>
#include <cstring>

#include "elf/machine.h"

namespace speedbump::elf {
namespace {

constexpr uint64_t kMaxRelocationBytes = 256u << 20;
constexpr uint64_t kMaxRelocations = 32u << 20;
constexpr uint64_t kRelocatedBlock = 4096;
constexpr uint64_t kMaxBlocks = 1u << 20; // read for words that have no addend of their own

// Takes tables of relocations apart.
class Relocations {
  public:
    explicit Relocations(const Image& image) : image_(image) {}

    void add_rela(const std::vector<unsigned char>& bytes) {
        for (const Elf64_Rela& entry : as_table<Elf64_Rela>(bytes)) {
            found_.push_back({entry.r_offset, static_cast<uint64_t>(entry.r_addend),
                              static_cast<uint32_t>(ELF64_R_TYPE(entry.r_info))});
        }
    }
    void add_relr(const std::vector<unsigned char>& bytes) {
        block_.clear();
        block_address_ = 0;
        uint64_t next = 0;
        for (uint64_t entry : as_table<uint64_t>(bytes)) {
            if (found_.size() > kMaxRelocations) return;
            if ((entry & 1) == 0) {
                if (!add_word(entry)) return;
                next = entry + 8;
                continue;
            }
            for (unsigned bit = 1; bit < 64; ++bit)
                if ((entry >> bit & 1) != 0 && !add_word(next + (bit - 1) * 8)) return;
            next += uint64_t{63} * 8;
        }
    }
    void add(const std::vector<unsigned char>& bytes, bool is_rela) {
        if (is_rela)
            add_rela(bytes);
        else
            add_relr(bytes);
    }
    std::vector<Relocation> take() { return std::move(found_); }

  private:
    // A word whose addend is where it lies. False ends the table: such a word lies in no segment,
    // and whoever loads the file would crash, or more is to be read than of any real file.
    bool add_word(uint64_t address) {
        uint64_t value = 0;
        if (address < block_address_ || address - block_address_ + 8 > block_.size()) {
            if (!image_.is_loaded(address) || blocks_ == kMaxBlocks) return false;
            ++blocks_;
            block_.clear();
            block_address_ = address;
            // Behind what the file has of a segment there are zeros.
            if (image_.segment_of_address(address) != nullptr) {
                auto data = image_.read_address(address, kRelocatedBlock, kRelocatedBlock, "data");
                if (!data) return false;
                block_ = std::move(*data);
            }
        }
        const uint64_t within = address - block_address_;
        if (within < block_.size())
            std::memcpy(&value, block_.data() + within,
                        std::min<uint64_t>(sizeof value, block_.size() - within));
        found_.push_back({address, value, kRelativeType});
        return true;
    }

    const Image& image_;
    std::vector<Relocation> found_;
    std::vector<unsigned char> block_; // of the data that is relocated, at block_address_
    uint64_t block_address_ = 0;
    uint64_t blocks_ = 0;
};

// Those that section headers name; whether there were any.
Result<bool> add_sections(Relocations& relocations, const Image& image) {
    bool found = false;
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
        found = true;
        relocations.add(*bytes, is_rela);
    }
    return found;
}

} // namespace

Result<std::vector<Relocation>> read_relocations(const Image& image, const Dynamic& dynamic) {
    Relocations relocations(image);
    auto from_sections = add_sections(relocations, image);
    if (!from_sections) return from_sections.error();
    if (*from_sections) return relocations.take();
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
        relocations.add(*bytes, part.is_rela);
    }
    return relocations.take();
}

} // namespace speedbump::elf
