// SPDX-License-Identifier: MIT
#include "report/device.h"

#include <fmt/format.h>

#include "report/times.h"
#include "util/text.h"
#include "util/units.h"

namespace speedbump::report {

namespace {

using experiment::DeviceResult;
using experiment::DeviceVerdict;
using experiment::Interval;

std::string show_shares(const Interval& share) {
    return fmt::format("{:.1f} to {:.1f}%", share.low * 100, share.high * 100);
}

std::string conclusion_of(const DeviceResult& result) {
    switch (result.verdict) {
        case DeviceVerdict::kHostBound:
            return fmt::format("host-bound: a faster device gains {:.1f}% at most",
                               result.waiting.high * 100);
        case DeviceVerdict::kDeviceBound:
            return fmt::format("device-bound: a faster host gains {:.1f}% at most",
                               result.idling.high * 100);
        case DeviceVerdict::kTurns:
            return "host and device take turns: each waits for the other, and either gains";
        case DeviceVerdict::kBalanced:
            return "balanced: host and device are both busy, and only both together gain";
        case DeviceVerdict::kUncertain:
            return "neither host-bound nor device-bound is certain";
    }
    return "";
}

} // namespace

std::string device_text(const experiment::Document& document, const DeviceResult& result,
                        const Style& style) {
    const std::string name = printable(document.progress[result.progress]);
    std::string text = paint(style, Tone::kBold, name) + ": " + conclusion_of(result) + "\n";
    if (result.unit > 0) {
        text += fmt::format("  the host waits for the device {} of the time: {} of {} per unit",
                            show_shares(result.waiting), show_ns(result.wait + result.held),
                            show_ns(result.unit));
        if (result.held > 0)
            text += fmt::format(", {} of it for room in a queue", show_ns(result.held));
        text += fmt::format("\n  the device is idle {} of the time: {} per unit",
                            show_shares(result.idling), show_ns(result.idle));
        if (result.unseen > 0)
            text += fmt::format(", and {} that can't be seen", show_ns(result.unseen));
        text += fmt::format("\n  {} launches and {} waits per unit\n", show_rate(result.launches),
                            show_rate(result.waits));
    }
    for (const std::string& note : result.notes)
        text += paint(style, Tone::kWarning, "  note: ") + printable(note) + "\n";
    return text;
}

} // namespace speedbump::report
