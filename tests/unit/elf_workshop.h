// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "elf/symbols.h"
#include "util/fd.h"

namespace speedbump::elf {

// A temporary folder in which tests make ELF files with the compilers and binutils of the machine.
class Workshop {
  public:
    Workshop() {
        std::string name = testing::TempDir() + "speedbump-elf-XXXXXX";
        if (::mkdtemp(name.data()) == nullptr) std::abort();
        directory_ = name;
    }
    ~Workshop() { std::filesystem::remove_all(directory_); }
    Workshop(const Workshop&) = delete;
    Workshop& operator=(const Workshop&) = delete;

    std::string path(const std::string& name) const { return (directory_ / name).string(); }
    std::string write(const std::string& name, const std::string& text) const {
        std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
        std::ofstream(path(name), std::ios::binary) << text;
        return path(name);
    }
    static std::string read(const std::string& file) {
        std::ifstream in(file, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    // Runs a shell command in the folder; the test fails when the command does.
    void run(const std::string& command) const {
        int status = std::system(("cd '" + directory_.string() + "' && " + command).c_str());
        if (status != 0) ADD_FAILURE() << "failed: " << command;
    }
    static Result<std::shared_ptr<const ElfFile>> try_open(const std::string& file,
                                                           const DebugSearch& debug = {}) {
        Fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
        EXPECT_TRUE(fd.valid()) << file;
        return ElfFile::open(fd.get(), file, debug);
    }
    std::shared_ptr<const ElfFile> open(const std::string& name,
                                        const DebugSearch& debug = {}) const {
        auto file = try_open(name.starts_with('/') ? name : path(name), debug);
        if (!file) {
            ADD_FAILURE() << file.error().message;
            std::abort();
        }
        return *file;
    }

  private:
    std::filesystem::path directory_;
};

// The function with this name, or nullptr.
inline const Function* find_function(const ElfFile& file, std::string_view name) {
    for (const Function& function : file.functions())
        for (std::string_view one : function.names)
            if (one == name) return &function;
    return nullptr;
}

} // namespace speedbump::elf
