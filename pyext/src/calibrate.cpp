// SPDX-License-Identifier: MIT
#include "calibrate.h"

#include <algorithm>
#include <array>
#include <optional>

#include "clock.h"
#include "gil.h"
#include "python_util.h"

namespace speedbump::python {
namespace {

// The lower quartile: what a preempted batch took does not count.
template <size_t N>
double quartile(std::array<double, N> values) {
    std::nth_element(values.begin(), values.begin() + N / 4, values.end());
    return values[N / 4];
}

constexpr const char* kProgram =
    "def probe():\n"
    "    pass\n"
    "def run(count, function):\n"
    "    for _ in count:\n"
    "        function()\n";
constexpr long kCalls = 100;

// Nanoseconds per call of the probe, called as a program would call it.
std::optional<double> time_call(PyObject* run, PyObject* count, PyObject* probe) {
    std::array<double, 24> batches{};
    for (double& batch : batches) {
        const uint64_t begin = now_ns();
        const Ref result(
            stay([=] { return PyObject_CallFunctionObjArgs(run, count, probe, nullptr); }));
        if (!result) return std::nullopt;
        batch = static_cast<double>(now_ns() - begin) / static_cast<double>(kCalls);
    }
    return quartile(batches);
}

} // namespace

uint64_t clock_overhead_ns() {
    static const uint64_t overhead = [] {
        constexpr int kReads = 200;
        std::array<double, 16> batches{};
        for (double& batch : batches) {
            const uint64_t begin = now_ns();
            uint64_t last = begin;
            for (int i = 0; i < kReads; ++i) last = now_ns();
            batch = static_cast<double>(last - begin) / kReads;
        }
        return std::max<uint64_t>(1, static_cast<uint64_t>(quartile(batches) + 0.5));
    }();
    return overhead;
}

void spin_ns(uint64_t ns) {
    const uint64_t begin = now_ns();
    while (now_ns() - begin < ns) {
    }
}

bool calibrate_hook(Interpreter& interpreter) {
    static bool done = false;
    if (done) return true;
    const Ref globals(PyDict_New());
    if (!globals) return false;
    const Ref code(Py_CompileString(kProgram, "<speed_bump>", Py_file_input));
    if (!code) return false;
    if (PyDict_SetItemString(globals.get(), "__builtins__", PyEval_GetBuiltins()) != 0) {
        return false;
    }
    const Ref executed(stay([code = code.get(), globals = globals.get()] {
        return PyEval_EvalCode(code, globals, globals);
    }));
    if (!executed) return false;
    PyObject* run = PyDict_GetItemString(globals.get(), "run");
    PyObject* probe = PyDict_GetItemString(globals.get(), "probe");
    const Ref count(PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyRange_Type), "l", kCalls));
    if (run == nullptr || probe == nullptr || !count) return false;

    const auto plain = time_call(run, count.get(), probe);
    if (!plain) return false;

    constexpr uint64_t kDelayNs = 700;
    Result<Table> table = Table::make_private(1, 2);
    if (!table) {
        PyErr_SetString(PyExc_RuntimeError, table.error().message.c_str());
        return false;
    }
    sb_target& target = table->own_targets()[0];
    target.delay_ns = kDelayNs;
    target.every = 1;
    target.root_mask = ~uint64_t{0};
    target.enabled = 1;
    SessionSpec spec;
    spec.is_trial = true;
    targets::TargetLine line;
    line.container.text = "<speed_bump>";
    line.name.text = "probe";
    spec.file.lines.push_back(line);
    spec.applies.push_back(0);
    spec.table = std::move(*table);
    if (auto begun = begin_session(std::move(spec)); !begun) {
        PyErr_SetString(PyExc_RuntimeError, begun.error().message.c_str());
        return false;
    }
    std::optional<double> delayed;
    if (hook(interpreter)) delayed = time_call(run, count.get(), probe);
    stop_delays();
    unhook(interpreter);
    end_session();
    if (!delayed) return false;
    const double overhead = *delayed - *plain - static_cast<double>(kDelayNs);
    g_live.overhead_ns = static_cast<uint64_t>(std::clamp(overhead, 0.0, 2000.0) + 0.5);
    done = true;
    return true;
}

} // namespace speedbump::python
