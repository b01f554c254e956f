// SPDX-License-Identifier: MIT
#include "process/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

namespace speedbump::process {
namespace {

TEST(RemoteMemory, StopsAtAHole) {
    RemoteMemory memory(getpid());
    char byte = 7;
    char copy = 0;
    EXPECT_TRUE(memory.read(reinterpret_cast<uint64_t>(&byte), &copy, 1));
    EXPECT_EQ(copy, 7);
    EXPECT_EQ(memory.read_some(8, &copy, 1), 0u);
    EXPECT_FALSE(memory.value<uint64_t>(16));
}

TEST(RemoteMemory, GathersUpToAHole) {
    const RemoteMemory memory(getpid());
    const char text[] = "abcdef";
    const auto address = reinterpret_cast<uint64_t>(text);
    char copy[8] = {};
    const Piece pieces[] = {piece(address + 4, 2), piece(address, 3), piece(8, 1),
                            piece(address, 1)};
    EXPECT_EQ(memory.gather(pieces, copy), 5);
    EXPECT_STREQ(copy, "efabc");
    EXPECT_EQ(memory.gather({}, copy), 0);
    EXPECT_EQ(memory.gather({&pieces[2], 1}, copy), 0);
    EXPECT_EQ(RemoteMemory(0x7ffffff0).gather(pieces, copy), -ESRCH);
    // more than the kernel takes at once
    const std::vector<Piece> many(3000, piece(address, 2));
    std::string all(6000, ' ');
    EXPECT_EQ(memory.gather(many, all.data()), 6000);
    EXPECT_EQ(all.substr(5996), "abab");
}

} // namespace
} // namespace speedbump::process
