// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "util/fd.h"
#include "util/result.h"

namespace speedbump::process {

// A piece of another process's memory.
using Piece = iovec;
inline Piece piece(uint64_t address, size_t size) {
    return {reinterpret_cast<void*>(address), size}; // NOLINT: an address of another process
}

// The memory of a process as a file, to be read and written: that of the program which it runs now.
// After an exec it leads nowhere. Errors as access_error().
Result<Fd> open_memory(pid_t pid);

// The memory of another process, by process_vm_readv: no stop, no ptrace attachment; nothing else
// reads it. Needs CAP_SYS_PTRACE or the right to ptrace; kPermission with a hint otherwise. Cheap
// to copy.
class RemoteMemory {
  public:
    explicit RemoteMemory(pid_t pid) : pid_(pid) {}

    // All `size` bytes, or an error.
    Result<void> read(uint64_t address, void* buffer, size_t size) const;
    // As many bytes as can be read before the first hole; 0 when there are none.
    size_t read_some(uint64_t address, void* buffer, size_t size) const;
    template <typename T>
    std::optional<T> value(uint64_t address) const {
        T result;
        if (read_some(address, &result, sizeof(result)) != sizeof(result)) return std::nullopt;
        return result;
    }
    // Copies the pieces in their order into `out`, one after the other; the number of bytes up to
    // the first piece that can't be read in full, or -errno when the process can't be read at all.
    ssize_t gather(std::span<const Piece> pieces, char* out) const;
    pid_t pid() const { return pid_; }

  private:
    pid_t pid_;
};

// What a refusal to look into or stop a process means here, with the way out: yama, a container's
// limits, another user's process.
Error access_error(pid_t pid, const std::string& what, int error_number);

} // namespace speedbump::process
