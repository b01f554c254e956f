// SPDX-License-Identifier: MIT
#include "process/resolver.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>

#include "elf/demangle.h"
#include "process/sightings.h"
#include "process/symbol_matcher.h"
#include "targets/parser.h"

// What the tests look for in their own program.
#define SEEN __attribute__((noinline, used, visibility("default")))
extern "C" {
SEEN int resolver_test_plain(int x) noexcept {
    asm volatile("");
    return x + 1;
}
SEEN int resolver_test_alias(int x) noexcept __attribute__((alias("resolver_test_plain")));
}
namespace resolver_test_space {
SEEN int overloaded(int x) {
    asm volatile("");
    return x + 2;
}
SEEN int overloaded(char x) {
    asm volatile("");
    return x + 3;
}
struct Class {
    SEEN int method(int x) const;
};
int Class::method(int x) const {
    asm volatile("");
    return x + 4;
}
} // namespace resolver_test_space

namespace speedbump::process {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

targets::TargetsFile file_of(const std::string& text) {
    targets::ParseOutcome outcome = targets::parse_targets(text, "t");
    EXPECT_THAT(targets::format_diagnostics("t", outcome.errors), IsEmpty());
    return outcome.file;
}

std::vector<std::string> names(const Findings& findings) {
    std::vector<std::string> result;
    for (const NativeMatch& match : findings.matches) result.push_back(match.name);
    return result;
}

// The file offset of an address in this process.
uint64_t own_offset(const void* address) {
    const auto value = reinterpret_cast<uintptr_t>(address);
    const Result<std::vector<Mapping>> maps = read_maps(::getpid());
    for (const Mapping& mapping : *maps) {
        if (value >= mapping.start && value < mapping.end) {
            return value - mapping.start + mapping.file_offset;
        }
    }
    return 0;
}

// A child process that runs `prepare` and then waits to be killed.
class Child {
  public:
    explicit Child(const std::function<void()>& prepare) {
        int ready[2];
        if (::pipe(ready) != 0) return;
        pid_ = ::fork();
        if (pid_ == 0) {
            prepare();
            if (::write(ready[1], "x", 1) != 1) ::_exit(1);
            while (true) ::pause();
        }
        char byte = 0;
        EXPECT_EQ(::read(ready[0], &byte, 1), 1);
        ::close(ready[0]);
        ::close(ready[1]);
    }
    ~Child() {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
    pid_t pid() const { return pid_; }

  private:
    pid_t pid_ = -1;
};

class ResolverTest : public testing::Test {
  protected:
    void SetUp() override {
        std::string name = std::filesystem::canonical(testing::TempDir()) / "resolver_XXXXXX";
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        directory_ = name;
    }
    void TearDown() override {
        for (void* library : loaded_) ::dlclose(library);
        std::filesystem::remove_all(directory_);
    }

    // Compiles C (or assembly, by `language`) into a shared library in the directory.
    std::string library(const std::string& name, const std::string& source,
                        const std::string& flags = "", const char* language = "c") {
        const std::string input = directory_ / "source";
        std::ofstream(input) << source;
        const std::string output = directory_ / name;
        std::filesystem::create_directories(std::filesystem::path(output).parent_path());
        const std::string command = "cc -shared -fPIC -O1 -o " + output + " -x " + language + " " +
                                    input + " -x none " + flags;
        EXPECT_EQ(std::system(command.c_str()), 0) << command;
        return output;
    }
    void* load(const std::string& path) {
        void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        EXPECT_NE(handle, nullptr) << ::dlerror();
        if (handle != nullptr) loaded_.push_back(handle);
        return handle;
    }
    std::filesystem::path directory_;
    std::vector<void*> loaded_;
};

Findings look(Resolver& resolver, pid_t pid = ::getpid()) {
    Result<Findings> findings = resolver.look_at_process(pid);
    EXPECT_TRUE(findings.has_value()) << findings.error().message;
    return findings ? std::move(*findings) : Findings{};
}

TEST_F(ResolverTest, FindsAFunctionOfTheMainExecutable) {
    const targets::TargetsFile file = file_of("+exe:resolver_test_plain");
    Resolver resolver(file, {});
    const Findings findings = look(resolver);
    ASSERT_THAT(names(findings), ElementsAre("resolver_test_plain"));
    const NativeMatch& match = findings.matches[0];
    EXPECT_EQ(match.path, std::filesystem::read_symlink("/proc/self/exe").string());
    EXPECT_EQ(match.entry_offset, own_offset(reinterpret_cast<void*>(&resolver_test_plain)));
    EXPECT_GE(match.site.file_offset, match.entry_offset);
    EXPECT_EQ(match.line_index, 0u);
    EXPECT_THAT(findings.files, ElementsAre(match.file));
    EXPECT_THAT(findings.skipped, IsEmpty());
    EXPECT_THAT(resolver.unmatched_lines(), IsEmpty());

    struct stat own = {};
    struct stat held = {};
    ASSERT_EQ(::stat("/proc/self/exe", &own), 0);
    ASSERT_EQ(::fstat(resolver.descriptor(match.file), &held), 0);
    EXPECT_EQ(own.st_ino, held.st_ino);
    EXPECT_EQ(resolver.descriptor({1, 1}), -1);
}

TEST_F(ResolverTest, FindsSitesWhenItIsAskedTo) {
    const targets::TargetsFile file = file_of("+exe:resolver_test_plain\n");
    Resolver now(file, {});
    Resolver later(file, {}, Placing::kLater);
    const auto placed = now.look_at_process(::getpid());
    const auto found = later.look_at_process(::getpid());
    ASSERT_TRUE(placed && found);
    ASSERT_EQ(placed->matches.size(), 1U);
    EXPECT_TRUE(placed->candidates.empty());
    EXPECT_TRUE(found->matches.empty());
    ASSERT_EQ(found->candidates.size(), 1U);
    EXPECT_EQ(later.path(found->candidates[0].file), placed->matches[0].path);
    std::vector<Skipped> skipped;
    const auto matches = later.place(found->candidates, skipped);
    ASSERT_EQ(matches.size(), 1U);
    ASSERT_TRUE(matches[0]);
    EXPECT_TRUE(skipped.empty());
    EXPECT_EQ(matches[0]->name, placed->matches[0].name);
    EXPECT_EQ(matches[0]->line_index, placed->matches[0].line_index);
    EXPECT_EQ(matches[0]->entry_offset, placed->matches[0].entry_offset);
    EXPECT_EQ(matches[0]->site.file_offset, placed->matches[0].site.file_offset);
    EXPECT_EQ(matches[0]->site.instruction, placed->matches[0].site.instruction);
}

TEST_F(ResolverTest, FoldsTheNamesOfOneAddress) {
    const targets::TargetsFile file =
        file_of("+exe:resolver_test_plain delay=1us\n+exe:resolver_test_alias delay=2us");
    Resolver resolver(file, {});
    const Findings findings = look(resolver);
    ASSERT_EQ(findings.matches.size(), 1u);
    EXPECT_EQ(findings.matches[0].line_index, 1u);
    EXPECT_EQ(findings.matches[0].name, "resolver_test_alias");
    EXPECT_THAT(resolver.unmatched_lines(), IsEmpty()) << "a line that lost has matched";
}

TEST_F(ResolverTest, MatchesDemangledNames) {
    const std::pair<const char*, std::vector<std::string>> table[] = {
        {R"x(+exe:"resolver_test_space::overloaded(int)")x",
         {"resolver_test_space::overloaded(int)"}},
        {"+exe:resolver_test_space::overloaded",
         {"resolver_test_space::overloaded(int)", "resolver_test_space::overloaded(char)"}},
        {"+exe:resolver_test_space::[oC]*",
         {"resolver_test_space::overloaded(int)", "resolver_test_space::overloaded(char)",
          "resolver_test_space::Class::method(int) const"}},
        {"+exe:_ZN19resolver_test_space10overloadedEi", {"resolver_test_space::overloaded(int)"}},
        {"+exe:*Class::method*", {"resolver_test_space::Class::method(int) const"}},
        {"+exe:Class::method", {}},
    };
    for (const auto& [line, expected] : table) {
        const targets::TargetsFile file = file_of(line);
        Resolver resolver(file, {});
        EXPECT_THAT(names(look(resolver)), testing::UnorderedElementsAreArray(expected)) << line;
        EXPECT_EQ(resolver.unmatched_lines().empty(), !expected.empty()) << line;
    }
}

TEST_F(ResolverTest, LetsTheLastLineDecideWhateverNameTheFileGoesBy) {
    const std::string path = library("libreal.so",
                                     "int f(int x){return x;} int g(int x){return x;}"
                                     "int h(int x){return x;}",
                                     "-Wl,-soname,libname.so.1");
    load(path);
    const targets::TargetsFile file = file_of(
        "+libname.so.1:* delay=1us\n"
        "+*/libreal.so:f delay=2us\n"
        "!+libreal.so:[fg]\n"
        "+" +
        path +
        ":g delay=3us\n"
        "!+libother.so:*\n"
        "+libname*:nothing\n");
    Resolver resolver(file, {});
    const Findings findings = look(resolver);
    std::map<std::string, size_t> lines;
    for (const NativeMatch& match : findings.matches) lines[match.name] = match.line_index;
    EXPECT_FALSE(lines.contains("f"));
    EXPECT_EQ(lines.at("g"), 3u);
    EXPECT_EQ(lines.at("h"), 0u);
    EXPECT_THAT(resolver.unmatched_lines(), ElementsAre(5u));
}

TEST_F(ResolverTest, FollowsSymbolicLinksInPaths) {
    library("real/libx.so.1.2", "int x_function(int x){return x;}", "-Wl,-soname,liby.so");
    std::filesystem::create_symlink("libx.so.1.2", directory_ / "real/libx.so");
    std::filesystem::create_symlink("real", directory_ / "link");
    load(directory_ / "real/libx.so.1.2");
    for (const char* path :
         {"/link/libx.so.1.2", "/real/libx.so", "/link/libx.so", "/link/libx*"}) {
        const targets::TargetsFile file = file_of("+" + directory_.string() + path + ":x_function");
        Resolver resolver(file, {});
        EXPECT_THAT(names(look(resolver)), ElementsAre("x_function")) << path;
    }
}

TEST_F(ResolverTest, ReportsEachTargetOnce) {
    const targets::TargetsFile file = file_of("+exe:resolver_test_plain\n+libfound.so:found");
    Resolver resolver(file, {});
    EXPECT_THAT(names(look(resolver)), ElementsAre("resolver_test_plain"));
    EXPECT_THAT(resolver.unmatched_lines(), ElementsAre(1u));
    load(library("libfound.so", "int found(int x){return x;}"));
    const Findings second = look(resolver);
    EXPECT_THAT(names(second), ElementsAre("found")) << "what was mapped meanwhile";
    EXPECT_EQ(second.files.size(), 2u) << "all that the process maps";
    EXPECT_THAT(look(resolver).matches, IsEmpty());
    const Child child([] {});
    const Findings in_child = look(resolver, child.pid());
    EXPECT_THAT(in_child.matches, IsEmpty());
    EXPECT_EQ(in_child.files, second.files);
}

TEST_F(ResolverTest, ReadsFilesThatAreDeletedOrReplaced) {
    const std::string path = library("libgone.so", "int old_function(int x){return x;}");
    load(path);
    std::filesystem::remove(path);
    library("libgone.so", "int new_function(int x){return x;}");
    const targets::TargetsFile file = file_of("+" + path + ":*_function");
    Resolver resolver(file, {});
    const Result<Findings> findings = resolver.look_at_process(::getpid());
    ASSERT_TRUE(findings.has_value());
    if (::geteuid() != 0 && !findings->skipped.empty()) {
        GTEST_SKIP() << "opening a deleted file needs CAP_CHECKPOINT_RESTORE";
    }
    EXPECT_THAT(names(*findings), ElementsAre("old_function"));
}

TEST_F(ResolverTest, NoticesAnInodeThatIsUsedAgain) {
    const std::string path = directory_ / "libagain.so";
    const targets::TargetsFile file = file_of("+libagain.so:wanted");
    Resolver resolver(file, {});
    // the kernel may or may not hand out the same inode number: many tries make it likely
    for (int attempt = 0; attempt < 5; ++attempt) {
        library("libagain.so", "int other(int x){return x;}");
        {
            const Child child([&path] { ::dlopen(path.c_str(), RTLD_NOW); });
            EXPECT_THAT(look(resolver, child.pid()).matches, IsEmpty());
        }
        std::filesystem::remove(path);
    }
    library("libagain.so", "int wanted(int x){return x;}");
    const Child child([&path] { ::dlopen(path.c_str(), RTLD_NOW); });
    EXPECT_THAT(names(look(resolver, child.pid())), ElementsAre("wanted"));
}

TEST_F(ResolverTest, LooksAtFilesThatNothingMaps) {
    const std::string path = library("libunmapped.so", "int f(int x){return x;}");
    std::filesystem::create_symlink("libunmapped.so", directory_ / "liblink.so");
    const std::string link = directory_ / "liblink.so";
    const targets::TargetsFile file = file_of("+" + link + ":f\n+exe:f\n+libunmapped.so:f");
    Resolver resolver(file, {});
    const Findings named = resolver.look_at_named_files("");
    ASSERT_THAT(names(named), ElementsAre("f"));
    EXPECT_THAT(named.skipped, IsEmpty());
    EXPECT_THAT(resolver.unmatched_lines(), ElementsAre(1u));

    load(path);
    const Findings mapped = look(resolver);
    EXPECT_THAT(mapped.matches, IsEmpty());
    EXPECT_TRUE(mapped.files.contains(named.matches[0].file)) << "one identity for both looks";

    const Result<Findings> executable = resolver.look_at_file(path, "", true);
    ASSERT_TRUE(executable.has_value());
    EXPECT_THAT(executable->matches, IsEmpty()) << "the function is a target already";
    EXPECT_EQ(executable->files, named.files);
    EXPECT_THAT(resolver.unmatched_lines(), IsEmpty());
}

TEST_F(ResolverTest, ReportsWhatItCannotRead) {
    const std::string text = directory_ / "text.so";
    std::ofstream(text) << "no ELF file, but long enough for a header: 0123456789012345678901234";
    const std::string missing = directory_ / "missing.so";
    const targets::TargetsFile file =
        file_of("+" + text + ":f\n+" + missing + ":f\n+" + directory_.string() + ":f");
    Resolver resolver(file, {});
    const Findings findings = resolver.look_at_named_files("");
    EXPECT_THAT(findings.matches, IsEmpty());
    ASSERT_EQ(findings.skipped.size(), 2u) << "a file that is missing may still come";
    for (const Skipped& skipped : findings.skipped) EXPECT_NE(skipped.line_index, 1u);
    EXPECT_THAT(resolver.look_at_named_files("").skipped, IsEmpty()) << "told once";
    EXPECT_THAT(resolver.unmatched_lines(), ElementsAre(0u, 1u, 2u));

    const Result<Findings> bad = resolver.look_at_file(text, "", true);
    ASSERT_FALSE(bad.has_value());
    EXPECT_EQ(bad.error().kind, ErrorKind::kInvalid);
    const Result<Findings> none = resolver.look_at_file(missing, "", true);
    ASSERT_FALSE(none.has_value());
    EXPECT_EQ(none.error().kind, ErrorKind::kNotFound);
}

TEST_F(ResolverTest, TakesFileOffsets) {
    int (resolver_test_space::Class::*method)(int) const = &resolver_test_space::Class::method;
    void* address = nullptr;
    std::memcpy(&address, &method, sizeof(address)); // as the ABI lays out a member pointer
    const uint64_t start = own_offset(address);
    const targets::TargetsFile file =
        file_of(fmt::format("+exe:0x{:x}\n+exe:0x{:x}\n+exe:0x7ffffffffff0\n", start, start + 1));
    Resolver resolver(file, {});
    const Findings findings = look(resolver);
    ASSERT_EQ(findings.matches.size(), 1u);
    EXPECT_EQ(findings.matches[0].entry_offset, start);
    EXPECT_EQ(findings.matches[0].name, "resolver_test_space::Class::method(int) const");
    ASSERT_EQ(findings.skipped.size(), 2u);
    EXPECT_THAT(findings.skipped[0].reason,
                HasSubstr("inside of _ZNK19resolver_test_space5Class6methodEi"));
    EXPECT_THAT(findings.skipped[1].reason, HasSubstr("no code"));
}

TEST_F(ResolverTest, TakesFileOffsetsOfStrippedCode) {
    const std::string path = library(
        "libstripped.so", "__attribute__((visibility(\"hidden\"))) int f(int x){return x;}", "-s");
    // the offset of the hidden function, by its unstripped twin
    const std::string twin =
        library("libtwin.so", "__attribute__((visibility(\"hidden\"))) int f(int x){return x;}");
    const targets::TargetsFile by_name = file_of("+" + twin + ":f");
    Resolver first(by_name, {});
    const Findings named = first.look_at_named_files("");
    ASSERT_EQ(named.matches.size(), 1u);
    const targets::TargetsFile file =
        file_of(fmt::format("+{}:0x{:x}", path, named.matches[0].entry_offset));
    Resolver resolver(file, {});
    const Findings findings = resolver.look_at_named_files("");
    ASSERT_EQ(findings.matches.size(), 1u);
    EXPECT_EQ(findings.matches[0].entry_offset, named.matches[0].entry_offset);
}

TEST_F(ResolverTest, ResolvesIndirectFunctionsOnceAProcessHasBoundThem) {
    const std::string path = library("libindirect.so", R"(
        static int fast(int x) { return x + 1; }
        static int slow(int x) { return x + 2; }
        static int (*choose(void))(int) { return slow; }
        int thing(int) __attribute__((ifunc("choose")));
        int other_name_of_fast(int x) { return fast(x); }
    )");
    const targets::TargetsFile file =
        file_of("+libindirect.so:thing delay=1us\n!+libindirect.so:fast");
    Resolver resolver(file, {});
    ASSERT_TRUE(resolver.look_at_file(path, "", false).has_value());
    load(path);
    const Findings unbound = look(resolver);
    EXPECT_THAT(unbound.matches, IsEmpty());
    EXPECT_THAT(unbound.files, IsEmpty());
    EXPECT_THAT(resolver.unmatched_lines(), IsEmpty()) << "skipped is not unmatched";

    load(library("libuser.so", "int thing(int); int user(int x) { return thing(x); }",
                 path + " -Wl,-z,now"));
    const Findings bound = look(resolver);
    ASSERT_THAT(names(bound), ElementsAre("thing"));
    const targets::TargetsFile by_own_name = file_of("+" + path + ":slow");
    Resolver other(by_own_name, {});
    const Findings implementation = other.look_at_named_files("");
    ASSERT_THAT(names(implementation), ElementsAre("slow"));
    EXPECT_EQ(bound.matches[0].entry_offset, implementation.matches[0].entry_offset);
    EXPECT_THAT(look(resolver).matches, IsEmpty());
}

TEST_F(ResolverTest, LetsTheImplementationOfAnIndirectFunctionBeExcluded) {
    const std::string path = library("libindirect.so", R"(
        int slow(int x) { return x + 2; }
        static int (*choose(void))(int) { return slow; }
        int thing(int) __attribute__((ifunc("choose")));
    )");
    load(path);
    load(library("libuser.so", "int thing(int); int user(int x) { return thing(x); }",
                 path + " -Wl,-z,now"));
    const targets::TargetsFile excluded = file_of("+libindirect.so:thing\n!+libindirect.so:slow");
    Resolver without(excluded, {});
    EXPECT_THAT(look(without).matches, IsEmpty());
    const targets::TargetsFile both =
        file_of("+libindirect.so:slow\n+libindirect.so:thing delay=5us");
    Resolver with(both, {});
    const Findings findings = look(with);
    ASSERT_THAT(names(findings), ElementsAre("thing")) << "one target";
    EXPECT_EQ(findings.matches[0].line_index, 1u);
}

TEST_F(ResolverTest, SkipsIndirectFunctionsThatNobodyUses) {
    const std::string path = library("libindirect.so", R"(
        static int slow(int x) { return x + 2; }
        static int (*choose(void))(int) { return slow; }
        int thing(int) __attribute__((ifunc("choose")));
    )");
    const targets::TargetsFile file = file_of("+" + path + ":thing");
    Resolver resolver(file, {});
    const Findings findings = resolver.look_at_named_files("");
    ASSERT_EQ(findings.skipped.size(), 1u);
    EXPECT_EQ(findings.skipped[0].name, "thing");
    EXPECT_EQ(findings.skipped[0].line_index, 0u);
    EXPECT_THAT(findings.skipped[0].reason, HasSubstr("IFUNC"));
    EXPECT_THAT(resolver.look_at_named_files("").skipped, IsEmpty());
}

TEST_F(ResolverTest, SeesPathsAsAProcessInAChrootDoes) {
    if (::geteuid() != 0) GTEST_SKIP() << "chroot needs root";
    const std::string outside =
        library("root/usr/lib/libinside.so", "int inside(int x){return x;}");
    std::filesystem::create_symlink("/usr/lib", directory_ / "root/lib");
    const Child child([&] {
        if (::dlopen(outside.c_str(), RTLD_NOW) == nullptr) ::_exit(1);
        if (::chroot((directory_ / "root").c_str()) != 0 || ::chdir("/") != 0) ::_exit(1);
    });
    for (const std::string& path : {std::string("/usr/lib/libinside.so"), outside,
                                    std::string("/lib/libinside.so"), std::string("/lib/*.so")}) {
        const targets::TargetsFile file = file_of("+" + path + ":inside");
        Resolver resolver(file, {});
        const Findings findings = look(resolver, child.pid());
        ASSERT_THAT(names(findings), ElementsAre("inside")) << path;
        EXPECT_EQ(findings.matches[0].path, "/usr/lib/libinside.so");
    }
    const targets::TargetsFile file = file_of("+/lib/libinside.so:inside");
    Resolver resolver(file, {});
    const Findings named = resolver.look_at_named_files(fmt::format("/proc/{}/root", child.pid()));
    EXPECT_THAT(names(named), ElementsAre("inside"));
    EXPECT_EQ(look(resolver, child.pid()).files, named.files);
}

TEST_F(ResolverTest, HoldsABoundedNumberOfFiles) {
    const targets::TargetsFile file = file_of("+*:wanted");
    ResolverLimits limits;
    limits.held_files = 1;
    limits.other_files = 0;
    Resolver resolver(file, {}, Placing::kAtOnce, limits);
    const auto look_at = [&](const std::string& name, const std::string& function) {
        auto found = resolver.look_at_file(library(name, "int " + function + "(int x){return x;}"),
                                           "", false);
        EXPECT_TRUE(found);
        return std::move(*found);
    };
    EXPECT_THAT(look_at("libnone.so", "other").matches, IsEmpty());
    const Findings first = look_at("libfirst.so", "wanted");
    EXPECT_THAT(names(first), ElementsAre("wanted"));
    const Findings second = look_at("libsecond.so", "wanted");
    EXPECT_THAT(second.matches, IsEmpty());
    ASSERT_EQ(second.skipped.size(), 1u);
    EXPECT_THAT(second.skipped[0].reason, HasSubstr("1 files"));
    const Findings third = look_at("libthird.so", "wanted");
    EXPECT_THAT(third.matches, IsEmpty());
    EXPECT_THAT(third.skipped, IsEmpty()) << "told once";
    look(resolver); // forgets all but what it holds
    EXPECT_GE(resolver.descriptor(*first.files.begin()), 0);
}

TEST_F(ResolverTest, TellsOfSoManyThatItSkips) {
    const targets::TargetsFile file = file_of(
        "+exe:0x7ffffffffff0\n+exe:0x7fffffffffe0\n+exe:0x7fffffffffd0\n+exe:0x7fffffffffc0\n");
    ResolverLimits limits;
    limits.skipped_bytes = 700;
    Resolver resolver(file, {}, Placing::kAtOnce, limits);
    const Findings findings = look(resolver);
    ASSERT_GE(findings.skipped.size(), 1u);
    EXPECT_LE(findings.skipped.size(), 3u);
    EXPECT_THAT(findings.skipped.back().reason, HasSubstr("not listed"));
}

TEST(FilesWithCode, TakesSomeNamesOfOneFile) {
    std::vector<Mapping> mappings;
    for (uint64_t i = 0; i < 1000; ++i) {
        Mapping mapping;
        mapping.start = 0x1000 * (i + 1);
        mapping.end = mapping.start + 0x1000;
        mapping.executable = true;
        mapping.inode = 7;
        mapping.path = fmt::format("/link{}", i);
        mappings.push_back(mapping);
    }
    IfuncResolver ifuncs(::getpid(), mappings);
    const auto seen = files_with_code(::getpid(), mappings, {}, ifuncs);
    ASSERT_EQ(seen.size(), 1u);
    const SeenFile& file = seen.begin()->second;
    EXPECT_EQ(file.sighting.paths.front(), "/link0");
    EXPECT_LE(file.sighting.paths.size(), 64u);
    EXPECT_EQ(file.code_bytes, 1000u * 0x1000);
}

TEST_F(ResolverTest, TellsThatAProcessIsGone) {
    pid_t pid = 0;
    {
        pid = Child([] {}).pid();
    }
    const targets::TargetsFile file = file_of("+exe:f");
    Resolver resolver(file, {});
    const Result<Findings> findings = resolver.look_at_process(pid);
    ASSERT_FALSE(findings.has_value());
    EXPECT_EQ(findings.error().kind, ErrorKind::kNotFound);
}

TEST_F(ResolverTest, FindsNothingInAZombie) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(0);
    siginfo_t info = {};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
    const targets::TargetsFile file = file_of("+*:*");
    Resolver resolver(file, {});
    EXPECT_THAT(look(resolver, pid).matches, IsEmpty());
    ::waitpid(pid, nullptr, 0);
}

TEST_F(ResolverTest, LeavesPythonLinesAlone) {
    const targets::TargetsFile file = file_of("*:*\nexe:resolver_test_plain");
    Resolver resolver(file, {});
    EXPECT_THAT(look(resolver).matches, IsEmpty());
    EXPECT_THAT(resolver.unmatched_lines(), IsEmpty());
}

TEST_F(ResolverTest, MatchesAHundredThousandSymbolsAboutAsFastAsItReadsThem) {
    std::string source = ".text\n";
    for (int number = 0; number < 50'000; ++number) {
        source += fmt::format(
            ".globl plain_{0}\n.type plain_{0},@function\nplain_{0}: ret\n"
            ".size plain_{0},.-plain_{0}\n",
            number);
        const std::string mangled =
            fmt::format("_ZN5space{}cpp_{}Ei", fmt::format("cpp_{}", number).size(), number);
        source +=
            fmt::format(".globl {0}\n.type {0},@function\n{0}: ret\n.size {0},.-{0}\n", mangled);
    }
    const std::string path = library("liblarge.so", source, "-nostdlib", "assembler");
    const targets::TargetsFile file =
        file_of("+" + path + ":plain_777\n+liblarge.so:space::cpp_4*9\n+liblarge.so:*_123*\n+" +
                path + ":\"space::cpp_5(int)\"\n");
    Resolver resolver(file, {});
    // processor time, in relation to reading the symbols: other load and sanitizers change neither
    const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    const std::clock_t begin = std::clock();
    ASSERT_TRUE(elf::ElfFile::open(fd.get(), path).has_value());
    const std::clock_t opened = std::clock();
    const Findings findings = resolver.look_at_named_files("");
    const std::clock_t looked = std::clock();
    RecordProperty("milliseconds", static_cast<int>((looked - opened) * 1000 / CLOCKS_PER_SEC));
    // 1 + (_49, _4?9, _4??9, _4???9) + both kinds of (_123, _123?, _123??) + 1
    EXPECT_EQ(findings.matches.size(), 1u + 1111u + 2u * 111u + 1u);
    EXPECT_LT(looked - opened, 15 * (opened - begin));
}

// --- SymbolMatcher

struct Decider {
    explicit Decider(const std::string& text)
        : file(file_of(text)), matched(file.lines.size()), matcher(file, all_lines(), matched) {}
    std::vector<size_t> all_lines() const {
        std::vector<size_t> lines;
        for (size_t index = 0; index < file.lines.size(); ++index) lines.push_back(index);
        return lines;
    }
    // The index of the deciding line, or -1.
    int operator()(const std::vector<std::string_view>& aliases, uint64_t offset = 0x1000) {
        elf::Function function;
        function.names = aliases;
        function.file_offset = offset;
        const auto decision = matcher.decide(function);
        shown = decision ? decision->name() : "";
        return decision ? static_cast<int>(decision->line_index) : -1;
    }
    targets::TargetsFile file;
    std::vector<bool> matched;
    SymbolMatcher matcher;
    std::string shown;
};

TEST(SymbolMatcher, TakesTheLastLine) {
    Decider decide("+x:f*\n+x:foo\n!+x:fo?\n+x:*\n+x:0x2000\n+x:\"ns::f(int)\"");
    EXPECT_EQ(decide({"foo"}), 3);
    EXPECT_EQ(decide({"foo"}, 0x2000), 4);
    EXPECT_EQ(decide({"_ZN2ns1fEi"}), 5);
    EXPECT_EQ(decide.shown, "ns::f(int)");
    EXPECT_THAT(decide.matched, ElementsAre(true, true, true, true, true, true));
}

TEST(SymbolMatcher, ShowsTheAliasThatMatched) {
    Decider decide("+x:second");
    EXPECT_EQ(decide({"first", "second", "_ZN2ns1fEi"}), 0);
    EXPECT_EQ(decide.shown, "second");
}

TEST(SymbolMatcher, MatchesGlobCharactersLiterallyToo) {
    Decider decide("+x:\"V::operator[](int)\"");
    EXPECT_EQ(decide({"_ZN1VixEi"}), 0);
}

TEST(SymbolMatcher, DecidesTheSameWithFewAndManyLines) {
    Decider few("+x:std::vector<int>::size\n+x:ns::f");
    std::string text = "+x:std::vector<int>::size\n+x:ns::f";
    for (int line = 0; line < 50; ++line) text += fmt::format("\n+x:other_{}", line);
    Decider many(text);
    for (const char* name : {"_ZN2ns1fEi", "_ZN2ns1fEc", "_ZN2ns1gEi", "ns", "_ZN5other2nsEv"}) {
        EXPECT_EQ(few({name}), many({name})) << name;
    }
}

TEST(RequiredWord, IsTheLongestThatNoDemanglerInvents) {
    const auto word = [](const char* pattern, bool is_glob = false) {
        return std::string(required_word(pattern, is_glob));
    };
    EXPECT_EQ(word("ns::Class::method(int) const"), "method");
    EXPECT_EQ(word("operator new(unsigned long)"), "");
    EXPECT_EQ(word("std::string::append(char const*)"), "append");
    EXPECT_EQ(word("*my_word*", true), "my_word");
    EXPECT_EQ(word("*strin*", true), "");
    EXPECT_EQ(word("ab[cd]efgh", true), "");
    EXPECT_EQ(word("name_x[cd]efgh", true), "name_x");
    EXPECT_EQ(word("gr\u00f6\u00dfe::some_function"), "");
    EXPECT_EQ(word("f<17ull>"), "");
}

// Every word of every demangled name is in the mangled one, or in the list.
TEST(RequiredWord, HoldsForTheWholeOfLibstdcxx) {
    Dl_info info = {};
    ASSERT_NE(::dladdr(reinterpret_cast<void*>(&std::set_terminate), &info), 0);
    const Fd fd(::open(info.dli_fname, O_RDONLY | O_CLOEXEC));
    const auto library = elf::ElfFile::open(fd.get(), info.dli_fname);
    ASSERT_TRUE(library.has_value()) << library.error().message;
    size_t checked = 0;
    for (const elf::Function& function : (*library)->functions()) {
        for (const std::string_view name : function.names) {
            const elf::Demangled forms = elf::demangle(name);
            for (const std::string& form : {forms.with_signature, forms.without_signature}) {
                if (form.empty()) continue;
                ++checked;
                const std::string_view word = required_word(form, false);
                ASSERT_NE(name.find(word), std::string_view::npos) << word << " of " << form;
                // each word on its own, as the only one of a pattern
                for (size_t at = 0; at < form.size(); ++at) {
                    const std::string_view rest = std::string_view(form).substr(at);
                    const size_t length =
                        std::min(rest.find_first_of(" :<>(),*&~[]{}#'.+-=!|^%/\"$@"), rest.size());
                    const std::string_view one = required_word(rest.substr(0, length), false);
                    ASSERT_NE(name.find(one), std::string_view::npos) << one << " of " << form;
                    at += length;
                }
            }
        }
    }
    EXPECT_GT(checked, 1'000u);
}

} // namespace
} // namespace speedbump::process
