// SPDX-License-Identifier: MIT
#include "util/spawn.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace speedbump {
namespace {

// What a shell prints.
std::string output_of(const std::string& script, const SpawnOptions& options) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return "no pipe";
    const Fd reader(ends[0]);
    Fd writer(ends[1]);
    const auto pid = spawn({"sh", "-c", script}, writer, options);
    writer.reset();
    if (!pid) return pid.error().message;
    std::string text;
    char byte = 0;
    while (::read(reader.get(), &byte, 1) == 1) text += byte;
    ::waitpid(*pid, nullptr, 0);
    return text;
}

TEST(Spawn, OutputIsTheCallers) {
    EXPECT_EQ(output_of("echo a; echo b", {}), "a\nb\n");
}

TEST(Spawn, NothingToReadAndNobodyToComplainTo) {
    EXPECT_EQ(output_of("cat; readlink /proc/self/fd/0", {.has_input = false}), "/dev/null\n");
    EXPECT_EQ(output_of("readlink /proc/self/fd/2", {.has_errors = false}), "/dev/null\n");
}

TEST(Spawn, AGroupOfItsOwn) {
    const std::string group = std::to_string(::getpgrp());
    const std::string script = "[ $(cut -d' ' -f5 /proc/$$/stat) = " + group + " ] && echo ours";
    EXPECT_EQ(output_of(script, {}), "ours\n");
    EXPECT_EQ(output_of(script, {.is_group = true}), "");
}

TEST(Spawn, NoSuchProgram) {
    const Fd output(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    const auto pid = spawn({"/nonexistent/program"}, output, {});
    ASSERT_FALSE(pid);
    EXPECT_EQ(pid.error().kind, ErrorKind::kNotFound);
    EXPECT_EQ(pid.error().message, "start '/nonexistent/program': No such file or directory");
}

} // namespace
} // namespace speedbump
