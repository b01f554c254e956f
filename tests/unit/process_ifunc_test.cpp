// SPDX-License-Identifier: MIT
#include "process/ifunc.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "elf/machine.h"
#include "elf_workshop.h"
#include "util/fd.h"

namespace speedbump::process {
namespace {

using elf::find_function;
using elf::Function;
using elf::Workshop;

using testing::HasSubstr;

// The most memory that this program has had, in kB.
long peak_kb() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

// A child program that prints lines and then waits to be killed.
class Child {
  public:
    explicit Child(const std::string& program) {
        int ends[2];
        if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
        pid_ = ::fork();
        if (pid_ == 0) {
            ::dup2(ends[1], 1);
            ::execl(program.c_str(), program.c_str(), nullptr);
            ::_exit(127);
        }
        ::close(ends[1]);
        out_ = ::fdopen(ends[0], "r");
    }
    ~Child() {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
        std::fclose(out_);
    }
    uint64_t read_address() {
        unsigned long long value = 0;
        if (std::fscanf(out_, "%llx", &value) != 1) ADD_FAILURE() << "the child said nothing";
        return value;
    }
    pid_t pid() const { return pid_; }

  private:
    pid_t pid_ = -1;
    FILE* out_ = nullptr;
};

class IfuncTest : public testing::Test {
  protected:
    // What the resolver says of a function of the mapped file whose path ends so.
    Result<uint64_t> resolve(pid_t pid, const std::string& suffix, const std::string& name) {
        auto mappings = read_maps(pid);
        EXPECT_TRUE(mappings);
        for (const Mapping& mapping : *mappings) {
            if (!mapping.path.ends_with(suffix) || !mapping.executable) continue;
            auto file = Workshop::try_open(mapping.path);
            EXPECT_TRUE(file);
            const Function* function = find_function(**file, name);
            if (function == nullptr) return make_error(ErrorKind::kNotFound, "no function " + name);
            EXPECT_TRUE(function->is_ifunc);
            IfuncResolver resolver(pid, *mappings);
            return resolver.resolve(**file, mapping.device, mapping.inode, *function);
        }
        return make_error(ErrorKind::kNotFound, "not mapped: " + suffix);
    }
    // The file offset that an address of the child stands for.
    static uint64_t offset_of(pid_t pid, uint64_t address) {
        auto mappings = read_maps(pid);
        EXPECT_TRUE(mappings);
        for (const Mapping& mapping : *mappings)
            if (address >= mapping.start && address < mapping.end)
                return address - mapping.start + mapping.file_offset;
        ADD_FAILURE() << std::hex << address << " is mapped by no file";
        return 0;
    }
    void build(const std::string& name, const std::string& source, const std::string& options) {
        shop_.write(name + ".c", source);
        shop_.run("gcc -O1 -w " + name + ".c -o " + name + " " + options);
    }

    Workshop shop_;
};

constexpr const char* kLibrary = R"(
    static int one(int x) { return x + 1; }
    static int two(int x) { return x + 2; }
    static int (*choose(void))(int) { return two; }
    int thing(int) __attribute__((ifunc("choose")));
    int (*implementation(void))(int) { return two; }
    int (*unused)(int) = one;
)";

TEST_F(IfuncTest, TheImplementationsOfTheCLibrary) {
    build("program", R"(
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <stdio.h>
        #include <string.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            const char *names[] = {"strlen", "memmove", "strchr", "memset"};
            for (int i = 0; i < 4; ++i) printf("%p\n", dlsym(RTLD_DEFAULT, names[i]));
            fflush(stdout);
            pause();
            return 0;
        })",
          "");
    Child child(shop_.path("program"));
    for (const char* name : {"strlen", "memmove", "strchr", "memset"}) {
        uint64_t address = child.read_address();
        auto offset = resolve(child.pid(), "/libc.so.6", name);
        ASSERT_TRUE(offset) << offset.error().message;
        EXPECT_EQ(*offset, offset_of(child.pid(), address)) << name;
    }
}

TEST_F(IfuncTest, BoundOnlyThroughAnotherModule) {
    build("libthing.so", kLibrary, "-shared -fPIC -Wl,-soname,libthing.so");
    const char* program = R"(
        #include <stdio.h>
        #include <unistd.h>
        int thing(int);
        int (*implementation(void))(int);
        int main(int argc, char **argv) {
            %s
            printf("%%p\n", implementation());
            fflush(stdout);
            pause();
            return 0;
        })";
    char text[1024];
    std::snprintf(text, sizeof text, program, "thing(argc);");
    for (const char* options : {"-Wl,-z,lazy", "-Wl,-z,now", "-Wl,-z,lazy -fcf-protection=full",
                                "-no-pie -fno-pie -Wl,-z,lazy"}) {
        shop_.write("caller.c", text);
        shop_.run("gcc -O1 -w caller.c -o caller " + std::string(options) +
                  " -L. -lthing -Wl,-rpath,$PWD");
        Child child(shop_.path("caller"));
        uint64_t address = child.read_address();
        auto offset = resolve(child.pid(), "/libthing.so", "thing");
        ASSERT_TRUE(offset) << options << ": " << offset.error().message;
        EXPECT_EQ(*offset, offset_of(child.pid(), address)) << options;
    }
    // Bound on the first call, which never comes.
    std::snprintf(text, sizeof text, program, "if (argc > 100) thing(argc);");
    shop_.write("caller.c", text);
    shop_.run("gcc -O1 -w caller.c -o caller -Wl,-z,lazy -L. -lthing -Wl,-rpath,$PWD");
    Child child(shop_.path("caller"));
    child.read_address();
    auto offset = resolve(child.pid(), "/libthing.so", "thing");
    ASSERT_FALSE(offset);
    EXPECT_EQ(offset.error().kind, ErrorKind::kNotFound);
    EXPECT_THAT(offset.error().message, HasSubstr("not bound yet"));
}

TEST_F(IfuncTest, NothingRefersToIt) {
    build("libthing.so", kLibrary, "-shared -fPIC -Wl,-soname,libthing.so");
    build("program",
          R"(
        #include <dlfcn.h>
        #include <stdio.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            dlopen(")" +
              shop_.path("libthing.so") +
              R"(", RTLD_NOW);
            printf("1\n");
            fflush(stdout);
            pause();
            return 0;
        })",
          "");
    Child child(shop_.path("program"));
    child.read_address();
    auto offset = resolve(child.pid(), "/libthing.so", "thing");
    ASSERT_FALSE(offset);
    EXPECT_THAT(offset.error().message, HasSubstr("nothing in the process refers to it"));
}

TEST_F(IfuncTest, StaticPrograms) {
    for (const char* options : {"-static -no-pie", "-static-pie -fPIE"}) {
        build("fixed", std::string(kLibrary) + R"(
            #include <stdio.h>
            #include <unistd.h>
            int main(int argc, char **argv) {
                thing(argc);
                printf("%p\n", implementation());
                fflush(stdout);
                pause();
                return 0;
            })",
              options);
        Child child(shop_.path("fixed"));
        uint64_t address = child.read_address();
        auto offset = resolve(child.pid(), "/fixed", "thing");
        ASSERT_TRUE(offset) << options << ": " << offset.error().message;
        EXPECT_EQ(*offset, offset_of(child.pid(), address)) << options;
    }
}

// A file that is a module where it is mapped as it is: with many relocations whose symbols all have
// one long name.
std::string long_named_module(size_t count, size_t name_size) {
    struct Head {
        Elf64_Ehdr file;
        Elf64_Phdr programs[2];
        Elf64_Dyn dynamic[6];
    } head = {};
    const uint64_t slots = sizeof head, symbols = slots + count * sizeof(Elf64_Rela);
    const uint64_t names = symbols + count * sizeof(Elf64_Sym), end = names + name_size + 2;
    std::memcpy(head.file.e_ident, ELFMAG, SELFMAG);
    head.file.e_ident[EI_CLASS] = ELFCLASS64;
    head.file.e_phoff = offsetof(Head, programs);
    head.file.e_phentsize = sizeof(Elf64_Phdr);
    head.file.e_phnum = 2;
    head.programs[0].p_type = PT_LOAD;
    head.programs[1].p_type = PT_DYNAMIC;
    head.programs[1].p_vaddr = offsetof(Head, dynamic);
    head.programs[1].p_memsz = sizeof head.dynamic;
    head.dynamic[0] = {DT_RELA, {slots}};
    head.dynamic[1] = {DT_RELASZ, {count * sizeof(Elf64_Rela)}};
    head.dynamic[2] = {DT_SYMTAB, {symbols}};
    head.dynamic[3] = {DT_STRTAB, {names}};
    head.dynamic[4] = {DT_STRSZ, {name_size + 2}};
    std::string text(end, '\0');
    std::memcpy(text.data(), &head, sizeof head);
    for (size_t i = 0; i < count; ++i) {
        const Elf64_Rela slot = {0, ELF64_R_INFO(i, elf::kGlobalData), 0};
        const Elf64_Sym symbol = {1, 0, 0, 0, 0, 0};
        std::memcpy(text.data() + slots + i * sizeof slot, &slot, sizeof slot);
        std::memcpy(text.data() + symbols + i * sizeof symbol, &symbol, sizeof symbol);
    }
    text.replace(names + 1, name_size, name_size, 'n');
    return text;
}

// Its modules say that they have more names, and longer ones, than this program has memory for.
TEST_F(IfuncTest, AProcessWithoutEndTakesNoMemoryWithoutEnd) {
    build("libthing.so", kLibrary, "-shared -fPIC");
    auto file = shop_.open("libthing.so");
    const Function* function = find_function(*file, "thing");
    ASSERT_NE(function, nullptr);
    shop_.write("module", long_named_module(500, 4000));
    const Fd fd(::open(shop_.path("module").c_str(), O_RDONLY));
    struct stat status {};
    ASSERT_EQ(::fstat(fd.get(), &status), 0);
    const auto size = static_cast<size_t>(status.st_size);
    void* const start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    ASSERT_NE(start, MAP_FAILED);
    // Each counts as one more module.
    Mapping module;
    module.start = reinterpret_cast<uint64_t>(start);
    module.end = module.start + size;
    Mapping code;
    code.start = 0x10000;
    code.end = 0x20000;
    code.executable = true;
    code.device = 1;
    code.inode = 2;
    std::vector<Mapping> mappings(4000, module);
    mappings.push_back(code);
    const auto answer = [&](const IfuncResolver::Limits& limits) {
        IfuncResolver resolver(::getpid(), mappings, limits);
        const auto offset = resolver.resolve(*file, 1, 2, *function);
        return offset ? std::string("found") : offset.error().message;
    };
    const long before = peak_kb();
    EXPECT_THAT(answer({}), HasSubstr("more to look through than is read"));
    // By names 8 GB; the limits leave 256 MB for these.
    EXPECT_LT(peak_kb() - before, 1'000'000);
    EXPECT_THAT(answer({1000, 1 << 20}), HasSubstr("more to look through"));
    mappings.erase(mappings.begin() + 3, mappings.end() - 1);
    IfuncResolver::Limits few_steps;
    few_steps.steps = mappings.size() - 1;
    EXPECT_THAT(answer(few_steps), HasSubstr("more to look through"));
    EXPECT_THAT(answer({}), HasSubstr("nothing in the process refers to it"));
    ::munmap(start, size);
}

TEST_F(IfuncTest, ProcessThatIsGone) {
    build("libthing.so", kLibrary, "-shared -fPIC");
    auto file = shop_.open("libthing.so");
    const Function* function = find_function(*file, "thing");
    ASSERT_NE(function, nullptr);
    Mapping mapping;
    mapping.start = 0x10000;
    mapping.end = 0x20000;
    mapping.executable = true;
    mapping.device = 1;
    mapping.inode = 2;
    IfuncResolver resolver(0x7ffffff0, {mapping});
    auto offset = resolver.resolve(*file, 1, 2, *function);
    ASSERT_FALSE(offset);
    EXPECT_EQ(offset.error().kind, ErrorKind::kNotFound);
    IfuncResolver other(::getpid(), {mapping});
    auto unmapped = other.resolve(*file, 1, 3, *function);
    ASSERT_FALSE(unmapped);
    EXPECT_THAT(unmapped.error().message, HasSubstr("does not map"));
}

} // namespace
} // namespace speedbump::process
