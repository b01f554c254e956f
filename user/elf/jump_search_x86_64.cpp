// SPDX-License-Identifier: MIT
#include "elf/jump_search_x86_64.h"

#include <emmintrin.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <optional>

#include "elf/data_reader.h"
#include "elf/pages.h"
#include "util/parallel.h"

namespace speedbump::elf {
namespace {

constexpr uint64_t kMaxTableEntries = 1u << 16;
// How far around an address that code with an indirect jump computes its table may lie.
constexpr uint64_t kTableBefore = 64 * 4;
constexpr uint64_t kTableBehind = 1024 * 4;
// A file made to keep us reading tables forever ends here, and with it the moving of probes.
constexpr uint64_t kTableBudget = 64u << 20;
constexpr size_t kMaxFindings = 16u << 20;
constexpr uint64_t kMaxCodeSpan = uint64_t{2} << 30; // what 32-bit distances reach
constexpr uint64_t kMaxDataBytes = uint64_t{2} << 30;
constexpr size_t kBlock = 1u << 20;
// What a thread takes at a time.
constexpr size_t kPartBytes = 4u << 20;
constexpr size_t kPartTables = 4u << 10;
constexpr const char* kJump = "something may jump past its first instruction";
constexpr const char* kPointer = "a pointer in the file's data leads past it";
constexpr const char* kTooMany = "the file has too many jump tables to be searched";

int32_t read_i32(const unsigned char* at) {
    int32_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

class JumpSearch {
  public:
    JumpSearch(const ElfFile& file, std::span<Stretch> stretches)
        : file_(file), stretches_(stretches) {}

    void run() {
        mark_ranges();
        find_symbols();
        for (const Segment& segment : file_.segments())
            if (segment.executable) scan_code(segment);
        read_tables();
        read_pointers();
        judge_indirect_jumps();
    }

  private:
    // Marks in a bitmap, a bit for each byte of code, where nothing may jump to.
    void mark_ranges() {
        for (const Segment& segment : file_.segments()) {
            if (!segment.executable) continue;
            code_.push_back(segment);
            low_ = std::min(low_, segment.address);
            high_ = std::max(high_, segment.address + segment.file_size);
        }
        // Segments far apart (a file made for it) would make this bitmap too large.
        if (high_ - low_ > kMaxCodeSpan) {
            stop_moving("the executable segments lie too far apart to be searched");
            return;
        }
        words_ = (high_ - low_) / 64 + 1;
        pages_ = ZeroPages(words_ * sizeof(uint64_t));
        bits_ = static_cast<uint64_t*>(pages_.data());
        if (bits_ == nullptr) {
            words_ = 0;
            stop_moving("there is no memory to search the code of the file");
            return;
        }
        pages_.stay_small();
        for (const Stretch& one : stretches_) {
            for (uint64_t at = one.entry + 1; at < one.watched_end; ++at)
                bits_[(at - low_) / 64] |= uint64_t{1} << ((at - low_) % 64);
        }
    }

    bool is_marked(uint64_t address) const {
        uint64_t bit = address - low_;
        return bit < words_ * 64 && (bits_[bit / 64] >> (bit % 64) & 1) != 0;
    }

    void stop_moving(const char* obstacle) {
        for (Stretch& one : stretches_) {
            one.first_target = one.entry;
            one.obstacle = obstacle;
        }
    }

    // As a Jump.
    void add_target(uint64_t target, uint64_t from, const char* obstacle) {
        auto after = std::upper_bound(
            stretches_.begin(), stretches_.end(), target,
            [](uint64_t value, const Stretch& other) { return value < other.entry; });
        // Stretches may overlap when functions do: every one that holds the target is concerned.
        while (after != stretches_.begin()) {
            Stretch& one = *--after;
            if (target - one.entry > kLongestStretch) break;
            if (target == one.entry) continue;
            // The stretch's own bytes are executed as they were decoded, unless something jumps in
            // between; and that is found by itself. So of them only the branches count.
            if (from >= one.entry && from < one.end &&
                !std::binary_search(one.branches.begin(), one.branches.end(), from))
                continue;
            if (target < one.first_target) {
                one.first_target = target;
                one.obstacle = obstacle;
            }
        }
    }

    void find_symbols() {
        constexpr const char* kObstacle = "another symbol lies after its first instruction";
        for (const Function& function : file_.functions())
            if (is_marked(function.address)) add_target(function.address, 0, kObstacle);
        for (uint64_t label : file_.labels())
            if (is_marked(label)) add_target(label, 0, kObstacle);
    }

    struct Lea {
        uint64_t at;
        uint64_t target;
    };
    // Something at `from` (0: no code) leads to the marked address `target`.
    struct Jump {
        uint64_t target;
        uint64_t from;
    };
    // What one thread found in its part.
    struct Found {
        std::vector<Jump> jumps;
        std::vector<Lea> leas;
        std::vector<uint64_t> register_jumps;
        uint64_t entries = 0; // of tables
        size_t counted = 0;   // of what was found, in findings_
        bool too_many = false;
    };

    // Sees to it that what all threads hold stays below what a file may cost.
    void count(Found& found) const {
        constexpr size_t kStep = 1024; // else they would write to one place all the time
        const size_t size = found.jumps.size() + found.leas.size() + found.register_jumps.size();
        if (size - found.counted < kStep) return;
        findings_ += size - found.counted;
        found.counted = size;
        found.too_many = findings_ > kMaxFindings;
    }

    // Looks at every byte position as if an instruction began there: what is found too much only
    // costs a better site, and nothing that is encoded in the file can be missed.
    void scan_code(const Segment& segment) {
        Bytes code = file_.code_at(segment.offset, segment.file_size);
        if (code.size() != segment.file_size) {
            stop_moving("the code of the file could not be read as a whole");
            return;
        }
        const std::vector<Extent> data = file_.data_in(segment);
        for (const Extent& one : data) {
            auto parts = in_parts(one.end - one.begin, kPartBytes, [&](size_t begin, size_t end) {
                return look_for_jumps(segment, code, {one.begin + begin, one.begin + end});
            });
            for (Found& found : parts)
                if (!keep(std::move(found))) return;
        }
        for (const Stretch& one : stretches_) look_for_short_jumps(segment, code, one);
        if (file_.is_position_independent()) return;
        // Code at fixed addresses may hold them as they are: mov $label,%eax.
        for (const Extent& one : data) {
            for (size_t at = one.begin; at < one.end && at + 4 <= code.size(); ++at) {
                uint64_t value = static_cast<uint32_t>(read_i32(code.data() + at));
                if (is_marked(value)) add_target(value, 0, kJump);
            }
        }
    }

    // False: there are too many.
    bool keep(Found found) {
        for (const Jump& jump : found.jumps) add_target(jump.target, jump.from, kJump);
        leas_.insert(leas_.end(), found.leas.begin(), found.leas.end());
        register_jumps_.insert(register_jumps_.end(), found.register_jumps.begin(),
                               found.register_jumps.end());
        if (!found.too_many) return true;
        stop_moving(kTooMany);
        return false;
    }

    // No instruction that is looked for begins with a zero, so that holes have none.
    Found look_for_jumps(const Segment& segment, Bytes code, const Extent& data) const {
        Found found;
        size_t at = data.begin;
        for (; at < data.end && at + 17 <= code.size(); at += 16) {
            for (unsigned mask = interesting(code.data() + at); mask != 0; mask &= mask - 1)
                look_at_position(segment, code, at + std::countr_zero(mask), found);
            count(found);
            if (found.too_many) return found;
        }
        for (; at < data.end; ++at) look_at_position(segment, code, at, found);
        return found;
    }

    // Of 16 positions (17 bytes are read) a bit for each at which look_at_position has work.
    static unsigned interesting(const unsigned char* bytes) {
        __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
        __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + 1));
        auto is = [](__m128i value, unsigned byte) {
            return _mm_cmpeq_epi8(value, _mm_set1_epi8(static_cast<char>(byte)));
        };
        auto masked = [](__m128i value, unsigned bits) {
            return _mm_and_si128(value, _mm_set1_epi8(static_cast<char>(bits)));
        };
        __m128i call = is(masked(first, 0xfe), 0xe8);
        __m128i condition = _mm_and_si128(is(first, 0x0f), is(masked(second, 0xf0), 0x80));
        __m128i lea = _mm_and_si128(is(first, 0x8d), is(masked(second, 0xc7), 0x05));
        __m128i jump = _mm_and_si128(is(first, 0xff), is(masked(second, 0xf8), 0xe0));
        __m128i xbegin = _mm_and_si128(is(first, 0xc7), is(second, 0xf8));
        __m128i any = _mm_or_si128(_mm_or_si128(call, condition),
                                   _mm_or_si128(_mm_or_si128(lea, jump), xbegin));
        return static_cast<unsigned>(_mm_movemask_epi8(any));
    }

    // jmp and call rel32, jcc rel32, xbegin, lea disp(%rip), jmp *%reg.
    void look_at_position(const Segment& segment, Bytes code, size_t at, Found& found) const {
        const unsigned char* bytes = code.data() + at;
        const size_t room = code.size() - at;
        const uint64_t here = segment.address + at;
        if (room >= 5 && (bytes[0] & 0xfe) == 0xe8) {
            uint64_t target = here + 5 + read_i32(bytes + 1);
            if (is_marked(target)) found.jumps.push_back({target, here});
            return;
        }
        if (room >= 2 && bytes[0] == 0xff && (bytes[1] & 0xf8) == 0xe0) {
            found.register_jumps.push_back(here);
            return;
        }
        if (room < 6) return;
        const uint64_t target = here + 6 + read_i32(bytes + 2);
        if ((bytes[0] == 0x0f && (bytes[1] & 0xf0) == 0x80) ||
            (bytes[0] == 0xc7 && bytes[1] == 0xf8)) {
            if (is_marked(target)) found.jumps.push_back({target, here});
        } else if (bytes[0] == 0x8d && (bytes[1] & 0xc7) == 0x05) {
            found.leas.push_back({here, target});
        }
    }

    // jmp rel8, jcc rel8, loop and jrcxz: they reach no further than 129 bytes.
    void look_for_short_jumps(const Segment& segment, Bytes code, const Stretch& one) {
        constexpr uint64_t kReach = 129;
        const uint64_t segment_end = segment.address + code.size();
        uint64_t from = std::max(segment.address, one.entry - std::min(one.entry, kReach));
        uint64_t to = std::min(segment_end, one.watched_end + kReach);
        for (uint64_t here = from; here + 2 <= to; ++here) {
            const unsigned char* bytes = code.data() + (here - segment.address);
            bool is_short =
                (bytes[0] & 0xf0) == 0x70 || (bytes[0] & 0xfc) == 0xe0 || bytes[0] == 0xeb;
            if (!is_short) continue;
            uint64_t target = here + 2 + static_cast<int8_t>(bytes[1]);
            if (is_marked(target)) add_target(target, here, kJump);
        }
    }

    // Reads what every lea of the file points to as if it were a jump table of distances from its
    // own start, as long as its entries lead into code.
    void read_tables() {
        std::vector<uint64_t> tables;
        tables.reserve(leas_.size());
        for (const Lea& lea : leas_) tables.push_back(lea.target);
        std::sort(tables.begin(), tables.end());
        tables.erase(std::unique(tables.begin(), tables.end()), tables.end());
        const auto parts = in_parts(tables.size(), kPartTables, [&](size_t begin, size_t end) {
            return read_tables_of(std::span(tables).subspan(begin, end - begin));
        });
        for (const Found& found : parts) {
            for (const Jump& jump : found.jumps)
                add_target(jump.target, jump.from, "a jump table leads past it");
            if (found.too_many || found.entries >= table_budget_) {
                stop_moving(kTooMany);
                table_budget_ = 0;
                return;
            }
            table_budget_ -= found.entries;
        }
    }

    Found read_tables_of(std::span<const uint64_t> tables) const {
        DataReader reader(file_, kBlock);
        Found found;
        for (const uint64_t table : tables) {
            const uint64_t end = table + kMaxTableEntries * 4;
            for (uint64_t at = table; at < end;) {
                const Bytes words = reader.from(at, 4);
                const uint64_t count = std::min<uint64_t>(words.size(), end - at) / 4;
                const uint64_t read = read_entries(words.substr(0, count * 4), table, found);
                if (found.too_many) return found;
                if (count == 0 || read < count) break;
                at += count * 4;
            }
        }
        return found;
    }

    // Returns how many of the words are distances from the table's start to code, up to the first
    // that is none.
    uint64_t read_entries(Bytes words, uint64_t table, Found& found) const {
        uint64_t entries = 0;
        for (; entries < words.size() / 4; ++entries) {
            const uint64_t target = table + read_i32(words.data() + entries * 4);
            if (target - low_ >= high_ - low_ || !is_code(target)) break;
            if (is_marked(target)) found.jumps.push_back({target, 0});
        }
        found.entries += entries;
        count(found);
        found.too_many = found.too_many || found.entries >= table_budget_;
        return entries;
    }

    bool is_code(uint64_t address) const {
        return std::any_of(code_.begin(), code_.end(), [address](const Segment& segment) {
            return address - segment.address < segment.file_size;
        });
    }

    // Addresses in the data of the file: in relocations, or, at fixed addresses, as they are.
    void read_pointers() {
        auto relocations = file_.relocations();
        if (!relocations) {
            stop_moving("the relocations of the file could not be read");
            return;
        }
        for (const Relocation& relocation : *relocations)
            if (is_marked(relocation.addend)) add_target(relocation.addend, 0, kPointer);
        if (file_.is_position_independent()) return;
        uint64_t room = kMaxDataBytes;
        for (const Segment& segment : file_.segments()) {
            if (segment.executable) continue;
            for (const Extent& data : file_.data_in(segment)) {
                if (data.end - data.begin > room) {
                    stop_moving("the file has more data than is searched for pointers");
                    return;
                }
                room -= data.end - data.begin;
                if (!read_pointers_of(segment, data)) return;
            }
        }
    }

    bool read_pointers_of(const Segment& segment, const Extent& data) {
        for (uint64_t at = data.begin; at < data.end; at += kBlock - 8) {
            size_t size = std::min<uint64_t>(kBlock, data.end - at);
            auto bytes = file_.read(segment.offset + at, size);
            if (!bytes) {
                stop_moving("the data of the file could not be read");
                return false;
            }
            for (size_t i = 0; i + 4 <= size; ++i) {
                uint64_t value = static_cast<uint32_t>(read_i32(bytes->data() + i));
                if (i + 8 <= size && high_ > UINT32_MAX)
                    std::memcpy(&value, bytes->data() + i, sizeof value);
                if (is_marked(value)) add_target(value, 0, kPointer);
            }
        }
        return true;
    }

    // A function that jumps through a register: only when every place it could compute is known.
    // Jumps through memory need no look: they take addresses, and those were all found.
    void judge_indirect_jumps() {
        std::vector<uint64_t> taken;
        for (const Lea& lea : leas_)
            if (is_code(lea.target)) taken.push_back(lea.target);
        std::sort(taken.begin(), taken.end());
        DataReader reader(file_, kTableBefore + kTableBehind);
        for (Stretch& one : stretches_) {
            if (one.first_target == one.entry) continue;
            auto refuse = [&one](const char* obstacle) {
                one.first_target = one.entry;
                one.obstacle = obstacle;
            };
            auto inside = std::upper_bound(taken.begin(), taken.end(), one.entry);
            if (inside != taken.end() && *inside < one.function_end) {
                refuse("the address of code inside the function is taken");
                continue;
            }
            if (!jumps_through_register(one)) continue;
            bool has_table = false;
            bool hit = false;
            auto lea =
                std::lower_bound(leas_.begin(), leas_.end(), one.entry,
                                 [](const Lea& other, uint64_t value) { return other.at < value; });
            for (; lea != leas_.end() && lea->at < one.function_end; ++lea) {
                const uint64_t words = (kTableBefore + kTableBehind) / 4;
                if (table_budget_ < words) {
                    stop_moving(kTooMany);
                    return;
                }
                table_budget_ -= words;
                hit = hit || may_lead_into(reader, lea->target, one);
                const Bytes first = reader.from(lea->target, 4);
                has_table = has_table ||
                            (first.size() >= 4 && is_code(lea->target + read_i32(first.data())));
            }
            if (!has_table)
                refuse("the function jumps through a register to where is not known");
            else if (hit)
                refuse("a jump table of the function may lead past it");
        }
    }

    // Whether a distance from `table`, near it, leads past the entry up to the site.
    bool may_lead_into(DataReader& reader, uint64_t table, const Stretch& stretch) const {
        const uint64_t begin = table - std::min(table, kTableBefore);
        for (const Segment& segment : file_.segments()) {
            const uint64_t end =
                std::min(table + kTableBehind, segment.address + segment.file_size);
            uint64_t at = begin;
            if (at < segment.address) at += (segment.address - at + 3) / 4 * 4;
            while (at < end) { // in pieces where segments overlap
                const Bytes words = reader.from(at, end - at).substr(0, end - at);
                if (words.size() < 4) break;
                if (has_distance(words, table, stretch)) return true;
                at += words.size() / 4 * 4;
            }
        }
        return false;
    }

    static bool has_distance(Bytes words, uint64_t table, const Stretch& stretch) {
        const auto first = static_cast<int64_t>(stretch.entry + 1 - table);
        const auto span = static_cast<uint32_t>(stretch.watched_end - stretch.entry - 1);
        if (first > INT32_MAX || first + int64_t{span} <= INT32_MIN) return false; // out of reach
        bool found = false;
        for (size_t i = 0; i + 4 <= words.size();
             i += 4) // without a way out: compilers make it wide
            found |=
                static_cast<uint32_t>(read_i32(words.data() + i)) - static_cast<uint32_t>(first) <
                span;
        return found;
    }

    bool jumps_through_register(const Stretch& one) const {
        auto jump = std::lower_bound(register_jumps_.begin(), register_jumps_.end(), one.entry);
        return jump != register_jumps_.end() && *jump < one.function_end;
    }

    const ElfFile& file_;
    std::span<Stretch> stretches_; // by entry
    std::vector<Segment> code_;    // those that are executable
    uint64_t low_ = UINT64_MAX;
    uint64_t high_ = 0;
    // Bits of [low_, high_); of holes of the file, and of code that is not marked, they take no
    // memory.
    ZeroPages pages_;
    uint64_t* bits_ = nullptr;
    uint64_t words_ = 0;
    std::vector<Lea> leas_;                // by place: segments are scanned in order
    std::vector<uint64_t> register_jumps_; // ascending
    uint64_t table_budget_ = kTableBudget;
    mutable std::atomic<size_t> findings_{0};
};

} // namespace

void find_jumps_into(const ElfFile& file, std::span<Stretch> stretches) {
    JumpSearch(file, stretches).run();
}

} // namespace speedbump::elf
