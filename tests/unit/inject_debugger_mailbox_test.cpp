// SPDX-License-Identifier: MIT
// Requests to debuggers, in this process's own memory.
#include "inject/debugger_mailbox.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace speedbump::inject {
namespace {

const std::string kOurs = "/tmp/ours.py";

Fd open_memory(pid_t pid) {
    return Fd(::open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDWR | O_CLOEXEC));
}

class Mailbox : public testing::Test {
  protected:
    Withdrawal withdraw() {
        std::string room(kOurs.size() + 1, '\0');
        return withdraw_request(mailbox_, kOurs, room);
    }
    // What another debugger does.
    void ask(const char* path) {
        std::strcpy(path_, path);
        pending_ = 1;
    }

    uint64_t breaker_ = 0x4200;
    int32_t pending_ = 0;
    char path_[512] = {};
    const DebuggerMailbox mailbox_{open_memory(getpid()), reinterpret_cast<uint64_t>(&breaker_),
                                   reinterpret_cast<uint64_t>(&pending_),
                                   reinterpret_cast<uint64_t>(&path_), sizeof(path_)};
};

TEST_F(Mailbox, ARequestIsPostedAndTakenBack) {
    ASSERT_TRUE(post_request(mailbox_, kOurs));
    EXPECT_EQ(pending_, 1);
    EXPECT_STREQ(path_, kOurs.c_str());
    EXPECT_EQ(breaker_, 0x4220u) << "what else is in there stays";
    EXPECT_EQ(withdraw(), Withdrawal::kTakenBack);
    EXPECT_EQ(pending_, 0);
    EXPECT_EQ(withdraw(), Withdrawal::kTakenUp);
}

TEST_F(Mailbox, ARequestOfAnotherIsNeitherOverwrittenNorTakenBack) {
    ask("/tmp/ours.py2"); // begins like this one
    EXPECT_FALSE(post_request(mailbox_, kOurs));
    EXPECT_EQ(withdraw(), Withdrawal::kAnothers);
    EXPECT_EQ(pending_, 1);
    EXPECT_STREQ(path_, "/tmp/ours.py2");
    ask("/tmp/other.py");
    EXPECT_EQ(withdraw(), Withdrawal::kAnothers);
    EXPECT_EQ(pending_, 1);
    EXPECT_STREQ(path_, "/tmp/other.py");
}

TEST_F(Mailbox, MemoryThatIsNotThereIsNoRequest) {
    std::string room(kOurs.size() + 1, '\0');
    EXPECT_EQ(withdraw_request({open_memory(getpid()), 0, 8, 16, 512}, kOurs, room),
              Withdrawal::kFailed);
}

// Programs that a process becomes one after the other, at the same addresses.
int32_t pending_of_programs = 0;

constexpr const char* kTurn = "SPEEDBUMP_TURN_OF_PROGRAM";

// What the test starts: says where that is and waits for a byte; then it execs itself, or says what
// is there by then.
[[gnu::constructor]] void be_program() {
    const char* const turn = std::getenv(kTurn);
    if (turn == nullptr) return;
    const auto address = reinterpret_cast<uint64_t>(&pending_of_programs);
    char byte = 0;
    if (write(4, &address, sizeof(address)) != sizeof(address) || read(3, &byte, 1) != 1)
        _exit(126);
    if (*turn == '2') _exit(pending_of_programs);
    setenv(kTurn, "2", 1);
    execl("/proc/self/exe", "program", nullptr);
    _exit(127);
}

TEST(MailboxOfPrograms, WhatAProcessExecsIsNotReached) {
    int to[2], from[2];
    ASSERT_EQ(pipe(to), 0);
    ASSERT_EQ(pipe(from), 0);
    const pid_t child = fork();
    if (child == 0) {
        const int in = fcntl(to[0], F_DUPFD, 10);
        const int out = fcntl(from[1], F_DUPFD, 10);
        dup2(in, 3);
        dup2(out, 4);
        close_range(5, ~0u, 0);
        personality(ADDR_NO_RANDOMIZE);
        setenv(kTurn, "1", 1);
        execl("/proc/self/exe", "program", nullptr);
        _exit(127);
    }
    uint64_t first = 0, second = 0;
    ASSERT_EQ(read(from[0], &first, sizeof(first)), static_cast<ssize_t>(sizeof(first)));
    const DebuggerMailbox mailbox{open_memory(child), first, first, first, 512};
    ASSERT_EQ(write(to[1], "", 1), 1);
    ASSERT_EQ(read(from[0], &second, sizeof(second)), static_cast<ssize_t>(sizeof(second)));
    EXPECT_EQ(first, second) << "else this says nothing";
    EXPECT_FALSE(post_request(mailbox, kOurs));
    std::string room(kOurs.size() + 1, '\0');
    EXPECT_EQ(withdraw_request(mailbox, kOurs, room), Withdrawal::kFailed);
    ASSERT_EQ(write(to[1], "", 1), 1);
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "it was written to";
    for (const int end : {to[0], to[1], from[0], from[1]}) close(end);
}

} // namespace
} // namespace speedbump::inject
