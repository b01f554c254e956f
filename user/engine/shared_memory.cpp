// SPDX-License-Identifier: MIT
#include "engine/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace speedbump::engine {

Ownership& owned_by_this_thread() {
    static thread_local Ownership ownership;
    return ownership;
}

Result<void> Ownership::take(uint32_t& owner) {
    if (before_ != nullptr)
        return make_error(ErrorKind::kInvalid, "this thread owns a session's table already");
    size_t length = 0;
    if (syscall(SYS_get_robust_list, 0, &before_, &length) != 0)
        return errno_error("get_robust_list", errno);
    entry_.next = &head_.list;
    head_.list.next = &entry_;
    head_.futex_offset = reinterpret_cast<char*>(&owner) - reinterpret_cast<char*>(&entry_);
    head_.list_op_pending = nullptr;
    // Before the kernel looks for it: a word without this thread's number is passed over.
    __atomic_store_n(&owner, static_cast<uint32_t>(gettid()), __ATOMIC_RELEASE);
    if (syscall(SYS_set_robust_list, &head_, sizeof head_) != 0) {
        before_ = nullptr;
        return errno_error("set_robust_list", errno);
    }
    return {};
}

void Ownership::give_up() {
    // It was registered before, so it can't fail.
    syscall(SYS_set_robust_list, before_, sizeof head_);
    before_ = nullptr;
}

Result<void*> make_shared_memory(const char* name, uint64_t bytes, int protection,
                                 int further_seals, Fd& fd) {
    fd = Fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd.valid()) return errno_error("memfd_create of the session's table", errno);
    if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
        return errno_error("size the session's table", errno);
    void* memory = mmap(nullptr, bytes, protection, MAP_SHARED, fd.get(), 0);
    if (memory == MAP_FAILED) return errno_error("map the session's table", errno);
    if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL | further_seals) !=
        0) {
        const int error = errno;
        munmap(memory, bytes);
        return errno_error("seal the session's table", error);
    }
    return memory;
}

} // namespace speedbump::engine
