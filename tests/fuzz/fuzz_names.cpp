// SPDX-License-Identifier: MIT
// Hostile names of functions: made by the grammars of mangled names, with what lets a short name
// stand for a long one, or for long work. Fails on a crash, or when a name takes more CPU time or
// text than the demangler promises.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "elf/demangle.h"
#include "elf/symbols.h"
#include "mangled_names.h"
#include "mutator.h"
#include "process/symbol_matcher.h"
#include "targets/matcher.h"
#include "targets/parser.h"
#include "util/text.h"
#include "watch.h"

namespace {

using namespace speedbump;

// user/elf/demangle.cpp: what any thread has that demangles, how much a name may print, and the
// components that it may stand for.
constexpr size_t kStack = 1u << 20;
constexpr size_t kMaxDemangled = 128u << 10;
constexpr int64_t kMaxWalked = 1u << 20;
// Either language's printer goes over these once for each of the two forms: at 50 ns each, while a
// real name takes 1.5 us in all.
constexpr std::chrono::nanoseconds kMaxTime{kMaxWalked * 4 * 50 * fuzz::kSlower};
// Of a pattern and a demangled name: each byte of both with each other (targets/glob.h).
constexpr std::chrono::nanoseconds kMaxMatchTime = 8 * kMaxTime;

struct Counts {
    size_t names = 0;
    size_t demangled = 0;
    size_t bytes = 0;
    std::chrono::nanoseconds longest{}; // of a name
};

void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "broken: %s\n", what);
    std::abort();
}

// With few words, so that names are demangled, and with a glob of several stars.
const targets::TargetsFile& lines() {
    static const targets::ParseOutcome outcome = targets::parse_targets(
        "+/x:\"a::b(int)\"\n+/x:\"*a*b*x*y*z*::?a(*)\"\n!+/x:\"*<*a, *b>*::operator[[]*\"\n", "t");
    require(outcome.errors.empty() && outcome.file.lines.size() == 3, "lines of targets");
    return outcome.file;
}

void match(std::string_view name) {
    elf::Function function;
    function.size = 1;
    function.names = {&name, 1};
    constexpr std::array<size_t, 3> kAll = {0, 1, 2};
    std::vector<bool> matched(kAll.size());
    process::SymbolMatcher matcher(lines(), kAll, matched);
    if (const auto decision = matcher.decide(function)) {
        require(matched[decision->line_index], "a line that decides has matched");
        require(decision->name().size() <= kMaxDemangled + name.size(), "a name that is shown");
    }
}

void test(std::string_view name, Counts& counts) {
    fuzz::watch(name);
    elf::Demangled forms;
    const auto took =
        fuzz::require_soon("to demangle it", kMaxTime, [&] { forms = elf::demangle(name); });
    require(forms.with_signature.size() <= kMaxDemangled, "a name with its signature is bounded");
    require(forms.without_signature.size() <= kMaxDemangled + name.size() + 9,
            "a name without its signature is bounded");
    require(elf::is_mangled(name) || forms.with_signature.empty(), "others stay as they are");
    fuzz::require_soon("to compare it with lines", kMaxMatchTime, [name] { match(name); });
    require(printable(forms.without_signature).size() <= 4 * forms.without_signature.size(),
            "what a terminal shows");
    ++counts.names;
    counts.bytes += name.size();
    counts.demangled += forms.with_signature.empty() ? 0 : 1;
    counts.longest = std::max(counts.longest, took);
}

} // namespace

#ifdef SPEEDBUMP_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    std::string name;
    fuzz::on_stack(fuzz::kMakersStack, [&] {
        fuzz::Random random(std::span(data, size));
        name = fuzz::make_name(random);
    });
    fuzz::on_stack(kStack, [&] {
        Counts counts;
        test({reinterpret_cast<const char*>(data), size}, counts);
        test(name, counts);
    });
    return 0;
}

#else

namespace {

int test_many(uint64_t wanted, double seconds, uint64_t seed) {
    fuzz::Random random(seed);
    Counts counts;
    const auto begin = CpuClock::now();
    const auto passed = [begin] {
        return std::chrono::duration<double>(CpuClock::now() - begin).count();
    };
    while (counts.names < wanted && passed() < seconds) {
        std::array<std::string, 64> names;
        fuzz::require_soon("to make names", kMaxTime, [&] {
            for (std::string& name : names) name = fuzz::make_name(random);
        });
        fuzz::on_stack(kStack, [&] {
            for (const std::string& name : names) test(name, counts);
        });
    }
    std::printf(
        "%zu inputs in %.1f s of CPU time: %zu demangled, %zu bytes each, at most %.3f ms\n",
        counts.names, passed(), counts.demangled, counts.bytes / std::max<size_t>(counts.names, 1),
        1e-6 * static_cast<double>(counts.longest.count()));
    return counts.demangled >= counts.names / 10 && counts.demangled < counts.names ? 0 : 1;
}

} // namespace

// fuzz_names NAMES SECONDS (of CPU time) [SEED]
int main(int argc, char** argv) {
    const uint64_t wanted = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 200'000;
    const double seconds = argc > 2 ? std::strtod(argv[2], nullptr) : 10;
    const uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
    return fuzz::run_watched([=] {
        int status = 0;
        fuzz::on_stack(fuzz::kMakersStack, [&] { status = test_many(wanted, seconds, seed); });
        return status;
    });
}

#endif
