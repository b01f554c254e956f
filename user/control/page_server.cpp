// SPDX-License-Identifier: MIT
#include "control/page_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <array>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <mutex>
#include <thread>

#include "util/clock.h"
#include "util/fd.h"

namespace speedbump::control {

namespace {

namespace http = boost::beast::http;

constexpr size_t kMaxRequest = 8192;
constexpr int kPageBacklog = 16;
constexpr auto kForRequest = std::chrono::seconds(1);
// For a client to take something more. The page goes through tunnels that are slow, and has some
// MB.
constexpr auto kForReader = std::chrono::seconds(5);
constexpr int kNoDescriptor = 100; // ms, until there may be one for the next client
constexpr size_t kTokenBytes = 16;

Result<std::string> draw_token() {
    std::array<unsigned char, kTokenBytes> bytes{};
    if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
        return errno_error("getrandom", errno);
    std::string token;
    for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
    return token;
}

// In a time that tells nothing of where they differ.
bool is_same(const std::string& a, const std::string& b) {
    unsigned char difference = a.size() == b.size() ? 0 : 1;
    for (size_t i = 0; i < a.size() && i < b.size(); ++i)
        difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
    return difference == 0;
}

std::string response(const char* status, const char* type, const std::string& body) {
    return fmt::format(
        "HTTP/1.1 {}\r\nContent-Type: {}; charset=utf-8\r\nContent-Length: {}\r\n"
        "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: "
        "nosniff\r\n"
        "Cross-Origin-Resource-Policy: same-origin\r\nX-Frame-Options: DENY\r\nConnection: "
        "close\r\n\r\n{}",
        status, type, body.size(), body);
}

// Waits until a socket is ready, or the deadline is over.
bool wait_for(int socket, short events, Clock::time_point deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd wanted{socket, events, 0};
    return left.count() > 0 && poll(&wanted, 1, static_cast<int>(left.count())) > 0;
}

// "" where none came whole.
std::string read_request(int socket, Clock::time_point deadline) {
    std::string text;
    std::array<char, 1024> part{};
    while (text.size() < kMaxRequest && text.find("\r\n\r\n") == std::string::npos) {
        if (!wait_for(socket, POLLIN, deadline)) return "";
        const ssize_t got = recv(socket, part.data(), part.size(), MSG_DONTWAIT);
        if (got <= 0) return "";
        text.append(part.data(), static_cast<size_t>(got));
    }
    return text;
}

void write_all(int socket, const std::string& text) {
    size_t written = 0;
    while (written < text.size() && wait_for(socket, POLLOUT, Clock::now() + kForReader)) {
        const ssize_t sent =
            send(socket, text.data() + written, text.size() - written, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent <= 0) return;
        written += static_cast<size_t>(sent);
    }
}

// The path that a GET asks for; "" for anything else.
std::string path_of(const std::string& text) {
    http::request_parser<http::empty_body> parser;
    parser.header_limit(kMaxRequest);
    boost::system::error_code error;
    parser.put(boost::asio::buffer(text), error);
    if (error || !parser.is_header_done() || parser.get().method() != http::verb::get) return "";
    return std::string(parser.get().target());
}

} // namespace

struct PageServer::Impl {
    void run();
    void answer(int socket);
    std::string answer_to(const std::string& path);

    Fd listener, ended;
    std::string address, token;
    std::mutex mutex; // of what follows
    std::string page, data = "{}";
    uint64_t asked = 0;
    bool has_reader = false;
    std::thread thread; // last: it uses all of these
};

PageServer::PageServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

PageServer::~PageServer() {
    eventfd_write(impl_->ended.get(), 1);
    impl_->thread.join();
}

Result<std::unique_ptr<PageServer>> PageServer::open(uint16_t port) {
    auto impl = std::make_unique<Impl>();
    auto token = draw_token();
    if (!token) return std::move(token).error();
    impl->token = std::move(*token);
    impl->listener = Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    impl->ended = Fd(eventfd(0, EFD_CLOEXEC));
    if (!impl->listener.valid() || !impl->ended.valid()) return errno_error("socket", errno);
    const int yes = 1;
    setsockopt(impl->listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    if (bind(impl->listener.get(), plain, size) != 0 ||
        ::listen(impl->listener.get(), kPageBacklog) != 0 ||
        getsockname(impl->listener.get(), plain, &size) != 0)
        return errno_error(fmt::format("listen on port {} of 127.0.0.1", port), errno);
    impl->address = fmt::format("http://127.0.0.1:{}/{}/", ntohs(address.sin_port), impl->token);
    impl->thread = std::thread([server = impl.get()] { server->run(); });
    return std::unique_ptr<PageServer>(new PageServer(std::move(impl)));
}

const std::string& PageServer::address() const {
    return impl_->address;
}

void PageServer::set_page(std::string html) {
    const std::lock_guard lock(impl_->mutex);
    impl_->page = std::move(html);
}

void PageServer::set_data(std::string json) {
    const std::lock_guard lock(impl_->mutex);
    impl_->data = std::move(json);
    impl_->asked = 0;
}

uint64_t PageServer::asked_for_data() const {
    const std::lock_guard lock(impl_->mutex);
    return impl_->asked;
}

bool PageServer::has_reader() const {
    const std::lock_guard lock(impl_->mutex);
    return impl_->has_reader;
}

void PageServer::Impl::run() {
    for (;;) {
        std::array<pollfd, 2> wanted = {{{listener.get(), POLLIN, 0}, {ended.get(), POLLIN, 0}}};
        if (poll(wanted.data(), wanted.size(), -1) < 0 && errno != EINTR) return;
        if (wanted[1].revents != 0) return;
        if ((wanted[0].revents & POLLIN) == 0) continue;
        const Fd client(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (client.valid()) {
            answer(client.get());
        } else if (errno == EMFILE || errno == ENFILE) { // else it would be asked for on and on
            poll(&wanted[1], 1, kNoDescriptor);
        }
    }
}

void PageServer::Impl::answer(int socket) {
    const std::string request = read_request(socket, Clock::now() + kForRequest);
    if (request.empty()) return;
    write_all(socket, answer_to(path_of(request)));
    shutdown(socket, SHUT_WR);
}

std::string PageServer::Impl::answer_to(const std::string& path) {
    constexpr auto kNothing = "404 Not Found";
    const std::string own = path.substr(0, std::min(path.size(), token.size() + 2));
    if (!is_same(own, "/" + token + "/")) return response(kNothing, "text/plain", "not found\n");
    const std::string rest = path.substr(own.size());
    const std::lock_guard lock(mutex);
    if (rest.empty()) return response("200 OK", "text/html", page);
    if (rest != "data") return response(kNothing, "text/plain", "not found\n");
    ++asked;
    has_reader = true;
    return response("200 OK", "application/json", data);
}

} // namespace speedbump::control
