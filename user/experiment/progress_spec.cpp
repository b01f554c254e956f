// SPDX-License-Identifier: MIT
#include "experiment/progress_spec.h"

#include <cctype>

#include "experiment/device_spec.h"
#include "targets/parser.h"

namespace speedbump::experiment {

namespace {

using Kind = ProgressSpec::Kind;

struct Form {
    const char* name;
    Kind kind;
    size_t parts; // after the kind
    const char* usage;
};

constexpr Form kForms[] = {
    {"native", Kind::kNative, 2, "native:BINARY:SYMBOL"},
    {"python", Kind::kPython, 2, "python:MODULE:NAME"},
    {"latency", Kind::kLatency, 2, "latency:BINARY:SYMBOL"},
    {"usdt", Kind::kUsdt, 3, "usdt:BINARY:PROVIDER:NAME"},
    {"syscall", Kind::kSyscall, 1, "syscall:NAME"},
    {"command", Kind::kCommand, 1, "command:CMD"},
    {"file", Kind::kFile, 2, "file:PATH:REGEX"},
    {"http", Kind::kHttp, 2, "http:URL:REGEX"},
    {"device", Kind::kDevice, 1, "device:cuda, device:BINARY:LAUNCH,...:WAIT,..."},
};

// A URL has colons of its own: after its scheme, and before its port.
size_t end_of_url(const std::string& text) {
    const size_t scheme = text.find("://");
    const size_t host = scheme == std::string::npos ? 0 : scheme + 3;
    size_t end = text.find(':', host);
    if (end != std::string::npos && end + 1 < text.size() && std::isdigit(text[end + 1]) &&
        text.find('/', host) > end)
        end = text.find(':', end + 1);
    return end;
}

Error wrong(const std::string& text, const std::string& usage) {
    return make_error(ErrorKind::kUsage,
                      "'" + text + "' is not a progress point: it must be " + usage);
}

Result<targets::TargetLine> parse_line(const std::string& line, const std::string& given) {
    const targets::ParseOutcome outcome = targets::parse_targets(line, "--progress");
    if (!outcome.errors.empty() || outcome.file.lines.size() != 1)
        return make_error(ErrorKind::kUsage,
                          "'" + given + "' names no function: " +
                              (outcome.errors.empty() ? "" : outcome.errors.front().message));
    return outcome.file.lines.front();
}

} // namespace

Result<ProgressSpec> parse_progress(const std::string& text) {
    const size_t colon = text.find(':');
    const std::string name = text.substr(0, colon);
    for (const Form& form : kForms) {
        if (name != form.name) continue;
        ProgressSpec spec;
        spec.kind = form.kind;
        spec.text = text;
        std::string rest = colon == std::string::npos ? "" : text.substr(colon + 1);
        std::string* parts[] = {&spec.first, &spec.second, &spec.third};
        for (size_t part = 0; part < form.parts; ++part) {
            size_t end = std::string::npos;
            if (part + 1 < form.parts)
                end = form.kind == Kind::kHttp ? end_of_url(rest) : rest.find(':');
            *parts[part] = rest.substr(0, end);
            const bool is_cut = part + 1 < form.parts && end == std::string::npos;
            if (is_cut || parts[part]->empty()) return wrong(text, form.usage);
            rest = end == std::string::npos ? "" : rest.substr(end + 1);
        }
        if (form.kind == Kind::kHttp && !spec.first.starts_with("http"))
            return wrong(text, form.usage);
        if (form.kind == Kind::kDevice)
            if (auto device = parse_device(spec.first); !device)
                return std::move(device).error().with_context("'" + text + "' is not a device");
        return spec;
    }
    std::string all;
    for (const Form& form : kForms) all += std::string(all.empty() ? "" : ", ") + form.usage;
    return wrong(text, "one of " + all);
}

Result<targets::TargetLine> line_of(const ProgressSpec& spec) {
    const bool native = spec.kind != Kind::kPython;
    return parse_line((native ? "+" : "") + spec.first + ":" + spec.second, spec.text);
}

Result<targets::TargetLine> native_line(const std::string& binary, const std::string& name) {
    const std::string text = "+" + binary + ":" + name;
    return parse_line(text, text);
}

bool is_told_by_slice(const ProgressSpec& spec) {
    using Kind = ProgressSpec::Kind;
    return spec.kind != Kind::kCommand && spec.kind != Kind::kFile && spec.kind != Kind::kHttp;
}

uint64_t latency_of_bucket(uint32_t bucket) {
    if (bucket < 32) return bucket;
    const uint32_t power = (bucket >> 4) - 1;
    const uint64_t low = bucket - (power << 4);
    return (low << power) + (uint64_t{1} << (power - 1));
}

} // namespace speedbump::experiment
