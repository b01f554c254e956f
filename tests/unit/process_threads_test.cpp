// SPDX-License-Identifier: MIT
#include "process/threads.h"

#include <gnu/libc-version.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <cstring>
#include <thread>

namespace speedbump::process {
namespace {

TEST(PthreadTid, IsWhereThisGlibcHasIt) {
    const auto look = [] {
        pid_t tid = 0;
        std::memcpy(&tid, reinterpret_cast<const char*>(::pthread_self()) + kPthreadTid,
                    sizeof(tid));
        EXPECT_EQ(tid, ::gettid()) << "glibc " << ::gnu_get_libc_version();
    };
    look();
    std::thread(look).join();
}

} // namespace
} // namespace speedbump::process
