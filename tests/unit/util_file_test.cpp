// SPDX-License-Identifier: MIT
#include "util/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace speedbump {
namespace {

namespace fs = std::filesystem;

class OpenBelow : public testing::Test {
  protected:
    void SetUp() override {
        std::string name = fs::temp_directory_path() / "speedbump-file-XXXXXX";
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        root_ = name;
        std::ofstream(root_ / "file") << "inside";
        fs::create_symlink("/file", root_ / "absolute");
        fs::create_symlink("../../../../../../file", root_ / "upwards");
        fs::create_symlink("/proc/self/root", root_ / "away");
    }
    void TearDown() override { fs::remove_all(root_); }

    std::string read_below(const std::string& path) const {
        const Fd fd = open_below(root_.string(), path, O_RDONLY);
        char text[16] = {};
        if (!fd.valid() || ::read(fd.get(), text, sizeof(text) - 1) < 0) return "";
        EXPECT_EQ(::fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
        return text;
    }

    fs::path root_;
};

TEST_F(OpenBelow, LinksStayInTheRoot) {
    for (const char* path : {"/file", "file", "/absolute", "/upwards", "/../file"})
        EXPECT_EQ(read_below(path), "inside") << path;
    EXPECT_EQ(read_below("/away/etc/passwd"), "");
    EXPECT_EQ(read_below("/missing"), "");
}

TEST_F(OpenBelow, NoRootIsOurOwn) {
    EXPECT_TRUE(open_below(std::string(), "/proc/self/root/etc", O_PATH).valid());
    EXPECT_FALSE(open_below((root_ / "missing").string(), "/file", O_RDONLY).valid());
}

} // namespace
} // namespace speedbump
