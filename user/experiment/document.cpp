// SPDX-License-Identifier: MIT
#include "experiment/document.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "experiment/analysis.h"
#include "util/fd.h"

namespace speedbump::experiment {

namespace {

using nlohmann::ordered_json;

constexpr const char* kSchema = "speedbump/experiment/1";
constexpr off_t kMaxDocumentBytes = 1l << 30;

constexpr std::pair<ArmKind, const char*> kArmNames[] = {{ArmKind::kOff, "off"},
                                                         {ArmKind::kProbe, "probe"},
                                                         {ArmKind::kSham, "sham"},
                                                         {ArmKind::kDose, "dose"}};

// --- writing

// JSON has no infinity: an interval that is not known yet is null.
ordered_json number(double value) {
    if (!std::isfinite(value)) return nullptr;
    return value;
}

ordered_json estimate_json(const Estimate& estimate) {
    return {{"value", number(estimate.value)},
            {"error", number(estimate.error)},
            {"low", number(estimate.interval.low)},
            {"high", number(estimate.interval.high)},
            {"p", estimate.p}};
}

template <typename T, typename F>
ordered_json optional_json(const std::optional<T>& value, F write) {
    if (!value) return nullptr;
    return write(*value);
}

ordered_json slice_json(const Slice& slice) {
    ordered_json json = {{"arm", to_string(slice.arm.kind)}};
    if (slice.arm.kind == ArmKind::kDose) {
        json["target"] = slice.arm.target;
        json["delay_ns"] = slice.arm.delay.count();
        json["injected_ns"] = slice.injected.count();
    }
    json["start_ns"] = slice.start.count();
    json["length_ns"] = slice.length.count();
    json["waited_ns"] = slice.waited.count();
    json["progress"] = slice.progress;
    ordered_json times = ordered_json::array();
    for (const nanoseconds time : slice.progress_time) times.push_back(time.count());
    json["progress_ns"] = times;
    if (!slice.calls.empty()) json["calls"] = slice.calls;
    ordered_json latencies = ordered_json::array();
    bool has_latency = false;
    for (const auto& latency : slice.latency) {
        has_latency |= latency.has_value();
        latencies.push_back(optional_json(latency, [](const Latency& one) {
            return ordered_json{{"p50_ns", one.p50.count()},
                                {"p90_ns", one.p90.count()},
                                {"p99_ns", one.p99.count()}};
        }));
    }
    if (has_latency) json["latency"] = latencies;
    return json;
}

ordered_json result_json(const TargetResult& result, const Document& document) {
    ordered_json json = {{"name", document.targets[result.target].name},
                         {"verdict", to_string(result.verdict)},
                         {"blocks", result.blocks},
                         {"calls_per_unit", result.calls_per_unit}};
    if (result.blocks == 0) return json;
    json["shape"] = to_string(result.shape.shape);
    json["criticality"] = estimate_json(result.shape.slope);
    json["p_corrected"] = result.p;
    json["base_ns"] = number(result.shape.base);
    if (result.shape.shape == Shape::kHinge) json["slack_ns"] = estimate_json(result.shape.slack);
    json["gain_ns_per_us"] = optional_json(result.gain, estimate_json);
    json["waited_per_injected"] = result.waited;
    json["confirmed"] = optional_json(result.confirmed, estimate_json);
    json["blocks_wanted"] = result.blocks_wanted;
    ordered_json points = ordered_json::array();
    for (const Point& point : result.points)
        points.push_back({{"x_ns", point.x},
                          {"period_ns", point.y},
                          {"error_ns", point.y_error},
                          {"slices", point.slices}});
    json["points"] = points;
    return json;
}

ordered_json results_json(const Results& results, const Document& document) {
    ordered_json json = {{"valid", results.valid}, {"invalid_because", results.invalid_because}};
    for (const ProgressResult& progress : results.progress) {
        ordered_json targets = ordered_json::array();
        for (const TargetResult& target : progress.targets)
            targets.push_back(result_json(target, document));
        json["progress"].push_back({{"name", document.progress[progress.progress]},
                                    {"period_ns", progress.period},
                                    {"looking_ns", optional_json(progress.looking, estimate_json)},
                                    {"sham", optional_json(progress.sham, estimate_json)},
                                    {"targets", targets}});
    }
    return json;
}

// --- reading

// Raises nlohmann's exceptions for what is missing or of the wrong type; from_json() catches them.
[[noreturn]] void refuse(const std::string& what) {
    throw ordered_json::other_error::create(501, what, nullptr);
}

nanoseconds read_time(const ordered_json& json, const char* key) {
    const nanoseconds time(json.at(key).get<int64_t>());
    if (time.count() < 0) refuse(std::string(key) + " is negative");
    return time;
}

ArmKind read_kind(const std::string& name) {
    for (const auto& [kind, text] : kArmNames)
        if (name == text) return kind;
    refuse("there is no arm '" + name + "'");
}

Slice read_slice(const ordered_json& json, const Document& document) {
    Slice slice;
    slice.arm.kind = read_kind(json.at("arm").get<std::string>());
    if (slice.arm.kind == ArmKind::kDose) {
        slice.arm.target = json.at("target").get<size_t>();
        slice.arm.delay = read_time(json, "delay_ns");
        slice.injected = read_time(json, "injected_ns");
        if (slice.arm.target >= document.targets.size()) refuse("a slice of no target");
    }
    slice.start = read_time(json, "start_ns");
    slice.length = read_time(json, "length_ns");
    slice.waited = read_time(json, "waited_ns");
    slice.progress = json.at("progress").get<std::vector<uint64_t>>();
    for (const ordered_json& time : json.at("progress_ns"))
        slice.progress_time.emplace_back(time.get<int64_t>());
    if (slice.progress.size() != document.progress.size() ||
        slice.progress_time.size() != document.progress.size())
        refuse("a slice has another number of progress points than the document");
    if (json.contains("calls")) {
        slice.calls = json.at("calls").get<std::vector<uint64_t>>();
        if (slice.calls.size() != document.targets.size())
            refuse("a slice has another number of targets than the document");
    }
    slice.latency.resize(slice.progress.size());
    if (json.contains("latency")) {
        const ordered_json& latencies = json.at("latency");
        if (latencies.size() != slice.progress.size()) refuse("latencies of other progress points");
        for (size_t i = 0; i < latencies.size(); ++i)
            if (!latencies[i].is_null())
                slice.latency[i] =
                    Latency{read_time(latencies[i], "p50_ns"), read_time(latencies[i], "p90_ns"),
                            read_time(latencies[i], "p99_ns")};
    }
    return slice;
}

Target read_target(const ordered_json& json) {
    Target target;
    target.name = json.at("name").get<std::string>();
    const std::string role = json.at("role").get<std::string>();
    if (role != "target" && role != "positive") refuse("there is no role '" + role + "'");
    target.role = role == "positive" ? Role::kPositive : Role::kTarget;
    target.functions = json.at("functions").get<std::vector<std::string>>();
    target.function_count = json.at("function_count").get<size_t>();
    for (const ordered_json& dose : json.at("doses_ns"))
        target.doses.emplace_back(dose.get<int64_t>());
    target.notes = json.at("notes").get<std::vector<std::string>>();
    return target;
}

Document read_document(const ordered_json& json) {
    const std::string schema = json.at("schema").get<std::string>();
    if (schema != kSchema)
        refuse("its schema is '" + schema + "', this program reads '" + kSchema + "'");
    Document document;
    document.version = json.at("version").get<std::string>();
    document.host = json.at("host").get<std::string>();
    document.kernel = json.at("kernel").get<std::string>();
    document.machine = json.at("machine").get<std::string>();
    document.started_unix_ns = json.at("started_unix_ns").get<int64_t>();
    document.seed = json.at("seed").get<uint64_t>();
    const ordered_json& settings = json.at("settings");
    document.settings.slice = read_time(settings, "slice_ns");
    document.settings.settle = read_time(settings, "settle_ns");
    document.settings.precision = settings.at("precision").get<double>();
    document.settings.max_slowdown = settings.at("max_slowdown").get<double>();
    document.settings.max_cpu = settings.at("max_cpu").get<double>();
    document.progress = json.at("progress").get<std::vector<std::string>>();
    if (document.progress.empty()) refuse("it has no progress point");
    for (const ordered_json& target : json.at("targets"))
        document.targets.push_back(read_target(target));
    for (const ordered_json& block : json.at("blocks")) {
        document.blocks.emplace_back();
        document.blocks.back().confirms = block.at("confirms").get<bool>();
        for (const ordered_json& slice : block.at("slices"))
            document.blocks.back().slices.push_back(read_slice(slice, document));
    }
    document.warnings = json.at("warnings").get<std::vector<std::string>>();
    document.tool_cpu = json.at("tool_cpu").get<double>();
    document.stopped = json.at("stopped").get<std::string>();
    document.complete = json.at("complete").get<bool>();
    return document;
}

} // namespace

std::string to_string(ArmKind kind) {
    for (const auto& [value, text] : kArmNames)
        if (value == kind) return text;
    return "probe";
}

std::string to_json(const Document& document) {
    ordered_json targets = ordered_json::array();
    for (const Target& target : document.targets) {
        ordered_json doses = ordered_json::array();
        for (const nanoseconds dose : target.doses) doses.push_back(dose.count());
        targets.push_back({{"name", target.name},
                           {"role", target.role == Role::kPositive ? "positive" : "target"},
                           {"functions", target.functions},
                           {"function_count", target.function_count},
                           {"doses_ns", doses},
                           {"notes", target.notes}});
    }
    ordered_json blocks = ordered_json::array();
    for (const Block& block : document.blocks) {
        ordered_json slices = ordered_json::array();
        for (const Slice& slice : block.slices) slices.push_back(slice_json(slice));
        blocks.push_back({{"confirms", block.confirms}, {"slices", slices}});
    }
    const ordered_json json = {{"schema", kSchema},
                               {"version", document.version},
                               {"host", document.host},
                               {"kernel", document.kernel},
                               {"machine", document.machine},
                               {"started_unix_ns", document.started_unix_ns},
                               {"seed", document.seed},
                               {"settings",
                                {{"slice_ns", document.settings.slice.count()},
                                 {"settle_ns", document.settings.settle.count()},
                                 {"precision", document.settings.precision},
                                 {"max_slowdown", document.settings.max_slowdown},
                                 {"max_cpu", document.settings.max_cpu}}},
                               {"progress", document.progress},
                               {"targets", targets},
                               {"warnings", document.warnings},
                               {"tool_cpu", document.tool_cpu},
                               {"stopped", document.stopped},
                               {"complete", document.complete},
                               {"results", results_json(analyse(document), document)},
                               {"blocks", blocks}};
    return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

Result<Document> from_json(const std::string& text, const std::string& path) {
    try {
        return read_document(ordered_json::parse(text));
    } catch (const ordered_json::exception& error) {
        return make_error(ErrorKind::kInvalid,
                          path + " is not an experiment, or not a whole one: " + error.what());
    }
}

Result<Document> load_document(const std::string& path) {
    const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd.valid()) return errno_error("open " + path, errno);
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) return errno_error("look at " + path, errno);
    if (!S_ISREG(status.st_mode) || status.st_size > kMaxDocumentBytes)
        return make_error(ErrorKind::kInvalid, path + " is not a file of an experiment");
    std::string text(static_cast<size_t>(status.st_size), '\0');
    size_t filled = 0;
    while (filled < text.size()) {
        const ssize_t got = ::read(fd.get(), text.data() + filled, text.size() - filled);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno_error("read " + path, errno);
        if (got == 0) break;
        filled += static_cast<size_t>(got);
    }
    text.resize(filled);
    return from_json(text, path);
}

Result<Document> merge(const std::vector<Document>& documents) {
    if (documents.empty()) return make_error(ErrorKind::kUsage, "nothing to merge");
    Document merged = documents.front();
    for (size_t i = 1; i < documents.size(); ++i) {
        const Document& other = documents[i];
        const bool same_targets = std::equal(
            merged.targets.begin(), merged.targets.end(), other.targets.begin(),
            other.targets.end(),
            [](const Target& a, const Target& b) { return a.name == b.name && a.role == b.role; });
        if (!same_targets || merged.progress != other.progress)
            return make_error(ErrorKind::kInvalid,
                              "the experiments have other targets or progress points: they can be "
                              "compared, not merged");
        if (merged.host.find(other.host) == std::string::npos) merged.host += ", " + other.host;
        merged.blocks.insert(merged.blocks.end(), other.blocks.begin(), other.blocks.end());
        merged.warnings.insert(merged.warnings.end(), other.warnings.begin(), other.warnings.end());
        for (size_t target = 0; target < merged.targets.size(); ++target)
            merged.targets[target].notes.insert(merged.targets[target].notes.end(),
                                                other.targets[target].notes.begin(),
                                                other.targets[target].notes.end());
        merged.complete &= other.complete;
        if (other.stopped != merged.stopped) merged.stopped += ", " + other.stopped;
    }
    return merged;
}

} // namespace speedbump::experiment
