// SPDX-License-Identifier: MIT
#include "session/program_files.h"

#include <elf.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <sstream>

#include "util/fd.h"
#include "util/spawn.h"

namespace speedbump::session {

namespace {

bool is_executable_file(const std::string& path) {
    struct stat status {};
    return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
           access(path.c_str(), X_OK) == 0;
}

std::string search_path(const std::string& name) {
    if (name.find('/') != std::string::npos) return is_executable_file(name) ? name : "";
    const char* variable = std::getenv("PATH");
    std::stringstream directories(variable ? variable : "/usr/local/bin:/usr/bin:/bin");
    for (std::string directory; std::getline(directories, directory, ':');) {
        std::string candidate = (directory.empty() ? "." : directory) + "/" + name;
        if (is_executable_file(candidate)) return candidate;
    }
    return "";
}

// The interpreter of a "#!" script, or empty.
std::string script_interpreter(const std::string& path) {
    const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    char head[256] = {};
    if (!fd.valid() || read(fd.get(), head, sizeof(head) - 1) < 3) return "";
    if (head[0] != '#' || head[1] != '!') return "";
    std::istringstream line(std::string(head + 2, strcspn(head + 2, "\n")));
    std::string interpreter, argument;
    line >> interpreter >> argument;
    // "#!/usr/bin/env NAME" runs NAME.
    const bool env = interpreter.size() >= 4 && interpreter.ends_with("/env");
    return env && !argument.empty() && argument[0] != '-' ? search_path(argument) : interpreter;
}

// The dynamic loader that PT_INTERP names, or empty for a static program.
std::string dynamic_loader(const std::string& path) {
    const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    Elf64_Ehdr header;
    if (!fd.valid() || pread(fd.get(), &header, sizeof(header), 0) != sizeof(header)) return "";
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return "";
    for (unsigned i = 0; i < header.e_phnum; ++i) {
        Elf64_Phdr segment;
        const auto at = static_cast<off_t>(header.e_phoff + i * sizeof(segment));
        if (pread(fd.get(), &segment, sizeof(segment), at) != sizeof(segment)) return "";
        if (segment.p_type != PT_INTERP || segment.p_filesz > 4096) continue;
        std::string name(segment.p_filesz, '\0');
        const ssize_t got =
            pread(fd.get(), name.data(), name.size(), static_cast<off_t>(segment.p_offset));
        if (got != static_cast<ssize_t>(name.size())) return "";
        return name.c_str();
    }
    return "";
}

// The standard output of a program, at most 1 MiB and 5 s of it.
std::string output_of(const std::vector<std::string>& command) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return "";
    const Fd reader(ends[0]);
    Fd writer(ends[1]);
    const auto child = spawn(command, writer, {.has_errors = false});
    if (!child) return "";
    writer.reset();
    std::string output;
    char buffer[4096];
    pollfd waiting{reader.get(), POLLIN, 0};
    while (output.size() < (1u << 20) && poll(&waiting, 1, 5000) == 1) {
        const ssize_t got = read(reader.get(), buffer, sizeof(buffer));
        if (got <= 0) break;
        output.append(buffer, static_cast<size_t>(got));
    }
    kill(*child, SIGKILL); // ended already, unless it hangs
    waitpid(*child, nullptr, 0);
    return output;
}

} // namespace

Result<ProgramFiles> program_files(const std::vector<std::string>& command) {
    ProgramFiles files;
    files.executable = command.empty() ? "" : search_path(command.front());
    if (files.executable.empty())
        return make_error(
            ErrorKind::kNotFound,
            (command.empty() ? std::string("no command") : command.front()) + ": no such program");
    for (int depth = 0; depth < 4; ++depth) { // the kernel, too, follows a few scripts of scripts
        const std::string interpreter = script_interpreter(files.executable);
        if (interpreter.empty()) break;
        files.executable = interpreter;
    }
    const std::string loader = dynamic_loader(files.executable);
    if (loader.empty()) return files;
    files.libraries.push_back(loader);
    // "	libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f...)"
    std::istringstream lines(output_of({loader, "--list", files.executable}));
    for (std::string line; std::getline(lines, line);) {
        const size_t arrow = line.find("=> /"), end = line.rfind(" (0x");
        if (arrow != std::string::npos && end != std::string::npos && end > arrow)
            files.libraries.push_back(line.substr(arrow + 3, end - arrow - 3));
    }
    return files;
}

} // namespace speedbump::session
