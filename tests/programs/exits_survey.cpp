// SPDX-License-Identifier: MIT
// What elf::ExitFinder knows of the functions of files.
//
//   exits_survey FILE...         how many functions are accepted, and refused for what reason
//   exits_survey --list FILE     a line for each accepted function: name, entry address, and the
//                                addresses of its exits
#include <fcntl.h>
#include <fmt/format.h>

#include <cstring>
#include <map>

#include "elf/exits.h"
#include "elf/symbols.h"
#include "util/fd.h"

using namespace speedbump;

namespace {

int survey(const char* path, bool list) {
    const Fd fd(::open(path, O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) {
        std::perror(path);
        return 1;
    }
    const auto file = elf::ElfFile::open(fd.get(), path);
    if (!file) {
        fmt::print(stderr, "{}\n", file.error().message);
        return 1;
    }
    elf::SiteOptions options;
    options.no_shadow_stacks = true;
    const elf::ExitFinder finder(*file, options);
    std::map<std::string, size_t> refused;
    size_t accepted = 0, exits = 0;
    for (const elf::Function& function : (*file)->functions()) {
        if (function.is_ifunc) continue;
        const auto ways = finder.find(function.file_offset);
        if (!ways) {
            if (list)
                fmt::print("- {} {:x} {}\n", function.names.front(), function.address,
                           ways.error().message);
            std::string reason = ways.error().message;
            if (const size_t by = reason.find(" by "); by != std::string::npos) reason.resize(by);
            ++refused[reason];
            continue;
        }
        ++accepted;
        exits += ways->exits.size();
        if (!list) continue;
        fmt::print("+ {} {:x}", function.names.front(), function.address);
        for (const elf::Exit& exit : ways->exits)
            fmt::print(" {:x}", *(*file)->address_of_offset(exit.file_offset));
        fmt::print("\n");
    }
    if (list) return 0;
    fmt::print("{}: {} accepted with {} exits\n", path, accepted, exits);
    for (const auto& [reason, count] : refused) fmt::print("  {:6} {}\n", count, reason);
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    const bool list = argc > 1 && std::strcmp(argv[1], "--list") == 0;
    int status = argc > 1 + list ? 0 : 2;
    for (int i = 1 + list; i < argc; ++i) status |= survey(argv[i], list);
    return status;
}
