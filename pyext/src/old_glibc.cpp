// SPDX-License-Identifier: MIT
// A core is loaded into processes whose glibc may be older than the one that it was built with, and
// it is linked with a libstdc++ and a libgcc of the building host. What those and the headers take
// from glibcs after 2.28 is defined here, for the core alone, by what 2.28 has already.
// tests/package/symbols.py looks at what a core still needs.
//
// glibc 2.34 moved libpthread and libdl into libc under new versions of the same functions; the old
// versions are still there. An interpreter brings the libpthread of an older glibc with it.

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

#include "old_glibc.h"

// A hidden function NAME that jumps to `symbol`, in a section of its own, so that it goes when
// nobody calls it.
#define SB_FORWARD(name, symbol, before)              \
    __asm__(".section .text." name                    \
            ",\"ax\",@progbits\n"                     \
            ".globl " name "\n.hidden " name          \
            "\n"                                      \
            ".type " name ", %function\n" before name \
            ":\n" SB_JUMP(symbol) ".size " name ", . - " name "\n.previous\n");
#define SB_OLD_AT(name, version) \
    SB_FORWARD(#name, "sb_old_" #name, ".symver sb_old_" #name ", " #name "@" version "\n")
#define SB_OLD(name) SB_OLD_AT(name, SB_OLDEST)
#define SB_SAME(name, older) SB_FORWARD(#name, #older, "")

SB_OLD(__pthread_key_create)
SB_OLD_AT(__pthread_register_cancel, SB_OLDEST_CANCEL)
SB_OLD_AT(__pthread_unregister_cancel, SB_OLDEST_CANCEL)
SB_OLD_AT(__pthread_unwind_next, SB_OLDEST_CANCEL)
SB_OLD(dladdr)
SB_OLD(dlsym)
SB_OLD(pthread_attr_getstack)
SB_OLD(pthread_create)
SB_OLD(pthread_detach)
SB_OLD(pthread_getattr_np)
SB_OLD(pthread_getspecific)
SB_OLD(pthread_join)
SB_OLD(pthread_key_create)
SB_OLD(pthread_key_delete)
SB_OLD(pthread_mutex_trylock)
SB_OLD(pthread_mutexattr_init)
SB_OLD(pthread_mutexattr_destroy)
SB_OLD(pthread_mutexattr_setpshared)
SB_OLD(pthread_mutexattr_settype)
SB_OLD(pthread_once)
SB_OLD(pthread_rwlock_rdlock)
SB_OLD(pthread_rwlock_unlock)
SB_OLD(pthread_rwlock_wrlock)
SB_OLD(pthread_setspecific)
SB_OLD(pthread_sigmask)

// C23's reading of "0b1" (2.38), which nothing here asks for.
SB_SAME(__isoc23_strtol, strtol)
SB_SAME(__isoc23_strtoll, strtoll)
SB_SAME(__isoc23_strtoul, strtoul)
SB_SAME(__isoc23_strtoull, strtoull)

#define SB_HIDDEN extern "C" __attribute__((visibility("hidden")))

// 2.32; "there may be other threads" is always right.
SB_HIDDEN char __libc_single_threaded;
char __libc_single_threaded = 0;

// 2.33; before, they were inline.
SB_HIDDEN int fstat(int fd, struct stat* status) noexcept {
    return static_cast<int>(syscall(SYS_fstat, fd, status));
}
SB_HIDDEN int fstat64(int fd, struct stat64* status) noexcept {
    return static_cast<int>(syscall(SYS_fstat, fd, status));
}
SB_HIDDEN int stat(const char* path, struct stat* status) noexcept {
    return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, status, 0));
}
SB_HIDDEN int lstat(const char* path, struct stat* status) noexcept {
    return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW));
}

// 2.36, for std::random_device.
SB_HIDDEN uint32_t arc4random() noexcept {
    uint32_t value = 0;
    while (getrandom(&value, sizeof(value), 0) != sizeof(value)) {
    }
    return value;
}

// 2.30, for waits by the monotonic clock. The wait may end early or late by what the time of day is
// set by meanwhile; who waits looks at the clock again.
SB_HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                     clockid_t clock, const timespec* until) {
    constexpr long kSecond = 1000000000;
    timespec now{}, wall{};
    clock_gettime(clock, &now);
    clock_gettime(CLOCK_REALTIME, &wall);
    wall.tv_sec += until->tv_sec - now.tv_sec;
    wall.tv_nsec += until->tv_nsec - now.tv_nsec;
    if (wall.tv_nsec < 0) {
        wall.tv_nsec += kSecond;
        --wall.tv_sec;
    } else if (wall.tv_nsec >= kSecond) {
        wall.tv_nsec -= kSecond;
        ++wall.tv_sec;
    }
    return pthread_cond_timedwait(condition, mutex, &wall);
}

// 2.35: how libgcc finds the unwind table of an address, for exceptions.
#if defined(DLFO_STRUCT_HAS_EH_DBASE)
namespace {

struct Search {
    uintptr_t address;
    dl_find_object* found;
};

int look_at_object(dl_phdr_info* info, size_t, void* data) {
    auto& search = *static_cast<Search*>(data);
    bool covers = false;
    void* table = nullptr;
    for (size_t i = 0; i < info->dlpi_phnum; ++i) {
        const ElfW(Phdr)& header = info->dlpi_phdr[i];
        const uintptr_t start = info->dlpi_addr + header.p_vaddr;
        if (header.p_type == PT_LOAD && search.address >= start &&
            search.address - start < header.p_memsz) {
            covers = true;
            search.found->dlfo_map_start = reinterpret_cast<void*>(start);
            search.found->dlfo_map_end = reinterpret_cast<void*>(start + header.p_memsz);
        }
        if (header.p_type == PT_GNU_EH_FRAME) table = reinterpret_cast<void*>(start);
    }
    if (!covers || table == nullptr) return covers ? -1 : 0;
    search.found->dlfo_flags = 0;
    search.found->dlfo_link_map = nullptr;
    search.found->dlfo_eh_frame = table;
    return 1;
}

} // namespace

SB_HIDDEN int _dl_find_object(void* address, dl_find_object* found) noexcept {
    Search search{reinterpret_cast<uintptr_t>(address), found};
    return dl_iterate_phdr(look_at_object, &search) == 1 ? 0 : -1;
}
#endif
