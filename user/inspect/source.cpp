// SPDX-License-Identifier: MIT
#include "inspect/source.h"

#include <algorithm>
#include <cerrno>

namespace speedbump::inspect {

ssize_t ProcessSource::gather(std::span<const Piece> pieces, char* out) const {
    constexpr size_t kMostPieces = 1024; // UIO_MAXIOV
    ssize_t done = 0;
    while (!pieces.empty()) {
        const auto part = pieces.first(std::min(pieces.size(), kMostPieces));
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

} // namespace speedbump::inspect
