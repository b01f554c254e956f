// SPDX-License-Identifier: MIT
#include "control/page_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <thread>
#include <vector>

#include "util/clock.h"
#include "util/fd.h"

namespace speedbump::control {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class PageServerTest : public testing::Test {
  protected:
    void SetUp() override {
        auto opened = PageServer::open(0);
        ASSERT_TRUE(opened) << opened.error().message;
        server = std::move(*opened);
        server->set_page("<p>the page</p>");
        const std::string address = server->address();
        ASSERT_THAT(address, StartsWith("http://127.0.0.1:"));
        const size_t colon = address.rfind(':'), slash = address.find('/', colon);
        std::from_chars(address.data() + colon + 1, address.data() + slash, port);
        path = address.substr(slash);
    }

    Fd connect_to(uint32_t host = INADDR_LOOPBACK) const {
        Fd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_port = htons(port);
        to.sin_addr.s_addr = htonl(host);
        if (connect(client.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) return Fd();
        return client;
    }

    struct Asked {
        Fd client;
        bool is_late; // the server waits a second for a request: it may have left this one by then
    };
    Asked make_request(const std::string& request) const {
        const auto start = Clock::now();
        Fd client = connect_to();
        send(client.get(), request.data(), request.size(), MSG_NOSIGNAL);
        return {std::move(client), Clock::now() - start > std::chrono::seconds(1)};
    }

    // All that comes back for a request that is made in time, until the end.
    std::string ask(const std::string& request) const {
        for (;;) {
            const Asked asked = make_request(request);
            std::string answer;
            char part[4096];
            for (ssize_t got; (got = recv(asked.client.get(), part, sizeof(part), 0)) > 0;)
                answer.append(part, static_cast<size_t>(got));
            if (!answer.empty() || !asked.is_late) return answer;
        }
    }
    std::string get(const std::string& what) const {
        return ask("GET " + what + " HTTP/1.1\r\nHost: x\r\n\r\n");
    }

    std::unique_ptr<PageServer> server;
    uint16_t port = 0;
    std::string path; // with the token
};

TEST_F(PageServerTest, ServesWhoHasTheToken) {
    EXPECT_THAT(get(path), AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("<p>the page</p>"),
                                 HasSubstr("Cache-Control: no-store")));
    EXPECT_FALSE(server->has_reader());
    EXPECT_THAT(get(path + "data"), HasSubstr("\r\n\r\n{}"));
    server->set_data("{\"a\": 1}");
    EXPECT_EQ(server->asked_for_data(), 0u);
    EXPECT_THAT(get(path + "data"), HasSubstr("{\"a\": 1}"));
    EXPECT_EQ(server->asked_for_data(), 1u);
    EXPECT_TRUE(server->has_reader());
}

TEST_F(PageServerTest, NobodyElse) {
    std::string other = path;
    other[5] = other[5] == '0' ? '1' : '0';
    const std::string cut = path.substr(0, path.size() - 2) + "/";
    for (const std::string& what :
         {std::string("/"), std::string("/data"), other, cut, other + "data",
          path.substr(0, path.size() - 1), path + "x", path + "../", "/" + path}) {
        const std::string answer = get(what);
        EXPECT_THAT(answer, StartsWith("HTTP/1.1 404 ")) << what;
        EXPECT_THAT(answer, testing::Not(HasSubstr("the page"))) << what;
    }
    EXPECT_FALSE(server->has_reader());
}

TEST_F(PageServerTest, OnLoopbackAlone) {
    // Another address of this host, where it would have to be bound to all.
    EXPECT_FALSE(connect_to(0x7f000002).valid());
    const auto again = PageServer::open(port);
    ASSERT_FALSE(again);
    EXPECT_THAT(again.error().message, HasSubstr("port " + std::to_string(port)));
}

TEST_F(PageServerTest, WhatIsNoRequestIsNotServed) {
    const std::string host = " HTTP/1.1\r\nHost: x\r\n\r\n";
    for (const std::string& request :
         {"POST " + path + host, "HEAD " + path + host, "GET" + host, std::string("\r\n\r\n"),
          std::string("\0\xff\r\n\r\n", 6), "GET " + path + " HTTP/9\r\n\r\n",
          "GET " + path + " HTTP/1.1\r\nno header\r\n\r\n"})
        EXPECT_THAT(ask(request), testing::Not(HasSubstr("the page"))) << request;
    EXPECT_THAT(get(path), HasSubstr("the page"));
}

TEST_F(PageServerTest, WhoIsSlowOrSendsTooMuchIsLeft) {
    const Fd silent = connect_to();
    EXPECT_THAT(ask("GET " + path + " HTTP/1.1\r\nX: " + std::string(20000, 'x') + "\r\n\r\n"),
                testing::Not(HasSubstr("the page")));
    EXPECT_THAT(get(path), HasSubstr("the page")); // after the silent one's time
    char byte;
    EXPECT_LE(recv(silent.get(), &byte, 1, 0), 0);
}

TEST_F(PageServerTest, WhoReadsSlowlyGetsAll) {
    const std::string page(size_t{32} << 20, 'p'); // more than a socket takes
    server->set_page(page);
    const Asked asked = make_request("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
    size_t got = 0;
    std::vector<char> part(page.size()); // all that waits, so that the server can go on after each
    auto last = Clock::now();
    Clock::duration longest{};
    for (;;) {
        const ssize_t more = recv(asked.client.get(), part.data(), part.size(), 0);
        const auto now = Clock::now();
        longest = std::max(longest, now - last);
        last = now;
        if (more <= 0) break;
        if (got == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        got += static_cast<size_t>(more);
    }
    // It waits 5 s for a reader.
    if (got <= page.size() && (asked.is_late || longest > std::chrono::seconds(4)))
        GTEST_SKIP() << "this program had no CPU for so long that it may be left";
    EXPECT_GT(got, page.size());
}

TEST_F(PageServerTest, EachHasATokenOfItsOwn) {
    const auto other = PageServer::open(0);
    ASSERT_TRUE(other);
    EXPECT_NE((*other)->address().substr((*other)->address().size() - 33),
              server->address().substr(server->address().size() - 33));
}

} // namespace
} // namespace speedbump::control
