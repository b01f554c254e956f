// SPDX-License-Identifier: MIT
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <tuple>

#include "calibrate.h"
#include "interpreters.h"
#include "sb_common.h"
#include "serve.h"
#include "session.h"
#include "targets/matcher.h"
#include "targets/parser.h"

namespace py = pybind11;

namespace speedbump::python {
namespace {

using targets::TargetLine;

// Room for the targets that slow() adds to an installed session.
constexpr uint32_t kSpareTargets = 64;
constexpr uint32_t kSlots = 256;

[[noreturn]] void raise(const Error& error) {
    if (error.error_number != 0) {
        PyErr_SetObject(PyExc_OSError, py::make_tuple(error.error_number, error.message).ptr());
        throw py::error_already_set();
    }
    throw py::value_error(error.message);
}

void check(bool done) {
    if (!done) throw py::error_already_set();
}

Interpreter& interpreter_here() {
    Interpreter* interpreter = this_interpreter();
    check(interpreter != nullptr);
    return *interpreter;
}

// A str from bytes that may be no UTF-8.
py::str decoded(const std::string& text) {
    PyObject* object =
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
    check(object != nullptr);
    return py::reinterpret_steal<py::str>(object);
}

// (lines, errors): each error is (line number, message, the message with line and caret).
py::tuple describe_outcome(targets::ParseOutcome outcome, const std::string& path) {
    py::list errors;
    for (const targets::Diagnostic& error : outcome.errors) {
        errors.append(py::make_tuple(error.line, decoded(error.message),
                                     decoded(targets::format_diagnostic(path, error))));
    }
    return py::make_tuple(std::move(outcome.file.lines), errors);
}

// `first_line` is the number of the text's first line.
py::tuple parse(const std::string& text, const std::string& path, size_t first_line) {
    targets::ParseOutcome outcome = targets::parse_targets(text, path);
    for (TargetLine& line : outcome.file.lines) line.line_number += first_line - 1;
    for (targets::Diagnostic& error : outcome.errors) error.line += first_line - 1;
    return describe_outcome(std::move(outcome), path);
}

py::tuple load_file(const std::string& path) {
    Result<targets::TargetsFile> file = targets::load_targets(path);
    if (file) return py::make_tuple(std::move(file->lines), py::list());
    // A file with bad lines is read again for the place of each; a fifo would be waited for.
    if (file.error().kind != ErrorKind::kTargetsFile || !std::filesystem::is_regular_file(path)) {
        raise(file.error());
    }
    std::ifstream stream(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    targets::ParseOutcome outcome = targets::parse_targets(text, path);
    if (outcome.errors.empty()) raise(file.error());
    return describe_outcome(std::move(outcome), path);
}

// What a target does; times are on CLOCK_MONOTONIC, 0: none.
struct Settings {
    uint64_t delay_ns = 0;
    uint64_t every = 1;
    uint64_t start_ns = 0;
    uint64_t end_ns = 0;
    bool enabled = true;
};

// Writes one target of the table; the delay comes last, so that no hook sees half of it.
void write_target(uint32_t index, const Settings& settings) {
    sb_target& target = session_table().own_targets()[index];
    __atomic_store_n(&target.delay_ns, 0u, __ATOMIC_RELAXED);
    __atomic_store_n(&target.every, settings.every, __ATOMIC_RELAXED);
    __atomic_store_n(&target.start_ns, settings.start_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&target.end_ns, settings.end_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&target.root_mask, ~uint64_t{0}, __ATOMIC_RELAXED);
    __atomic_store_n(&target.enabled, settings.enabled ? 1u : 0u, __ATOMIC_RELEASE);
    __atomic_store_n(&target.delay_ns, settings.delay_ns, __ATOMIC_RELEASE);
}

// The hook of an interpreter with another GIL could not be taken out, and the threads that are in
// it not waited for: they are not counted (InHook), and without guards nobody can go there.
void require_shared_gil() {
    if (!SB_FREE_THREADED && sb_keeps_gil() != 0 && sb_runs_beside_others() != 0) {
        throw std::runtime_error(
            "a subinterpreter with a GIL of its own can't change what is slowed: install in one "
            "that shares the main interpreter's");
    }
}

void require_own_session() {
    if (!has_session()) throw std::runtime_error("speed_bump is not installed");
    if (!session_identity().empty()) {
        throw std::runtime_error("this process is slowed by a speedbump session from outside");
    }
}

void check_index(uint32_t index) {
    require_shared_gil();
    require_own_session();
    if (index >= session_table().target_count()) throw py::index_error("no such target");
}

void uninstall() {
    if (!has_session()) return;
    require_shared_gil();
    require_own_session();
    stop_delays();
    unhook_everywhere();
    end_session();
}

void install(std::vector<TargetLine> lines, const std::vector<Settings>& settings) {
    if (lines.size() != settings.size()) throw py::value_error("one settings per line");
    require_shared_gil();
    if (has_session()) require_own_session();
    uninstall();
    Interpreter& interpreter = interpreter_here();
    check(calibrate_hook(interpreter));
    SessionSpec spec;
    const auto count = static_cast<uint32_t>(lines.size());
    TargetLine spare;
    spare.exclude = true;
    spec.file.lines = std::move(lines);
    // An empty exclusion matches no function: a place that slow() can fill.
    spec.file.lines.resize(count + kSpareTargets, spare);
    for (uint32_t index = 0; index < count; ++index) spec.applies.push_back(index);
    Result<Table> table = Table::make_private(count + kSpareTargets, kSlots);
    if (!table) raise(table.error());
    spec.table = std::move(*table);
    if (Result<void> begun = begin_session(std::move(spec)); !begun) raise(begun.error());
    for (uint32_t index = 0; index < count; ++index) write_target(index, settings[index]);
    Look look;
    if (!hook(interpreter) || !look_at_existing(interpreter, look)) {
        py::error_already_set error;
        uninstall();
        throw error;
    }
}

void set_target(uint32_t index, const TargetLine& line, const Settings& settings) {
    check_index(index);
    sb_counts fresh{};
    const Table& table = session_table();
    for (uint32_t slot = 0; slot < table.slot_count(); ++slot) {
        if (__atomic_load_n(&table.slot(slot)->writer, __ATOMIC_RELAXED) == 0 && slot != 0)
            continue;
        Table::counts_of(table.slot(slot))[index] = fresh;
    }
    __atomic_store_n(&table.turns()[index].calls, 0u, __ATOMIC_RELAXED);
    write_target(index, settings);
    set_line(index, line, true);
    check(hook(interpreter_here()));
}

void clear_target(uint32_t index) {
    check_index(index);
    write_target(index, {.delay_ns = 0, .every = 1, .start_ns = 0, .end_ns = 0, .enabled = false});
    TargetLine spare;
    spare.exclude = true;
    set_line(index, spare, false);
    check(hook(interpreter_here()));
}

void set_delay(uint32_t index, uint64_t delay_ns) {
    check_index(index);
    __atomic_store_n(&session_table().own_targets()[index].delay_ns, delay_ns, __ATOMIC_RELAXED);
}

// (calls, delays, requested_ns, measured_ns) of every target, over this process and its children.
std::vector<std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>> stats() {
    require_own_session();
    const InHook in(sb_runs_beside_others() != 0); // the session may end beside us
    if (g_live.running.load() == 0) throw std::runtime_error("speed_bump is not installed");
    const Table& table = *g_live.table;
    std::vector<std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>> sums(table.target_count());
    for (uint32_t slot = 0; slot < table.slot_count(); ++slot) {
        sb_slot* here = table.slot(slot);
        if (slot != 0 && __atomic_load_n(&here->writer, __ATOMIC_RELAXED) == 0) continue;
        const sb_counts* counts = Table::counts_of(here);
        for (size_t target = 0; target < sums.size(); ++target) {
            auto& [calls, delays, requested, measured] = sums[target];
            calls += __atomic_load_n(&counts[target].hits, __ATOMIC_RELAXED);
            delays += __atomic_load_n(&counts[target].delays, __ATOMIC_RELAXED);
            requested += __atomic_load_n(&counts[target].requested_ns, __ATOMIC_RELAXED);
            measured += __atomic_load_n(&counts[target].measured_ns, __ATOMIC_RELAXED);
        }
    }
    return sums;
}

void clear_cache() {
    forget_decisions();
    Interpreter& interpreter = interpreter_here();
    if (interpreter.is_hooked()) check(hook(interpreter));
}

std::vector<std::string> explain_not_interpreted(std::vector<TargetLine> lines) {
    targets::TargetsFile file;
    file.lines = std::move(lines);
    return not_interpreted(file);
}

TargetLine make_line(std::string module, std::string name) {
    const auto pattern = [](std::string text) {
        const bool is_glob = text.find_first_of("*?[") != std::string::npos;
        return targets::Pattern{std::move(text), is_glob};
    };
    TargetLine line;
    line.original = module + ":" + name;
    line.container = pattern(std::move(module));
    line.name = pattern(std::move(name));
    return line;
}

std::optional<int64_t> count_of(const std::optional<std::chrono::nanoseconds>& duration) {
    if (!duration) return std::nullopt;
    return duration->count();
}

const TargetLine* find_deciding(std::vector<TargetLine> lines, const std::string& module,
                                const std::string& file_path, const std::string& name,
                                targets::TargetsFile& file) {
    file.lines = std::move(lines);
    return targets::decide_python(file, module, file_path, name);
}

void bind(py::module_& m) {
    py::class_<TargetLine>(m, "Line")
        .def(py::init(&make_line), py::arg("module"), py::arg("name"))
        .def_property_readonly(
            "is_python",
            [](const TargetLine& line) { return line.runtime == targets::Runtime::kPython; })
        .def_readonly("exclude", &TargetLine::exclude)
        .def_property_readonly("module",
                               [](const TargetLine& line) { return decoded(line.container.text); })
        .def_property_readonly("name",
                               [](const TargetLine& line) { return decoded(line.name.text); })
        .def_property_readonly("delay_ns",
                               [](const TargetLine& line) { return count_of(line.options.delay); })
        .def_property_readonly("every", [](const TargetLine& line) { return line.options.every; })
        .def_property_readonly("start_ns",
                               [](const TargetLine& line) { return count_of(line.options.start); })
        .def_property_readonly(
            "duration_ns", [](const TargetLine& line) { return count_of(line.options.duration); })
        .def_property_readonly("pid", [](const TargetLine& line) { return line.options.pid; })
        .def_readonly("line_number", &TargetLine::line_number)
        .def_property_readonly("original",
                               [](const TargetLine& line) { return decoded(line.original); })
        .def(
            "matches",
            [](const TargetLine& line, const std::string& module, const std::string& file,
               const std::string& name) {
                return targets::python_matches(line, module, file, name);
            },
            py::arg("module"), py::arg("file"), py::arg("name"));
    py::class_<Settings>(m, "Settings")
        .def(py::init([](uint64_t delay_ns, uint64_t every, uint64_t start_ns, uint64_t end_ns,
                         bool enabled) {
                 return Settings{delay_ns, every, start_ns, end_ns, enabled};
             }),
             py::arg("delay_ns"), py::arg("every") = 1, py::arg("start_ns") = 0,
             py::arg("end_ns") = 0, py::arg("enabled") = true);

    m.def("parse", &parse, py::arg("text"), py::arg("path"), py::arg("first_line") = 1);
    m.def("load", &load_file, py::arg("path"));
    m.def("parse_duration", [](const std::string& text) {
        Result<std::chrono::nanoseconds> duration = targets::parse_duration(text);
        if (!duration) raise(duration.error());
        return duration->count();
    });
    m.def(
        "deciding_line",
        [](std::vector<TargetLine> lines, const std::string& module, const std::string& file_path,
           const std::string& name) -> std::optional<size_t> {
            targets::TargetsFile file;
            const TargetLine* line = find_deciding(std::move(lines), module, file_path, name, file);
            if (line == nullptr) return std::nullopt;
            return static_cast<size_t>(line - file.lines.data());
        },
        py::arg("lines"), py::arg("module"), py::arg("file"), py::arg("name"));
    m.def("not_interpreted", &explain_not_interpreted, py::arg("lines"));

    m.def("install", &install, py::arg("lines"), py::arg("settings"));
    m.def("uninstall", &uninstall);
    m.def("join", [] {
        Look look;
        check(hook(interpreter_here()) && look_at_existing(interpreter_here(), look));
    });
    m.def("leave", [] { unhook(interpreter_here()); });
    m.def("has_session", &has_session);
    m.def("interpreter_id", [] { return PyInterpreterState_GetID(PyInterpreterState_Get()); });
    m.def("clear_cache", &clear_cache);
    m.def("set_target", &set_target, py::arg("index"), py::arg("line"), py::arg("settings"));
    m.def("clear_target", &clear_target, py::arg("index"));
    m.def("set_delay", &set_delay, py::arg("index"), py::arg("delay_ns"));
    m.def("stats", &stats);
    m.attr("max_delay_ns") = SB_MAX_DELAY_NS;
    m.attr("spare_targets") = kSpareTargets;

    m.def("clock_overhead_ns", &clock_overhead_ns);
    m.def("hook_overhead_ns", [] {
        if (!has_session()) check(calibrate_hook(interpreter_here()));
        return g_live.overhead_ns;
    });
    m.def("spin_delay_ns", &spin_ns, py::arg("ns"));
    m.def("serve", &serve, py::arg("channel"), py::arg("core") = -1);
    m.attr("protocol") = 1; // of the loader (serve.h), which loads no other
    register_fork_handlers(forget_channel);
}

} // namespace
} // namespace speedbump::python

#if PYBIND11_VERSION_MAJOR >= 3
PYBIND11_MODULE(pybind_core, m, py::mod_gil_not_used(),
                py::multiple_interpreters::per_interpreter_gil())
#else
PYBIND11_MODULE(pybind_core, m)
#endif
{
    speedbump::python::bind(m);
}

PYBIND11_PLUGIN_IMPL(_core) {
#if !SB_MONITORING
    // pybind11 would wait for ever here: it takes the GIL by PyGILState_Ensure, which before 3.12
    // knows the main interpreter only.
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError,
                        "speed_bump can be imported in a subinterpreter from Python 3.12 on");
        return nullptr;
    }
#endif
    return PyInit_pybind_core();
}
