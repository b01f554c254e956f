// SPDX-License-Identifier: MIT
#include "process/named_code.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "elf/symbols.h"
#include "process/symbol_matcher.h"

namespace speedbump::process {
namespace {

void put_in_order(AddressRanges& ranges) {
    std::sort(ranges.begin(), ranges.end(),
              [](const auto& a, const auto& b) { return a.begin < b.begin; });
    AddressRanges joined;
    for (const AddressRange& range : ranges) {
        if (!joined.empty() && range.begin <= joined.back().end)
            joined.back().end = std::max(joined.back().end, range.end);
        else
            joined.push_back(range);
    }
    ranges = std::move(joined);
}

} // namespace

NamedCode::NamedCode(targets::Pattern name) {
    targets::TargetLine line;
    line.runtime = targets::Runtime::kNative;
    line.container = {"*", true};
    line.name = std::move(name);
    lines_.lines.push_back(std::move(line));
}

AddressRanges NamedCode::read(pid_t pid, const Fd& fd, const Mapping& mapping) const {
    AddressRanges found;
    const auto elf =
        elf::ElfFile::open(fd.get(), mapping.path, {.root = fmt::format("/proc/{}/root", pid)});
    if (!elf) return found;
    constexpr size_t kLine = 0;
    std::vector<bool> matched(1);
    SymbolMatcher matcher(lines_, std::span(&kLine, 1), matched);
    for (const elf::Function& function : (*elf)->functions()) {
        if (!matcher.decide(function)) continue;
        uint64_t size = function.size;
        if (size == 0)
            size =
                (*elf)->frame_end(function.address).value_or(function.address) - function.address;
        if (size != 0) found.push_back({function.file_offset, function.file_offset + size});
    }
    put_in_order(found);
    return found;
}

bool NamedCode::is_unchanged(const File& known, pid_t pid, const Mapping& mapping) {
    if (known.fd.valid()) return true; // the inode can't have been freed
    struct stat status = {};
    const std::string range =
        fmt::format("/proc/{}/map_files/{:x}-{:x}", pid, mapping.start, mapping.end);
    if (::stat(range.c_str(), &status) != 0 &&
        ::stat(fmt::format("/proc/{}/root{}", pid, mapping.path).c_str(), &status) != 0)
        return true; // what can't be asked for can't be read anew either
    return status.st_size == known.size && status.st_ctim.tv_sec == known.changed_s &&
           status.st_ctim.tv_nsec == known.changed_ns;
}

// A process may map new files for ever: those go that no mapping has shown for a while.
void NamedCode::forget_files() {
    if (files_.size() <= forget_at_) return;
    std::erase_if(files_, [this](const auto& one) { return one.second.shown_in <= forgotten_in_; });
    held_ = static_cast<size_t>(std::count_if(
        files_.begin(), files_.end(), [](const auto& one) { return one.second.fd.valid(); }));
    forgotten_in_ = look_;
    forget_at_ = files_.size() + kFewFiles;
}

const NamedCode::File* NamedCode::file_of(pid_t pid, const Mapping& mapping) {
    const FileKey key{mapping.device, mapping.inode};
    if (const auto known = files_.find(key); known != files_.end()) {
        const bool is_checked = std::exchange(known->second.shown_in, look_) == look_;
        if (is_checked || is_unchanged(known->second, pid, mapping)) return &known->second;
        files_.erase(known); // it has no descriptor
    }
    auto fd = open_mapped_file(pid, mapping);
    if (!fd) return nullptr;
    File file;
    file.shown_in = look_;
    struct stat status = {};
    if (::fstat(fd->get(), &status) == 0) {
        file.size = status.st_size;
        file.changed_s = status.st_ctim.tv_sec;
        file.changed_ns = status.st_ctim.tv_nsec;
    }
    file.ranges = read(pid, *fd, mapping);
    if (!file.ranges.empty() && held_ < kMaxHeld) {
        file.fd = std::move(*fd);
        ++held_;
    }
    return &files_.emplace(key, std::move(file)).first->second;
}

AddressRanges NamedCode::find(pid_t pid, const std::vector<Mapping>& mappings) {
    AddressRanges found;
    forget_files();
    ++look_;
    for (const Mapping& mapping : mappings) {
        if (!mapping.executable) continue;
        const uint64_t first = mapping.file_offset, last = first + (mapping.end - mapping.start);
        const File* const file = file_of(pid, mapping);
        if (file == nullptr) continue;
        for (const AddressRange& range : file->ranges)
            if (range.begin >= first && range.end <= last)
                found.push_back(
                    {mapping.start + (range.begin - first), mapping.start + (range.end - first)});
    }
    put_in_order(found);
    return found;
}

} // namespace speedbump::process
