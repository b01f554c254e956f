// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <type_traits>
#include <vector>

namespace speedbump::engine {

namespace detail {
std::vector<int> run_shielded(int (*work)(void*, size_t), void* argument, size_t count);
}

// Runs `work` for each number below `count`, in a process apart (util/apart.h) that shares
// descriptors with this one, and gives back the int of each; -EAGAIN of those that it was killed
// before. For system calls that put uprobes in place or take them out: a task that is being killed
// leaves breakpoints behind (uprobe_unregister() returns -EINTR from register_for_each_vma(); 6.12
// warns of a "leaking uprobe"). `work` makes system calls and nothing else: a lock that it needs,
// that of malloc() too, may belong to a thread that does not exist there; what it writes is lost.
// At a task limit it runs on the calling thread.
template <typename Work>
std::vector<int> run_shielded(size_t count, Work&& work) {
    return detail::run_shielded(
        [](void* argument, size_t number) {
            return (*static_cast<std::remove_reference_t<Work>*>(argument))(number);
        },
        &work, count);
}

// Closes all of them, many at the same time, in a process as above. What that process had begun
// when it was killed itself, by its PID, stays open until this program ends.
void close_shielded(const std::vector<int>& descriptors);

} // namespace speedbump::engine
