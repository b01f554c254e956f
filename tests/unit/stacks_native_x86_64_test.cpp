// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "process/maps.h"
#include "stacks/native_stack.h"
#include "util/fd.h"
#include "waiting_process.h"

namespace speedbump::stacks {
namespace {

using testing::HasSubstr;

std::array<__u64, SB_REGISTERS> registers_of(const ucontext_t& context) {
    const greg_t* g = context.uc_mcontext.gregs;
    const std::array<int, 20> order = {REG_R15, REG_R14, REG_R13,    REG_R12, REG_RBP,
                                       REG_RBX, REG_R11, REG_R10,    REG_R9,  REG_R8,
                                       REG_RAX, REG_RCX, REG_RDX,    REG_RSI, REG_RDI,
                                       REG_RAX, REG_RIP, REG_CSGSFS, REG_EFL, REG_RSP};
    std::array<__u64, SB_REGISTERS> words{};
    for (size_t i = 0; i < order.size(); ++i) words[i] = static_cast<__u64>(g[order[i]]);
    return words;
}

extern "C" __attribute__((noinline)) void sb_test_inner(NativeUnwinder& unwinder,
                                                        std::vector<std::string>& names) {
    ucontext_t context;
    getcontext(&context);
    const auto words = registers_of(context);
    const auto low = NativeUnwinder::stack_pointer(words);
    const char* stack = reinterpret_cast<const char*>(low); // NOLINT: our own
    std::vector<char> bytes(16384);
    // Not memcpy: it would mind what the sanitizers put between the variables.
    process_vm_readv(getpid(), std::array{iovec{bytes.data(), bytes.size()}}.data(), 1,
                     std::array{iovec{const_cast<char*>(stack), bytes.size()}}.data(), 1, 0);
    for (const NativeStack::Frame& frame : unwinder.unwind(words, bytes).frames)
        names.push_back(frame.function->name);
}

extern "C" __attribute__((noinline)) void sb_test_outer(NativeUnwinder& unwinder,
                                                        std::vector<std::string>& names) {
    sb_test_inner(unwinder, names);
    names.emplace_back("end");
}

TEST(NativeUnwinder, FindsTheCallersOfAThread) {
    auto unwinder = NativeUnwinder::open(getpid());
    ASSERT_TRUE(unwinder) << unwinder.error().message;
    std::vector<std::string> names;
    sb_test_outer(*unwinder, names);
    ASSERT_GT(names.size(), 3U);
    EXPECT_EQ(names[0], "sb_test_inner");
    EXPECT_EQ(names[1], "sb_test_outer");
    EXPECT_THAT(names[2], HasSubstr("FindsTheCallersOfAThread"));
}

TEST(NativeUnwinder, FilesAreReadOnceForAllThatMapThem) {
    const auto files = std::make_shared<NativeFiles>();
    auto first = NativeUnwinder::open(getpid(), files);
    auto second = NativeUnwinder::open(getpid(), files);
    ASSERT_TRUE(first && second);
    std::vector<std::string> names;
    std::vector<std::string> same;
    sb_test_outer(*first, names);
    sb_test_outer(*second, same);
    EXPECT_EQ(names, same);
    const auto mappings = process::read_maps(getpid());
    ASSERT_TRUE(mappings);
    for (const process::Mapping& mapping : *mappings) {
        if (!mapping.executable) continue;
        EXPECT_EQ(files->file_of(getpid(), mapping), files->file_of(getpid(), mapping));
    }
}

TEST(NativeUnwinder, SurvivesAnyRegistersAndStack) {
    auto unwinder = NativeUnwinder::open(getpid());
    ASSERT_TRUE(unwinder) << unwinder.error().message;
    uint64_t random = 1;
    for (int round = 0; round < 2000; ++round) {
        std::array<__u64, SB_REGISTERS> words{};
        std::vector<char> stack(512);
        auto next = [&random] {
            return random = random * 6364136223846793005 + 1442695040888963407;
        };
        for (__u64& word : words) word = next();
        // An instruction of ours, so that there is a rule to follow.
        words[16] = reinterpret_cast<uint64_t>(&sb_test_inner) + next() % 64; // NOLINT
        for (char& byte : stack) byte = static_cast<char>(next() >> 32);
        EXPECT_LT(unwinder->unwind(words, stack).frames.size(), 5000U);
        EXPECT_LT(unwinder->unwind(words, {}).frames.size(), 5000U);
    }
    EXPECT_TRUE(unwinder->unwind({}, {}).frames.empty());
}

// Forked processes have the same code at the same places.
TEST(NativeUnwinder, ProcessesWithTheSameCodeShareWhatIsKnownOfIt) {
    const test::WaitingProcess child;
    NativeFiles files;
    const auto own = read_code(getpid());
    const auto childs = read_code(child.pid());
    ASSERT_TRUE(own && childs);
    const auto space = files.space_of(getpid(), *own);
    ASSERT_TRUE(space);
    EXPECT_EQ(*space, files.space_of(child.pid(), *childs).value());
    MappedCode other = *own;
    other.key += "another file";
    EXPECT_NE(*space, files.space_of(getpid(), other).value());
}

TEST(NativeFile, ThatWasWrittenToIsNotWhatItWas) {
    char name[] = "/tmp/sb-written-XXXXXX";
    const Fd writing(mkstemp(name));
    NativeFile file(name, Fd(open(name, O_RDONLY | O_CLOEXEC)), false,
                    std::make_shared<uint64_t>(0));
    unlink(name);
    ASSERT_TRUE(writing.valid() && file.fd().valid());
    ASSERT_EQ(write(writing.get(), "x", 1), 1);
    EXPECT_FALSE(file.is_as_opened());
}

TEST(Vdso, IsNoFileOfThatName) {
    const uint64_t vdso = getauxval(AT_SYSINFO_EHDR);
    ASSERT_NE(vdso, 0U);
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const std::string name = "/tmp/sb-" + std::to_string(getpid()) + "[vdso]";
    const Fd file(open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
    ASSERT_EQ(ftruncate(file.get(), static_cast<off_t>(page)), 0);
    // Below it, so that it is listed first.
    void* const at = mmap(nullptr, page, PROT_READ, MAP_PRIVATE, file.get(), 0);
    ASSERT_NE(at, MAP_FAILED);
    ASSERT_LT(reinterpret_cast<uint64_t>(at), vdso); // NOLINT: an address
    EXPECT_EQ(find_vdso(getpid()).start, vdso);
    munmap(at, page);
    unlink(name.c_str());
    // Its tables are known, by ours.
    const VdsoPlace place = find_vdso(getpid());
    NativeFiles files;
    const auto known = files.vdso(place.end - place.start);
    EXPECT_EQ(known->bias_of(place.start, 0), place.start);
    EXPECT_TRUE(known->unwind_tables().valid());
}

// Of processes that change what they map all the time, however many they are.
TEST(NativeFiles, LooksAtMappingsAreAShareOfTheTime) {
    NativeFiles files;
    EXPECT_TRUE(files.may_look(true)); // libraries are loaded at the beginning
    files.looked(std::chrono::hours(1));
    EXPECT_FALSE(files.may_look(true));
    EXPECT_FALSE(files.may_look(false));
}

TEST(NativeUnwinder, NoSuchProcess) {
    const auto unwinder = NativeUnwinder::open(0x7ffffff0);
    ASSERT_FALSE(unwinder);
    EXPECT_EQ(unwinder.error().kind, ErrorKind::kNotFound);
}

} // namespace
} // namespace speedbump::stacks
