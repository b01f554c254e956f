// SPDX-License-Identifier: MIT
#include "experiment/document.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "experiment/analysis.h"
#include "experiment/device_document.h"
#include "experiment/document_json.h"
#include "experiment/fleet_document.h"
#include "experiment/sliced_document.h"
#include "util/fd.h"

namespace speedbump::experiment {

namespace {

using nlohmann::ordered_json;

constexpr const char* kSchema = "speedbump/experiment/1";
constexpr off_t kMaxDocumentBytes = 1l << 30;
constexpr auto kLongestSlice = std::chrono::hours(1000); // of one arm: that of some is told

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
    const auto is_known = [](const auto& device) { return device.has_value(); };
    if (std::any_of(slice.device.begin(), slice.device.end(), is_known))
        for (const auto& device : slice.device)
            json["device"].push_back(optional_json(device, device_json));
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
        if (!document.sliced) continue;
        json["progress"].back()["arrives_within_slices"] = progress.arrives_within;
        json["progress"].back()["arrived"] = progress.arrived;
        json["progress"].back()["arrives_later"] = progress.arrives_later;
        json["progress"].back()["pairs"] = progress.pairs;
    }
    for (const HostResult& host : results.hosts) {
        ordered_json targets = ordered_json::array();
        for (const TargetResult& target : host.targets)
            targets.push_back(result_json(target, document));
        json["hosts"].push_back({{"name", document.fleet->hosts[host.host].name},
                                 {"period_ns", number(host.period)},
                                 {"targets", targets}});
    }
    for (const DeviceResult& device : results.devices)
        json["devices"].push_back(device_result_json(device, document));
    return json;
}

ordered_json targets_json(const std::vector<Target>& targets) {
    ordered_json json = ordered_json::array();
    for (const Target& target : targets) {
        ordered_json doses = ordered_json::array();
        for (const nanoseconds dose : target.doses) doses.push_back(dose.count());
        json.push_back({{"name", target.name},
                        {"role", target.role == Role::kPositive ? "positive" : "target"},
                        {"functions", target.functions},
                        {"function_count", target.function_count},
                        {"doses_ns", doses},
                        {"notes", target.notes}});
        if (target.host) json.back()["host"] = *target.host;
    }
    return json;
}

ordered_json blocks_json(const std::vector<Block>& blocks) {
    ordered_json json = ordered_json::array();
    for (const Block& block : blocks) {
        ordered_json slices = ordered_json::array();
        for (const Slice& slice : block.slices) slices.push_back(slice_json(slice));
        json.push_back({{"confirms", block.confirms}, {"slices", slices}});
    }
    return json;
}

// Without their blocks.
ordered_json rungs_json(const Document& document) {
    ordered_json json = ordered_json::array();
    for (const Rung& rung : document.rungs) {
        const Document alone = document_of(document, rung);
        json.push_back({{"targets", targets_json(rung.targets)},
                        {"followed", rung.followed},
                        {"notes", rung.notes},
                        {"results", results_json(analyse(alone), alone)}});
    }
    return json;
}

// --- reading

ArmKind read_kind(const std::string& name) {
    for (const auto& [kind, text] : kArmNames)
        if (name == text) return kind;
    refuse("there is no arm '" + name + "'");
}

Slice read_slice(const ordered_json& json, const Document& document) {
    Slice slice;
    slice.arm.kind = read_kind(json.at("arm").get<std::string>());
    if (slice.arm.kind == ArmKind::kDose) {
        slice.arm.target = read_count(json.at("target"), "target");
        slice.arm.delay = read_time(json, "delay_ns");
        slice.injected = read_time(json, "injected_ns");
        if (slice.arm.target >= document.targets.size()) refuse("a slice of no target");
    }
    slice.start = read_time(json, "start_ns");
    slice.length = read_time(json, "length_ns");
    slice.waited = read_time(json, "waited_ns");
    slice.progress = read_counts(json.at("progress"), "progress");
    slice.progress_time = read_times(json.at("progress_ns"), "progress_ns");
    if (slice.progress.size() != document.progress.size() ||
        slice.progress_time.size() != document.progress.size())
        refuse("a slice has another number of progress points than the document");
    if (json.contains("calls")) slice.calls = read_counts(json.at("calls"), "calls");
    const bool has_none = slice.arm.kind == ArmKind::kOff && slice.calls.empty();
    if (slice.calls.size() != document.targets.size() && !has_none)
        refuse("a slice has another number of targets than the document");
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
    if (json.contains("device")) {
        const ordered_json& devices = json.at("device");
        if (devices.size() != slice.progress.size()) refuse("devices of other progress points");
        slice.device.resize(slice.progress.size());
        for (size_t i = 0; i < devices.size(); ++i)
            if (!devices[i].is_null()) slice.device[i] = read_device(devices[i]);
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
    target.function_count = read_count(json.at("function_count"), "function_count");
    target.doses = read_times(json.at("doses_ns"), "doses_ns");
    target.notes = json.at("notes").get<std::vector<std::string>>();
    if (json.contains("host")) target.host = read_count(json.at("host"), "host");
    return target;
}

// The targets and blocks of a document, or of a rung of it.
void read_measured(const ordered_json& json, Document& document) {
    for (const ordered_json& target : json.at("targets"))
        document.targets.push_back(read_target(target));
    for (const ordered_json& block : json.at("blocks")) {
        document.blocks.emplace_back();
        document.blocks.back().confirms = block.at("confirms").get<bool>();
        for (const ordered_json& slice : block.at("slices"))
            document.blocks.back().slices.push_back(read_slice(slice, document));
    }
}

Rung read_rung(const ordered_json& json, const Document& document) {
    Document alone;
    alone.progress = document.progress;
    read_measured(json, alone);
    Rung rung;
    rung.targets = std::move(alone.targets);
    rung.blocks = std::move(alone.blocks);
    rung.followed = read_counts(json.at("followed"), "followed");
    for (const size_t target : rung.followed)
        if (target >= rung.targets.size()) refuse("a rung goes on with no target of its own");
    rung.notes = json.at("notes").get<std::vector<std::string>>();
    return rung;
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
    document.engine = json.at("engine").get<std::string>();
    document.started_unix_ns =
        read_number(json.at("started_unix_ns"), "started_unix_ns", INT64_MIN, INT64_MAX);
    if (!json.at("seed").is_number_unsigned()) refuse("its seed is not a whole number");
    document.seed = json.at("seed").get<uint64_t>();
    const ordered_json& settings = json.at("settings");
    document.settings.slice = read_time(settings, "slice_ns", kLongestSlice);
    document.settings.settle = read_time(settings, "settle_ns");
    document.settings.precision = settings.at("precision").get<double>();
    document.settings.max_slowdown = settings.at("max_slowdown").get<double>();
    document.settings.max_cpu = settings.at("max_cpu").get<double>();
    document.progress = json.at("progress").get<std::vector<std::string>>();
    if (document.progress.empty()) refuse("it has no progress point");
    read_measured(json, document);
    if (json.contains("rungs"))
        for (const ordered_json& rung : json.at("rungs"))
            document.rungs.push_back(read_rung(rung, document));
    if (json.contains("sliced")) document.sliced = read_sliced(json.at("sliced"), document);
    if (json.contains("fleet")) document.fleet = read_fleet(json.at("fleet"), document);
    check_hosts_of_targets(document);
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

namespace {

// Without what was measured raw.
ordered_json summary_of(const Document& document, const Results& results) {
    ordered_json json = {{"schema", kSchema},
                         {"version", document.version},
                         {"host", document.host},
                         {"kernel", document.kernel},
                         {"machine", document.machine},
                         {"engine", document.engine},
                         {"started_unix_ns", document.started_unix_ns},
                         {"seed", document.seed},
                         {"settings",
                          {{"slice_ns", document.settings.slice.count()},
                           {"settle_ns", document.settings.settle.count()},
                           {"precision", document.settings.precision},
                           {"max_slowdown", document.settings.max_slowdown},
                           {"max_cpu", document.settings.max_cpu}}},
                         {"progress", document.progress},
                         {"targets", targets_json(document.targets)},
                         {"warnings", document.warnings},
                         {"tool_cpu", document.tool_cpu},
                         {"stopped", document.stopped},
                         {"complete", document.complete},
                         {"results", results_json(results, document)}};
    if (!document.rungs.empty()) json["rungs"] = rungs_json(document);
    if (document.fleet) json["fleet"] = fleet_summary_json(*document.fleet);
    return json;
}

std::string dumped(const ordered_json& json) {
    return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

} // namespace

std::string summary_json(const Document& document, const Results& results) {
    return dumped(summary_of(document, results));
}

std::string to_json(const Document& document) {
    return to_json(document, analyse(document));
}

std::string to_json(const Document& document, const Results& results) {
    ordered_json json = summary_of(document, results);
    for (size_t rung = 0; rung < document.rungs.size(); ++rung)
        json["rungs"][rung]["blocks"] = blocks_json(document.rungs[rung].blocks);
    json["blocks"] = blocks_json(document.blocks);
    if (document.sliced) json["sliced"] = sliced_json(*document.sliced);
    if (document.fleet) json["fleet"] = fleet_json(*document.fleet);
    return dumped(json);
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

namespace {

// The slices of `from` come after those of `to`.
Result<void> append(Sliced& to, const Sliced& from) {
    const bool alike = to.slice == from.slice && to.chance == from.chance &&
                       std::equal(to.targets.begin(), to.targets.end(), from.targets.begin(),
                                  from.targets.end(), [](const auto& a, const auto& b) {
                                      return (a.dose.count() == 0) == (b.dose.count() == 0);
                                  });
    if (!alike)
        return make_error(ErrorKind::kInvalid,
                          "the experiments have slices of other lengths, or delays with another "
                          "chance, or have not slowed the same targets: they can be compared, not "
                          "merged");
    const auto add = [](auto& all, const auto& more) {
        all.insert(all.end(), more.begin(), more.end());
    };
    for (size_t point = 0; point < to.units.size(); ++point)
        add(to.units[point], from.units[point]);
    if (from.since_ns.empty()) to.since_ns.clear();
    for (size_t point = 0; point < to.since_ns.size(); ++point)
        add(to.since_ns[point], from.since_ns[point]);
    for (size_t target = 0; target < to.targets.size(); ++target) {
        to.targets[target].calls += from.targets[target].calls;
        add(to.targets[target].steps, from.targets[target].steps);
        add(to.targets[target].injected_ns, from.targets[target].injected_ns);
        add(to.targets[target].delays, from.targets[target].delays);
    }
    to.waited = std::min(to.waited + from.waited, kLongestTime);
    return {};
}

// Times in ns: no two slices have the same by chance.
bool is_same(const Block& a, const Block& b) {
    return !a.slices.empty() &&
           std::equal(a.slices.begin(), a.slices.end(), b.slices.begin(), b.slices.end(),
                      [](const Slice& one, const Slice& other) {
                          return one.start == other.start && one.length == other.length &&
                                 one.progress_time == other.progress_time &&
                                 one.progress == other.progress;
                      });
}

// Whether anything that one has measured is part of the other.
bool holds_of(const Document& all, const Document& other) {
    for (const Block& block : other.blocks)
        if (std::any_of(all.blocks.begin(), all.blocks.end(),
                        [&](const Block& one) { return is_same(one, block); }))
            return true;
    return all.seed == other.seed && all.started_unix_ns == other.started_unix_ns;
}

} // namespace

Result<Document> merge(const std::vector<Document>& documents) {
    if (documents.empty()) return make_error(ErrorKind::kUsage, "nothing to merge");
    Document merged = documents.front();
    for (size_t i = 1; i < documents.size(); ++i) {
        const Document& other = documents[i];
        if (holds_of(merged, other))
            return make_error(ErrorKind::kInvalid,
                              "an experiment is there twice, or is part of what others were merged "
                              "into: it would count as new measurements");
        const bool same_targets = std::equal(
            merged.targets.begin(), merged.targets.end(), other.targets.begin(),
            other.targets.end(),
            [](const Target& a, const Target& b) { return a.name == b.name && a.role == b.role; });
        if (!same_targets || merged.progress != other.progress)
            return make_error(ErrorKind::kInvalid,
                              "the experiments have other targets or progress points: they can be "
                              "compared, not merged");
        if (merged.fleet || other.fleet)
            return make_error(
                ErrorKind::kInvalid,
                "an experiment on several hosts at once is one already: such ones can "
                "be compared, not merged");
        if (merged.host.find(other.host) == std::string::npos) merged.host += ", " + other.host;
        if (merged.engine.find(other.engine) == std::string::npos)
            merged.engine += ", " + other.engine;
        if (merged.sliced.has_value() != other.sliced.has_value())
            return make_error(ErrorKind::kInvalid,
                              "one of the experiments has short slices, another has none: they can "
                              "be compared, not merged");
        if (merged.sliced)
            if (auto added = append(*merged.sliced, *other.sliced); !added)
                return std::move(added).error();
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
