// SPDX-License-Identifier: MIT
#include "process/named_code.h"

#include <fmt/format.h>

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

const NamedCode::File* NamedCode::file_of(pid_t pid, const Mapping& mapping) {
    const FileKey key{mapping.device, mapping.inode};
    if (const auto known = files_.find(key); known != files_.end()) return &known->second;
    auto fd = open_mapped_file(pid, mapping);
    if (!fd) return nullptr;
    File file{{}, read(pid, *fd, mapping)};
    file.fd = std::move(*fd);
    return &files_.emplace(key, std::move(file)).first->second;
}

AddressRanges NamedCode::find(pid_t pid, const std::vector<Mapping>& mappings) {
    AddressRanges found;
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
