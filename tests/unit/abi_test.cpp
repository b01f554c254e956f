// SPDX-License-Identifier: MIT
// The shared header compiles as C, C++ and BPF (its static assertions check sizes), and both sides
// of a cookie agree.
#include "abi.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace {

bool compiles(const std::string& compiler) {
    const std::string command = "echo '#include \"abi.h\"' | " + compiler + " -I" +
                                SPEEDBUMP_SOURCE_DIR "/bpf -fsyntax-only -Wall -Werror -";
    return std::system(command.c_str()) == 0;
}

TEST(Abi, CompilesAsC) {
    EXPECT_TRUE(compiles("cc -std=c11 -x c"));
}

TEST(Abi, CompilesForBpf) {
    if (std::system("clang --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no clang";
    EXPECT_TRUE(
        compiles("clang -target bpf -idirafter /usr/include/x86_64-linux-gnu "
                 "-idirafter /usr/include/aarch64-linux-gnu -x c"));
}

TEST(Abi, CookieKeepsItsParts) {
    const __u64 cookie = SB_COOKIE(SB_SITE_SINGLE_STEP, SB_SET_MASK + 8, 0xfffffffeu);
    EXPECT_EQ(static_cast<__u32>(cookie), 0xfffffffeu);
    EXPECT_EQ(cookie >> 32 & 0xff, SB_SITE_SINGLE_STEP);
    EXPECT_EQ(cookie >> SB_COOKIE_SET_SHIFT, 7u);
}

} // namespace
