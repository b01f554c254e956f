// SPDX-License-Identifier: MIT
// A probe changes time and nothing else: runs instructions with and without a probe from random
// states and compares everything. docs/probe-sites-measured.md tells what it is for.
#include <fmt/format.h>
#include <glob.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "elf/probe_site.h"
#include "known.h"
#include "report.h"
#include "runner.h"

using namespace speedbump;
using namespace speedbump::sites;

namespace {

constexpr int kSkipped = 77;
constexpr size_t kStatesAtATime = 8192; // their outcomes are kept in memory
constexpr size_t kMaxDraws = 50'000'000;

constexpr const char* kUsage =
    "usage: sites_test [OPTION...] [FILE...]\n"
    "FILEs are programs and libraries whose functions' first instructions are tried; without any,\n"
    "those of the distribution that are installed.\n"
    "  --forms FILE         instructions from a file that --write-forms wrote, and no others\n"
    "  --write-forms FILE   writes the instructions there, and ends\n"
    "  --every N            only each Nth of the forms (1)\n"
    "  --states N           for each place (16)\n"
    "  --generated N        so many forms at random besides (2000)\n"
    "  --seed N             of all that is random (1)\n"
    "  --engine bpf|kmod    whose probes (bpf)\n"
    "  --all                tries what is not on the list too, and prints what goes wrong\n";

// By pattern; the last of several that match is taken.
constexpr const char* kUsualFiles[] = {
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/lib/x86_64-linux-gnu/libm.so.6",
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
    "/usr/lib/x86_64-linux-gnu/libsqlite3.so.0",
    "/usr/lib/x86_64-linux-gnu/blas/libblas.so.3",
    "/usr/lib/x86_64-linux-gnu/openblas-pthread/libblas.so.3",
    "/usr/lib/x86_64-linux-gnu/libpython3.*.so.1.0",
    "/usr/bin/redis-server",
    "/usr/sbin/nginx",
    "/usr/lib/postgresql/*/bin/postgres",
    "/usr/bin/node",
    "/usr/lib/jvm/*/lib/server/libjvm.so",
};

struct Options {
    std::vector<std::string> files;
    std::string forms, write_forms, engine = "bpf";
    size_t every = 1;
    size_t states = 16;
    size_t generated = 2000;
    uint64_t seed = 1;
    bool all = false;
};

[[noreturn]] void fail(const std::string& what) {
    fmt::print(stderr, "sites_test: {}\n", what);
    std::exit(2);
}

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        const auto value = [&] {
            if (i + 1 == argc) fail(word + " needs a value\n" + kUsage);
            return std::string(argv[++i]);
        };
        if (word == "--all")
            options.all = true;
        else if (word == "--forms")
            options.forms = value();
        else if (word == "--write-forms")
            options.write_forms = value();
        else if (word == "--engine")
            options.engine = value();
        else if (word == "--every")
            options.every = std::max(1ul, std::stoul(value()));
        else if (word == "--states")
            options.states = std::stoul(value());
        else if (word == "--generated")
            options.generated = std::stoul(value());
        else if (word == "--seed")
            options.seed = std::stoull(value());
        else if (word[0] == '-')
            fail(word + " is unknown\n" + kUsage);
        else
            options.files.push_back(word);
    }
    return options;
}

Forms collect(const Options& options) {
    Forms forms;
    if (!options.forms.empty()) {
        if (auto done = forms.read(options.forms); !done) fail(done.error().message);
        return forms;
    }
    std::vector<std::string> files = options.files;
    if (files.empty())
        for (const char* pattern : kUsualFiles) {
            glob_t found{};
            if (glob(pattern, 0, nullptr, &found) == 0)
                files.emplace_back(found.gl_pathv[found.gl_pathc - 1]);
            else
                fmt::print("skipped, not installed: {}\n", pattern);
            globfree(&found);
        }
    for (const std::string& file : files) {
        const size_t before = forms.size();
        const auto functions = forms.collect(file);
        if (!functions) fail(functions.error().message);
        fmt::print("{}: {} functions, {} more forms\n", file, *functions, forms.size() - before);
    }
    return forms;
}

Host this_host(const Prober& prober) {
    utsname name{};
    uname(&name);
    unsigned major = 0, minor = 0;
    sscanf(name.release, "%u.%u", &major, &minor);
    fmt::print("Linux {}, probes by {}\n", name.release, prober.name());
    return {major << 8 | minor, prober.turns_nops_into_calls()};
}

elf::SiteVerdict judge(const Bytes& code, uintptr_t address, const Host& host) {
    return elf::judge_site({code.data(), code.size()}, address, {host.turns_nops_into_calls, true},
                           elf::SitePosition::kEntry);
}

class Test {
  public:
    Test(const Options& options, Prober& prober)
        : options_(options),
          prober_(prober),
          host_(this_host(prober)),
          random_(options.seed),
          report_(prober.has_a_list()) {}

    bool run(const Forms& forms) {
        try_known();
        const std::vector<Form> sorted = forms.sorted();
        for (size_t i = 0; i < sorted.size(); i += options_.every) try_form(sorted[i]);
        try_generated();
        flush();
        report_.print();
        if (options_.all) report_.print_table();
        return report_.is_good();
    }

  private:
    void try_known() {
        const std::vector<KnownCode> all = known_code(host_);
        std::vector<Slot> slots;
        for (const KnownCode& known : all) {
            Slot slot = make_slot(slots.size(), known.code, known.place, random_);
            slot.probes = known.probes;
            slot.may_push = known.may_push;
            slots.push_back(std::move(slot));
        }
        const auto results = run_batch(slots);
        for (size_t i = 0; i < all.size(); ++i) report_.add_known(all[i], results[i]);
    }

    // In two places: somewhere in a page, and at its end or across it.
    void try_form(const Form& form) {
        for (Place place :
             {Place::kInside, random_.one_in(2) ? Place::kPageEnd : Place::kAcrossPages}) {
            Slot slot = make_slot(pending_.size(), form.code, place, random_);
            choose_numbers(slot, random_);
            slot.example = form.example;
            const elf::SiteVerdict verdict = judge(slot.code, slot.address, host_);
            if (!verdict.allowed && !options_.all) {
                report_.add_not_listed();
                continue;
            }
            if (const std::string reason = untried(slot.instructions.front()); !reason.empty()) {
                report_.add_untried(slot, reason);
                continue;
            }
            slot.may_push = verdict.allowed && verdict.kind == elf::SiteKind::kOptimizedNop;
            pending_.push_back(std::move(slot));
            allowed_.push_back(verdict.allowed);
            if (pending_.size() >= std::min(prober_.capacity(), kStatesAtATime / options_.states))
                flush();
        }
    }

    void try_generated() {
        Forms forms;
        for (size_t draws = 0; forms.size() < options_.generated && draws < kMaxDraws; ++draws) {
            const Bytes code = random_instruction(random_);
            const auto decoded = decode(code.data(), code.size());
            if (!decoded || !untried(*decoded).empty()) continue;
            const Bytes form = form_of(*decoded, code.data());
            if (options_.all || judge(form, kCode, host_).allowed)
                forms.add(form.data(), form.size(), "generated");
        }
        for (const Form& form : forms.sorted()) try_form(form);
    }

    void flush() {
        if (pending_.empty()) return;
        const auto results = run_batch(pending_);
        for (size_t i = 0; i < pending_.size(); ++i)
            allowed_[i] ? report_.add_allowed(pending_[i], results[i])
                        : report_.add_refused(pending_[i], results[i]);
        pending_.clear();
        allowed_.clear();
    }

    std::vector<SlotResult> run_batch(const std::vector<Slot>& slots) {
        auto results = run_slots(prober_, slots, options_.states, random_.next());
        if (!results) fail(results.error().message);
        return std::move(*results);
    }

    const Options& options_;
    Prober& prober_;
    Host host_;
    Random random_;
    Report report_;
    std::vector<Slot> pending_;
    std::vector<bool> allowed_;
};

} // namespace

int main(int argc, char** argv) {
    const Options options = parse(argc, argv);
    const Forms forms = collect(options);
    fmt::print("{} forms\n", forms.size());
    if (!options.write_forms.empty()) {
        if (auto done = forms.write(options.write_forms); !done) fail(done.error().message);
        return 0;
    }
    auto prober = options.engine == "kmod" ? make_kmod_prober() : make_bpf_prober();
    if (!prober) {
        fmt::print("skipped: {}\n", prober.error().message);
        return kSkipped;
    }
    return Test(options, **prober).run(forms) ? 0 : 1;
}
