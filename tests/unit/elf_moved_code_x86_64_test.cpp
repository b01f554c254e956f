// SPDX-License-Identifier: MIT
#include "elf/moved_code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <tuple>

#include "elf/jump_site.h"
#include "elf_workshop.h"
#include "traced_child.h"

namespace speedbump::elf {
namespace {

using Bytes = std::basic_string<unsigned char>;

constexpr uint64_t kAligned = 0x1000;

std::optional<Range> range_of(const Bytes& code) {
    return movable_range(code, kAligned);
}

TEST(MovedCode, TakesWholeInstructions) {
    // mov %rsp,%rbp; push %r12; push %rbx
    const auto range = range_of({0x48, 0x89, 0xe5, 0x41, 0x54, 0x53});
    ASSERT_TRUE(range);
    EXPECT_EQ(range->length, 5);
    EXPECT_EQ(range->places, (std::vector<uint8_t>{0, 3}));
    EXPECT_FALSE(range->is_redirected);
}

TEST(MovedCode, EndsBeforeWhatMayNotMove) {
    EXPECT_FALSE(range_of({0x48, 0x89, 0xe5, 0xe8, 0, 0, 0, 0}));          // call
    EXPECT_FALSE(range_of({0x0f, 0x05, 0x48, 0x89, 0xe5, 0x90}));          // syscall
    EXPECT_FALSE(range_of({0x0f, 0x31, 0x48, 0x89, 0xe5, 0x90}));          // rdtsc
    EXPECT_FALSE(range_of({0xf3, 0xa4, 0x48, 0x89, 0xe5, 0x90}));          // rep movsb
    EXPECT_FALSE(range_of({0x8e, 0xd8, 0x48, 0x89, 0xe5, 0x90}));          // mov %eax,%ds
    EXPECT_FALSE(range_of({0xe3, 0x10, 0x48, 0x89, 0xe5, 0x90}));          // jrcxz
    EXPECT_FALSE(range_of({0xe2, 0x10, 0x48, 0x89, 0xe5, 0x90}));          // loop
    EXPECT_FALSE(range_of({0xff, 0xd0, 0x48, 0x89, 0xe5, 0x90}));          // call *%rax
    EXPECT_FALSE(range_of({0xff, 0x18, 0x48, 0x89, 0xe5, 0x90}));          // lcall *(%rax)
    EXPECT_FALSE(range_of({0xff, 0x28, 0x48, 0x89, 0xe5, 0x90}));          // ljmp *(%rax)
    EXPECT_FALSE(range_of({0x3e, 0x74, 0x10, 0x48, 0x89, 0xe5}));          // je with a hint
    EXPECT_FALSE(range_of({0x66, 0xe9, 0x10, 0x00, 0x00, 0x00, 0x90}));    // data16 jmp
    EXPECT_FALSE(range_of({0xc7, 0xf8, 0x10, 0x00, 0x00, 0x00}));          // xbegin
    EXPECT_FALSE(range_of({0xc2, 0x10, 0x00, 0x48, 0x89, 0xe5}));          // ret $16
    EXPECT_FALSE(range_of({0x64, 0x48, 0x89, 0x04, 0x25, 0x10, 0, 0, 0})); // mov %rax,%fs:0x10
    EXPECT_FALSE(range_of({0x48, 0x89, 0xe5}));
    EXPECT_FALSE(range_of({}));
}

TEST(MovedCode, ConditionsGoOn) {
    // je +16; mov %rsp,%rbp
    const auto range = range_of({0x74, 0x10, 0x48, 0x89, 0xe5, 0x90});
    ASSERT_TRUE(range);
    EXPECT_EQ(range->length, 5);
    EXPECT_EQ(range->branches, std::vector<uint8_t>{0});
}

TEST(MovedCode, BehindAnEndThereMustBePadding) {
    const Bytes end{0x31, 0xc0, 0xc3}; // xor %eax,%eax; ret
    const auto padded = range_of(end + Bytes(13, 0x90));
    ASSERT_TRUE(padded);
    EXPECT_EQ(padded->length, 5);
    EXPECT_EQ(padded->code, 3);
    EXPECT_EQ(padded->places, (std::vector<uint8_t>{0, 2}));
    EXPECT_TRUE(range_of(end + Bytes(13, 0xcc)));
    // nopw %cs:0(%rax,%rax,1); nopl (%rax)
    EXPECT_TRUE(range_of(end + Bytes{0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x0f, 0x1f, 0}));
    EXPECT_FALSE(range_of(end + Bytes(4, 0x90) + Bytes(9, 0x50))); // code, or data, behind nops
    // Ten bytes each, across the multiple of 16.
    const Bytes wide{0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0};
    EXPECT_TRUE(range_of(end + wide + wide));
    EXPECT_FALSE(range_of(end + Bytes(13, 0x00)));
    EXPECT_FALSE(range_of(end + Bytes(12, 0x90)));              // it is not seen whether all is
    EXPECT_FALSE(movable_range(end + Bytes(16, 0x90), 0x100d)); // the next may begin behind it
    EXPECT_FALSE(movable_range(end + Bytes(16, 0x90), 0x100c));
    EXPECT_TRUE(movable_range(end + Bytes(16, 0x90), 0x100b));
}

TEST(MovedCode, CallsAndJumpsOfAJumpsLengthAreRedirected) {
    for (const unsigned char opcode : Bytes{0xe8, 0xe9}) {
        const auto range = range_of({opcode, 0x10, 0, 0, 0});
        ASSERT_TRUE(range);
        EXPECT_TRUE(range->is_redirected);
        EXPECT_EQ(range->length, 5);
        const auto moved = move_range(Bytes{opcode, 0x10, 0, 0, 0}, kAligned, kAligned + 0x100);
        ASSERT_TRUE(moved);
        EXPECT_EQ(moved->bytes.substr(0, 5), (Bytes{0xe9, 0x10, 0xff, 0xff, 0xff}));
    }
    // A jump behind another instruction gives way with it.
    EXPECT_FALSE(range_of({0x90, 0xe9, 0x10, 0, 0, 0})->is_redirected);
}

TEST(MovedCode, AddressesRelativeToItselfStayTheSame) {
    // mov 0x100(%rip),%rax
    const Bytes code{0x48, 0x8b, 0x05, 0x00, 0x01, 0x00, 0x00};
    const auto moved = move_range(code, 0x10000, 0x20000);
    ASSERT_TRUE(moved);
    int32_t displacement = 0;
    std::memcpy(&displacement, moved->bytes.data() + 3, 4);
    EXPECT_EQ(displacement, 0x100 - 0x10000);
    EXPECT_FALSE(move_range(code, 0x10000, uint64_t{1} << 33));
    EXPECT_FALSE(move_range(Bytes{0x48, 0x89, 0xe5, 0x41, 0x54}, 0x1000, uint64_t{1} << 40));
}

// --- every range of this host's files, executed where it was and as it is moved

struct Case {
    uint64_t place = 0; // within a page
    Bytes code;         // enough to tell the range
    bool operator<(const Case& other) const {
        return std::tie(place, code) < std::tie(other.place, other.code);
    }
};

std::set<Case> cases_of(const std::filesystem::path& path) {
    std::set<Case> cases;
    const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) return cases;
    const auto file = ElfFile::open(fd.get(), path);
    if (!file) return cases; // a script, an archive
    std::vector<uint64_t> entries;
    for (const Function& function : (*file)->functions()) entries.push_back(function.file_offset);
    PlacementOptions options;
    options.jump = true;
    for (const auto& site : place_probes(**file, entries, options)) {
        if (!site) continue;
        const Bytes code((*file)->code_at(site->file_offset, kRangeSight));
        const auto range = movable_range(code, site->file_offset);
        if (!range) {
            ADD_FAILURE() << path << " " << site->file_offset;
            continue;
        }
        const Bytes alone = code.substr(0, range->length);
        cases.insert(
            {site->file_offset % 16, movable_range(alone, site->file_offset) ? alone : code});
    }
    return cases;
}

// What is the same wherever code lies.
struct Outcome {
    user_regs_struct registers{};
    std::vector<unsigned char> xstate;
    std::vector<unsigned char> memory;
    int signal = 0;
    uint64_t fault = 0;
};

class Bench {
  public:
    static constexpr uint64_t kFrom = 0x2000'0000'0000;
    static constexpr uint64_t kTo = kFrom + (uint64_t{700} << 20);
    static constexpr uint64_t kData = 0x3000'0000'0000;
    static constexpr size_t kPage = 4096;
    static constexpr size_t kDataBytes = 16 * kPage;

    Bench() {
        from_ = map(kFrom, 2 * kPage, PROT_READ | PROT_EXEC, code_);
        to_ = map(kTo, kPage, PROT_READ | PROT_EXEC, copies_);
        map(kData, kDataBytes, PROT_READ | PROT_WRITE, data_);
        std::mt19937_64 draw(1);
        for (auto& byte : content_) byte = static_cast<unsigned char>(draw());
        child_ = std::make_unique<TracedChild>();
    }

    void compare(const Case& one, std::mt19937_64& draw) {
        const uint64_t site = kFrom + 64 + one.place;
        const auto range = movable_range(one.code, site);
        const auto moved = move_range(one.code, site, kTo);
        ASSERT_TRUE(range && moved);
        ASSERT_LE(moved->bytes.size(), kLongestMoved);
        std::memcpy(from_ + (site - kFrom), one.code.data(), one.code.size());
        std::memcpy(to_, moved->bytes.data(), moved->bytes.size());
        const user_regs_struct registers = random_registers(draw);
        const std::vector<unsigned char> xstate = random_vectors(draw);
        std::memcpy(data_, content_.data(), content_.size());
        child_->registers = registers;
        child_->xstate() = xstate;
        const Outcome there = execute(site, range->length);
        std::memcpy(data_, content_.data(), content_.size());
        child_->registers = registers;
        child_->xstate() = xstate;
        if (one.code[0] == 0xe8) push_return(site + 5);
        const Outcome here = execute(kTo, moved->bytes.size());
        expect_equal(there, here, *range, *moved, site);
    }

  private:
    // Shared, as this process writes what the child executes.
    static unsigned char* map(uint64_t at, size_t size, int protection, unsigned char*& own) {
        const int file = ::memfd_create("bench", MFD_CLOEXEC);
        EXPECT_EQ(::ftruncate(file, static_cast<off_t>(size)), 0);
        EXPECT_NE(::mmap(reinterpret_cast<void*>(at), size, protection,
                         MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0),
                  MAP_FAILED);
        own = static_cast<unsigned char*>(
            ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
        ::close(file);
        return own;
    }

    // Pointers into the data, so that most accesses meet memory.
    user_regs_struct random_registers(std::mt19937_64& draw) {
        user_regs_struct registers = child_->registers;
        for (auto* one : {&registers.rax, &registers.rbx, &registers.rcx, &registers.rdx,
                          &registers.rsi, &registers.rdi, &registers.rbp, &registers.rsp,
                          &registers.r8, &registers.r9, &registers.r10, &registers.r11,
                          &registers.r12, &registers.r13, &registers.r14, &registers.r15})
            *one = kData + kDataBytes / 2 + draw() % kPage / 16 * 16;
        // As an index in place of a pointer, sometimes.
        for (auto* one : {&registers.rax, &registers.rcx, &registers.rdx, &registers.rsi})
            if (draw() % 4 == 0) *one = draw() % 64;
        registers.eflags = 0x202 | (draw() & 0x8d5); // the arithmetic ones
        return registers;
    }

    // The child's registers and memory with a return address on the stack, as a call leaves them.
    void push_return(uint64_t address) {
        child_->registers.rsp -= 8;
        std::memcpy(data_ + (child_->registers.rsp - kData), &address, sizeof address);
    }

    std::vector<unsigned char> random_vectors(std::mt19937_64& draw) {
        std::vector<unsigned char> xstate = child_->xstate();
        for (size_t i = kVectors; i < kVectors + 16 * 16; ++i)
            xstate[i] = static_cast<unsigned char>(draw());
        xstate[kHeader] |= 2; // they are in use
        return xstate;
    }

    Outcome execute(uint64_t begin, size_t length) {
        Outcome outcome;
        child_->registers.rip = begin;
        // Each instruction goes forward or leaves: so many are enough.
        for (size_t i = 0; i <= length; ++i) {
            outcome.signal = child_->step();
            const bool is_inside = child_->registers.rip - begin < length;
            if (outcome.signal != SIGTRAP || !is_inside) break;
        }
        outcome.registers = child_->registers;
        outcome.fault = child_->fault();
        outcome.xstate = child_->xstate();
        // What is in use there is the processor's business, what it holds is not.
        std::fill_n(outcome.xstate.begin() + kHeader, kHeaderBytes, 0);
        outcome.memory.assign(data_, data_ + kDataBytes);
        return outcome;
    }

    static void expect_equal(Outcome there, Outcome here, const Range& range,
                             const MovedRange& moved, uint64_t site) {
        EXPECT_EQ(there.signal, here.signal);
        EXPECT_EQ(there.fault, here.fault);
        if (there.signal != SIGTRAP) { // at the same instruction
            const uint64_t at = there.registers.rip - site;
            for (size_t i = 0; i < range.places.size(); ++i)
                if (range.places[i] == at) here.registers.rip += at - moved.places[i] + site - kTo;
        }
        EXPECT_EQ(there.registers.rip, here.registers.rip);
        // The step of an instruction that faults is told apart by this flag.
        there.registers.eflags &= ~0x10100UL;
        here.registers.eflags &= ~0x10100UL;
        EXPECT_EQ(std::memcmp(&there.registers, &here.registers, sizeof there.registers), 0);
        EXPECT_TRUE(there.xstate == here.xstate);
        EXPECT_TRUE(there.memory == here.memory);
    }

    // In the area of XSAVE.
    static constexpr size_t kVectors = 160, kHeader = 512, kHeaderBytes = 64;
    std::vector<unsigned char> content_ = std::vector<unsigned char>(kDataBytes);
    unsigned char *code_ = nullptr, *copies_ = nullptr, *data_ = nullptr;
    unsigned char *from_ = nullptr, *to_ = nullptr;
    std::unique_ptr<TracedChild> child_;
};

std::string text_of(const Case& one) {
    std::string text;
    for (const unsigned char byte : one.code) {
        char two[4];
        std::snprintf(two, sizeof two, "%02x ", byte);
        text += two;
    }
    return text;
}

TEST(MovedCode, DoesWhatItDidWhereItWas) {
    std::set<Case> cases;
    size_t files = 0;
    const std::string libraries = "/usr/lib/x86_64-linux-gnu/";
    for (const std::string& path :
         {libraries + "libc.so.6", libraries + "libstdc++.so.6", libraries + "libcrypto.so.3",
          libraries + "libm.so.6", libraries + "libpython3.11.so.1.0",
          libraries + "libsqlite3.so.0", std::string("/usr/bin/python3"),
          std::string("/usr/bin/redis-server"), std::string("/usr/sbin/nginx"),
          std::filesystem::read_symlink("/proc/self/exe").string()}) {
        const auto found = cases_of(path);
        files += !found.empty();
        cases.insert(found.begin(), found.end());
    }
    Bench bench;
    std::mt19937_64 draw(20261124);
    for (const Case& one : cases) {
        SCOPED_TRACE(text_of(one));
        bench.compare(one, draw);
        if (HasFailure()) break;
    }
    std::printf("%zu ranges of %zu files\n", cases.size(), files);
    EXPECT_GT(cases.size(), 3000u);
}

} // namespace
} // namespace speedbump::elf
