// SPDX-License-Identifier: MIT
#include "util/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include "util/text.h"

extern char** environ;

namespace speedbump {

Result<pid_t> spawn(const std::vector<std::string>& command, const Fd& output,
                    const SpawnOptions& options) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, output.get(), STDOUT_FILENO);
    if (options.input != nullptr)
        posix_spawn_file_actions_adddup2(&actions, options.input->get(), STDIN_FILENO);
    if (options.errors != nullptr)
        posix_spawn_file_actions_adddup2(&actions, options.errors->get(), STDERR_FILENO);
    if (!options.has_input)
        posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!options.has_errors)
        posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    // That this program may have ignored a signal is nothing to it.
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGPIPE);
    posix_spawnattr_setsigdefault(&attributes, &signals);
    posix_spawnattr_setflags(
        &attributes,
        static_cast<short>(POSIX_SPAWN_SETSIGDEF | (options.is_group ? POSIX_SPAWN_SETPGROUP : 0)));
    posix_spawnattr_setpgroup(&attributes, 0);
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    pid_t pid = -1;
    const int error =
        ::posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) return errno_error("start '" + printable(command.back()) + "'", error);
    return pid;
}

} // namespace speedbump
