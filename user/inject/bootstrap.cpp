// SPDX-License-Identifier: MIT
#include "inject/bootstrap.h"

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

namespace speedbump::inject {
namespace {

// The descriptor is loaded by a path with the thread's number in it, and never by its plain path
// once another build is there, because the dynamic linker takes two files of one name for the same.
constexpr std::string_view kSource = R"py(
def _speedbump_fail(channel, core, error):
    import posix
    text = ascii(type(error).__name__ + ': ' + str(error))[1:-1][:2000]
    text = text.replace('\\', '/').replace('"', "'")
    for act in (lambda: posix.write(channel, ('{"op":"error","message":"%s"}' % text).encode()),
                lambda: posix.close(channel), lambda: posix.close(core)):
        try:
            act()
        except OSError:
            pass

def _speedbump_load(channel, core, path, build):
    import sys, _imp, _thread, atexit # which the core needs
    from _frozen_importlib import ModuleSpec
    from _frozen_importlib_external import ExtensionFileLoader

    try:
        name = 'speed_bump._core'
        cores = sys.modules.get('_speedbump_cores')
        if cores is None:
            cores = sys.modules['_speedbump_cores'] = type(sys)('_speedbump_cores')
            cores.loaded = {}
        module = cores.loaded.get(build)
        if module is None:
            problems = []
            places = ['/proc/self/task/%d/fd/%d' % (_thread.get_native_id(), core)]
            if path and not cores.loaded:
                places.insert(0, path)
            for place in places:
                try:
                    spec = ModuleSpec(name, ExtensionFileLoader(name, place), origin=place)
                    module = _imp.create_dynamic(spec)
                    module.__spec__ = spec
                    _imp.exec_dynamic(module)
                    break
                except (ImportError, OSError) as error:
                    module = None
                    problems.append(str(error.__cause__ or error))
            if module is None:
                raise ImportError('; '.join(problems))
            cores.loaded[build] = module
        if getattr(module, 'protocol', 0) != 1:
            raise ImportError('it is of another release of speedbump')
        return module
    except BaseException as error:
        _speedbump_fail(channel, core, error)

module = _speedbump_load(channel, core, )py";

// A Python literal of any bytes: surrogateescape is how Python itself names such files.
std::string literal(std::string_view text) {
    std::string result = "b'";
    constexpr char kHex[] = "0123456789abcdef";
    for (char c : text) {
        auto byte = static_cast<unsigned char>(c);
        result += "\\x";
        result += kHex[byte >> 4];
        result += kHex[byte & 15];
    }
    return result + "'.decode('utf-8', 'surrogateescape')";
}

} // namespace

std::string load_source(std::string_view core_path, std::string_view build) {
    return std::string(kSource) + literal(core_path) + ", " + literal(build) + ")\n";
}

Result<void> read_bootstrap_answer(std::string_view message) {
    nlohmann::json answer = nlohmann::json::parse(message, nullptr, false);
    if (!answer.is_object() || !answer.contains("op") || !answer["op"].is_string())
        return make_error(ErrorKind::kIo, "unexpected answer from the interpreter");
    if (answer["op"] == "loaded") return {};
    const auto found = answer.find("message");
    const std::string text =
        found != answer.end() && found->is_string() ? found->get<std::string>() : "no reason";
    Error refused = make_error(ErrorKind::kInvalid, "the interpreter refused the core: " + text);
    // It has the file open: no right of its user is missing.
    if (text.find(std::strerror(EACCES)) != std::string::npos) {
        refused.kind = ErrorKind::kPermission;
        refused.hint =
            "the program may open no files there: it lives in a Landlock domain, or a security "
            "module (SELinux, AppArmor) has a rule for it";
    }
    return refused;
}

} // namespace speedbump::inject
