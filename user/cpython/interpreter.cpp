// SPDX-License-Identifier: MIT
#include "cpython/interpreter.h"

#include <algorithm>
#include <array>
#include <optional>

#include "cpython/offsets.h"

namespace speedbump::cpython {
namespace {

// Whether an interpreter state exists. The layout of _PyRuntime is private; these are the only
// fields used, and they are stable within a minor version.
bool runtime_initialized(const process::RemoteMemory& memory, uint64_t runtime, int minor) {
    if (minor >= 13) {
        auto head_offset = memory.value<uint64_t>(runtime + kInterpretersHead);
        if (!head_offset || *head_offset > 1 << 20) return false;
        auto head = memory.value<uint64_t>(runtime + *head_offset);
        return head && *head != 0;
    }
    auto initialized = memory.value<int32_t>(runtime + initialized_offset(minor));
    return initialized && *initialized == 1;
}

} // namespace

std::string Interpreter::tag() const {
    std::string text = std::to_string(major) + "." + std::to_string(minor);
    if (free_threaded) text += "t";
    if (debug) text += "d";
    return text;
}

std::string Interpreter::describe() const {
    if (major == 0) return "Python older than 3.7 (" + path + ")";
    if (minor == 9) return "Python older than 3.10 (" + path + ")";
    std::string text = "Python " + std::to_string(major) + "." + std::to_string(minor);
    if (micro >= 0) text += "." + std::to_string(micro);
    if (free_threaded) text += " free-threaded";
    if (debug) text += " debug build";
    return text + " (" + path + ")";
}

std::vector<Interpreter> interpreters_of(const process::RemoteMemory& memory,
                                         const std::vector<process::RemoteModule>& modules) {
    bool musl =
        std::any_of(modules.begin(), modules.end(), [](const process::RemoteModule& module) {
            return module.path().find("/ld-musl-") != std::string::npos ||
                   module.soname().rfind("libc.musl-", 0) == 0;
        });
    std::vector<Interpreter> found;
    for (const process::RemoteModule& module : modules) {
        std::optional<uint64_t> runtime = module.find("_PyRuntime");
        Interpreter interpreter;
        interpreter.path = module.path();
        interpreter.in_executable = module.is_executable();
        interpreter.musl = musl;
        if (!runtime) {
            if (!module.find("PyEval_EvalFrameEx") || !module.find("PyRun_SimpleStringFlags"))
                continue;
            found.push_back(interpreter);
            continue;
        }
        interpreter.runtime_address = *runtime;
        interpreter.major = 3;
        interpreter.minor = module.find("PyModule_AddObjectRef") ? 10 : 9;
        if (std::optional<uint64_t> version = module.find("Py_Version")) {
            uint64_t hex = memory.value<uint64_t>(*version).value_or(0);
            interpreter.major = static_cast<int>(hex >> 24 & 0xff);
            interpreter.minor = static_cast<int>(hex >> 16 & 0xff);
            interpreter.micro = static_cast<int>(hex >> 8 & 0xff);
        }
        interpreter.free_threaded = module.find("_Py_DecRefShared").has_value();
        interpreter.debug = module.find("_Py_RefTotal").has_value() ||
                            module.find("_Py_GetRefTotal").has_value() ||
                            module.find("_Py_INCREF_IncRefTotal").has_value();
        interpreter.initialized = runtime_initialized(memory, *runtime, interpreter.minor);
        found.push_back(interpreter);
    }
    std::stable_partition(found.begin(), found.end(),
                          [](const Interpreter& interpreter) { return interpreter.initialized; });
    return found;
}

Result<std::vector<Interpreter>> find_interpreters(pid_t pid) {
    Result<std::vector<process::RemoteModule>> modules = process::load_modules(pid);
    if (!modules) return std::move(modules.error());
    return interpreters_of(process::RemoteMemory(pid), *modules);
}

} // namespace speedbump::cpython
