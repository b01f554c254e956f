// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "process/memory.h"

namespace speedbump::stacks {

using process::Piece;
using process::piece;

// A value that lies at any place.
template <typename T>
T load_at(const char* bytes) {
    T value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
}

// The memory of a process that runs meanwhile.
class Source {
  public:
    virtual ~Source() = default;
    // Copies the pieces in their order into `out`, one after the other; the number of bytes up to
    // the first piece that can't be read in full, or -errno when the process can't be read at all.
    virtual ssize_t gather(std::span<const Piece> pieces, char* out) const = 0;

    bool read(uint64_t address, void* out, size_t size) const {
        const Piece one = piece(address, size);
        return gather({&one, 1}, static_cast<char*>(out)) == static_cast<ssize_t>(size);
    }
    template <typename T>
    std::optional<T> value(uint64_t address) const {
        T result;
        if (!read(address, &result, sizeof(result))) return std::nullopt;
        return result;
    }
};

// That of a process that is there: nothing is stopped, changed or written.
class ProcessSource : public Source {
  public:
    explicit ProcessSource(pid_t pid) : memory_(pid) {}
    ssize_t gather(std::span<const Piece> pieces, char* out) const override {
        return memory_.gather(pieces, out);
    }

  private:
    process::RemoteMemory memory_;
};

} // namespace speedbump::stacks
