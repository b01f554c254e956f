// SPDX-License-Identifier: MIT
#include "process/memory.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>

#include "util/page.h"

namespace speedbump::process {
namespace {

int yama_scope() {
    std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
    int scope = 0;
    file >> scope;
    return scope;
}

} // namespace

Error access_error(pid_t pid, const std::string& what, int error_number) {
    Error error = errno_error("process " + std::to_string(pid) + ": " + what, error_number);
    if (error.kind != ErrorKind::kPermission) return error;
    switch (yama_scope()) {
        case 1:
            error.hint =
                "yama lets only a parent look into a process (ptrace_scope 1): run as "
                "root, or once: sudo sysctl kernel.yama.ptrace_scope=0";
            break;
        case 2:
            error.hint = "yama asks for CAP_SYS_PTRACE (ptrace_scope 2): run as root";
            break;
        case 3:
            error.hint =
                "yama forbids ptrace until the next boot (ptrace_scope 3): start the "
                "program with `speedbump run` instead";
            break;
        default:
            error.hint = "run as root, or with CAP_SYS_PTRACE in the process's user namespace";
    }
    return error;
}

ssize_t RemoteMemory::gather(std::span<const Piece> pieces, char* out) const {
    constexpr size_t kMaxPieces = 1024; // UIO_MAXIOV
    ssize_t done = 0;
    while (!pieces.empty()) {
        const auto part = pieces.first(std::min(pieces.size(), kMaxPieces));
        size_t wanted = 0;
        for (const Piece& one : part) wanted += one.iov_len;
        iovec local{out + done, wanted};
        const ssize_t got = process_vm_readv(pid_, &local, 1, part.data(), part.size(), 0);
        // EFAULT: not even the first piece is there.
        if (got < 0) return errno == EFAULT || done > 0 ? done : -errno;
        done += got;
        if (static_cast<size_t>(got) != wanted) break;
        pieces = pieces.subspan(part.size());
    }
    return done;
}

Result<void> RemoteMemory::read(uint64_t address, void* buffer, size_t size) const {
    const Piece whole = piece(address, size);
    const ssize_t got = gather({&whole, 1}, static_cast<char*>(buffer));
    if (got < 0) return access_error(pid_, "read its memory", static_cast<int>(-got));
    if (static_cast<size_t>(got) != size) return access_error(pid_, "read its memory", EFAULT);
    return {};
}

size_t RemoteMemory::read_some(uint64_t address, void* buffer, size_t size) const {
    // The kernel stops at the first bad piece, so one per page tells how far it got.
    size_t done = 0;
    while (done < size) {
        std::array<Piece, 64> pieces;
        size_t count = 0;
        size_t planned = done;
        while (count < pieces.size() && planned < size) {
            const uint64_t from = address + planned;
            const size_t length = std::min<size_t>(size - planned, kPage - from % kPage);
            pieces[count++] = piece(from, length);
            planned += length;
        }
        const ssize_t got = gather({pieces.data(), count}, static_cast<char*>(buffer) + done);
        if (got <= 0) break;
        const bool hole = static_cast<size_t>(got) < planned - done;
        done += static_cast<size_t>(got);
        if (hole) break;
    }
    return done;
}

Result<Fd> open_memory(pid_t pid) {
    Fd memory(::open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDWR | O_CLOEXEC));
    if (!memory.valid()) return access_error(pid, "open its memory", errno);
    return memory;
}

} // namespace speedbump::process
