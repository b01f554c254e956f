// SPDX-License-Identifier: MIT
#include "engine/inprocess/vdso.h"

#include <elf.h>
#include <fmt/format.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "process/memory.h"
#include "process/namespaces.h"
#include "util/proc.h"

namespace speedbump::engine::inprocess {
namespace {

constexpr std::string_view kFunction = "__vdso_clock_gettime";
constexpr size_t kMostBytes = size_t{1} << 20; // it has two pages
constexpr int kReads = 1000;

struct Vdso {
    uint64_t address = 0;
    std::string image;
};

// No file has this name: theirs begin with a slash.
std::optional<Vdso> vdso_of(pid_t pid) {
    const std::string maps = "\n" + read_proc(fmt::format("/proc/{}/maps", pid));
    const size_t name = maps.find(" [vdso]\n");
    if (name == std::string::npos) return std::nullopt;
    unsigned long start = 0, end = 0;
    if (std::sscanf(maps.c_str() + maps.rfind('\n', name), "%lx-%lx", &start, &end) != 2 ||
        end - start > kMostBytes)
        return std::nullopt;
    Vdso found{start, std::string(end - start, '\0')};
    if (!process::RemoteMemory(pid).read(start, found.image.data(), found.image.size()))
        return std::nullopt;
    return found;
}

template <typename T>
std::optional<T> value_at(std::string_view image, uint64_t offset) {
    T value;
    if (offset > image.size() || image.size() - offset < sizeof value) return std::nullopt;
    std::memcpy(&value, image.data() + offset, sizeof value);
    return value;
}

// From the beginning of the image, all of which is mapped.
std::optional<uint64_t> offset_of(std::string_view image, std::string_view wanted) {
    const auto header = value_at<Elf64_Ehdr>(image, 0);
    if (!header) return std::nullopt;
    const auto section = [&](size_t number) {
        return value_at<Elf64_Shdr>(image, header->e_shoff + number * sizeof(Elf64_Shdr));
    };
    for (size_t i = 0; i < header->e_shnum; ++i) {
        const auto symbols = section(i);
        if (!symbols || symbols->sh_type != SHT_DYNSYM) continue;
        const auto names = section(symbols->sh_link);
        if (!names) continue;
        for (uint64_t at = 0; at < symbols->sh_size; at += sizeof(Elf64_Sym)) {
            const auto symbol = value_at<Elf64_Sym>(image, symbols->sh_offset + at);
            if (!symbol || symbol->st_shndx == SHN_UNDEF) continue;
            const uint64_t name = names->sh_offset + symbol->st_name;
            if (name >= image.size()) continue;
            if (image.substr(name, image.find('\0', name) - name) == wanted)
                return symbol->st_value;
        }
    }
    return std::nullopt;
}

const std::optional<Vdso>& own_vdso() {
    static const std::optional<Vdso> own = vdso_of(getpid());
    return own;
}

std::optional<uint64_t> function_offset() {
    return own_vdso() ? offset_of(own_vdso()->image, kFunction) : std::nullopt;
}

using ClockGettime = int (*)(clockid_t, timespec*);

// In a process that can make no system call but to end: where the function needs one it fails.
int read_without_calls(ClockGettime read) {
    sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
    };
    const sock_fprog filter{static_cast<unsigned short>(std::size(steps)), steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) != 0)
        return 1;
    timespec now{};
    for (int i = 0; i < kReads; ++i)
        if (read(CLOCK_MONOTONIC, &now) != 0) return 1;
    return 0;
}

} // namespace

bool vdso_reads_clock() {
    const auto offset = function_offset();
    if (!offset) return false;
    const auto function = reinterpret_cast<ClockGettime>(own_vdso()->address + *offset);
    const pid_t child = fork();
    if (child == 0) _exit(read_without_calls(function));
    int status = 0;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

Result<ClockFunction> vdso_clock_of(pid_t pid) {
    const auto offset = function_offset();
    const std::optional<Vdso> vdso = vdso_of(pid);
    if (!offset || !vdso || vdso->image != own_vdso()->image)
        return make_error(ErrorKind::kUnsupported,
                          fmt::format("process {}: its vDSO, which has the clock to delay by, is "
                                      "not as the kernel made it",
                                      pid));
    if (process::has_clock_for_children(pid))
        return make_error(ErrorKind::kUnsupported,
                          fmt::format("process {} has another time namespace for its children, "
                                      "which would go by its clock",
                                      pid));
    return ClockFunction{vdso->address + *offset,
                         static_cast<uint64_t>(process::monotonic_offset_of(pid))};
}

} // namespace speedbump::engine::inprocess
