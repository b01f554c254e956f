// SPDX-License-Identifier: MIT
#include "process/maps.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace speedbump::process {
namespace {

namespace fs = std::filesystem;

class MapsTest : public testing::Test {
  protected:
    void SetUp() override {
        std::string name = testing::TempDir() + "speedbump-maps-XXXXXX";
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        directory_ = name;
    }
    void TearDown() override { fs::remove_all(directory_); }

    std::string make_file(const std::string& name, const std::string& content) {
        std::string path = (directory_ / name).string();
        std::ofstream(path) << content;
        return path;
    }
    // Maps the file into this process and returns how maps shows it.
    Mapping map(const std::string& path) {
        Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        address_ = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd.get(), 0);
        return current();
    }
    Mapping current() const {
        auto mappings = read_maps(::getpid());
        EXPECT_TRUE(mappings);
        for (const Mapping& mapping : *mappings)
            if (mapping.start == reinterpret_cast<uintptr_t>(address_)) return mapping;
        ADD_FAILURE() << "not mapped";
        return {};
    }
    static std::string content(const Fd& fd) {
        char text[64];
        ssize_t got = ::pread(fd.get(), text, sizeof text, 0);
        return got < 0 ? "" : std::string(text, static_cast<size_t>(got));
    }

    fs::path directory_;
    void* address_ = nullptr;
};

TEST(ParseMaps, ReadsEveryField) {
    auto mappings = parse_maps(
        "55d0-55e0 r-xp 00002000 fd:101 1234567890    /usr/bin/a b\n"
        "7f00-7f10 rw-p 00000000 00:1f 7 /x\n");
    ASSERT_EQ(mappings.size(), 2u);
    EXPECT_EQ(mappings[0].start, 0x55d0u);
    EXPECT_EQ(mappings[0].end, 0x55e0u);
    EXPECT_EQ(mappings[0].file_offset, 0x2000u);
    EXPECT_TRUE(mappings[0].executable);
    EXPECT_FALSE(mappings[0].writable);
    EXPECT_EQ(mappings[0].device, makedev(0xfd, 0x101));
    EXPECT_EQ(mappings[0].inode, 1234567890u);
    EXPECT_EQ(mappings[0].path, "/usr/bin/a b");
    EXPECT_FALSE(mappings[0].deleted);
    EXPECT_TRUE(mappings[1].writable);
    EXPECT_FALSE(mappings[1].executable);
}

TEST(ParseMaps, LeavesOutWhatHasNoFile) {
    EXPECT_THAT(
        parse_maps("7f00-7f10 rw-p 00000000 00:00 0 \n"
                   "7f10-7f20 rw-p 00000000 00:00 0                          [heap]\n"
                   "7f20-7f30 rw-s 00000000 00:0e 5                anon_inode:[perf_event]\n"
                   "7f30-7f40 r-xp 00000000 00:00 0                          [vdso]"),
        testing::IsEmpty());
}

TEST(ParseMaps, DeletedAndLineFeed) {
    auto mappings =
        parse_maps("10-20 r--p 0 1:2 3 /a\\012b (deleted)\n10-20 r--p 0 1:2 3 /a\\040b\n");
    ASSERT_EQ(mappings.size(), 2u);
    EXPECT_EQ(mappings[0].path, "/a\nb");
    EXPECT_TRUE(mappings[0].deleted);
    EXPECT_EQ(mappings[1].path, "/a\\040b");
}

TEST(ParseMaps, SkipsDamagedLines) {
    EXPECT_THAT(parse_maps("zz\n10\n10-\n10-20\n10-20 r\n10-20 r--p\n10-20 r--p 0 1 3 /a\n"
                           "10-20 r--p 0 1:2 /a\n\n10-20 r--p 99999999999999999999 1:2 3 /a\n"),
                testing::IsEmpty());
}

TEST(ReadMaps, OwnProcessHasItsExecutable) {
    auto mappings = read_maps(::getpid());
    ASSERT_TRUE(mappings);
    std::string self = fs::read_symlink("/proc/self/exe").string();
    EXPECT_TRUE(std::any_of(mappings->begin(), mappings->end(), [&](const Mapping& mapping) {
        return mapping.path == self && mapping.executable;
    }));
    EXPECT_TRUE(
        std::is_sorted(mappings->begin(), mappings->end(),
                       [](const Mapping& a, const Mapping& b) { return a.start < b.start; }));
}

TEST(ReadMaps, NoSuchProcess) {
    auto mappings = read_maps(0x7ffffff0);
    ASSERT_FALSE(mappings);
    EXPECT_EQ(mappings.error().kind, ErrorKind::kNotFound);
    EXPECT_EQ(mappings.error().error_number, ENOENT);
}

TEST(ReadMaps, ZombieGivesNothing) {
    pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    siginfo_t info;
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
    auto mappings = read_maps(child);
    ::waitpid(child, nullptr, 0);
    ASSERT_TRUE(mappings) << mappings.error().message;
    EXPECT_THAT(*mappings, testing::IsEmpty());
}

TEST_F(MapsTest, OpensWhatIsMapped) {
    Mapping mapping = map(make_file("plain", "hello"));
    auto fd = open_mapped_file(::getpid(), mapping);
    ASSERT_TRUE(fd) << fd.error().message;
    EXPECT_EQ(content(*fd), "hello");
}

TEST_F(MapsTest, NameWithLineFeed) {
    std::string path = make_file("two\nlines", "hello");
    Mapping mapping = map(path);
    EXPECT_EQ(mapping.path, path);
    EXPECT_TRUE(open_mapped_file(::getpid(), mapping));
}

TEST_F(MapsTest, ReplacedFileIsStillTheOldOne) {
    if (::geteuid() != 0) GTEST_SKIP() << "map_files needs root";
    std::string path = make_file("library", "old");
    map(path);
    std::ofstream(path + ".new") << "new";
    fs::rename(path + ".new", path);
    Mapping mapping = current();
    EXPECT_TRUE(mapping.deleted);
    EXPECT_EQ(mapping.path, path);
    auto fd = open_mapped_file(::getpid(), mapping);
    ASSERT_TRUE(fd) << fd.error().message;
    EXPECT_EQ(content(*fd), "old");
}

// Runs `check` in a child that lost its capabilities but still runs as the same user.
int without_capabilities(int (*check)(const std::string&), const std::string& argument) {
    pid_t child = ::fork();
    if (child == 0) {
        if (::setresuid(65534, 65534, 65534) != 0) ::_exit(100);
        ::prctl(PR_SET_DUMPABLE, 1);
        ::_exit(check(argument));
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 101;
}

TEST_F(MapsTest, WithoutRightsByNameElseSaysWhatIsMissing) {
    if (::geteuid() != 0) GTEST_SKIP() << "the test gives root up";
    ::chmod(directory_.c_str(), 0777);
    auto check = [](const std::string& path) -> int {
        Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        void* at = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd.get(), 0);
        auto find = [at]() -> Mapping {
            auto mappings = read_maps(::getpid());
            if (!mappings) return {};
            for (const Mapping& mapping : *mappings)
                if (mapping.start == reinterpret_cast<uintptr_t>(at)) return mapping;
            return {};
        };
        if (!open_mapped_file(::getpid(), find())) return 1;
        if (::rename((path + ".new").c_str(), path.c_str()) != 0) return 2;
        auto refused = open_mapped_file(::getpid(), find());
        if (refused) return 3;
        if (refused.error().kind != ErrorKind::kPermission) return 4;
        if (refused.error().hint.find("CAP_CHECKPOINT_RESTORE") == std::string::npos) return 5;
        return 0;
    };
    std::string path = make_file("library", "old");
    make_file("library.new", "new");
    EXPECT_EQ(without_capabilities(check, path), 0);
}

TEST_F(MapsTest, AnotherMappingAtThatPlaceIsNotTaken) {
    Mapping mapping = map(make_file("one", "one"));
    Mapping other = mapping;
    other.inode += 1;
    auto fd = open_mapped_file(::getpid(), other);
    ASSERT_FALSE(fd);
    EXPECT_EQ(fd.error().kind, ErrorKind::kNotFound);
}

TEST(PathWithin, IsThatOfTheProcess) {
    EXPECT_EQ(path_within("/", "/usr/lib/a.so"), "/usr/lib/a.so");
    EXPECT_EQ(path_within("/srv/root", "/srv/root/usr/lib/a.so"), "/usr/lib/a.so");
    EXPECT_EQ(path_within("/srv/root", "/srv/rooted/a.so"), "/srv/rooted/a.so");
    EXPECT_EQ(path_within("/srv/root", "[vdso]"), "[vdso]");
    EXPECT_EQ(root_of(getpid()), "/");
}

} // namespace
} // namespace speedbump::process
