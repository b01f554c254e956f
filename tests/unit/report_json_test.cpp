// SPDX-License-Identifier: MIT
#include "report/json.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "report_fixture.h"
#include "targets/matcher.h"

namespace speedbump::report::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const Context kContext = {"attach", "0.1.0", "host", "6.1.0", "x86_64", "bpf"};

session::SessionOptions sample_options() {
    session::SessionOptions options;
    options.pids = {100};
    options.defaults.delay = microseconds(20);
    options.cgroup = "system.slice";
    return options;
}

// Indented, for a golden file that can be read; the product writes one line.
std::string indented(const std::string& line) {
    EXPECT_THAT(line, Not(HasSubstr("\n")));
    return nlohmann::ordered_json::parse(line).dump(2) + "\n";
}

CheckReport sample_check() {
    CheckReport report;
    report.places = {"process 100 (redis-server)"};
    process::NativeMatch match;
    match.path = "/usr/bin/redis-server";
    match.name = "processCommand";
    match.entry_offset = 0x8a120;
    match.site = {0x8a122, elf::SiteKind::kEmulated, "push %r14", "the entry is single-stepped"};
    match.line_index = 0;
    report.matches.push_back(match);
    report.skipped.push_back({"/usr/lib/libssl.so.3", "SSL_x", 1, "an IFUNC"});
    report.skipped.push_back({"/usr/lib/broken.so", "", SIZE_MAX, "is no ELF file"});
    report.unmatched_lines = {1, 3};
    return report;
}

TEST(Json, AttachMatchedGolden) {
    expect_golden("attach_matched.json",
                  indented(attach_matched_json(kContext, sample_options(), sample_snapshot(),
                                               sample_file())));
}

TEST(Json, AttachSampleGolden) {
    expect_golden("attach_sample.json", indented(attach_sample_json(
                                            earlier_snapshot(), sample_snapshot(), sample_file())));
}

TEST(Json, AttachFinalGolden) {
    expect_golden("attach_final.json",
                  indented(attach_final_json(kContext, sample_options(), sample_snapshot(),
                                             sample_file(), "interrupted")));
}

TEST(Json, CheckGolden) {
    expect_golden("check.json", indented(check_json(kContext, sample_check(), sample_file())));
}

TEST(Json, DoctorGolden) {
    expect_golden("doctor.json",
                  indented(doctor_json(kContext, {{"BTF", engine::Check::State::kGood, "there", ""},
                                                  {"CAP_BPF", engine::Check::State::kBad, "missing",
                                                   "sudo speedbump"}})));
}

TEST(Json, CalibrateGolden) {
    engine::CalibrationRow row{"bpf",
                               elf::SiteKind::kEmulated,
                               nanoseconds(640),
                               nanoseconds(12),
                               {{microseconds(10), nanoseconds(10'040), nanoseconds(25)}}};
    expect_golden("calibrate.json", indented(calibrate_json(kContext, {row})));
}

TEST(Json, ListGolden) {
    expect_golden("list.json",
                  indented(list_json(
                      kContext, {{{"/lib/a.so", "_Z1fi", "f(int)", 4096, 12, false, {}},
                                  {"/lib/a.so", "memcpy", "", 8192, 0, true, {}},
                                  {"/lib/a.so", "memset", "", 9216, 9, false, "not probed: vpxor"}},
                                 {{7, 0, "shop", "Cart.price", "/srv/shop.py"}}})));
}

TEST(Json, BytesThatAreNoUtf8DoNotBreakTheDocument) {
    Snapshot snapshot = sample_snapshot();
    snapshot.targets[0].name = "bad\xff name";
    const std::string text =
        attach_final_json(kContext, sample_options(), snapshot, sample_file(), "duration");
    const auto document = nlohmann::json::parse(text);
    EXPECT_EQ(document["targets"][0]["name"], "bad\xef\xbf\xbd name");
}

TEST(CheckText, Golden) {
    expect_golden("check.txt", check_text(sample_check(), sample_file(), {}, false));
    expect_golden("check_verbose.txt", check_text(sample_check(), sample_file(), {}, true));
}

TEST(CheckText, WithoutAPlaceLinesAreNotLookedAt) {
    CheckReport report;
    const auto states = line_states(report, sample_file());
    EXPECT_EQ(states[0], LineState::kNotLookedAt);
    EXPECT_EQ(states[2], LineState::kPython);
    EXPECT_EQ(states[4], LineState::kExclusion);
    EXPECT_FALSE(nothing_matched(report, sample_file()));
}

TEST(CheckText, ALineOfWhatCantBeProbedIsRefused) {
    CheckReport report;
    report.places = {"process 1 (init)"};
    report.skipped = {{"/lib/a.so", "memset", 0, "not probed: vpxor"}};
    TargetsFile file = targets::parse_targets("+a.so:memset\n+a.so:other\n", "f").file;
    const auto states = line_states(report, file);
    EXPECT_EQ(states[0], LineState::kRefused);
    EXPECT_EQ(states[1], LineState::kUnmatched);
    EXPECT_TRUE(nothing_matched(report, file));
}

TEST(CheckText, NothingMatchedWhenEveryLineWasLookedAtInVain) {
    CheckReport report;
    report.places = {"process 1 (init)"};
    TargetsFile file = targets::parse_targets("+exe:a\n!+exe:b\n", "f").file;
    EXPECT_TRUE(nothing_matched(report, file));
    process::NativeMatch match;
    report.matches = {match};
    EXPECT_FALSE(nothing_matched(report, file));
}

TEST(ListText, LinesCanBeReadBackAsTargets) {
    const std::vector<ListedFunction> functions = {
        {"/usr/lib/libz.so.1", "inflate", "", 1, 1, false, {}},
        {"/usr/lib/a b:c.so", "_Z1fii", "f(int, \"x\"[2])", 2, 1, false, {}},
        {"/opt/odd*[name].so", "operator", "ns::operator*(A const&, int)", 3, 1, false, {}},
        {"/opt/back\\slash \"q\".so", "f", "", 3, 1, false, {}}};
    const targets::ParseOutcome outcome =
        targets::parse_targets(list_text({functions, {}}), "list");
    ASSERT_TRUE(outcome.errors.empty()) << targets::format_diagnostics("list", outcome.errors);
    ASSERT_EQ(outcome.file.lines.size(), functions.size());
    for (size_t i = 0; i < functions.size(); i++) {
        const targets::TargetLine& line = outcome.file.lines[i];
        targets::BinaryIdentity identity{functions[i].path, "", false};
        EXPECT_TRUE(targets::binary_matches(line.container, identity)) << functions[i].path;
        targets::FunctionNames names;
        names.names = {functions[i].demangled.empty() ? functions[i].name : functions[i].demangled};
        EXPECT_TRUE(targets::symbol_matches(line, names)) << names.names[0];
    }
}

TEST(ListText, ANameThatFunctionsShareIsOneLine) {
    const std::vector<ListedFunction> functions = {
        {"/bin/a", "_ZN1FC1Ev", "F::F()", 1, 1, false, {}},
        {"/bin/a", "_ZN1FC2Ev", "F::F()", 2, 1, false, {}},
        {"/bin/a", "init", "", 3, 1, false, "too short"},
        {"/bin/a", "init", "", 4, 1, false, {}},
        {"/bin/b", "init", "", 5, 1, false, {}}};
    EXPECT_EQ(list_text({functions, {}}),
              "+/bin/a:F::F()\n# +/bin/a:init  (too short)\n+/bin/a:init\n+/bin/b:init\n");
}

TEST(DoctorText, Golden) {
    expect_golden("doctor.txt",
                  doctor_text({{"BTF", engine::Check::State::kGood, "there", ""},
                               {"uprobe_multi", engine::Check::State::kDegraded, "no", "Linux 6.6"},
                               {"CAP_BPF", engine::Check::State::kBad, "to load", "sudo speedbump"},
                               {"module", engine::Check::State::kUnknown, "not loaded", ""}},
                              {}));
}

TEST(CalibrateText, Golden) {
    engine::CalibrationRow row{"bpf",
                               elf::SiteKind::kEmulated,
                               nanoseconds(640),
                               nanoseconds(12),
                               {{microseconds(10), nanoseconds(10'040), nanoseconds(25)},
                                {milliseconds(1), nanoseconds(999'900), nanoseconds(80)}}};
    expect_golden("calibrate.txt", calibrate_text({row}, {}));
}

} // namespace
} // namespace speedbump::report::testing
