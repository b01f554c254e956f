// SPDX-License-Identifier: MIT
// Hostile packets: whatever a process sends in place of what its core would, it is read as numbers
// and texts that are no larger than the packet.
#include <array>
#include <cstdio>
#include <cstdlib>

#include "engine/python/python_packets.h"
#include "inject/bootstrap.h"
#include "mutator.h"

namespace {

using namespace speedbump;

void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "broken: %s\n", what);
    std::abort();
}

void test(std::string_view text) {
    constexpr pid_t kProcess = 12;
    const engine::PythonPacket packet = engine::read_packet(kProcess, text);
    size_t taken = packet.op.size() + packet.reason.size();
    require(packet.reason.size() <= engine::kMaxTold, "a reason is short enough to be shown");
    require(packet.warnings.size() <= engine::kMaxWarnings, "warnings are few enough to be shown");
    require(packet.warnings_left_out == 0 || packet.warnings.size() == engine::kMaxWarnings,
            "warnings are left out when there are too many");
    for (const std::string& warning : packet.warnings)
        require(warning.size() <= engine::kMaxTold, "a warning is short enough to be shown");
    for (const std::string& warning : packet.warnings) taken += warning.size() + 2;
    for (const engine::PythonMatch& match : packet.matches) {
        require(match.process == kProcess, "a match is of the process that sent it");
        taken += match.module.size() + match.name.size() + match.file.size() + 2;
    }
    require(taken <= text.size(), "there is no more in it than was sent");
    require(packet.matches.size() <= engine::kMaxMatches, "matches are bounded");
    require(packet.modules.size() <= engine::kMaxModules, "modules are bounded");
    require(packet.hook_overhead.count() >= 0 && packet.hook_overhead <= engine::kMaxHookOverhead,
            "what a hook costs");
    const Result<void> answer = inject::read_bootstrap_answer(text);
    require(answer || !answer.error().message.empty(), "a refusal has its reason");
}

// Warnings beyond every bound.
std::string many_warnings() {
    std::string packet = R"({"op":"ready","warnings":["first")";
    for (int i = 0; i < 40; ++i) packet += ",\"" + std::string(1200, 'w') + "\"";
    return packet + "]}";
}

const std::array<std::string, 9> kSeeds = {
    R"({"op":"ready","version":"3.12.1","pid":7,"inherited":true,"from_start":false,)"
    R"("overhead_ns":250,"matched":[{"line":0,"module":"app","name":"f.<locals>.g","file":"/a.py"}],)"
    R"("warnings":["what is \"said\"","\u00e9"]})",
    R"({"op":"matched","matched":[{"line":1,"module":"m","name":"n","file":""},{"line":2}]})",
    R"({"op":"functions","functions":[{"module":"m","name":"n","file":"/x"}]})",
    R"({"op":"gone","reason":"exit"})",
    R"({"op":"error","message":"ImportError: no core"})",
    R"({"op":"loaded"})",
    R"({"op":"ready","overhead_ns":18446744073709551615})",
    std::string(2000, '['),
    many_warnings(),
};

constexpr std::array<std::string_view, 28> kDictionary = {
    "\"op\":",
    "\"matched\":",
    "\"functions\":",
    "\"reason\":",
    "\"message\":",
    "\"line\":",
    "\"module\":",
    "\"name\":",
    "\"file\":",
    "\"warnings\":",
    "\"ready\"",
    "\"gone\"",
    "\"overhead_ns\":",
    "\"loaded\"",
    "\"error\"",
    "null",
    "true",
    "18446744073709551615",
    "-1",
    "1e999",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\xff",
    "[",
    "]",
    "{",
    "}",
    ",",
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    test({reinterpret_cast<const char*>(data), size});
    return 0;
}

#ifndef SPEEDBUMP_LIBFUZZER
int main(int argc, char** argv) {
    constexpr size_t kMaxPacket = 65536; // of the channel
    return fuzz::run(argc, argv, kSeeds, kDictionary, kMaxPacket, test);
}
#endif
