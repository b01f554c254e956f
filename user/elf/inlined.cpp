// SPDX-License-Identifier: MIT
#include "elf/inlined.h"

#include <dwarf.h>
#include <elfutils/libdw.h>
#include <fcntl.h>
#include <libelf.h>

#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

#include "elf/debug_file.h"
#include "elf/demangle.h"
#include "elf/image.h"
#include "util/clock.h"
#include "util/fd.h"

namespace speedbump::elf {

namespace {

constexpr int kMaxDepth = 256; // of nested scopes

struct ElfDeleter {
    void operator()(Elf* elf) const { elf_end(elf); }
};
struct DwarfDeleter {
    void operator()(Dwarf* dwarf) const { dwarf_end(dwarf); }
};

// What DWARF calls a function, through the entries that it stands for.
struct Names {
    std::string linkage;
    std::string plain;
    std::string shown; // for people
};

Names names_of(Dwarf_Die* die) {
    Names names;
    for (const unsigned name : {DW_AT_linkage_name, DW_AT_MIPS_linkage_name}) {
        Dwarf_Attribute attribute;
        if (dwarf_attr_integrate(die, name, &attribute) == nullptr) continue;
        if (const char* text = dwarf_formstring(&attribute)) names.linkage = text;
        if (!names.linkage.empty()) break;
    }
    if (const char* text = dwarf_diename(die)) names.plain = text;
    names.shown = demangle(names.linkage).without_signature;
    if (names.shown.empty()) names.shown = names.plain;
    return names;
}

class Search {
  public:
    Search(const std::function<bool(const std::vector<std::string_view>&)>& is_wanted,
           Clock::time_point end)
        : is_wanted_(is_wanted), end_(end) {}

    // False when the time is over.
    bool walk(Dwarf_Die* parent, const std::string& caller, int depth) {
        Dwarf_Die die;
        if (depth > kMaxDepth || dwarf_child(parent, &die) != 0) return true;
        do {
            if (++seen_ % 1024 == 0 && Clock::now() > end_) return false;
            std::string own;
            switch (dwarf_tag(&die)) {
                case DW_TAG_subprogram:
                    // Code of its own, else only a pattern for it; and what is declared in it.
                    own = dwarf_hasattr_integrate(&die, DW_AT_low_pc) ||
                                  dwarf_hasattr_integrate(&die, DW_AT_ranges)
                              ? names_of(&die).shown
                              : "";
                    break;
                case DW_TAG_inlined_subroutine:
                    note(&die, caller);
                    own = caller;
                    break;
                case DW_TAG_lexical_block:
                case DW_TAG_try_block:
                case DW_TAG_catch_block:
                case DW_TAG_namespace:
                case DW_TAG_class_type:
                case DW_TAG_structure_type:
                    own = caller;
                    break;
                default:
                    continue;
            }
            if (!walk(&die, own, depth + 1)) return false;
        } while (dwarf_siblingof(&die, &die) == 0);
        return true;
    }

    std::vector<InlinedFunction> result() {
        std::vector<InlinedFunction> list;
        for (auto& [name, function] : found_) list.push_back(std::move(function));
        return list;
    }

  private:
    void note(Dwarf_Die* die, const std::string& caller) {
        if (caller.empty()) return;
        // The same few functions are inlined all over: each is decided on once.
        Dwarf_Attribute origin_attribute;
        Dwarf_Die origin;
        if (dwarf_attr(die, DW_AT_abstract_origin, &origin_attribute) == nullptr ||
            dwarf_formref_die(&origin_attribute, &origin) == nullptr)
            return;
        const auto [entry, is_new] = decided_.try_emplace(origin.addr, std::nullopt);
        if (is_new) {
            const Names names = names_of(&origin);
            const Demangled demangled = demangle(names.linkage);
            std::vector<std::string_view> all;
            for (const std::string* name : {&names.linkage, &names.plain, &demangled.with_signature,
                                            &demangled.without_signature})
                if (!name->empty()) all.emplace_back(*name);
            if (is_wanted_(all)) entry->second = names.shown;
        }
        if (!entry->second) return;
        InlinedFunction& function = found_[*entry->second];
        function.name = *entry->second;
        function.callers.insert(caller);
        ++function.places;
    }

    const std::function<bool(const std::vector<std::string_view>&)>& is_wanted_;
    Clock::time_point end_;
    size_t seen_ = 0;
    std::unordered_map<const void*, std::optional<std::string>> decided_; // by the entry's place
    std::map<std::string, InlinedFunction> found_;
};

// The file that has the debug information: this one, or the separate one. Invalid: there is none.
Fd file_with_dwarf(int fd, const std::string& path, const DebugSearch& search) {
    Fd own(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    auto source = make_file_source(Fd(fcntl(fd, F_DUPFD_CLOEXEC, 0)), path);
    if (!source) return {};
    const auto image = Image::parse(*source, path, ImageRole::kProgram);
    if (!image) return {};
    if (image->section(".debug_info") != nullptr) return own;
    std::vector<std::string> warnings;
    const auto separate = find_debug_file(*image, path, search, warnings);
    if (!separate || separate->section(".debug_info") == nullptr) return {};
    return Fd(fcntl(separate->source().descriptor(), F_DUPFD_CLOEXEC, 0));
}

} // namespace

Result<std::vector<InlinedFunction>> find_inlined(
    int fd, const std::string& path, const DebugSearch& search,
    const std::function<bool(const std::vector<std::string_view>&)>& is_wanted,
    std::chrono::milliseconds limit) {
    const Fd file = file_with_dwarf(fd, path, search);
    if (!file.valid()) return std::vector<InlinedFunction>();
    elf_version(EV_CURRENT);
    // Read, not mapped: a file that is cut short meanwhile must be no SIGBUS.
    const std::unique_ptr<Elf, ElfDeleter> elf(elf_begin(file.get(), ELF_C_READ, nullptr));
    const std::unique_ptr<Dwarf, DwarfDeleter> dwarf(
        elf ? dwarf_begin_elf(elf.get(), DWARF_C_READ, nullptr) : nullptr);
    if (!dwarf)
        return make_error(ErrorKind::kInvalid,
                          path + ": its debug information can't be read: " + dwarf_errmsg(-1));
    Search found(is_wanted, Clock::now() + limit);
    Dwarf_CU* unit = nullptr;
    Dwarf_Die die;
    int more = 0;
    while ((more = dwarf_get_units(dwarf.get(), unit, &unit, nullptr, nullptr, &die, nullptr)) == 0)
        if (!found.walk(&die, "", 0))
            return make_error(ErrorKind::kTimeout,
                              path +
                                  ": its debug information is too long to look for inlined "
                                  "functions in it");
    if (more < 0)
        return make_error(ErrorKind::kInvalid,
                          path + ": its debug information is damaged: " + dwarf_errmsg(-1));
    return found.result();
}

} // namespace speedbump::elf
