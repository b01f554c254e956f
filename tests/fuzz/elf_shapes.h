// SPDX-License-Identifier: MIT
#pragma once

#include <elf.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "elf_code.h"
#include "elf_frames.h"
#include "elf_image.h"
#include "mangled_names.h"
#include "mutator.h"

namespace speedbump::fuzz {

// ELF files that have much of one thing, drawn at random, or of several: functions within
// functions, relocations, notes, unwind tables, segments, sections, tables of jumps.
class ShapedElf {
  public:
    // What is told of it begins with `told`.
    ShapedElf(const Random& random, std::string told)
        : random_(random),
          image_(one_in(4) ? ET_EXEC : ET_DYN),
          much_(random_.next() & random_.next() & random_.next()),
          told_(std::move(told)) {
        much_ |= uint64_t{1} << random_.below(kShapes);
    }

    // `links` are names of debug files.
    ElfImage make(const std::vector<std::string>& links) {
        code();
        data();
        if (is_there(kFunctions, 1)) functions();
        if (is_there(kRelocations, 2)) relocations();
        if (is_there(kNotes, 3)) notes();
        if (is_there(kFrames, 2)) frames();
        if (is_there(kSections, 4)) sections();
        if (is_there(kMarks, 4)) marks();
        if (one_in(3)) debug_link(links);
        if (is_there(kSegments, 4)) segments(); // behind all the others
        if (one_in(4)) lie();
        image_.finish();
        return std::move(image_);
    }
    const std::string& told() const { return told_; }

  private:
    enum Shape {
        kCode,
        kFunctions,
        kRelocations,
        kNotes,
        kFrames,
        kSections,
        kMarks,
        kSegments,
        kShapes
    };

    bool one_in(size_t count) { return random_.below(count) == 0; }
    bool is_much(Shape shape) const { return (much_ >> shape & 1) != 0; }
    bool is_there(Shape shape, size_t seldom) { return is_much(shape) || one_in(seldom); }
    // How many of them: a few, or up to `most`, about a power of two.
    size_t many(Shape shape, size_t most, const char* what) {
        const size_t bits = static_cast<size_t>(std::bit_width(most)) - 1;
        const size_t power =
            is_much(shape) ? bits / 2 + random_.below(bits - bits / 2 + 1) : random_.below(7);
        const size_t count = std::min(most, (size_t{1} << power) + random_.below(3));
        told_ += " " + std::to_string(count) + " " + what;
        return count;
    }
    uint64_t place(uint64_t begin, uint64_t size) { return begin + random_.next() % (size + 1); }
    // A place that may lead anywhere.
    uint64_t evil() {
        switch (random_.below(5)) {
            case 0:
                return random_.next() >> random_.below(64);
            case 1:
                return UINT64_MAX - random_.below(64);
            case 2:
                return text_ + text_size_ - random_.below(32);
            default:
                return place(0, image_.size());
        }
    }

    void code() {
        const size_t size = many(kCode, 1u << 20, "bytes of code");
        std::string text = make_code(random_, size);
        text_size_ = text.size();
        text_ = image_.add(std::move(text), 4096);
        if (one_in(16) || (is_much(kFunctions) && one_in(2))) { // or room for them
            const uint64_t hole = random_.next() >> (31 + random_.below(30));
            told_ += " hole of " + std::to_string(hole);
            image_.add_hole(hole);
            text_size_ += hole;
        }
        image_.segment(PT_LOAD, PF_R | PF_X, text_, text_size_);
        code_section_ =
            image_.section(".text", SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, text_, text_size_);
    }

    // Tables of distances; and the same with a lot of memory behind it that is in no file.
    void data() {
        const size_t count = many(kCode, 1u << 17, "words of data");
        std::vector<int32_t> words(count);
        // From wherever in here to the middle of the code, and a bit further.
        const uint64_t back = image_.size() - (text_ + text_size_ / 2);
        const bool is_far = one_in(4);
        for (int32_t& word : words)
            word = static_cast<int32_t>(random_.below(64)) -
                   static_cast<int32_t>(is_far ? back + random_.below(back) : back);
        data_size_ = words.size() * sizeof words[0];
        data_ = image_.add_table(words);
        image_.segment(PT_LOAD, PF_R | PF_W, data_, data_size_);
        image_.segment(PT_LOAD, PF_R | PF_W, data_, data_size_);
        image_.segments.back().p_vaddr = memory_ = uint64_t{1} << 50;
        image_.segments.back().p_memsz += uint64_t{1} << random_.below(60);
        memory_size_ = image_.segments.back().p_memsz;
    }

    std::string name_of(size_t style, size_t index) {
        switch (style) {
            case 0:
                return "f" + std::to_string(index);
            case 1:
            case 2:
                return make_name(random_);
            default:
                return std::string(1 + random_.below(64), 'n');
        }
    }

    // Its address and size, of so many.
    void put(Elf64_Sym& symbol, size_t style, size_t index, size_t step) {
        const uint64_t within = index * step % std::max<uint64_t>(text_size_, 1);
        symbol.st_value = text_ + within;
        symbol.st_size = step;
        if (style == 1) symbol.st_size = text_size_ - within; // all of them end together
        if (style == 2) symbol.st_size = text_size_ - std::min(2 * within, text_size_);
        if (style == 3) symbol.st_value = text_;
        if (style == 4) symbol.st_size = evil();
        if (style == 5) symbol.st_value = place(text_, text_size_);
        if (style == 5 || style == 6) symbol.st_size = place(0, text_size_);
    }

    void functions() {
        const size_t count = many(kFunctions, 1u << 17, "functions,");
        const size_t style = random_.below(7);
        const size_t names = random_.below(4);
        const size_t distinct = one_in(2) ? 1 : count;
        const size_t step = 1 + random_.below(one_in(2) ? 2 : 1 + 2 * text_size_ / count);
        told_ += " of style " + std::to_string(style) + ", names " + std::to_string(names);
        std::string strings(1, '\0');
        std::vector<Elf64_Sym> symbols(1);
        for (size_t i = 0; i < count; ++i) {
            Elf64_Sym one{};
            const size_t type = one_in(8) ? STT_NOTYPE : STT_FUNC;
            one.st_info = static_cast<unsigned char>(ELF64_ST_INFO(random_.below(3), type));
            one.st_shndx = static_cast<uint16_t>(code_section_);
            put(one, style, i, step);
            one.st_name = static_cast<uint32_t>(strings.size());
            if (i < distinct && strings.size() < kMaxStrings)
                strings += name_of(names, i) + '\0';
            else // the end of another's, or all of it
                one.st_name =
                    names == 3 ? static_cast<uint32_t>(1 + random_.below(strings.size() - 1)) : 1;
            symbols.push_back(one);
        }
        symbols_ = symbols.size();
        const uint64_t text = image_.add(strings);
        const uint32_t link = image_.section(".strtab", SHT_STRTAB, 0, text, strings.size());
        const uint64_t table = image_.add_table(symbols);
        const bool is_dynamic = one_in(3);
        if (!one_in(8))
            image_.section(is_dynamic ? ".dynsym" : ".symtab", is_dynamic ? SHT_DYNSYM : SHT_SYMTAB,
                           0, table, symbols.size() * sizeof symbols[0], link);
    }

    void relocations() {
        const size_t count = many(kRelocations, 1u << 19, "relocations,");
        const size_t style = random_.below(6);
        told_ += " of style " + std::to_string(style);
        std::vector<uint64_t> words(count);
        const uint64_t start = one_in(3) ? data_ : one_in(2) ? memory_ : evil();
        for (size_t i = 0; i < count; ++i) {
            uint64_t& word = words[i];
            switch (style) {
                case 0: // each stands for 63
                    word = i == 0 ? start & ~uint64_t{1} : UINT64_MAX;
                    break;
                case 1:
                    word = (random_.next() & random_.next()) | 1;
                    break;
                case 2: // somewhere else each time
                    word = memory_ + i * 4096 % memory_size_;
                    break;
                case 3:
                    word = place(memory_, memory_size_) & ~uint64_t{1};
                    break;
                case 4:
                    word = start & ~uint64_t{1};
                    break;
                default:
                    word = evil();
            }
        }
        const uint64_t table = image_.add_table(words);
        for (size_t tables = 1 + random_.below(3); tables > 0; --tables)
            image_.section(".relr.dyn", one_in(6) ? SHT_RELA : SHT_RELR, SHF_ALLOC, table,
                           words.size() * sizeof words[0]);
    }

    // Headers of the same notes, none of which tells a build.
    void notes() {
        const size_t words = many(kNotes, 1u << 18, "words of notes");
        std::vector<uint32_t> content(words);
        if (one_in(3))
            for (uint32_t& word : content)
                word = one_in(4) ? static_cast<uint32_t>(random_.next() >> random_.below(64)) : 4;
        const uint64_t offset = image_.add_table(content);
        if (one_in(2)) {
            for (size_t count = many(kNotes, 1u << 13, "segments of them"); count > 0; --count)
                image_.segment(PT_NOTE, PF_R, offset, words * 4);
        } else {
            for (size_t count = many(kNotes, 1u << 17, "sections of them"); count > 0; --count)
                image_.section(".note", SHT_NOTE, 0, offset, words * 4);
        }
    }

    void frames() {
        const size_t sites = many(kFrames, 1u << 16, "call sites");
        const uint64_t reach = one_in(2) ? text_size_ : 64;
        const std::string pads = exception_table(random_, sites, reach);
        const uint64_t tables = image_.add(pads);
        image_.segment(PT_LOAD, PF_R, tables, pads.size());
        const size_t count = many(kFrames, 1u << 17, "frames,");
        FrameShape shape{text_,
                         text_size_,
                         tables,
                         count,
                         1 + random_.below(1 + 2 * text_size_ / count),
                         random_.below(4)};
        told_ += " of style " + std::to_string(shape.style);
        const uint64_t begin = image_.end_for(16);
        const UnwindTables unwind = unwind_tables(random_, shape, begin);
        image_.add(unwind.frames);
        image_.section(".eh_frame", SHT_PROGBITS, SHF_ALLOC, begin, unwind.frames.size());
        image_.segment(PT_LOAD, PF_R, begin, unwind.frames.size());
        const std::string sorted = index_of(random_, unwind, begin, image_.end_for(16));
        const uint64_t header = image_.add(sorted);
        image_.segment(PT_GNU_EH_FRAME, PF_R, header, sorted.size());
        image_.segment(PT_LOAD, PF_R, header, sorted.size());
    }

    void sections() {
        static constexpr std::array<const char*, 4> kNames = {".text", ".debug_x", "", "__rseq_c"};
        const char* name = kNames[random_.below(kNames.size())];
        const uint32_t type = one_in(2) ? SHT_PROGBITS : SHT_GNU_versym;
        for (size_t count = many(kSections, 1u << 17, "sections"); count > 0; --count)
            image_.section(name, type, one_in(2) ? SHF_ALLOC : 0, text_, text_size_,
                           static_cast<uint32_t>(random_.below(8)));
    }

    // USDT.
    void marks() {
        const size_t count = many(kMarks, 1u << 15, "marks");
        std::string bytes;
        for (size_t i = 0; i < count; ++i) {
            append(bytes, 8, 4);
            append(bytes, 24 + 8, 4);
            append(bytes, 3, 4);
            bytes += std::string("stapsdt", 8);
            append(bytes, place(text_, text_size_), 8);
            append(bytes, one_in(2) ? 1 : evil(), 8);
            append(bytes, one_in(2) ? 0 : place(data_, data_size_), 8);
            bytes += std::string("p\0name\0", 7) + '\0';
        }
        image_.section(".note.stapsdt", SHT_NOTE, 0, image_.add(bytes), bytes.size());
    }

    void debug_link(const std::vector<std::string>& links) {
        std::string bytes = links[random_.below(links.size())];
        told_ += " link to " + bytes;
        bytes.resize((bytes.size() + 4) & ~size_t{3});
        append(bytes, random_.next(), 4);
        image_.section(".gnu_debuglink", SHT_PROGBITS, 0, image_.add(bytes), bytes.size());
    }

    // All of the same bytes of the file, one after the other in memory.
    void segments() {
        const size_t count = many(kSegments, 16'000, "segments");
        const uint32_t flags = PF_R | (one_in(2) ? PF_X : PF_W);
        const uint64_t size = std::min<uint64_t>(text_size_, 1 + random_.below(4096));
        const uint64_t first = text_ + (one_in(4) ? text_size_ - size : 0);
        uint64_t address = one_in(2) ? image_.size() + (1u << 24) : uint64_t{1} << 48;
        for (size_t i = 0; i < count; ++i) {
            image_.segment(PT_LOAD, flags, first, size);
            image_.segments.back().p_vaddr = address;
            address += size + random_.below(2) * 64;
        }
    }

    // One number of a header is what it likes.
    void lie() {
        told_ += " and a lie";
        const bool of_section = one_in(2) && image_.sections.size() > 1;
        uint64_t* field;
        if (of_section) {
            Elf64_Shdr& one = image_.sections[random_.below(image_.sections.size())];
            field = one_in(2) ? &one.sh_size : one_in(2) ? &one.sh_offset : &one.sh_addr;
        } else {
            Elf64_Phdr& one = image_.segments[random_.below(image_.segments.size())];
            field = one_in(2) ? &one.p_memsz : one_in(2) ? &one.p_filesz : &one.p_vaddr;
        }
        *field = one_in(2) ? evil() : *field + random_.below(16) - 8;
    }

    static constexpr size_t kMaxStrings = 4u << 20;

    Random random_;
    ElfImage image_;
    uint64_t much_; // a bit for each shape
    std::string told_;
    uint64_t text_ = 0, text_size_ = 0, data_ = 0, data_size_ = 0;
    uint64_t memory_ = 0, memory_size_ = 0;
    uint32_t code_section_ = 0;
    size_t symbols_ = 0;
};

} // namespace speedbump::fuzz
