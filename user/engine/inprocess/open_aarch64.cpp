// SPDX-License-Identifier: MIT
#include "engine/inprocess/open.h"

namespace speedbump::engine::inprocess {
namespace {

Error refusal() {
    return make_error(ErrorKind::kUnsupported,
                      "the in-process engine is for x86-64: it is not there for aarch64 yet")
        .with_hint("use --engine=bpf");
}

} // namespace

Result<std::unique_ptr<InprocessProbes>> open(uint32_t, std::function<void(const std::string&)>) {
    return refusal();
}

Result<CalibrationRow> measure_accuracy(const std::vector<nanoseconds>&) {
    return refusal();
}

} // namespace speedbump::engine::inprocess
