// SPDX-License-Identifier: MIT
#include "process/namespaces.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace speedbump::process {
namespace {

TEST(PidNames, OwnPidsAreThemselves) {
    PidNames names;
    EXPECT_EQ(names.here(pid_namespace_of(getpid()), 4711), 4711);
    EXPECT_EQ(names.here(1, 4711), 0);
}

TEST(PidNames, PidsOfAContainerAreTranslated) {
    // A child whose own child is number 1 of a new namespace.
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t parent = fork();
    if (parent == 0) {
        const bool unshared = unshare(CLONE_NEWPID) == 0;
        const pid_t inner = unshared ? fork() : -1;
        if (inner == 0) {
            for (;;) pause();
        }
        if (write(ready[1], &inner, sizeof inner) != sizeof inner) _exit(1);
        for (;;) pause();
    }
    pid_t inner = -1;
    ASSERT_EQ(read(ready[0], &inner, sizeof inner), static_cast<ssize_t>(sizeof inner));
    const uint32_t number = inner > 0 ? pid_namespace_of(inner) : 0;
    if (inner > 0) {
        EXPECT_NE(number, pid_namespace_of(getpid()));
        PidNames names;
        EXPECT_EQ(names.here(number, 1), inner);
        EXPECT_EQ(names.here(number, 2), 0);
        PidNames noted;
        noted.note(inner);
        kill(inner, SIGKILL);
        kill(parent, SIGKILL);
        waitpid(parent, nullptr, 0);
        EXPECT_EQ(noted.here(number, 1), inner); // known after its end
    } else {
        kill(parent, SIGKILL);
        waitpid(parent, nullptr, 0);
    }
    close(ready[0]);
    close(ready[1]);
    if (inner <= 0) GTEST_SKIP() << "not allowed to make a PID namespace";
}

} // namespace
} // namespace speedbump::process
