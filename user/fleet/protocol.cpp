// SPDX-License-Identifier: MIT
#include "fleet/protocol.h"

#include <nlohmann/json.hpp>

#include "targets/target.h"
#include "util/text.h"

namespace speedbump::fleet {

using nlohmann::ordered_json;

namespace {

constexpr uint64_t kMost = uint64_t{1} << 60;        // a time, a slice's number
constexpr uint64_t kMostCounted = uint64_t{1} << 40; // in one slice
constexpr uint64_t kMostSince = uint64_t{1} << 50;   // ns, of all units of one slice together
constexpr size_t kMaxText = 4096;
constexpr size_t kMaxFunctions = 64, kMaxNotes = 64; // that are told of one target
constexpr uint64_t kMaxPid = 1u << 22;               // PID_MAX_LIMIT
constexpr size_t kMaxProgress = 64;
constexpr auto kLongestSlice = std::chrono::milliseconds(50);

constexpr std::pair<ErrorKind, const char*> kKinds[] = {{ErrorKind::kUsage, "usage"},
                                                        {ErrorKind::kTargetsFile, "targets"},
                                                        {ErrorKind::kNothingMatched, "nothing"},
                                                        {ErrorKind::kPermission, "permission"},
                                                        {ErrorKind::kUnsupported, "unsupported"},
                                                        {ErrorKind::kNotFound, "not found"},
                                                        {ErrorKind::kInvalid, "invalid"},
                                                        {ErrorKind::kIo, "io"},
                                                        {ErrorKind::kTimeout, "timeout"}};

template <typename... Cases>
struct Overloaded : Cases... {
    using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

[[noreturn]] void refuse(const std::string& what) {
    throw ordered_json::other_error::create(501, what, nullptr);
}

// --- reading; raises nlohmann's exceptions

uint64_t number(const ordered_json& json, uint64_t most) {
    if (!json.is_number_unsigned() || json.get<uint64_t>() > most)
        refuse("a number is not one from 0 to " + std::to_string(most));
    return json.get<uint64_t>();
}
uint64_t number(const ordered_json& json, const char* key, uint64_t most) {
    return number(json.at(key), most);
}
nanoseconds time(const ordered_json& json, const char* key, nanoseconds most) {
    return nanoseconds(number(json, key, static_cast<uint64_t>(most.count())));
}
double share(const ordered_json& json, const char* key) {
    const double value = json.at(key).get<double>();
    if (!(value >= 0 && value <= 1e6)) refuse(std::string(key) + " is out of bounds");
    return value;
}

std::string text(const ordered_json& json, size_t most = kMaxText) {
    auto value = json.get<std::string>();
    if (value.size() > most) refuse("a text is too long");
    return value;
}
// Of the agent's host: for terminals and pages.
std::string foreign(const ordered_json& json, const char* key) {
    return printable(text(json.at(key)));
}

const ordered_json& list(const ordered_json& json, const char* key, size_t most) {
    const ordered_json& value = json.at(key);
    if (!value.is_array() || value.size() > most) refuse(std::string(key) + " is not a list");
    return value;
}
std::vector<std::string> texts(const ordered_json& json, const char* key, size_t most) {
    std::vector<std::string> all;
    for (const ordered_json& one : list(json, key, most)) all.push_back(printable(text(one)));
    return all;
}

Attach read_attach(const ordered_json& json) {
    Attach attach;
    for (const ordered_json& line : list(json, "lines", kMaxTargets))
        attach.lines.push_back(text(line));
    for (const ordered_json& line : list(json, "positive", kMaxTargets))
        attach.positive.push_back(number(line, kMaxTargets));
    for (const size_t line : attach.positive)
        if (line >= attach.lines.size()) refuse("a positive control is none of the lines");
    for (const ordered_json& one : list(json, "progress", kMaxProgress))
        attach.progress.push_back(text(one));
    attach.whole_python = json.at("whole_python").get<bool>();
    attach.whole_native = json.at("whole_native").get<bool>();
    for (const ordered_json& pid : list(json, "pids", kMaxTargets))
        attach.pids.push_back(static_cast<pid_t>(number(pid, kMaxPid)));
    if (json.contains("exe")) attach.exe = text(json.at("exe"));
    if (json.contains("cgroup")) attach.cgroup = text(json.at("cgroup"));
    attach.follow_children = json.at("follow_children").get<bool>();
    attach.max_slowdown = share(json, "max_slowdown");
    attach.max_cpu = share(json, "max_cpu");
    return attach;
}

Begin read_begin(const ordered_json& json) {
    Begin begin;
    begin.epoch = number(json, "epoch", kMost);
    begin.first = number(json, "first", kMost);
    begin.start_ns = number(json, "start_ns", kMost);
    begin.slice = time(json, "slice_ns", kLongestSlice);
    if (begin.slice < std::chrono::milliseconds(1)) refuse("a slice is shorter than 1ms");
    begin.period = time(json, "period_ns", nanoseconds(kMostCounted));
    return begin;
}

Rows read_rows(const ordered_json& json, size_t targets) {
    Rows rows;
    rows.epoch = number(json, "epoch", kMost);
    rows.first = number(json, "first", kMost);
    for (const ordered_json& row : list(json, "doses", kMaxRows)) {
        if (!row.is_array() || row.size() != targets) refuse("a row is not of all targets");
        std::vector<nanoseconds>& doses = rows.doses.emplace_back();
        for (const ordered_json& dose : row)
            doses.emplace_back(number(dose, static_cast<uint64_t>(targets::kMaxDelay.count())));
    }
    return rows;
}

Order order_of(const ordered_json& json, size_t targets) {
    const auto type = json.at("type").get<std::string>();
    if (type == "attach") return read_attach(json);
    if (type == "ping") return Ping{number(json, "id", kMost)};
    if (type == "begin") return read_begin(json);
    if (type == "rows") return read_rows(json, targets);
    if (type == "end") return End{};
    refuse("there is no order '" + printable(type.substr(0, kMaxText)) + "'");
}

Attached read_attached(const ordered_json& json) {
    Attached attached;
    for (const ordered_json& one : list(json, "targets", kMaxTargets)) {
        Attached::Target& target = attached.targets.emplace_back();
        target.name = foreign(one, "name");
        target.functions = texts(one, "functions", kMaxFunctions);
        target.function_count = number(one, "function_count", kMostCounted);
        target.least = time(one, "least_ns", targets::kMaxDelay);
        target.is_positive = one.at("positive").get<bool>();
        target.notes = texts(one, "notes", kMaxNotes);
    }
    return attached;
}

// A slice is the units of each point and when they were done, and calls, delays and injected ns of
// each target.
Taken read_taken(const ordered_json& json, const Shape& shape) {
    Taken taken;
    taken.epoch = number(json, "epoch", kMost);
    taken.first = number(json, "first", kMost);
    taken.began_ns = number(json, "began_ns", kMost);
    for (const ordered_json& row : list(json, "slices", kMaxRows)) {
        if (!row.is_array() || row.size() != 2 * shape.points + 3 * shape.targets)
            refuse("a slice is not of all points and targets");
        SliceReading& slice = taken.slices.emplace_back();
        size_t at = 0;
        const auto next = [&](uint64_t most = kMostCounted) { return number(row[at++], most); };
        while (slice.points.size() < shape.points) {
            SliceReading::Point& point = slice.points.emplace_back();
            point.units = next();
            point.since_ns = next(kMostSince);
        }
        while (slice.targets.size() < shape.targets) {
            SliceReading::Column& column = slice.targets.emplace_back();
            column.calls = next();
            column.delays = next();
            column.injected_ns = next();
        }
    }
    return taken;
}

Failed read_failed(const ordered_json& json) {
    Failed failed;
    const auto name = json.at("kind").get<std::string>();
    for (const auto& [kind, known] : kKinds)
        if (name == known) failed.error.kind = kind;
    failed.error.message = foreign(json, "what");
    failed.error.hint = foreign(json, "hint");
    return failed;
}

Report report_of(const ordered_json& json, const Shape& shape) {
    const auto type = json.at("type").get<std::string>();
    if (type == "hello")
        return Hello{number(json, "protocol", kMost), foreign(json, "version"),
                     foreign(json, "host"), foreign(json, "kernel"), foreign(json, "machine")};
    if (type == "attached") return read_attached(json);
    if (type == "pong") return Pong{number(json, "id", kMost), number(json, "now_ns", kMost)};
    if (type == "taken") return read_taken(json, shape);
    if (type == "late")
        return Late{number(json, "epoch", kMost), number(json, "first", kMost),
                    number(json, "count", kMost)};
    if (type == "tripped") return Tripped{number(json, "epoch", kMost), foreign(json, "why")};
    if (type == "warning") return Warning{foreign(json, "text")};
    if (type == "failed") return read_failed(json);
    refuse("there is no report '" + printable(type.substr(0, kMaxText)) + "'");
}

template <typename Read>
auto read_line(std::string_view line, Read read) -> Result<decltype(read(ordered_json()))> {
    try {
        return read(ordered_json::parse(line));
    } catch (const ordered_json::exception& error) {
        constexpr size_t kShown = 100; // of the line, and of what is wrong with it
        return make_error(ErrorKind::kInvalid,
                          "a line of " + std::to_string(line.size()) +
                              " bytes is not of this protocol: " +
                              printable(std::string_view(error.what()).substr(0, 2 * kShown)) +
                              ": '" + printable(line.substr(0, kShown)) + "'");
    }
}

// --- writing

std::string cut(const std::string& text) {
    return text.substr(0, kMaxText / 4); // printable() makes four bytes of one
}
ordered_json cut_all(const std::vector<std::string>& all, size_t most) {
    ordered_json json = ordered_json::array();
    for (size_t i = 0; i < std::min(all.size(), most); ++i) json.push_back(cut(all[i]));
    return json;
}

std::string dumped(const ordered_json& json) {
    return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

ordered_json json_of(const Attach& attach) {
    ordered_json json = {{"type", "attach"},
                         {"lines", attach.lines},
                         {"positive", attach.positive},
                         {"progress", attach.progress},
                         {"whole_python", attach.whole_python},
                         {"whole_native", attach.whole_native},
                         {"pids", attach.pids}};
    if (attach.exe) json["exe"] = *attach.exe;
    if (attach.cgroup) json["cgroup"] = *attach.cgroup;
    json["follow_children"] = attach.follow_children;
    json["max_slowdown"] = attach.max_slowdown;
    json["max_cpu"] = attach.max_cpu;
    return json;
}

ordered_json json_of(const Rows& rows) {
    ordered_json doses = ordered_json::array();
    for (const auto& row : rows.doses) {
        ordered_json& into = doses.emplace_back(ordered_json::array());
        for (const nanoseconds dose : row) into.push_back(static_cast<uint64_t>(dose.count()));
    }
    return {{"type", "rows"}, {"epoch", rows.epoch}, {"first", rows.first}, {"doses", doses}};
}

ordered_json json_of(const Attached& attached) {
    ordered_json targets = ordered_json::array();
    for (const Attached::Target& target : attached.targets)
        targets.push_back({{"name", cut(target.name)},
                           {"functions", cut_all(target.functions, kMaxFunctions)},
                           {"function_count", target.function_count},
                           {"least_ns", static_cast<uint64_t>(target.least.count())},
                           {"positive", target.is_positive},
                           {"notes", cut_all(target.notes, kMaxNotes)}});
    return {{"type", "attached"}, {"targets", targets}};
}

ordered_json json_of(const Taken& taken) {
    ordered_json slices = ordered_json::array();
    for (const SliceReading& slice : taken.slices) {
        ordered_json& row = slices.emplace_back(ordered_json::array());
        const auto add = [&row](uint64_t value, uint64_t most = kMostCounted) {
            row.push_back(std::min(value, most));
        };
        for (const SliceReading::Point& point : slice.points) {
            add(point.units);
            add(point.since_ns, kMostSince);
        }
        for (const SliceReading::Column& column : slice.targets)
            for (const uint64_t value : {column.calls, column.delays, column.injected_ns})
                add(value);
    }
    return {{"type", "taken"},
            {"epoch", taken.epoch},
            {"first", taken.first},
            {"began_ns", taken.began_ns},
            {"slices", slices}};
}

ordered_json json_of(const Failed& failed) {
    const char* kind = "io";
    for (const auto& [known, name] : kKinds)
        if (failed.error.kind == known) kind = name;
    return {{"type", "failed"},
            {"kind", kind},
            {"what", cut(failed.error.message)},
            {"hint", cut(failed.error.hint)}};
}

} // namespace

std::string line_of(const Order& order) {
    return dumped(
        std::visit(Overloaded{[](const Attach& attach) { return json_of(attach); },
                              [](const Ping& ping) {
                                  return ordered_json{{"type", "ping"}, {"id", ping.id}};
                              },
                              [](const Begin& begin) {
                                  return ordered_json{
                                      {"type", "begin"},
                                      {"epoch", begin.epoch},
                                      {"first", begin.first},
                                      {"start_ns", begin.start_ns},
                                      {"slice_ns", static_cast<uint64_t>(begin.slice.count())},
                                      {"period_ns", static_cast<uint64_t>(begin.period.count())}};
                              },
                              [](const Rows& rows) { return json_of(rows); },
                              [](const End&) {
                                  return ordered_json{{"type", "end"}};
                              }},
                   order));
}

std::string line_of(const Report& report) {
    return dumped(std::visit(
        Overloaded{
            [](const Hello& hello) {
                return ordered_json{{"type", "hello"},
                                    {"protocol", hello.protocol},
                                    {"version", hello.version},
                                    {"host", cut(hello.host)},
                                    {"kernel", cut(hello.kernel)},
                                    {"machine", cut(hello.machine)}};
            },
            [](const Attached& attached) { return json_of(attached); },
            [](const Pong& pong) {
                return ordered_json{{"type", "pong"}, {"id", pong.id}, {"now_ns", pong.now_ns}};
            },
            [](const Taken& taken) { return json_of(taken); },
            [](const Late& late) {
                return ordered_json{{"type", "late"},
                                    {"epoch", late.epoch},
                                    {"first", late.first},
                                    {"count", late.count}};
            },
            [](const Tripped& tripped) {
                return ordered_json{
                    {"type", "tripped"}, {"epoch", tripped.epoch}, {"why", cut(tripped.why)}};
            },
            [](const Warning& warning) {
                return ordered_json{{"type", "warning"}, {"text", cut(warning.text)}};
            },
            [](const Failed& failed) { return json_of(failed); }},
        report));
}

Result<Order> read_order(std::string_view line, size_t targets) {
    return read_line(line, [&](const ordered_json& json) { return order_of(json, targets); });
}

Result<Report> read_report(std::string_view line, const Shape& shape) {
    return read_line(line, [&](const ordered_json& json) { return report_of(json, shape); });
}

} // namespace speedbump::fleet
