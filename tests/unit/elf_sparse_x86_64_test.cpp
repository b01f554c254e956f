// SPDX-License-Identifier: MIT
// Files that state more than they hold: code that is mostly holes must not cost memory.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "elf/image.h"
#include "elf/placement.h"
#include "elf_workshop.h"

namespace speedbump::elf {
namespace {

using testing::HasSubstr;

constexpr uint64_t kPage = 4096;
constexpr uint64_t kGiB = uint64_t{1} << 30;

// What a program that looks for the site of `f` finds, and what it takes.
struct Found {
    long distance = -1; // of the site from the entry
    std::string error;
    long most_kib = 0; // of memory, at any time
};

class SparseTest : public testing::Test {
  protected:
    void build(const std::string& text) {
        shop_.write("f.s", "        .text\n        .globl f\n        .type f, @function\n" + text +
                               "\n        .section .note.GNU-stack,\"\",@progbits\n");
        shop_.run("gcc -static -nostdlib -no-pie -Wl,-e,f f.s -o plain");
        bytes_ = Workshop::read(shop_.path("plain"));
    }
    // The program header of the code, which is the last segment.
    Elf64_Phdr* code() {
        auto* header = reinterpret_cast<Elf64_Ehdr*>(bytes_.data());
        auto* last = reinterpret_cast<Elf64_Phdr*>(bytes_.data() + header->e_phoff);
        for (uint16_t i = 0; i < header->e_phnum; ++i, ++last)
            if (last->p_type == PT_LOAD && (last->p_flags & PF_X) != 0) return last;
        ADD_FAILURE() << "no code";
        std::abort();
    }
    // A copy of the file with so much code: what it has already, and holes.
    std::string extended(const std::string& name, uint64_t code_bytes) {
        code()->p_filesz = code()->p_memsz = code_bytes;
        const std::string path = shop_.path(name);
        const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
        const uint64_t end = code()->p_offset + code_bytes;
        EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(end)), 0);
        const std::string zeros(kPage, 0);
        for (uint64_t at = 0; at < bytes_.size(); at += kPage) {
            const std::string page = bytes_.substr(at, kPage);
            if (zeros.starts_with(page)) continue;
            EXPECT_EQ(::pwrite(fd.get(), page.data(), page.size(), static_cast<off_t>(at)),
                      static_cast<ssize_t>(page.size()));
        }
        return path;
    }
    static Found look_for_site(const std::string& path);

    Workshop shop_;
    std::string bytes_;
};

// In a program of its own, since what counts is the most that it ever held.
Found SparseTest::look_for_site(const std::string& path) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        const rlimit space{4 * kGiB, 4 * kGiB};
        ::setrlimit(RLIMIT_AS, &space);
#endif
        std::string answer;
        auto file = Workshop::try_open(path);
        const Function* f = file ? find_function(**file, "f") : nullptr;
        auto site = f != nullptr ? place_probe(**file, f->file_offset, {})
                                 : make_error(ErrorKind::kNotFound, "no f");
        answer = site ? std::to_string(site->file_offset - f->file_offset) : site.error().message;
        if (::write(ends[1], answer.data(), answer.size()) < 0) ::_exit(2);
        ::_exit(0);
    }
    ::close(ends[1]);
    char answer[256] = {};
    if (::read(ends[0], answer, sizeof answer - 1) <= 0) ADD_FAILURE() << "it died";
    ::close(ends[0]);
    rusage used{};
    int status = 0;
    EXPECT_EQ(::wait4(child, &status, 0, &used), child);
    EXPECT_EQ(status, 0);
    Found found;
    found.most_kib = used.ru_maxrss;
    char* end = answer;
    const long distance = std::strtol(answer, &end, 10);
    if (end != answer)
        found.distance = distance;
    else
        found.error = answer;
    std::printf("%s: %s; %ld KiB\n", path.c_str(), answer, found.most_kib);
    return found;
}

void expect_little_memory([[maybe_unused]] const Found& found) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) // theirs is counted as well
    EXPECT_LT(found.most_kib, 200 << 10);
#endif
}

constexpr const char* kBody = "f: endbr64\n push %rbx\n pop %rbx\n ret\n .size f,.-f\n";

TEST_F(SparseTest, HolesCostNothingAndChangeNothing) {
    build(kBody);
    const Found plain = look_for_site(shop_.path("plain"));
    EXPECT_EQ(plain.distance, 4) << plain.error;
    const Found sparse = look_for_site(extended("sparse", 2 * kGiB - kPage));
    EXPECT_EQ(sparse.distance, plain.distance) << sparse.error;
    expect_little_memory(sparse);
}

// Full of jumps through a register: what is kept of them is bounded over all threads.
TEST_F(SparseTest, AFileFullOfFindingsCostsNoMoreThanTheyMay) {
    build(kBody);
    constexpr uint64_t kSize = 128u << 20;
    const std::string path = extended("dense", kSize);
    std::string jumps(1u << 20, '\xe0');
    for (size_t at = 0; at < jumps.size(); at += 2) jumps[at] = '\xff';
    const Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    for (uint64_t within = kPage; within + jumps.size() <= kSize; within += jumps.size())
        ASSERT_EQ(::pwrite(fd.get(), jumps.data(), jumps.size(),
                           static_cast<off_t>(code()->p_offset + within)),
                  static_cast<ssize_t>(jumps.size()));
    const Found found = look_for_site(path);
    EXPECT_EQ(found.distance, 0) << found.error;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_LT(found.most_kib, 500 << 10); // 128 MiB of code, as much of findings, and room to grow
#endif
}

// A jump from far past a hole is as good as one beside the function.
TEST_F(SparseTest, JumpsBehindHolesAreFound) {
    build(kBody);
    const uint64_t size = 2 * kGiB - kPage;
    const std::string path = extended("sparse", size);
    const auto file = shop_.open("sparse");
    const uint64_t target = find_function(*file, "f")->address + 4;
    for (const uint64_t within : {3 * kGiB / 2, 3 * kGiB / 2 + kPage - 3, size - 5}) {
        extended("sparse", size);
        std::string jump("\xe9....", 5);
        const auto distance =
            static_cast<int32_t>(static_cast<int64_t>(target - (code()->p_vaddr + within + 5)));
        std::memcpy(jump.data() + 1, &distance, sizeof distance);
        const Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
        ASSERT_EQ(::pwrite(fd.get(), jump.data(), jump.size(),
                           static_cast<off_t>(code()->p_offset + within)),
                  5);
        const Found found = look_for_site(path);
        EXPECT_EQ(found.distance, 0) << within << " " << found.error;
        expect_little_memory(found);
    }
}

// The last byte of the jump is the first of a hole.
TEST_F(SparseTest, JumpsThatEndInAHoleAreFound) {
    build(" .balign 4096\n .skip 4092\n .byte 0xe9\n .long f + 4 - (. + 4)\n .skip 65536\n" +
          std::string(kBody));
    EXPECT_EQ(look_for_site(shop_.path("plain")).distance, 0);
    EXPECT_EQ(look_for_site(extended("sparse", 2 * kGiB - kPage)).distance, 0);
}

// So that what holds an address at a fixed place is looked for in the data, too.
TEST_F(SparseTest, HolesInTheDataAreNotRead) {
    build(kBody);
    shop_.write("f.s",
                std::string("        .text\n        .globl f\n        .type f, @function\n") +
                    kBody + " .data\n .quad 1\n");
    shop_.run("gcc -static -nostdlib -no-pie -Wl,-e,f f.s -o plain");
    bytes_ = Workshop::read(shop_.path("plain"));
    auto* header = reinterpret_cast<Elf64_Ehdr*>(bytes_.data());
    auto* data = reinterpret_cast<Elf64_Phdr*>(bytes_.data() + header->e_phoff);
    while (data->p_type != PT_LOAD || (data->p_flags & PF_W) == 0) ++data;
    const uint64_t end = uint64_t{1} << 40; // reading it would take minutes
    data->p_filesz = data->p_memsz = end - data->p_offset;
    shop_.write("sparse", bytes_);
    ASSERT_EQ(::truncate(shop_.path("sparse").c_str(), static_cast<off_t>(end)), 0);
    EXPECT_EQ(look_for_site(shop_.path("sparse")).distance, 4);
}

TEST_F(SparseTest, MoreCodeThanIsReadIsRefused) {
    build(kBody);
    const Found found = look_for_site(extended("huge", 3 * kGiB));
    EXPECT_EQ(found.distance, -1);
    EXPECT_THAT(found.error, HasSubstr("more code than"));
    expect_little_memory(found);
}

} // namespace
} // namespace speedbump::elf
