// SPDX-License-Identifier: MIT
#include "control/server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <list>
#include <optional>
#include <utility>

#include "control/guard.h"
#include "util/clock.h"
#include "util/control_directory.h"
#include "util/event_loop.h"

namespace speedbump::control {

namespace {

// The directory may be removed by the last session in it between making and using it.
constexpr int kListenTries = 20;
constexpr int kBacklog = 16;
// Bad lines in a fifo are not worth more than this.
constexpr auto kFifoWarningInterval = std::chrono::seconds(1);

// What an epoll event is about; all else is a client's descriptor.
enum Source : uint64_t { kListener = uint64_t{1} << 32, kFifo, kMore };

// Collects bytes and gives lines. A line that is too long is left out and told of once.
class LineBuffer {
  public:
    void append(const char* bytes, size_t count) {
        bytes_.append(bytes, count);
        if (skipping_) skip();
        if (bytes_.size() > kMaxControlLine && bytes_.find('\n') == std::string::npos) {
            bytes_.clear();
            skipping_ = true;
            overlong_ = true;
        }
    }
    bool has_line() const { return overlong_ || bytes_.find('\n') != std::string::npos; }
    // The next line; an overlong one as an Error. Only when has_line().
    Result<std::string> take() {
        if (std::exchange(overlong_, false)) {
            return make_error(ErrorKind::kUsage, "a request is longer than " +
                                                     std::to_string(kMaxControlLine) + " bytes");
        }
        const size_t end = bytes_.find('\n');
        std::string line = bytes_.substr(0, end);
        bytes_.erase(0, end + 1);
        return line;
    }

  private:
    void skip() {
        const size_t end = bytes_.find('\n');
        skipping_ = end == std::string::npos;
        bytes_.erase(0, skipping_ ? std::string::npos : end + 1);
    }

    std::string bytes_;
    bool skipping_ = false;
    bool overlong_ = false;
};

struct Client {
    Fd fd;
    LineBuffer in;
    std::string out;
    Clock::time_point last_heard = Clock::now();
    bool waits_for_detach = false;
    bool ended = false; // sends no more requests
    bool gone = false;
};

enum class Heard { kSome, kNothing, kEnd };

// Reads once. `buffer` gets at most one request's worth, so that a flood waits in the kernel.
Heard hear(int fd, LineBuffer& buffer) {
    std::array<char, 4096> bytes;
    const ssize_t got = ::read(fd, bytes.data(), bytes.size());
    if (got > 0) {
        buffer.append(bytes.data(), static_cast<size_t>(got));
        return Heard::kSome;
    }
    const bool is_empty = got < 0 && (errno == EAGAIN || errno == EINTR);
    return is_empty ? Heard::kNothing : Heard::kEnd;
}

bool may_control(uid_t user) {
    if (user == 0 || user == ::geteuid()) return true;
    // only root and sudo, on behalf of someone who may become root, can have set it for root
    const char* sudo = ::geteuid() == 0 ? std::getenv("SUDO_UID") : nullptr;
    return sudo != nullptr && std::to_string(user) == sudo;
}

} // namespace

struct ControlServer::Impl {
    Fd epoll;
    Fd more;  // an eventfd: a line that was read already waits for its turn
    Fd spare; // given up for a moment when there are no descriptors left

    std::string directory_path;
    Fd directory;
    std::vector<std::string> names; // hidden, public
    Fd listener;
    std::list<Client> clients;
    std::optional<Heir> guard;

    Fd fifo;
    LineBuffer fifo_lines;
    Clock::time_point fifo_warned{};
    uint64_t fifo_unwarned = 0;

    ControlHandlers handlers;
    std::function<void(const std::string&)> warn;

    Result<void> try_listen();
    void accept_clients();
    void make_room();
    void admit(Fd fd);
    void hear_client(Client& client);
    void flush(Client& client);
    void handle(Client& client);
    void hear_fifo();
    void handle_fifo();
    std::string answer(const ControlRequest& request);
    void settle();
};

// --- setting up

ControlServer::ControlServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<ControlServer>> ControlServer::create() {
    auto impl = std::make_unique<Impl>();
    auto epoll = make_epoll();
    if (!epoll) return std::move(epoll).error();
    impl->epoll = std::move(*epoll);
    impl->more = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!impl->more.valid()) return errno_error("eventfd", errno);
    impl->spare = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (auto done = watch_descriptor(impl->epoll, impl->more.get(), kMore); !done) {
        return std::move(done).error();
    }
    return std::unique_ptr<ControlServer>(new ControlServer(std::move(impl)));
}

ControlServer::~ControlServer() {
    if (impl_->listener.valid()) {
        remove_control_files(impl_->directory, impl_->directory_path, impl_->names);
    }
}

Result<void> ControlServer::Impl::try_listen() {
    auto opened = open_control_directory(directory_path, true);
    if (!opened) return std::move(opened).error();
    // Before there is a file to remove.
    auto started = start_control_guard(*opened, directory_path, names);
    if (!started) return std::move(started).error();
    guard.emplace(std::move(*started));
    const std::string path = path_in(*opened, names[0]);
    Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.valid()) return errno_error("socket", errno);
    ::fchmod(socket.get(), 0600); // bind makes the file with it
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    // one of an earlier process that had this PID
    ::unlinkat(opened->get(), names[0].c_str(), 0);
    if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        return errno_error("bind " + directory_path + "/" + names[0], errno);
    }
    if (::listen(socket.get(), kBacklog) != 0) return errno_error("listen", errno);
    directory = std::move(*opened);
    listener = std::move(socket);
    return {};
}

Result<void> ControlServer::listen(const std::string& directory) {
    const std::string name = std::to_string(::getpid());
    impl_->directory_path = directory;
    impl_->names = {"." + name + ".new", name};
    Result<void> done;
    for (int i = 0; i < kListenTries; ++i) {
        done = impl_->try_listen();
        if (done || done.error().kind != ErrorKind::kNotFound) break;
    }
    if (!done) return std::move(done).error().with_context("control socket");
    return {};
}

Result<void> ControlServer::open_fifo(const std::string& path) {
    // O_PATH first: opening a device can do things
    const Fd place(::open(path.c_str(), O_PATH | O_CLOEXEC));
    if (!place.valid()) {
        Error error = errno_error("fifo " + path, errno);
        if (error.kind == ErrorKind::kNotFound) error.kind = ErrorKind::kUsage;
        return std::move(error).with_hint("mkfifo -m 600 " + path);
    }
    struct stat status = {};
    if (::fstat(place.get(), &status) != 0) return errno_error("fifo " + path, errno);
    if (!S_ISFIFO(status.st_mode)) {
        return make_error(ErrorKind::kUsage, path + " is no fifo")
            .with_hint("mkfifo -m 600 " + path);
    }
    if (!may_control(status.st_uid)) {
        return make_error(
                   ErrorKind::kPermission,
                   fmt::format("fifo {} belongs to user {}, who may not control this session", path,
                               status.st_uid))
            .with_hint(fmt::format("chown {} {}", ::geteuid(), path));
    }
    if ((status.st_mode & 022) != 0) {
        return make_error(ErrorKind::kPermission, "other users may write to fifo " + path)
            .with_hint("chmod go-w " + path);
    }
    // with O_RDWR there is always a writer, so that the last one's close is no end of file
    impl_->fifo = Fd(::open(("/proc/self/fd/" + std::to_string(place.get())).c_str(),
                            O_RDWR | O_NONBLOCK | O_CLOEXEC));
    if (!impl_->fifo.valid()) return errno_error("open fifo " + path, errno);
    return {};
}

Result<void> ControlServer::start(ControlHandlers handlers,
                                  std::function<void(const std::string&)> warn) {
    impl_->handlers = std::move(handlers);
    impl_->warn = std::move(warn);
    if (impl_->listener.valid()) {
        if (::renameat(impl_->directory.get(), impl_->names[0].c_str(), impl_->directory.get(),
                       impl_->names[1].c_str()) != 0) {
            return errno_error("publish " + impl_->directory_path + "/" + impl_->names[1], errno);
        }
        auto done = watch_descriptor(impl_->epoll, impl_->listener.get(), kListener);
        if (!done) return done;
    }
    if (impl_->fifo.valid()) return watch_descriptor(impl_->epoll, impl_->fifo.get(), kFifo);
    return {};
}

// --- clients

void ControlServer::Impl::accept_clients() {
    for (int i = 0; i < kBacklog; ++i) {
        Fd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!fd.valid() && (errno == EMFILE || errno == ENFILE) && spare.valid()) {
            // else the connection would wait, and wake this loop, for ever
            spare.reset();
            fd = Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
            fd.reset();
            spare = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
            continue;
        }
        if (!fd.valid()) return;
        admit(std::move(fd));
    }
}

// When all places are taken, the client that has been silent longest loses its own.
void ControlServer::Impl::make_room() {
    if (clients.size() < kMaxControlClients) return;
    const auto longest_silent =
        std::min_element(clients.begin(), clients.end(), [](const auto& a, const auto& b) {
            return std::pair(a.waits_for_detach, a.last_heard) <
                   std::pair(b.waits_for_detach, b.last_heard);
        });
    clients.erase(longest_silent);
}

void ControlServer::Impl::admit(Fd fd) {
    ucred peer = {};
    socklen_t size = sizeof(peer);
    const bool is_known = ::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
                          (peer.uid == 0 || peer.uid == ::geteuid());
    if (!is_known) {
        const std::string refusal = format_control_refusal(
            make_error(ErrorKind::kPermission, "this session belongs to another user"));
        (void)::send(fd.get(), refusal.data(), refusal.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        return;
    }
    make_room();
    const int number = fd.get();
    if (!watch_descriptor(epoll, number)) return;
    clients.emplace_back();
    clients.back().fd = std::move(fd);
}

void ControlServer::Impl::hear_client(Client& client) {
    switch (hear(client.fd.get(), client.in)) {
        case Heard::kSome:
            client.last_heard = Clock::now();
            break;
        case Heard::kNothing:
            break;
        case Heard::kEnd:
            client.ended = true;
            break;
    }
}

void ControlServer::Impl::flush(Client& client) {
    while (!client.out.empty()) {
        const ssize_t sent =
            ::send(client.fd.get(), client.out.data(), client.out.size(), MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) {
            client.gone = errno != EAGAIN;
            return;
        }
        client.out.erase(0, static_cast<size_t>(sent));
    }
}

void ControlServer::Impl::handle(Client& client) {
    const auto line = client.in.take();
    if (line && line->empty()) return;
    auto request = line ? parse_control_request(*line) : Result<ControlRequest>(line.error());
    if (!request) {
        client.out = format_control_refusal(request.error());
    } else if (request->action == ControlAction::kDetach) {
        client.waits_for_detach = true;
        handlers.detach();
    } else {
        client.out = answer(*request);
    }
    flush(client);
}

std::string ControlServer::Impl::answer(const ControlRequest& request) {
    const uint64_t begin = monotonic_ns();
    std::string members;
    Result<void> done;
    switch (request.action) {
        case ControlAction::kStatus:
            members = ",\"session\":" + handlers.status();
            break;
        case ControlAction::kSet: {
            const auto changed = handlers.set(request.pattern, request.change);
            if (!changed) return format_control_refusal(changed.error());
            if (*changed == 0) {
                return format_control_refusal(
                    make_error(ErrorKind::kNothingMatched, "no target matches the pattern")
                        .with_hint("speedbump status PID lists the targets"));
            }
            members = fmt::format(",\"changed\":{}", *changed);
            break;
        }
        case ControlAction::kPause:
            done = handlers.pause();
            break;
        case ControlAction::kResume:
            done = handlers.resume();
            break;
        case ControlAction::kDetach:
            handlers.detach();
            break;
    }
    if (!done) return format_control_refusal(done.error());
    members += fmt::format(",\"handled_ns\":{}", monotonic_ns() - begin);
    return format_control_answer(request.action, members);
}

// --- the fifo

void ControlServer::Impl::hear_fifo() {
    if (hear(fifo.get(), fifo_lines) == Heard::kEnd) {
        ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, fifo.get(), nullptr);
        warn("the control fifo can't be read any more");
        fifo.reset();
    }
}

void ControlServer::Impl::handle_fifo() {
    const auto line = fifo_lines.take();
    if (line && line->empty()) return;
    const auto request = line ? parse_control_request(*line) : Result<ControlRequest>(line.error());
    Error problem;
    if (!request) {
        problem = request.error();
    } else if (request->action == ControlAction::kStatus) {
        problem = make_error(ErrorKind::kUsage, "status can't be answered over a fifo");
    } else {
        const auto outcome = read_control_answer(answer(*request));
        if (!outcome) problem = outcome.error();
    }
    if (problem.message.empty()) return;
    const auto now = Clock::now();
    if (fifo_warned != Clock::time_point{} && now - fifo_warned < kFifoWarningInterval) {
        ++fifo_unwarned;
        return;
    }
    std::string text = "control fifo: " + problem.message;
    if (!problem.hint.empty()) text += "; expected: " + problem.hint;
    if (fifo_unwarned > 0) {
        text += fmt::format(" ({} more requests failed before)", fifo_unwarned);
    }
    fifo_warned = now;
    fifo_unwarned = 0;
    warn(text);
}

// --- one turn

int ControlServer::fd() const {
    return impl_->epoll.get();
}

void ControlServer::serve() {
    Impl& self = *impl_;
    uint64_t count = 0;
    (void)!::read(self.more.get(), &count, sizeof(count));
    std::array<epoll_event, kMaxControlClients + 3> events;
    const int ready = ::epoll_wait(self.epoll.get(), events.data(), events.size(), 0);
    bool is_calling = false;
    for (int i = 0; i < ready; ++i) {
        const uint64_t source = events[static_cast<size_t>(i)].data.u64;
        if (source == kListener) is_calling = true;
        if (source == kFifo && !self.fifo_lines.has_line()) self.hear_fifo();
        for (Client& client : self.clients) {
            if (static_cast<uint64_t>(client.fd.get()) != source) continue;
            if (!client.out.empty()) {
                self.flush(client);
            } else if (!client.in.has_line()) {
                self.hear_client(client);
            }
        }
    }
    // after the events, which name the clients by descriptors that new ones may get
    if (is_calling) self.accept_clients();
    for (Client& client : self.clients) {
        const bool may_go_on = !client.gone && !client.waits_for_detach && client.out.empty();
        if (may_go_on && client.in.has_line()) self.handle(client);
    }
    if (self.fifo_lines.has_line()) self.handle_fifo();
    self.settle();
}

// Drops who is gone, and says what each of the others is waited for.
void ControlServer::Impl::settle() {
    clients.remove_if([](const Client& client) {
        const bool is_done =
            client.ended && client.out.empty() && !client.in.has_line() && !client.waits_for_detach;
        return client.gone || is_done;
    });
    bool has_more = fifo_lines.has_line();
    for (const Client& client : clients) {
        epoll_event event = {};
        event.data.u64 = static_cast<uint64_t>(client.fd.get());
        if (client.waits_for_detach) {
            // out of the set: a hang-up would be told for ever
            ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, client.fd.get(), &event);
            continue;
        }
        if (!client.out.empty()) {
            event.events = EPOLLOUT;
        } else if (client.in.has_line()) {
            has_more = true;
        } else {
            event.events = EPOLLIN;
        }
        ::epoll_ctl(epoll.get(), EPOLL_CTL_MOD, client.fd.get(), &event);
    }
    const uint64_t one = 1;
    if (has_more) (void)!::write(more.get(), &one, sizeof(one));
}

void ControlServer::detached() {
    for (Client& client : impl_->clients) {
        if (!std::exchange(client.waits_for_detach, false)) continue;
        client.out = format_control_answer(ControlAction::kDetach, "");
        impl_->flush(client);
    }
}

} // namespace speedbump::control
