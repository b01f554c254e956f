// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

namespace speedbump::engine {

namespace detail {
void run_shielded(int (*work)(void*), void* argument);
}

// Runs `work` in a process of its own that shares this one's memory and descriptors (clone(2):
// CLONE_VM, CLONE_FILES, CLONE_VFORK) but not its death by SIGKILL, and waits for it. For system
// calls that put uprobes in place or take them out: a task that is being killed leaves breakpoints
// behind (uprobe_unregister() returns -EINTR from register_for_each_vma(); 6.12 warns of a "leaking
// uprobe"). `work` makes system calls and nothing else: a lock that it needs, that of malloc() too,
// may belong to a thread that is dead. At a task limit it runs on the calling thread.
template <typename Work>
void run_shielded(Work&& work) {
    detail::run_shielded(
        [](void* argument) {
            (*static_cast<std::remove_reference_t<Work>*>(argument))();
            return 0;
        },
        &work);
}

} // namespace speedbump::engine
