// SPDX-License-Identifier: MIT
// Hostile agents and coordinators: whatever comes over the link is a message within its bounds, or
// refused with a text that can be shown.
#include <array>
#include <cstdio>
#include <cstdlib>

#include "fleet/protocol.h"
#include "fleet/words.h"
#include "mutator.h"
#include "targets/target.h"

namespace {

using namespace speedbump;

constexpr fleet::Shape kShape{1, 2};
constexpr uint64_t kMost = uint64_t{1} << 60;

void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "broken: %s\n", what);
    std::abort();
}

void test(std::string_view text) {
    const auto order = fleet::read_order(text, kShape.targets);
    require(order || !order.error().message.empty(), "a refusal has its reason");
    require(order || order.error().message.size() < 2000, "a reason is short enough to be shown");
    if (order) {
        if (const auto* rows = std::get_if<fleet::Rows>(&*order)) {
            require(rows->doses.size() <= fleet::kMaxRows, "rows are bounded");
            for (const auto& row : rows->doses)
                for (const auto dose : row)
                    require(dose.count() >= 0 && dose <= targets::kMaxDelay, "doses are bounded");
        }
        if (const auto* begin = std::get_if<fleet::Begin>(&*order))
            require(begin->slice.count() > 0 && begin->start_ns <= kMost, "slices have a length");
        require(fleet::read_order(fleet::line_of(*order), kShape.targets).has_value(),
                "what was read can be written");
    }
    const auto report = fleet::read_report(text, kShape);
    require(report || !report.error().message.empty(), "a refusal has its reason");
    if (report) {
        if (const auto* taken = std::get_if<fleet::Taken>(&*report)) {
            require(taken->slices.size() <= fleet::kMaxRows, "slices are bounded");
            for (const auto& slice : taken->slices)
                require(
                    slice.points.size() == kShape.points && slice.targets.size() == kShape.targets,
                    "slices are of all points and targets");
        }
        (void)fleet::line_of(*report);
    }
    const auto words = fleet::split_words(text);
    require(!words || !words->empty(), "a command has a word");
}

const std::array<std::string, 11> kSeeds = {
    R"({"type":"attach","lines":["+exe:f"],"positive":[0],"progress":["native:exe:g"],)"
    R"("whole_python":false,"whole_native":false,"pids":[1],"follow_children":true,)"
    R"("max_slowdown":0.5,"max_cpu":0.0})",
    R"({"type":"ping","id":7})",
    R"({"type":"begin","epoch":1,"first":2,"start_ns":3,"slice_ns":4000000,"period_ns":5})",
    R"({"type":"rows","epoch":1,"first":0,"doses":[[0,5000],[1,2]]})",
    R"({"type":"end"})",
    R"({"type":"hello","protocol":1,"version":"1","host":"h","kernel":"k","machine":"m"})",
    R"({"type":"attached","targets":[{"name":"f","functions":["a"],"function_count":1,)"
    R"("least_ns":900,"positive":false,"notes":["n"]}]})",
    R"({"type":"taken","epoch":1,"first":0,"began_ns":1,"slices":[[1,2,3,4,5,6,7]]})",
    R"({"type":"failed","kind":"io","what":"w","hint":"h"})",
    std::string(2000, '['),
    R"(ssh -o "A B" 'h'\ x)",
};

constexpr std::array<std::string_view, 24> kDictionary = {
    "\"type\":",  "\"taken\"",  "\"rows\"",   "\"late\"",   "\"pong\"",    "\"tripped\"",
    "\"first\":", "\"count\":", "\"epoch\":", "\"doses\":", "\"slices\":", "18446744073709551615",
    "-1",         "1e999",      "null",       "true",       "\"\\u0000\"", "\xff",
    "[",          "]",          "{",          "}",          ",",           "4611686018427387904",
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    test({reinterpret_cast<const char*>(data), size});
    return 0;
}

#ifndef SPEEDBUMP_LIBFUZZER
int main(int argc, char** argv) {
    constexpr size_t kMaxLine = 65536;
    return fuzz::run(argc, argv, kSeeds, kDictionary, kMaxLine, test);
}
#endif
