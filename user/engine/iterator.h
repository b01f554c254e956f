// SPDX-License-Identifier: MIT
#pragma once

#include <bpf/bpf.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "engine/libbpf.h"
#include "util/fd.h"
#include "util/result.h"

namespace speedbump::engine {

// All that a BPF iterator writes, an Entry each. `what`: its name in messages.
template <typename Entry>
Result<std::vector<Entry>> read_iterator(const bpf_link& link, const std::string& what) {
    const Fd fd(bpf_iter_create(bpf_link__fd(&link)));
    if (!fd.valid()) return errno_error("create " + what, errno);
    std::vector<Entry> list(64);
    size_t filled = 0; // bytes
    for (;;) {
        if (filled == list.size() * sizeof(Entry)) list.resize(list.size() * 2);
        char* at = reinterpret_cast<char*>(list.data()) + filled; // NOLINT: bytes of entries
        const ssize_t got = read(fd.get(), at, list.size() * sizeof(Entry) - filled);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (got < 0) return errno_error("read " + what, errno);
        if (got == 0) break;
        filled += static_cast<size_t>(got);
    }
    list.resize(filled / sizeof(Entry));
    return list;
}

} // namespace speedbump::engine
