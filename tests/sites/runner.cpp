// SPDX-License-Identifier: MIT
#include "runner.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "compare.h"
#include "util/fd.h"

namespace speedbump::sites {

namespace {

constexpr int kPatienceMs = 60'000; // for a pass of a batch, in an emulated machine too
constexpr size_t kStackPointer = 4; // of Registers::general
enum Pass { kPlain, kAgain, kProbed, kRestored };

template <typename T>
class SharedArray {
  public:
    explicit SharedArray(size_t count) : size_(count * sizeof(T)) {
        void* got = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        data_ = got == MAP_FAILED ? nullptr : static_cast<T*>(got);
    }
    SharedArray(const SharedArray&) = delete;
    SharedArray& operator=(const SharedArray&) = delete;
    ~SharedArray() {
        if (data_ != nullptr) munmap(data_, size_);
    }
    T* get() const { return data_; }

  private:
    size_t size_;
    T* data_;
};

// An ELF file with one executable segment, which is all of it: the slots lie after its first.
Result<Fd> make_file(const std::vector<Slot>& slots) {
    std::vector<uint8_t> bytes((slots.size() + 1) * kSlot);
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_ident[EI_VERSION] = EV_CURRENT;
    header.e_type = ET_DYN;
    header.e_machine = EM_X86_64;
    header.e_version = EV_CURRENT;
    header.e_ehsize = sizeof header;
    header.e_phoff = sizeof header;
    header.e_phentsize = sizeof(Elf64_Phdr);
    header.e_phnum = 1;
    Elf64_Phdr segment{};
    segment.p_type = PT_LOAD;
    segment.p_flags = PF_R | PF_X;
    segment.p_filesz = segment.p_memsz = bytes.size();
    segment.p_align = 4096;
    std::memcpy(bytes.data(), &header, sizeof header);
    std::memcpy(bytes.data() + sizeof header, &segment, sizeof segment);
    for (size_t i = 0; i < slots.size(); ++i) write_slot(slots[i], bytes.data() + (i + 1) * kSlot);

    Fd file(memfd_create("sites", MFD_CLOEXEC));
    if (!file.valid() ||
        write(file.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
        return errno_error("write the file of cases", errno);
    return file;
}

// --- the child: runs the cases

class Child {
  public:
    Child(const std::vector<Slot>& slots, const std::vector<bool>& passed_over, size_t states,
          uint64_t seed, Tally* tallies, volatile size_t* current)
        : slots_(slots),
          passed_over_(passed_over),
          states_(states),
          seed_(seed),
          tallies_(tallies),
          current_(current),
          plain_(slots.size() * states),
          passed_(slots.size() * states) {}

    void run(int file, int from_parent, int to_parent) {
        void* const code = reinterpret_cast<void*>(kCode);
        if (mmap(code, (slots_.size() + 1) * kSlot, PROT_READ | PROT_EXEC,
                 MAP_PRIVATE | MAP_FIXED_NOREPLACE, file, 0) != code)
            _exit(2);
        prepare_machine();
        pass(kPlain);
        pass(kAgain);
        for (Pass next : {kProbed, kRestored}) {
            char byte = 0;
            if (write(to_parent, &byte, 1) != 1 || read(from_parent, &byte, 1) != 1) _exit(2);
            pass(next);
        }
        _exit(0);
    }

  private:
    void pass(Pass which) {
        Outcome outcome;
        for (size_t slot = 0; slot < slots_.size(); ++slot) {
            if (passed_over_[slot]) continue;
            *current_ = slot;
            for (size_t i = 0; i < states_; ++i) {
                Random random(seed_ + slot * states_ + i);
                const State before = make_state(slots_[slot], random);
                Outcome& plain = plain_[slot * states_ + i];
                run_machine(before, slots_[slot].address, which == kPlain ? plain : outcome);
                if (which != kPlain) compare(which, slot, i, before, plain, outcome);
            }
        }
    }

    void compare(Pass which, size_t slot, size_t i, const State& before, const Outcome& plain,
                 const Outcome& outcome) {
        Tally& tally = tallies_[slot];
        const size_t state = slot * states_ + i;
        const std::string text = difference(slots_[slot], before, plain, outcome);
        if (which == kAgain) {
            const bool reached = may_return_to(plain.state.registers.general[kStackPointer]);
            passed_[state] = !text.empty() || !reached;
            ++(!reached ? tally.out_of_reach : text.empty() ? tally.states : tally.varying);
            tally.faulted += plain.signal != 0;
            tally.illegal += plain.signal == SIGILL;
            return;
        }
        if (passed_[state]) return;
        if (which == kProbed) {
            const Tolerated found = tolerated(plain, outcome);
            tally.trap_numbers += found.trap_number;
            tally.x87_records += found.x87_record;
        }
        if (text.empty()) return;
        ++(which == kProbed ? tally.different : tally.different_after);
        const Outcome nothing_done{before, kLandedBehind};
        if (which == kProbed && difference(slots_[slot], before, nothing_done, outcome).empty())
            ++tally.skipped;
        if (tally.detail[0] == 0)
            snprintf(tally.detail, sizeof tally.detail, "%s%s",
                     which == kRestored ? "with the probe out again: " : "", text.c_str());
    }

    const std::vector<Slot>& slots_;
    const std::vector<bool>& passed_over_;
    size_t states_;
    uint64_t seed_;
    Tally* tallies_;
    volatile size_t* current_;
    std::vector<Outcome> plain_;
    std::vector<bool> passed_;
};

// --- the parent: attaches

class Batch {
  public:
    Batch(Prober& prober, const std::vector<Slot>& slots, size_t states, uint64_t seed)
        : prober_(prober),
          slots_(slots),
          states_(states),
          seed_(seed),
          tallies_(slots.size()),
          current_(1),
          passed_over_(slots.size()),
          results_(slots.size()) {}

    Result<std::vector<SlotResult>> run() {
        if (tallies_.get() == nullptr || current_.get() == nullptr)
            return errno_error("map memory", errno);
        auto file = make_file(slots_);
        if (!file) return file.error();
        for (size_t i = 0; i < slots_.size(); ++i)
            for (size_t probe : slots_[i].probes)
                offsets_.push_back((i + 1) * kSlot + slots_[i].at + probe);
        // One that kills the process is blamed for it; the others run again without it.
        for (;;) {
            auto whole = attempt(file->get());
            if (!whole) return whole.error();
            if (*whole) break;
        }
        take_results();
        return std::move(results_);
    }

  private:
    // False when the child has died: the slot that it was at is passed over from now on.
    Result<bool> attempt(int file) {
        std::fill_n(tallies_.get(), slots_.size(), Tally{});
        int to_child[2], from_child[2];
        if (pipe2(to_child, O_CLOEXEC) != 0 || pipe2(from_child, O_CLOEXEC) != 0)
            return errno_error("make a pipe", errno);
        const Fd in(to_child[0]), tell(to_child[1]), listen(from_child[0]);
        Fd out(from_child[1]);
        fflush(nullptr);
        const pid_t child = fork();
        if (child < 0) return errno_error("fork", errno);
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            pin();
            Child(slots_, passed_over_, states_, seed_, tallies_.get(), current_.get())
                .run(file, in.get(), out.get());
        }
        out.reset();
        auto whole = conduct(file, child, tell.get(), listen.get());
        kill(child, SIGKILL);
        int status = 0;
        waitpid(child, &status, 0);
        if (!whole || *whole) return whole;
        passed_over_[*current_.get()] = true;
        return false;
    }

    // The passes of one child; false when it dies, or hangs, in one of them.
    Result<bool> conduct(int file, pid_t child, int tell, int listen) {
        const auto blame = [&](bool probed) {
            SlotResult& result = results_[*current_.get()];
            (probed ? result.died : result.died_without_probe) = true;
        };
        if (!heard_of(listen)) {
            blame(false);
            return false;
        }
        if (auto done = prober_.attach(file, offsets_, child, refused_); !done) return done.error();
        bool whole = let_go_on(tell) && heard_of(listen);
        auto hits = prober_.hits();
        prober_.detach();
        if (!hits) return hits.error();
        hits_ = std::move(*hits);
        if (!whole) {
            blame(true);
            return false;
        }
        whole = let_go_on(tell) && !heard_of(listen); // its end
        int status = 0;
        siginfo_t info{};
        if (whole && waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0)
            status = info.si_code == CLD_EXITED ? info.si_status : -1;
        if (status != 0) blame(true);
        return status == 0;
    }

    static bool let_go_on(int tell) { return write(tell, "", 1) == 1; }

    // False when it has ended, or says nothing in time.
    static bool heard_of(int listen) {
        pollfd waiting{listen, POLLIN, 0};
        char byte;
        return poll(&waiting, 1, kPatienceMs) == 1 && read(listen, &byte, 1) == 1;
    }

    // What asks for the processor (cpuid) shall get one answer.
    static void pin() {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(sched_getcpu(), &one);
        sched_setaffinity(0, sizeof one, &one);
    }

    void take_results() {
        size_t probe = 0;
        for (size_t i = 0; i < slots_.size(); ++i) {
            SlotResult& result = results_[i];
            result.tally = tallies_.get()[i];
            for (size_t n = 0; n < slots_[i].probes.size(); ++n, ++probe) {
                result.hits.push_back(hits_[probe]);
                result.refused.push_back(refused_[probe]);
            }
        }
    }

    Prober& prober_;
    const std::vector<Slot>& slots_;
    size_t states_;
    uint64_t seed_;
    SharedArray<Tally> tallies_;
    SharedArray<size_t> current_;
    std::vector<bool> passed_over_;
    std::vector<SlotResult> results_;
    std::vector<uint64_t> offsets_;
    std::vector<int> refused_;
    std::vector<uint64_t> hits_;
};

} // namespace

Result<std::vector<SlotResult>> run_slots(Prober& prober, const std::vector<Slot>& slots,
                                          size_t states, uint64_t seed) {
    return Batch(prober, slots, states, seed).run();
}

} // namespace speedbump::sites
