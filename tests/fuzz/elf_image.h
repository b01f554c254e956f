// SPDX-License-Identifier: MIT
#pragma once

#include <elf.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "elf/machine.h"

namespace speedbump::fuzz {

// Writes ELF files part by part; nothing in them has to be true. Addresses are offsets in the file
// as long as nobody says otherwise.
class ElfImage {
  public:
    explicit ElfImage(uint16_t type) {
        std::memcpy(header_.e_ident, ELFMAG, SELFMAG);
        header_.e_ident[EI_CLASS] = ELFCLASS64;
        header_.e_ident[EI_DATA] =
            __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;
        header_.e_ident[EI_VERSION] = EV_CURRENT;
        header_.e_version = EV_CURRENT;
        header_.e_type = type;
        header_.e_machine = elf::kMachine;
        header_.e_ehsize = sizeof header_;
        header_.e_phentsize = sizeof(Elf64_Phdr);
        header_.e_shentsize = sizeof(Elf64_Shdr);
        sections.push_back({});
        end_ = sizeof header_;
    }

    // Where add() puts what is next.
    uint64_t end_for(uint64_t alignment) const {
        return (end_ + alignment - 1) / alignment * alignment;
    }
    // Gives the offset.
    uint64_t add(std::string bytes, uint64_t alignment = 16) {
        const uint64_t offset = end_ = end_for(alignment);
        end_ += bytes.size();
        data_ += bytes.size();
        parts_.emplace_back(offset, std::move(bytes));
        return offset;
    }
    template <typename T>
    uint64_t add_table(const std::vector<T>& table) {
        return add(
            std::string(reinterpret_cast<const char*>(table.data()), table.size() * sizeof(T)));
    }
    void add_hole(uint64_t size) { end_ += size; }

    // Gives its index.
    uint32_t section(const char* name, uint32_t type, uint64_t flags, uint64_t offset,
                     uint64_t size, uint32_t link = 0) {
        Elf64_Shdr one{};
        one.sh_name = static_cast<uint32_t>(names_.size());
        one.sh_type = type;
        one.sh_flags = flags;
        one.sh_addr = one.sh_offset = offset;
        one.sh_size = size;
        one.sh_link = link;
        names_.append(name).push_back('\0');
        sections.push_back(one);
        return static_cast<uint32_t>(sections.size() - 1);
    }
    void segment(uint32_t type, uint32_t flags, uint64_t offset, uint64_t size) {
        segments.push_back({type, flags, offset, offset, offset, size, size, 1});
    }

    // To be called once, and before the image is used.
    void finish() {
        section(".shstrtab", SHT_STRTAB, 0, 0, 0);
        sections.back().sh_offset = add(names_);
        sections.back().sh_size = names_.size();
        const size_t count = sections.size();
        header_.e_shnum = static_cast<uint16_t>(count < SHN_LORESERVE ? count : 0);
        header_.e_shstrndx = static_cast<uint16_t>(count < SHN_LORESERVE ? count - 1 : SHN_XINDEX);
        if (count >= SHN_LORESERVE) {
            sections[0].sh_size = count;
            sections[0].sh_link = static_cast<uint32_t>(count - 1);
        }
        header_.e_phnum = static_cast<uint16_t>(segments.size());
        header_.e_phoff = add_table(segments);
        header_.e_shoff = add_table(sections);
        parts_.emplace_back(0,
                            std::string(reinterpret_cast<const char*>(&header_), sizeof header_));
    }

    uint64_t size() const { return end_; }
    uint64_t data_size() const { return data_ + sizeof header_; } // without holes

    void write_to(int fd) const {
        if (::ftruncate(fd, static_cast<off_t>(end_)) != 0) std::abort();
        for (const auto& [offset, bytes] : parts_)
            if (::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset)) !=
                static_cast<ssize_t>(bytes.size()))
                std::abort();
    }

    std::vector<Elf64_Phdr> segments; // for whoever wants them to lie
    std::vector<Elf64_Shdr> sections;

  private:
    Elf64_Ehdr header_{};
    std::vector<std::pair<uint64_t, std::string>> parts_; // by offset
    std::string names_ = std::string(1, '\0');
    uint64_t end_ = 0;
    uint64_t data_ = 0;
};

} // namespace speedbump::fuzz
