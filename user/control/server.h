// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "control/protocol.h"
#include "util/result.h"

namespace speedbump::control {

inline constexpr size_t kMaxControlClients = 16;

// What requests do to the session.
struct ControlHandlers {
    std::function<std::string()> status; // one JSON object on one line
    std::function<Result<size_t>(const std::string& pattern, const targets::Options& change)> set;
    std::function<Result<void>()> pause;
    std::function<Result<void>()> resume;
    std::function<void()> detach; // begins; ControlServer::detached() tells that it is done
};

// Takes requests (docs/control.md) from the session's socket and from a fifo, between other things
// that a single thread does: nothing here blocks, whatever the clients do. Not thread-safe.
class ControlServer {
  public:
    static Result<std::unique_ptr<ControlServer>> create();
    // Removes the socket. Clients that are still there see the end of the session.
    ~ControlServer();

    // Makes the session's socket in `directory`, named by this program's PID and hidden until
    // start(), and the guard that removes it when this program dies. Forks (control_guard.h).
    Result<void> listen(const std::string& directory);
    // Takes request lines from a fifo that exists already. kUsage when it is no fifo; kPermission
    // when others than this user, root, and the user of sudo could write to it.
    Result<void> open_fifo(const std::string& path);
    // From now on requests are heard. `warn` receives a line for a bad request from the fifo, where
    // nobody reads an answer.
    Result<void> start(ControlHandlers handlers, std::function<void(const std::string&)> warn);

    // Readable when serve() has something to do.
    int fd() const;
    // Does a bounded part of what waits: at most one request per client.
    void serve();
    // Answers the clients that asked to detach.
    void detached();

  private:
    struct Impl;
    explicit ControlServer(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

} // namespace speedbump::control
