// SPDX-License-Identifier: MIT
#include "inject/start_module.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstdint>
#include <string_view>

namespace speedbump::inject {
namespace {

// Imported by every Python that finds it, of whatever version and make, so it is written in what
// all of them understand. `_speedbump_start` tells the core that the program has not begun; the
// core sets `_speedbump_cores.hooked` (see pyext/src/serve.cpp).
constexpr std::string_view kSource = R"py(
import os, sys

def _hide(entry):
    import zipimport
    sys.path[:] = [place for place in sys.path if place != entry]
    sys.path_importer_cache.pop(entry, None)
    zipimport._zip_directory_cache.pop(os.path.dirname(entry), None)
    # Without unsetenv: children get the C environment, or what the program makes of os.environ.
    variables, name = os.environ._data, b'PYTHONPATH'
    places = [place for place in variables.pop(name, b'').split(b':')
              if place != os.fsencode(entry)]
    if any(places):
        variables[name] = b':'.join(places)

def _wait(archive):
    import time
    end = time.monotonic() + 2
    sys.modules['_speedbump_start'] = sys
    try:
        while time.monotonic() < end:
            if getattr(sys.modules.get('_speedbump_cores'), 'hooked', False):
                break
            os.stat(archive)
            time.sleep(0.001)
    except OSError:
        pass
    finally:
        del sys.modules['_speedbump_start']

def _start(entry):
    if sys.version_info < (3, 10) or sys.implementation.name != 'cpython':
        sys.path[:] = [place for place in sys.path if place != entry]
        return
    _hide(entry)
    known = '%d.%d%s' % (sys.version_info[:2] + (sys.abiflags,)) in @TAGS@
    # Signals are the main interpreter's: others, which the process makes later, must not wait.
    if known and '_signal' in sys.modules and @PID@ in (0, os.getpid()):
        _wait(entry.rpartition('/')[0])

# Held, since some versions empty a module that nobody holds while it still runs.
_self = sys.modules.pop('sitecustomize')
_start(__file__.rpartition('/')[0])
import sitecustomize
)py";

void append(std::string& to, uint64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; ++i) to += static_cast<char>(value >> (8 * i) & 0xff);
}

// A zip file with one member, stored as it is.
std::string zip_of(const std::string& name, const std::string& data) {
    constexpr uint64_t kLongAgo = 0x0021; // 1980-01-01
    std::string common;                   // of both headers
    append(common, 10, 2);                // version 1.0 can read it
    append(common, 0, 2);                 // flags
    append(common, 0, 2);                 // stored
    append(common, 0, 2);                 // time
    append(common, kLongAgo, 2);
    append(common,
           ::crc32(0, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size())),
           4);
    append(common, data.size(), 4);
    append(common, data.size(), 4);
    append(common, name.size(), 2);
    append(common, 0, 2); // extra field

    std::string zip = "PK\3\4" + common + name + data;
    const size_t directory = zip.size();
    zip += "PK\1\2";
    append(zip, 10, 2); // made by version 1.0
    zip += common;
    append(zip, 0, 2 + 2 + 2 + 4 + 4); // comment, disk, attributes, offset of the member
    zip += name;
    const size_t size = zip.size() - directory;
    zip += "PK\5\6";
    append(zip, 0, 4); // disks
    append(zip, 1, 2);
    append(zip, 1, 2);
    append(zip, size, 4);
    append(zip, directory, 4);
    append(zip, 0, 2); // comment
    return zip;
}

void replace(std::string& text, std::string_view what, const std::string& with) {
    text.replace(text.find(what), what.size(), with);
}

Result<std::string> make_secret() {
    uint64_t words[2] = {};
    if (getrandom(words, sizeof(words), 0) != sizeof(words)) return errno_error("getrandom", errno);
    return fmt::format("{:016x}{:016x}", words[0], words[1]);
}

} // namespace

Result<StartModule> StartModule::create(std::span<const std::string> tags, pid_t only) {
    Result<std::string> secret = make_secret();
    if (!secret) return std::move(secret.error());
    std::string list = "(";
    for (const std::string& tag : tags) list += "'" + tag + "', ";
    std::string source(kSource);
    replace(source, "@TAGS@", list + ")");
    replace(source, "@PID@", std::to_string(only));
    const std::string zip = zip_of(*secret + "/sitecustomize.py", source);

    Fd file(memfd_create("speedbump-start", MFD_CLOEXEC));
    if (!file.valid()) return errno_error("memfd_create", errno);
    if (::write(file.get(), zip.data(), zip.size()) != static_cast<ssize_t>(zip.size()))
        return errno_error("write a module", errno);
    std::string entry = fmt::format("/proc/{}/fd/{}/{}", getpid(), file.get(), *secret);
    return StartModule(std::move(file), std::move(entry));
}

} // namespace speedbump::inject
