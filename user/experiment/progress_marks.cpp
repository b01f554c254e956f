// SPDX-License-Identifier: MIT
#include <algorithm>
#include <filesystem>
#include <map>

#include "elf/marks.h"
#include "experiment/progress_sites.h"
#include "process/maps.h"
#include "targets/matcher.h"
#include "util/text.h"

namespace speedbump::experiment {

namespace {

class MarkSites : public ProgressSites {
  public:
    MarkSites(const ProgressSpec& spec, const elf::SiteOptions& options)
        : binary_{spec.first, targets::has_glob(spec.first)},
          provider_(spec.second),
          name_(spec.third),
          options_(options) {}

    Result<Found> look_at(pid_t pid) override {
        Found found;
        const auto maps = process::read_maps(pid);
        if (!maps) return found;
        const std::string root = process::root_of(pid);
        const std::string executable = executable_of(pid);
        for (const process::Mapping& mapping : *maps) {
            if (!mapping.executable || !is_named(mapping, root, executable)) continue;
            const process::FileKey key{mapping.device, mapping.inode};
            if (!files_.contains(key)) {
                auto file = process::open_mapped_file(pid, mapping);
                if (!file && executable_of(pid).empty()) return Found{}; // it has ended
                if (!file) return std::move(file).error();
                auto sites = sites_in(*file, mapping.path, key);
                if (!sites) return std::move(sites).error();
                files_[key] = {std::move(*file), !sites->empty()};
                found.sites.insert(found.sites.end(), sites->begin(), sites->end());
            }
            if (files_[key].has_sites) found.files.insert(key);
        }
        return found;
    }

    int descriptor(const process::FileKey& file) const override {
        const auto known = files_.find(file);
        return known == files_.end() ? -1 : known->second.fd.get();
    }
    std::string name() const override { return "the mark " + name_; }

  private:
    struct File {
        Fd fd; // as long as it is open no other file gets its key
        bool has_sites = false;
    };

    // Empty for a process that has ended.
    static std::string executable_of(pid_t pid) {
        std::error_code ignored;
        return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", ignored);
    }

    bool is_named(const process::Mapping& mapping, const std::string& root,
                  const std::string& executable) const {
        const bool is_main = mapping.path + (mapping.deleted ? " (deleted)" : "") == executable;
        return targets::binary_matches(binary_, {mapping.path, "", is_main}) ||
               targets::binary_matches(binary_,
                                       {process::path_within(root, mapping.path), "", is_main});
    }

    Result<std::vector<Site>> sites_in(const Fd& file, const std::string& path,
                                       const process::FileKey& key) const {
        const auto marks = elf::read_marks(file.get(), path);
        // A glob may name what is no ELF file of this machine, and so has no marks.
        if (!marks && binary_.is_glob && marks.error().kind == ErrorKind::kInvalid)
            return std::vector<Site>{};
        if (!marks) return marks.error();
        const auto refuse = [&](const std::string& why) {
            return make_error(
                ErrorKind::kUnsupported,
                "the mark " + name_ + " in " + printable(path) + " can't be probed: " + why);
        };
        std::vector<Site> sites;
        std::set<uint64_t> offsets; // a place that two notes name is one
        for (const elf::Mark& mark : *marks) {
            if (mark.provider != provider_ || mark.name != name_) continue;
            if (mark.code.empty()) return refuse("it lies in no code of the file");
            if (const auto verdict = elf::judge_mark(mark, options_); !verdict.allowed)
                return refuse("its instruction " + elf::instruction_text(mark.code, mark.address) +
                              " " + verdict.reason);
            if (mark.semaphore_address != 0 && mark.semaphore_offset == 0)
                return refuse("its semaphore lies in no writable data of the file");
            sb_progress_site meaning = {};
            meaning.actions = SB_PROGRESS_COUNTS;
            if (offsets.insert(mark.file_offset).second)
                sites.push_back({key, mark.file_offset, mark.semaphore_offset, meaning});
        }
        return sites;
    }

    targets::Pattern binary_;
    std::string provider_, name_;
    elf::SiteOptions options_;
    std::map<process::FileKey, File> files_;
};

} // namespace

std::unique_ptr<ProgressSites> mark_sites(const ProgressSpec& spec,
                                          const elf::SiteOptions& options) {
    return std::make_unique<MarkSites>(spec, options);
}

} // namespace speedbump::experiment
