// SPDX-License-Identifier: MIT
// Attaches a core to a running interpreter, cycle by cycle, and prints one line a cycle:
// inject_probe [--cycles N] [--hold MS] [--timeout MS] [--quiet] CORE PID
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include "inject/injector.h"

namespace {

// Waits for a packet; empty at the end or after 10 s.
std::string receive(int channel) {
    pollfd poll_fd{channel, POLLIN, 0};
    char buffer[65536];
    if (poll(&poll_fd, 1, 10000) <= 0) return {};
    ssize_t got = recv(channel, buffer, sizeof(buffer), 0);
    return got > 0 ? std::string(buffer, static_cast<size_t>(got)) : std::string();
}

bool say(int channel, std::string_view text) {
    return send(channel, text.data(), text.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(text.size());
}

} // namespace

int main(int argc, char** argv) {
    int cycles = 1;
    int hold_ms = 0;
    speedbump::inject::InjectOptions options;
    bool quiet = false;
    int at = 1;
    for (; at < argc && std::string_view(argv[at]).starts_with("--"); ++at) {
        std::string_view option = argv[at];
        if (option == "--quiet") quiet = true;
        if (option == "--cycles" && at + 1 < argc) cycles = std::atoi(argv[++at]);
        if (option == "--hold" && at + 1 < argc) hold_ms = std::atoi(argv[++at]);
        if (option == "--timeout" && at + 1 < argc)
            options.interpreter_timeout = std::chrono::milliseconds(std::atoi(argv[++at]));
    }
    if (argc - at != 2) {
        fmt::print(stderr, "usage: {} [--cycles N] [--hold MS] [--timeout MS] [--quiet] CORE PID\n",
                   argv[0]);
        return 2;
    }
    options.core = argv[at];
    pid_t pid = std::atoi(argv[at + 1]);
    for (int cycle = 0; cycle < cycles; ++cycle) {
        auto injection = speedbump::inject::inject(pid, options);
        if (!injection) {
            fmt::print(stderr, "cycle {}: {}\n", cycle, injection.error().message);
            if (!injection.error().hint.empty())
                fmt::print(stderr, "hint: {}\n", injection.error().hint);
            return 1;
        }
        int channel = injection->channel.get();
        std::string ready =
            say(channel, "{\"op\":\"begin\"}") ? receive(channel) : std::string("not sent");
        if (hold_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(hold_ms));
        std::string gone =
            say(channel, "{\"op\":\"detach\"}") ? receive(channel) : std::string("not sent");
        const auto& timing = injection->timing;
        if (!quiet)
            fmt::print("{}: stopped {} us in {}, thread {} us, code {} us{} {} {}\n",
                       injection->interpreter.tag(), timing.stopped.count() / 1000, timing.stops,
                       timing.to_thread.count() / 1000, timing.to_code.count() / 1000,
                       injection->by_debugger_support ? " (PEP 768)" : "", ready, gone);
        if (ready.find("ready") == std::string::npos || gone.find("gone") == std::string::npos)
            return 1;
    }
    return 0;
}
