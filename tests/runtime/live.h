// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "session/session.h"
#include "targets/parser.h"

namespace speedbump::session {

// A process of this one's that hears on a line: tests/programs/puppet, or another of these.
class Puppet {
  public:
    explicit Puppet(const std::string& program = "puppet") {
        int in[2], out[2];
        if (pipe(in) != 0 || pipe(out) != 0) throw std::runtime_error("pipe");
        pid_ = fork();
        if (pid_ == 0) {
            dup2(in[0], STDIN_FILENO);
            dup2(out[1], STDOUT_FILENO);
            for (const int fd : {in[0], in[1], out[0], out[1]}) close(fd);
            const std::string path = std::string(std::getenv("SPEEDBUMP_PROGRAMS")) + "/" + program;
            execl(path.c_str(), path.c_str(), static_cast<char*>(nullptr));
            _exit(127);
        }
        close(in[0]);
        close(out[1]);
        to_ = fdopen(in[1], "w");
        from_ = fdopen(out[0], "r");
        hear();
    }
    Puppet(const Puppet&) = delete;
    Puppet& operator=(const Puppet&) = delete;
    ~Puppet() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        std::fclose(to_);
        std::fclose(from_);
    }

    pid_t pid() const { return pid_; }
    void send(const std::string& command) {
        std::fprintf(to_, "%s\n", command.c_str());
        std::fflush(to_);
    }
    std::string hear() {
        char line[4096];
        return std::fgets(line, sizeof(line), from_) ? line : "";
    }
    nanoseconds call(const std::string& name) {
        send("call " + name + " 1");
        return nanoseconds(std::stoll(hear()));
    }

    void load_library() {
        send("load " + std::string(std::getenv("SPEEDBUMP_PROGRAMS")) + "/libslowlib.so");
        hear();
    }
    void exec(const std::string& path) {
        send("exec " + path);
        hear();
    }

  private:
    pid_t pid_ = -1;
    std::FILE* to_ = nullptr;
    std::FILE* from_ = nullptr;
};

// A session over a puppet, in this process. Needs root.
class LiveSession : public testing::Test {
  protected:
    void SetUp() override {
        if (geteuid() != 0) GTEST_SKIP() << "needs root";
    }

    std::unique_ptr<Session> attach(const std::string& text) { return attach(text, puppet.pid()); }
    std::unique_ptr<Session> attach(const std::string& text, pid_t pid) {
        const targets::ParseOutcome parsed = targets::parse_targets(text, "targets.txt");
        if (!parsed.errors.empty()) throw std::runtime_error(parsed.errors[0].message);
        SessionOptions options;
        options.pids = {pid};
        auto session = Session::attach(options, parsed.file, [this](const std::string& warning) {
            // Other tests that run now map the same files.
            if (warning.find("is mapped by processes outside the tree") == std::string::npos)
                warnings.push_back(warning);
        });
        if (!session) throw std::runtime_error(session.error().message);
        return std::move(*session);
    }

    std::vector<std::string> warnings; // that the session has given
    Puppet puppet;
};

} // namespace speedbump::session
