// SPDX-License-Identifier: MIT
#include "stacks/code.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "stacks/walk.h"

namespace speedbump::stacks {
namespace {

constexpr uint64_t kMaxText = 64 * 1024; // characters of a name
constexpr uint64_t kMaxLines = 4 << 20;  // bytes of a line table
constexpr size_t kMaxForgotten = 1024;
constexpr uint64_t kMuch = 64 << 20;          // bytes of code objects
constexpr uint64_t kTooMuch = 3 * kMuch;      // at once
constexpr uint64_t kMaxNameBytes = 128 << 20; // of all functions
constexpr uint64_t kOverhead = 256;           // of one, at least

void append_utf8(std::string& text, uint32_t code) {
    if (code >= 0xd800 && code < 0xe000) code = 0xfffd;
    if (code > 0x10ffff) code = 0xfffd;
    if (code < 0x80) {
        text += static_cast<char>(code);
    } else if (code < 0x800) {
        text += static_cast<char>(0xc0 | code >> 6);
        text += static_cast<char>(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        text += static_cast<char>(0xe0 | code >> 12);
        text += static_cast<char>(0x80 | (code >> 6 & 0x3f));
        text += static_cast<char>(0x80 | (code & 0x3f));
    } else {
        text += static_cast<char>(0xf0 | code >> 18);
        text += static_cast<char>(0x80 | (code >> 12 & 0x3f));
        text += static_cast<char>(0x80 | (code >> 6 & 0x3f));
        text += static_cast<char>(0x80 | (code & 0x3f));
    }
}

// A str of the target: its text, and the memory from its length to its last character.
struct Text {
    std::string utf8;
    Piece piece;
    std::string bytes;
};

std::optional<Text> read_text(const Source& source, const Layout& layout, uint64_t address) {
    std::string header(layout.text_ascii_data, '\0');
    if (!source.read(address, header.data(), header.size())) return std::nullopt;
    const uint64_t length = load_at<uint64_t>(&header[layout.text_length]);
    const uint32_t state =
        load_at<uint32_t>(&header[layout.text_state]) >> layout.text_kind_shift();
    const uint32_t kind = state & 7;
    const bool is_compact = state & 8;
    const bool is_ascii = state & 16;
    if (!is_compact || (kind != 1 && kind != 2 && kind != 4) || length > kMaxText)
        return std::nullopt;
    const uint64_t data = is_ascii ? layout.text_ascii_data : layout.text_data;
    Text text;
    text.bytes.resize(data + length * kind - layout.text_length);
    text.piece = piece(address + layout.text_length, text.bytes.size());
    if (!source.read(address + layout.text_length, text.bytes.data(), text.bytes.size()))
        return std::nullopt;
    if (load_at<uint64_t>(text.bytes.data()) != length) return std::nullopt;
    const char* characters = text.bytes.data() + (data - layout.text_length);
    for (uint64_t i = 0; i < length; ++i) {
        const char* at = characters + i * kind;
        append_utf8(text.utf8, kind == 1   ? load_at<uint8_t>(at)
                               : kind == 2 ? load_at<uint16_t>(at)
                                           : load_at<uint32_t>(at));
    }
    return text;
}

// Takes a line table apart byte by byte; what is cut off reads as 0.
class TableReader {
  public:
    explicit TableReader(const std::string& bytes) : bytes_(bytes) {}
    bool at_end() const { return at_ >= bytes_.size(); }
    uint8_t byte() { return at_end() ? 0 : static_cast<uint8_t>(bytes_[at_++]); }
    uint64_t varint() {
        uint64_t value = 0;
        for (unsigned shift = 0; shift < 63; shift += 6) {
            const uint8_t next = byte();
            value |= uint64_t{next & 63U} << shift;
            if (!(next & 64)) break;
        }
        return value;
    }
    int64_t signed_varint() {
        const uint64_t value = varint();
        const auto magnitude = static_cast<int64_t>(value >> 1);
        return value & 1 ? -magnitude : magnitude;
    }

  private:
    const std::string& bytes_;
    size_t at_ = 0;
};

} // namespace

uint64_t Code::offset_of(uint64_t ip, int32_t bytecode_copy) const {
    if (bytecode_ == 0) return ip * 2;
    if (bytecode_copy != 0) {
        const auto copy = copies_.find(bytecode_copy);
        return copy == copies_.end() ? UINT64_MAX : ip - copy->second;
    }
    return ip - bytecode_;
}

bool Code::contains(uint64_t ip, int32_t bytecode_copy) const {
    // Before the first instruction: one before the start (3.10 to 3.12).
    return offset_of(ip, bytecode_copy) + 2 < bytecode_size_ + 2;
}

int Code::line_at(uint64_t ip, int32_t bytecode_copy) const {
    uint64_t offset = offset_of(ip, bytecode_copy);
    if (offset >= bytecode_size_) offset = 0;
    const auto span =
        std::upper_bound(lines_.begin(), lines_.end(), offset,
                         [](uint64_t at, const LineSpan& one) { return at < one.end; });
    return span == lines_.end() ? 0 : span->line;
}

Code* CodeTable::find(uint64_t address) {
    const auto found = by_address_.find(address);
    return found == by_address_.end() ? nullptr : found->second.get();
}

bool CodeTable::may_load() const {
    return bytes_ < kTooMuch && name_bytes_ < kMaxNameBytes;
}

bool CodeTable::is_full() const {
    return forgotten_.size() > kMaxForgotten || bytes_ > kMuch;
}

void CodeTable::bury() {
    for (const auto& code : forgotten_) bytes_ -= code->bytes_;
    forgotten_.clear();
    if (bytes_ <= kMuch) return;
    by_address_.clear();
    bytes_ = 0;
}

Code* CodeTable::load(uint64_t address) {
    if (!may_load()) return nullptr;
    std::string header(layout_.code_header_bytes, '\0');
    if (!source_.read(address, header.data(), header.size())) return nullptr;
    if (code_type_ != 0 && load_at<uint64_t>(&header[layout_.object_type]) != code_type_)
        return nullptr;
    const auto name = read_text(source_, layout_, load_at<uint64_t>(&header[layout_.code_name]));
    const auto file = read_text(source_, layout_, load_at<uint64_t>(&header[layout_.code_file]));
    const uint64_t table = load_at<uint64_t>(&header[layout_.code_lines]);
    const auto table_size = source_.value<uint64_t>(table + layout_.bytes_size);
    if (!name || !file || !table_size || *table_size > kMaxLines) return nullptr;
    std::string lines(*table_size, '\0');
    if (!source_.read(table + layout_.bytes_data, lines.data(), lines.size())) return nullptr;

    auto code = std::make_unique<Code>();
    code->address_ = address;
    const int first_line = load_at<int32_t>(&header[layout_.code_first_line]);
    if (layout_.minor == 10) {
        const auto size = source_.value<uint64_t>(load_at<uint64_t>(&header[layout_.code_bytes]) +
                                                  layout_.bytes_size);
        if (!size) return nullptr;
        code->bytecode_size_ = *size;
        TableReader reader(lines);
        uint64_t at = 0;
        int line = first_line;
        while (!reader.at_end()) {
            at += reader.byte();
            const auto delta = static_cast<int8_t>(reader.byte());
            if (delta != -128) line += delta;
            code->lines_.push_back({static_cast<uint32_t>(at), delta == -128 ? 0 : line});
        }
    } else {
        code->bytecode_ = address + layout_.code_bytes;
        code->bytecode_size_ = load_at<uint64_t>(&header[layout_.code_size]) * 2;
        TableReader reader(lines);
        uint64_t at = 0;
        int64_t line = first_line;
        while (!reader.at_end()) {
            const uint8_t head = reader.byte();
            const unsigned form = head >> 3 & 15;
            at += ((head & 7U) + 1) * 2;
            if (form == 15) {
                code->lines_.push_back({static_cast<uint32_t>(at), 0});
                continue;
            }
            if (form < 10) {
                reader.byte();
            } else if (form < 13) {
                line += form - 10;
                reader.byte();
                reader.byte();
            } else {
                line += reader.signed_varint();
                if (form == 14)
                    for (int i = 0; i < 3; ++i) reader.varint();
            }
            code->lines_.push_back({static_cast<uint32_t>(at), static_cast<int>(line)});
        }
    }
    if (layout_.code_version != kNone)
        code->version_ = load_at<uint32_t>(&header[layout_.code_version]);
    code->identity_.emplace_back(piece(address, header.size()), header);
    code->identity_.emplace_back(name->piece, name->bytes);
    code->identity_.emplace_back(file->piece, file->bytes);
    code->identity_.emplace_back(piece(table + layout_.bytes_data, lines.size()), lines);
    code->function_ = intern(name->utf8, file->utf8, first_line);
    code->bytes_ = kOverhead + code->lines_.capacity() * sizeof(Code::LineSpan);
    for (const auto& [piece, bytes] : code->identity_) code->bytes_ += bytes.size();
    bytes_ += code->bytes_;
    code->digest_ = digest_at(address).value_or(0);
    std::unique_ptr<Code>& place = by_address_[address];
    if (place) bytes_ -= place->bytes_;
    place = std::move(code);
    return place.get();
}

std::optional<uint64_t> CodeTable::digest_at(uint64_t address) const {
    WalkReader reader(source_);
    __u64 digest = 0;
    if (sb_identify(reader, &layout_, address, &digest) != 0) return std::nullopt;
    return digest;
}

Code* CodeTable::find_identical(uint64_t address, uint64_t digest) {
    Code* code = find(address);
    if (code != nullptr && code->digest_ == digest) return code;
    // Before and (by load) after it is read: it must be the same one all the time.
    if (digest_at(address) != digest) return nullptr;
    if (code != nullptr) forget(*code);
    code = load(address);
    if (code == nullptr) return nullptr;
    if (code->digest_ == digest) return code;
    forget(*code);
    return nullptr;
}

void CodeTable::forget(Code& code) {
    if (code.forgotten_) return;
    code.forgotten_ = true;
    const auto entry = by_address_.find(code.address_);
    forgotten_.push_back(std::move(entry->second));
    by_address_.erase(entry);
}

void CodeTable::load_copy(Code& code, int32_t bytecode_copy) const {
    const auto copies = source_.value<uint64_t>(code.address_ + layout_.code_bytecode_copies);
    if (!copies || *copies == 0 || bytecode_copy < 0) return;
    const auto count = source_.value<uint64_t>(*copies);
    if (!count || static_cast<uint64_t>(bytecode_copy) >= *count) return;
    const auto copy =
        source_.value<uint64_t>(*copies + 8 + static_cast<uint64_t>(bytecode_copy) * 8);
    constexpr size_t kMaxCopies = 4096; // one for each thread
    if (code.copies_.size() >= kMaxCopies) code.copies_.clear();
    if (copy && *copy != 0) code.copies_[bytecode_copy] = *copy;
}

void CodeTable::add_identity(const Code& code, std::vector<Piece>& pieces) const {
    if (identifies_by_version(code)) {
        pieces.push_back(piece(code.address_ + layout_.code_version, sizeof(uint32_t)));
        return;
    }
    for (const auto& [one, bytes] : code.identity_) pieces.push_back(one);
}

size_t CodeTable::identity_bytes(const Code& code) const {
    if (identifies_by_version(code)) return sizeof(uint32_t);
    size_t size = 0;
    for (const auto& [one, bytes] : code.identity_) size += one.iov_len;
    return size;
}

bool CodeTable::matches(const Code& code, const char* bytes) const {
    if (identifies_by_version(code)) return load_at<uint32_t>(bytes) == code.version_;
    // Of the header only what must not change; reference counts and caches do.
    const std::string& header = code.identity_.front().second;
    auto is_same = [&](uint32_t offset, size_t size) {
        return std::memcmp(bytes + offset, &header[offset], size) == 0;
    };
    if (!is_same(layout_.object_type, 8) || !is_same(layout_.code_name, 8) ||
        !is_same(layout_.code_file, 8) || !is_same(layout_.code_lines, 8) ||
        !is_same(layout_.code_first_line, 4) ||
        !is_same(layout_.minor == 10 ? layout_.code_bytes : layout_.code_size, 8))
        return false;
    bytes += header.size();
    for (size_t i = 1; i < code.identity_.size(); ++i) {
        const std::string& expected = code.identity_[i].second;
        if (std::memcmp(bytes, expected.data(), expected.size()) != 0) return false;
        bytes += expected.size();
    }
    return true;
}

const Function* CodeTable::intern(std::string name, std::string file, int first_line) {
    const auto key = std::tuple(std::move(name), std::move(file), first_line);
    auto [entry, is_new] = interned_.try_emplace(key, nullptr);
    if (is_new) {
        name_bytes_ += 2 * (std::get<0>(key).size() + std::get<1>(key).size()) + kOverhead;
        functions_.push_back({static_cast<uint32_t>(functions_.size()), std::get<0>(key),
                              std::get<1>(key), first_line});
        entry->second = &functions_.back();
    }
    return entry->second;
}

} // namespace speedbump::stacks
