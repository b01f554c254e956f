// SPDX-License-Identifier: MIT
#include "control/server.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "../cpu_time.h"
#include "control/client.h"
#include "util/clock.h"
#include "util/control_directory.h"
#include "util/fd.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
extern "C" size_t __sanitizer_get_current_allocated_bytes(); // gcc has it without the header
#endif

namespace speedbump::control {
namespace {

using nlohmann::json;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// What is allocated just now. Not the resident set: a sanitizer keeps freed memory for a while.
size_t allocated_bytes() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return __sanitizer_get_current_allocated_bytes();
#else
    const auto heap = ::mallinfo2();
    return heap.uordblks + heap.hblkhd;
#endif
}

bool comes_true(const std::function<bool()>& is_so) {
    const auto deadline = Clock::now() + kWithoutEnd;
    while (!is_so() && Clock::now() < deadline) ::usleep(1000);
    return is_so();
}

// --- the language

TEST(ControlProtocol, WordsAlone) {
    EXPECT_EQ(parse_control_request("pause")->action, ControlAction::kPause);
    EXPECT_EQ(parse_control_request(" resume \r")->action, ControlAction::kResume);
    EXPECT_EQ(parse_control_request("\tdetach")->action, ControlAction::kDetach);
    EXPECT_EQ(parse_control_request("status")->action, ControlAction::kStatus);
}

TEST(ControlProtocol, SetTakesWhatATargetsLineTakes) {
    const auto request =
        parse_control_request("set *Command delay=20us every=3 start=1s duration=2.5s");
    ASSERT_TRUE(request);
    EXPECT_EQ(request->action, ControlAction::kSet);
    EXPECT_EQ(request->pattern, "*Command");
    EXPECT_EQ(request->change.delay, microseconds(20));
    EXPECT_EQ(request->change.every, 3u);
    EXPECT_EQ(request->change.start, seconds(1));
    EXPECT_EQ(request->change.duration, milliseconds(2500));
}

TEST(ControlProtocol, SetLeavesTheRestAlone) {
    const auto request = parse_control_request("set * delay=0");
    ASSERT_TRUE(request);
    EXPECT_EQ(request->change.delay, microseconds(0));
    EXPECT_FALSE(request->change.every || request->change.start || request->change.duration);
}

TEST(ControlProtocol, QuotedPatternsAreKeptAsTheyAre) {
    EXPECT_EQ(parse_control_request(R"~(set "f(int, char)" delay=1us)~")->pattern, "f(int, char)");
    EXPECT_EQ(parse_control_request(R"(set "a\"b\\c" delay=1us)")->pattern, R"(a"b\c)");
    for (const std::string pattern : {"f(int, char)", R"(a"b\c)", "*", "x#y", "\xff\xfe"}) {
        const auto line = format_set_request(pattern, {"delay=1us", "every=2"});
        ASSERT_TRUE(line) << pattern;
        EXPECT_EQ(line->back(), '\n');
        EXPECT_EQ(parse_control_request(line->substr(0, line->size() - 1))->pattern, pattern);
    }
}

TEST(ControlProtocol, RefusesWithWhatWouldBeRight) {
    const std::vector<std::pair<std::string, std::string>> bad = {
        {"", "unknown request"},
        {"stop", "unknown request 'stop'"},
        {"pausee", "unknown request 'pausee'"},
        {"pause now", "takes nothing more"},
        {"set", "no pattern"},
        {"set *", "nothing to change"},
        {"set \"\" delay=1us", "no pattern"},
        {"set \"x delay=1us", "closing"},
        {"set \"x\"y delay=1us", "right after"},
        {"set * # delay=1us", "nothing to change"},
        {"set * delay=11s", "more than 10s"},
        {"set * delay=fast", "bad delay"},
        {"set * delay=1us delay=2us", "delay"},
        {"set * every=0", "bad every"},
        {"set * pid=1 delay=1us", "pid= can't be changed"},
        {"set * mode=sleep", "mode=, caller= and thread= can't be changed"},
        {"set * caller=main", "mode=, caller= and thread= can't be changed"},
        {"set * thread=worker", "mode=, caller= and thread= can't be changed"},
        {"set * speed=1", "unknown option"},
        {std::string("pau\0se", 6), "control character"},
        {"set * delay=1us\x1b[31m", "control character"},
        {"set " + std::string(kMaxControlLine, 'x') + " delay=1us", "too long"},
    };
    for (const auto& [line, message] : bad) {
        const auto request = parse_control_request(line);
        ASSERT_FALSE(request) << line;
        EXPECT_EQ(request.error().kind, ErrorKind::kUsage) << line;
        EXPECT_THAT(request.error().message, HasSubstr(message)) << line;
        EXPECT_FALSE(request.error().hint.empty()) << line;
    }
    EXPECT_FALSE(format_set_request("a\nb", {"delay=1us"}));
    EXPECT_FALSE(format_set_request("a", {"delay=1us\ndetach"}));
    EXPECT_FALSE(format_set_request("a", {}));
}

TEST(ControlProtocol, AnswersCarryErrorsOver) {
    for (const ErrorKind kind :
         {ErrorKind::kUsage, ErrorKind::kNothingMatched, ErrorKind::kPermission, ErrorKind::kIo}) {
        const auto read = read_control_answer(
            format_control_refusal(make_error(kind, "what \"x\" \xff").with_hint("this")));
        ASSERT_FALSE(read);
        EXPECT_EQ(read.error().kind, kind);
        EXPECT_THAT(read.error().message, HasSubstr("what \"x\""));
        EXPECT_EQ(read.error().hint, "this");
    }
    const std::string good = format_control_answer(ControlAction::kSet, ",\"changed\":2");
    EXPECT_EQ(json::parse(*read_control_answer(good))["changed"], 2);
    for (const char* bad : {"", "{}", "[]", "1", "{\"schema\":\"other/1\",\"ok\":true}",
                            "{\"ok\":", "{\"schema\":\"speedbump/control/1\",\"ok\":\"yes\"}"}) {
        ASSERT_FALSE(read_control_answer(bad)) << bad;
        EXPECT_EQ(read_control_answer(bad).error().kind, ErrorKind::kInvalid);
    }
}

// --- the directory

class Scratch : public testing::Test {
  protected:
    Scratch() {
        char name[] = "/tmp/speedbump-control-XXXXXX";
        root_ = ::mkdtemp(name);
        directory_ = root_ + "/speedbump";
    }
    ~Scratch() override {
        std::error_code ignored; // the guard may be removing the socket at this moment
        std::filesystem::remove_all(root_, ignored);
    }
    std::string socket_path() const { return directory_ + "/" + std::to_string(::getpid()); }

    std::string root_;
    std::string directory_;
};

using ControlDirectory = Scratch;

TEST_F(ControlDirectory, IsMadeForItsOwnerOnly) {
    ASSERT_EQ(open_control_directory(directory_, false).error().kind, ErrorKind::kNotFound);
    const mode_t before = ::umask(0);
    ASSERT_TRUE(open_control_directory(directory_, true));
    ::umask(before);
    struct stat status = {};
    ASSERT_EQ(::stat(directory_.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0700u);
    EXPECT_TRUE(open_control_directory(directory_, false));
}

TEST_F(ControlDirectory, RefusesWhatOthersCouldEnter) {
    for (const mode_t mode : {0750u, 0701u, 0777u}) {
        ::mkdir(directory_.c_str(), 0700);
        ::chmod(directory_.c_str(), mode);
        const auto opened = open_control_directory(directory_, true);
        ASSERT_FALSE(opened) << mode;
        EXPECT_EQ(opened.error().kind, ErrorKind::kPermission);
        EXPECT_EQ(opened.error().hint, "chmod 700 " + directory_);
    }
}

TEST_F(ControlDirectory, RefusesLinksAndFiles) {
    ASSERT_EQ(::mkdir((root_ + "/elsewhere").c_str(), 0700), 0);
    ASSERT_EQ(::symlink((root_ + "/elsewhere").c_str(), directory_.c_str()), 0);
    EXPECT_EQ(open_control_directory(directory_, true).error().kind, ErrorKind::kPermission);
    ASSERT_EQ(::unlink(directory_.c_str()), 0);
    Fd(::open(directory_.c_str(), O_CREAT | O_WRONLY, 0600));
    EXPECT_EQ(open_control_directory(directory_, true).error().kind, ErrorKind::kPermission);
}

TEST_F(ControlDirectory, RefusesThatOfAnotherUser) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
    ASSERT_EQ(::mkdir(directory_.c_str(), 0700), 0);
    ASSERT_EQ(::chown(directory_.c_str(), 1234, 0), 0);
    const auto opened = open_control_directory(directory_, true);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().kind, ErrorKind::kPermission);
    EXPECT_THAT(opened.error().message, HasSubstr("user 1234"));
}

// --- a session that is controlled

class Connection {
  public:
    explicit Connection(const std::string& path)
        : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_un address = {};
        address.sun_family = AF_UNIX;
        std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
        is_open_ =
            ::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
        const timeval limit = {seconds(kWithoutEnd).count(), 0};
        ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    }
    bool is_open() const { return is_open_; }
    int fd() const { return fd_.get(); }
    bool send(const std::string& text) const {
        return ::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
               static_cast<ssize_t>(text.size());
    }
    // The next line, or what came before the end.
    std::string line() {
        std::string text;
        for (char c = 0; ::read(fd_.get(), &c, 1) == 1 && c != '\n';) text += c;
        return text;
    }
    // Waits for the other side to hang up; false where something else comes, or nothing.
    bool ends() const {
        char c = 0;
        return ::recv(fd_.get(), &c, 1, 0) == 0;
    }
    // Sends until the other side takes nothing for so long, at most `limit` bytes; how many.
    size_t flood(const std::string& text, size_t limit, milliseconds patience) const {
        size_t sent = 0;
        pollfd writable{fd_.get(), POLLOUT, 0};
        while (sent < limit && ::poll(&writable, 1, static_cast<int>(patience.count())) == 1) {
            const ssize_t now =
                ::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
            if (now < 0 && errno != EAGAIN) break;
            if (now > 0) sent += static_cast<size_t>(now);
        }
        return sent;
    }

  private:
    Fd fd_;
    bool is_open_ = false;
};

// Serves in a thread, as the session's loop does, and records what was asked for.
class Control : public Scratch {
  protected:
    ~Control() override { stop(); }

    void SetUp() override {
        auto created = ControlServer::create();
        ASSERT_TRUE(created);
        server_ = std::move(*created);
    }

    void start() {
        ControlHandlers handlers;
        handlers.status = [this] { return status_; };
        handlers.set = [this](const std::string& pattern, const targets::Options& change) {
            const auto delay = change.delay.value_or(std::chrono::nanoseconds(-1));
            record("set " + pattern + " " + std::to_string(delay.count()));
            return Result<size_t>(pattern == "none" ? 0 : 3);
        };
        handlers.pause = [this] {
            record("pause");
            return Result<void>();
        };
        handlers.resume = [this]() -> Result<void> {
            record("resume");
            return make_error(ErrorKind::kUsage, "the delays have ended");
        };
        handlers.detach = [this] {
            record("detach");
            detaching_ = true;
        };
        ASSERT_TRUE(server_->start(handlers, [this](const std::string& text) {
            const std::lock_guard lock(mutex_);
            warnings_.push_back(text);
        }));
        thread_ = std::thread([this] {
            while (!stop_ && !detaching_) {
                pollfd one = {server_->fd(), POLLIN, 0};
                ::poll(&one, 1, 50);
                const auto begin = Clock::now();
                server_->serve();
                longest_turn_ = std::max(longest_turn_, Clock::now() - begin);
                ++turns_;
            }
            if (detaching_) {
                std::this_thread::sleep_for(milliseconds(50)); // taking the probes out
                record("probes are out");
                server_->detached();
            }
        });
    }

    void start_socket() {
        ASSERT_TRUE(server_->listen(directory_));
        start();
    }

    void stop() {
        stop_ = true;
        if (thread_.joinable()) thread_.join();
    }

    void record(const std::string& what) {
        const std::lock_guard lock(mutex_);
        heard_.push_back(what);
    }
    std::vector<std::string> heard() {
        const std::lock_guard lock(mutex_);
        return heard_;
    }
    std::vector<std::string> warnings() {
        const std::lock_guard lock(mutex_);
        return warnings_;
    }
    void wait_until(const std::function<bool()>& is_so) { EXPECT_TRUE(comes_true(is_so)); }

    // One turn is due each 50 ms: less than 20 in each 300 ms of what the sleep really took.
    void expect_no_spin() {
        const auto begin = Clock::now();
        const uint64_t before = turns_;
        ::usleep(300'000);
        const auto turns = static_cast<int64_t>(turns_ - before);
        EXPECT_LT(turns * milliseconds(300), 20 * (Clock::now() - begin)) << "the loop spins";
    }

    Result<std::string> ask(const std::string& request) {
        return ask_session(directory_, ::getpid(), request, kWithoutEnd);
    }

    std::unique_ptr<ControlServer> server_;
    std::thread thread_;
    std::string status_ = R"({"pid":1})";
    std::atomic<bool> stop_ = false;
    std::atomic<bool> detaching_ = false;
    std::atomic<uint64_t> turns_ = 0;
    Clock::duration longest_turn_{};
    std::mutex mutex_;
    std::vector<std::string> heard_;
    std::vector<std::string> warnings_;
};

TEST_F(Control, AnswersEachRequest) {
    start_socket();
    EXPECT_EQ(json::parse(*ask("status\n"))["session"]["pid"], 1);
    EXPECT_EQ(json::parse(*ask("set *Command delay=20us\n"))["changed"], 3);
    EXPECT_EQ(json::parse(*ask("pause\n"))["request"], "pause");
    EXPECT_THAT(heard(), ElementsAre("set *Command 20000", "pause"));
}

TEST_F(Control, TellsWhatCouldNotBeDone) {
    start_socket();
    const auto none = ask("set none delay=1us\n");
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().kind, ErrorKind::kNothingMatched);
    const auto ended = ask("resume\n");
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().kind, ErrorKind::kUsage);
    EXPECT_EQ(ended.error().message, "the delays have ended");
    const auto unknown = ask("explode\n");
    ASSERT_FALSE(unknown);
    EXPECT_EQ(unknown.error().kind, ErrorKind::kUsage);
}

TEST_F(Control, DetachIsAnsweredWhenItIsDone) {
    start_socket();
    ASSERT_TRUE(ask("detach\n"));
    EXPECT_THAT(heard(), ElementsAre("detach", "probes are out"));
}

TEST_F(Control, DetachOfAClientThatLeavesStillDetaches) {
    start_socket();
    { EXPECT_TRUE(Connection(socket_path()).send("detach\n")); }
    wait_until([this] { return heard().size() == 2; });
}

TEST_F(Control, TakesSeveralRequestsOverOneConnection) {
    start_socket();
    Connection connection(socket_path());
    ASSERT_TRUE(connection.send("pause\nset a delay=1us\n\npau"));
    EXPECT_EQ(json::parse(connection.line())["request"], "pause");
    EXPECT_EQ(json::parse(connection.line())["request"], "set");
    ASSERT_TRUE(connection.send("se\n"));
    EXPECT_EQ(json::parse(connection.line())["request"], "pause");
    EXPECT_THAT(heard(), ElementsAre("pause", "set a 1000", "pause"));
}

TEST_F(Control, AnswersOneThatHasShutItsSideDown) {
    start_socket();
    Connection connection(socket_path());
    ASSERT_TRUE(connection.send("pause\nstatus\n"));
    ::shutdown(connection.fd(), SHUT_WR);
    EXPECT_EQ(json::parse(connection.line())["request"], "pause");
    EXPECT_EQ(json::parse(connection.line())["request"], "status");
    EXPECT_TRUE(connection.ends());
}

TEST_F(Control, IsHiddenUntilItStarts) {
    ASSERT_TRUE(server_->listen(directory_));
    EXPECT_THAT(*live_sessions(directory_), IsEmpty());
    EXPECT_EQ(ask("pause\n").error().kind, ErrorKind::kNotFound);
    start();
    EXPECT_THAT(*live_sessions(directory_), ElementsAre(::getpid()));
    struct stat status = {};
    ASSERT_EQ(::stat(socket_path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0600u);
}

TEST_F(Control, LeavesNothingAfterAnOrderlyEnd) {
    start_socket();
    EXPECT_TRUE(std::filesystem::exists(socket_path()));
    stop();
    server_.reset();
    EXPECT_FALSE(std::filesystem::exists(directory_));
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a guard is left";
    EXPECT_EQ(errno, ECHILD);
}

TEST_F(Control, LeavesTheDirectoryToOtherSessions) {
    start_socket();
    Fd(::open((directory_ + "/other").c_str(), O_CREAT | O_WRONLY, 0600));
    stop();
    server_.reset();
    EXPECT_FALSE(std::filesystem::exists(socket_path()));
    EXPECT_TRUE(std::filesystem::exists(directory_ + "/other"));
}

// --- clients that do harm

TEST_F(Control, SurvivesGarbage) {
    start_socket();
    Connection garbage(socket_path());
    std::string bytes;
    for (int i = 0; i < 3000; ++i) bytes += static_cast<char>(i * 7 % 256 == '\n' ? 0 : i * 7);
    ASSERT_TRUE(garbage.send(bytes + "\n"));
    EXPECT_EQ(json::parse(garbage.line())["ok"], false);
    EXPECT_TRUE(ask("pause\n"));
}

TEST_F(Control, HalfARequestHoldsNobodyUp) {
    start_socket();
    Connection half(socket_path());
    ASSERT_TRUE(half.send("pau"));
    EXPECT_TRUE(ask("pause\n"));
    expect_no_spin();
    EXPECT_THAT(heard(), ElementsAre("pause"));
}

TEST_F(Control, TenMegabytesWithoutANewlineAreNotKept) {
    start_socket();
    Connection flood(socket_path());
    const std::string part(65536, 'x');
    const size_t before = allocated_bytes();
    EXPECT_GE(flood.flood(part, 10u << 20, seconds(30)), 10u << 20);
    EXPECT_LT(allocated_bytes(), before + (1u << 20));
    EXPECT_THAT(flood.line(), HasSubstr("longer than"));
    ASSERT_TRUE(flood.send("\npause\n"));
    EXPECT_EQ(json::parse(flood.line())["request"], "pause");
}

TEST_F(Control, AClientThatNeverReadsIsNotWaitedFor) {
    status_ = "{\"big\":\"" + std::string(4u << 20, 'x') + "\"}";
    start_socket();
    Connection deaf(socket_path());
    const std::string requests = [] {
        std::string text;
        for (int i = 0; i < 100; ++i) text += "status\n";
        return text;
    }();
    EXPECT_LT(deaf.flood(requests, 10u << 20, milliseconds(60)), 10u << 20)
        << "it is read though it does not read";
    const auto begin = CpuClock::now();
    EXPECT_TRUE(ask("pause\n"));
    EXPECT_LT(CpuClock::now() - begin, seconds(1));
    expect_no_spin();
}

TEST_F(Control, BigAnswersArriveWhole) {
    status_ = "{\"big\":\"" + std::string(4u << 20, 'x') + "\"}";
    start_socket();
    EXPECT_EQ(json::parse(*ask("status\n"))["session"]["big"].get<std::string>().size(), 4u << 20);
}

TEST_F(Control, TheSilentMakeRoomForTheNext) {
    start_socket();
    std::vector<std::unique_ptr<Connection>> silent;
    for (size_t i = 0; i < 3 * kMaxControlClients; ++i) {
        silent.push_back(std::make_unique<Connection>(socket_path()));
        ASSERT_TRUE(silent.back()->is_open());
        EXPECT_TRUE(ask("pause\n"));
    }
    EXPECT_TRUE(silent.front()->ends()) << "the first is still there";
}

TEST_F(Control, RunningOutOfDescriptorsIsNoSpin) {
    start_socket();
    EXPECT_TRUE(ask("pause\n"));
    const Connection spare(socket_path()); // the test's own descriptor
    ::usleep(100'000);
    const Fd caller(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    rlimit before = {};
    ::getrlimit(RLIMIT_NOFILE, &before);
    std::vector<Fd> taken;
    rlimit low = before;
    low.rlim_cur = 256;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
    for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) taken.emplace_back(fd);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, socket_path().c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(::connect(caller.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    ::usleep(100'000);
    expect_no_spin();
    taken.clear();
    ::setrlimit(RLIMIT_NOFILE, &before);
    EXPECT_TRUE(ask("pause\n"));
}

TEST_F(Control, OfAnotherUserIsRefused) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
    ASSERT_TRUE(server_->listen(directory_));
    start();
    // a socket that was opened up by mistake
    ASSERT_EQ(::chmod(root_.c_str(), 0755), 0);
    ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
    ASSERT_EQ(::chmod(socket_path().c_str(), 0666), 0);
    const std::string path = socket_path();
    const pid_t child = ::fork();
    if (child == 0) {
        if (::setresgid(1234, 1234, 1234) != 0 || ::setresuid(1234, 1234, 1234) != 0) ::_exit(9);
        Connection other(path);
        if (!other.is_open()) ::_exit(8);
        other.send("pause\n");
        const std::string answer = other.line();
        ::_exit(answer.find("another user") != std::string::npos ? 0 : 7);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_THAT(heard(), IsEmpty());
}

TEST_F(Control, ClosedToAnotherUserByTheDirectory) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
    start_socket();
    ASSERT_EQ(::chmod(root_.c_str(), 0755), 0);
    const std::string path = socket_path();
    const pid_t child = ::fork();
    if (child == 0) {
        if (::setresgid(1234, 1234, 1234) != 0 || ::setresuid(1234, 1234, 1234) != 0) ::_exit(9);
        ::_exit(Connection(path).is_open() || errno != EACCES ? 8 : 0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

// --- what is left of sessions that died

// Runs a session in a process of its own that does nothing; gives its PID once it is published.
pid_t start_doomed(const std::string& directory) {
    int ready[2];
    if (::pipe2(ready, O_CLOEXEC) != 0) return -1;
    const pid_t child = ::fork();
    if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        auto server = ControlServer::create();
        const bool is_good = server && (*server)->listen(directory) &&
                             (*server)->start({}, [](const std::string&) {});
        if (::write(ready[1], is_good ? "y" : "n", 1) != 1) ::_exit(1);
        ::pause();
        ::_exit(0);
    }
    ::close(ready[1]);
    char byte = 'n';
    const bool is_good = ::read(ready[0], &byte, 1) == 1 && byte == 'y';
    ::close(ready[0]);
    return is_good ? child : -1;
}

bool goes_away(const std::string& path) {
    return comes_true([&] { return !std::filesystem::exists(path); });
}

// The guard of a session: the child of the process that leads a process group, or -1.
pid_t find_guard(pid_t session) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        const pid_t pid = std::atoi(entry.path().filename().c_str());
        if (pid <= 0 || ::getpgid(pid) != pid) continue;
        std::string stat(512, '\0');
        const Fd file(::open((entry.path() / "stat").c_str(), O_RDONLY));
        if (::read(file.get(), stat.data(), stat.size()) <= 0) continue;
        if (std::atoi(stat.c_str() + stat.rfind(')') + 4) == session) return pid;
    }
    return -1;
}

// The same, once it has set itself up.
pid_t guard_of(pid_t session) {
    pid_t guard = -1;
    comes_true([&] { return (guard = find_guard(session)) >= 0; });
    return guard;
}

std::ptrdiff_t descriptors_of(pid_t pid) {
    const std::filesystem::directory_iterator folder("/proc/" + std::to_string(pid) + "/fd");
    return std::distance(begin(folder), end(folder));
}

using ControlDeath = Scratch;

TEST_F(ControlDeath, KilledWithSigkillLeavesNoFile) {
    const pid_t doomed = start_doomed(directory_);
    ASSERT_GT(doomed, 0);
    EXPECT_THAT(*live_sessions(directory_), ElementsAre(doomed));
    ::kill(doomed, SIGKILL);
    ASSERT_EQ(::waitpid(doomed, nullptr, 0), doomed);
    EXPECT_TRUE(goes_away(directory_));
}

TEST_F(ControlDeath, KillingItsProcessGroupDoesNotReachTheGuard) {
    const pid_t doomed = start_doomed(directory_);
    ASSERT_GT(doomed, 0);
    const pid_t guard = guard_of(doomed);
    ASSERT_GT(guard, 0);
    EXPECT_NE(::getpgid(guard), ::getpgid(doomed));
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ::kill(guard, signal);
    ::usleep(100'000);
    EXPECT_TRUE(std::filesystem::exists(directory_)) << "a signal ended the guard's watch";
    // The pipe by which it says that it is ready it closes a moment later.
    comes_true([&] { return descriptors_of(guard) == 3; });
    EXPECT_EQ(descriptors_of(guard), 3)
        << "the directory, this session, and what it may be told to begin by";
    ::kill(doomed, SIGKILL);
    ASSERT_EQ(::waitpid(doomed, nullptr, 0), doomed);
    EXPECT_TRUE(goes_away(directory_));
}

TEST_F(ControlDeath, StaleSocketsAreRemovedByWhoFindsThem) {
    const pid_t doomed = start_doomed(directory_);
    ASSERT_GT(doomed, 0);
    const pid_t guard = guard_of(doomed);
    ASSERT_GT(guard, 0);
    ::kill(guard, SIGKILL);
    ::kill(doomed, SIGKILL);
    ASSERT_EQ(::waitpid(doomed, nullptr, 0), doomed);
    const std::string path = directory_ + "/" + std::to_string(doomed);
    const std::string hidden = directory_ + "/." + std::to_string(doomed) + ".new";
    Fd(::open(hidden.c_str(), O_CREAT | O_WRONLY, 0600));
    ASSERT_TRUE(std::filesystem::exists(path));
    EXPECT_EQ(ask_session(directory_, doomed, "status\n", kWithoutEnd).error().kind,
              ErrorKind::kNotFound);
    EXPECT_THAT(*live_sessions(directory_), IsEmpty());
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_FALSE(std::filesystem::exists(hidden));
}

TEST_F(ControlDeath, OneThatHangsIsATimeout) {
    const pid_t doomed = start_doomed(directory_);
    ASSERT_GT(doomed, 0);
    const auto begin = Clock::now();
    const auto answer = ask_session(directory_, doomed, "status\n", milliseconds(200));
    EXPECT_LT(Clock::now() - begin, kWithoutEnd);
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().kind, ErrorKind::kTimeout);
    ::kill(doomed, SIGKILL);
    ASSERT_EQ(::waitpid(doomed, nullptr, 0), doomed);
}

TEST_F(ControlDeath, NoSessionAtAll) {
    EXPECT_THAT(*live_sessions(directory_), IsEmpty());
    EXPECT_EQ(ask_session(directory_, 1, "status\n", kWithoutEnd).error().kind,
              ErrorKind::kNotFound);
}

// --- the fifo

class ControlFifo : public Control {
  protected:
    void SetUp() override {
        Control::SetUp();
        path_ = root_ + "/fifo";
        ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
    }
    void write(const std::string& text) const {
        const Fd fd(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
        ASSERT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    }
    std::string path_;
};

TEST_F(ControlFifo, WritersComeAndGo) {
    ASSERT_TRUE(server_->open_fifo(path_));
    start();
    write("pause\n");
    write("set * delay=5us\nresume\n");
    wait_until([this] { return heard().size() == 3; });
    EXPECT_THAT(heard(), ElementsAre("pause", "set * 5000", "resume"));
    expect_no_spin();
    write("pause\n");
    wait_until([this] { return heard().size() == 4; });
}

TEST_F(ControlFifo, WhatIsWrittenBeforeItStartsIsKept) {
    ASSERT_TRUE(server_->open_fifo(path_));
    write("pause\n");
    start();
    wait_until([this] { return heard().size() == 1; });
}

TEST_F(ControlFifo, Detaches) {
    ASSERT_TRUE(server_->open_fifo(path_));
    start();
    write("detach\n");
    wait_until([this] { return heard().size() == 2; });
}

TEST_F(ControlFifo, BadLinesAreWarnedOfAndNotTooOften) {
    ASSERT_TRUE(server_->open_fifo(path_));
    start();
    std::string garbage;
    for (int i = 0; i < 1000; ++i) garbage += "nonsense\n";
    const auto begin = Clock::now();
    write(garbage + std::string(60'000, 'x') + "\npause\n");
    wait_until([this] { return heard().size() == 1; });
    const auto warned = warnings();
    // The first at once, and the others a second apart.
    const auto passed = std::chrono::floor<seconds>(Clock::now() - begin).count();
    ASSERT_FALSE(warned.empty());
    EXPECT_LE(warned.size(), static_cast<size_t>(passed) + 1);
    EXPECT_THAT(warned[0], HasSubstr("unknown request 'nonsense'"));
    EXPECT_THAT(warned[0], HasSubstr("pause"));
}

TEST_F(ControlFifo, StatusHasNobodyToAnswer) {
    ASSERT_TRUE(server_->open_fifo(path_));
    start();
    write("status\n");
    wait_until([this] { return warnings().size() == 1; });
    EXPECT_THAT(warnings()[0], HasSubstr("fifo"));
}

TEST_F(ControlFifo, MustBeOneThatOnlyItsOwnerWrites) {
    const auto refuse = [this](const std::string& path) {
        const auto opened = server_->open_fifo(path);
        return opened ? std::pair(ErrorKind::kIo, std::string("opened"))
                      : std::pair(opened.error().kind, opened.error().hint);
    };
    EXPECT_EQ(refuse(root_ + "/none").first, ErrorKind::kUsage);
    EXPECT_THAT(refuse(root_ + "/none").second, HasSubstr("mkfifo"));
    Fd(::open((root_ + "/file").c_str(), O_CREAT | O_WRONLY, 0600));
    EXPECT_EQ(refuse(root_ + "/file").first, ErrorKind::kUsage);
    EXPECT_EQ(refuse("/dev/null").first, ErrorKind::kUsage);
    for (const mode_t mode : {0620u, 0602u, 0666u}) {
        ::chmod(path_.c_str(), mode);
        EXPECT_EQ(refuse(path_).first, ErrorKind::kPermission) << mode;
        EXPECT_EQ(refuse(path_).second, "chmod go-w " + path_);
    }
}

TEST_F(ControlFifo, MustBelongToWhoMayControl) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
    ASSERT_EQ(::chown(path_.c_str(), 1234, 1234), 0);
    ::unsetenv("SUDO_UID");
    EXPECT_EQ(server_->open_fifo(path_).error().kind, ErrorKind::kPermission);
    ::setenv("SUDO_UID", "1235", 1);
    EXPECT_EQ(server_->open_fifo(path_).error().kind, ErrorKind::kPermission);
    ::setenv("SUDO_UID", "1234", 1);
    EXPECT_TRUE(server_->open_fifo(path_));
    ::unsetenv("SUDO_UID");
}

// --- time

TEST_F(Control, RoundTripIsShort) {
    start_socket();
    std::vector<double> times;
    const auto before = CpuClock::now();
    for (int i = 0; i < 500; ++i) {
        const auto begin = Clock::now();
        ASSERT_TRUE(ask("set * delay=20us\n"));
        times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    }
    const auto used = (CpuClock::now() - before) / 500; // of both sides
    std::sort(times.begin(), times.end());
    std::printf("round trip of a request: median %.0f us, 99%% %.0f us; %.0f us of CPU time\n",
                times[250], times[495], std::chrono::duration<double, std::micro>(used).count());
    EXPECT_LT(used, milliseconds(20));
}

} // namespace
} // namespace speedbump::control
