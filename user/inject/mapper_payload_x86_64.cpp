// SPDX-License-Identifier: MIT
#include "inject/mapper_payload.h"

#include <linux/membarrier.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>

#include "inject/payload.h"
#include "inject/payload_x86_64.h"

// Compiled without instrumentation, jump tables and built-in calls; see CMakeLists.txt.

using speedbump::inject::kMappedFiles;
using speedbump::inject::MapAnswer;
using speedbump::inject::MapOrder;
using speedbump::inject::MapOrders;
using speedbump::inject::Region;

namespace {

struct Received {
    MapOrders orders;
    int files[kMappedFiles];
};

PAYLOAD_INLINE bool receive(int socket, Received& out) {
    KernelPollFd poll_fd{socket, 1 /* POLLIN */, 0};
    KernelTime limit{2, 0};
    if (raw_call(SYS_ppoll, reinterpret_cast<long>(&poll_fd), 1, reinterpret_cast<long>(&limit), 0,
                 8) <= 0)
        return false;
    alignas(8) char control[64];
    struct {
        void* base;
        unsigned long length;
    } data{&out.orders, sizeof(out.orders)};
    struct {
        void* name;
        int name_length, pad;
        void* data;
        unsigned long data_count;
        void* control;
        unsigned long control_length;
        int flags, pad2;
    } message{nullptr, 0, 0, &data, 1, control, sizeof(control), 0, 0};
    const long got = raw_call(SYS_recvmsg, socket, reinterpret_cast<long>(&message),
                              MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    auto* header = reinterpret_cast<cmsghdr*>(control);
    constexpr unsigned long kFull = sizeof(cmsghdr) + kMappedFiles * sizeof(int);
    if (message.control_length < sizeof(cmsghdr) || header->cmsg_type != SCM_RIGHTS) return false;
    const int* fds = reinterpret_cast<const int*>(control + sizeof(cmsghdr));
    if (got != sizeof(out.orders) || header->cmsg_len != kFull) {
        for (unsigned long at = sizeof(cmsghdr); at + sizeof(int) <= header->cmsg_len;
             at += sizeof(int))
            raw_call(SYS_close, *fds++);
        return false;
    }
    for (unsigned long i = 0; i < kMappedFiles; ++i) out.files[i] = fds[i];
    return true;
}

PAYLOAD_INLINE long carry_out(const MapOrder& order, const int* files) {
    if (order.file == speedbump::inject::kUnmap)
        return raw_call(SYS_munmap, static_cast<long>(order.address),
                        static_cast<long>(order.size));
    const bool is_shared = order.file >= 0;
    const long flags = (is_shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS) | MAP_FIXED_NOREPLACE;
    const auto address = static_cast<long>(order.address);
    const auto size = static_cast<long>(order.size);
    const long mapped = raw_call(SYS_mmap, address, size, order.protection, flags,
                                 is_shared ? files[order.file] : -1, 0);
    if (mapped < 0 && mapped > -4096) return mapped;
    if (mapped != address) { // before Linux 4.17 the flag is not known
        raw_call(SYS_munmap, mapped, size);
        return -EEXIST;
    }
    if (order.wiped == 0) return 0;
    const long wiped = raw_call(SYS_madvise, address, size, MADV_WIPEONFORK);
    if (wiped != 0) raw_call(SYS_munmap, address, size);
    return wiped;
}

// Takes the first of them back.
PAYLOAD_INLINE void unmap_first(const MapOrders& orders, uint32_t count) {
    for (uint32_t i = 0; i < count && i < speedbump::inject::kMaxMappings; ++i)
        if (orders.orders[i].file != speedbump::inject::kUnmap)
            raw_call(SYS_munmap, static_cast<long>(orders.orders[i].address),
                     static_cast<long>(orders.orders[i].size));
}

PAYLOAD_INLINE MapAnswer carry_out_all(const Received& received) {
    using namespace speedbump::inject;
    constexpr long kRegister = MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE;
    constexpr long kBarrier = MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE;
    int readable = 0;
    const long asked = raw_call(SYS_prctl, PR_GET_TSC, reinterpret_cast<long>(&readable));
    if (asked != 0 || readable != PR_TSC_ENABLE) return {kMapClock, static_cast<int32_t>(-asked)};
    // From here on each thread that comes back from the kernel's scheduler sees changed code.
    long barrier = raw_call(SYS_membarrier, kRegister, 0, 0);
    if (barrier == 0) barrier = raw_call(SYS_membarrier, kBarrier, 0, 0);
    if (barrier != 0) return {kMapMembarrier, static_cast<int32_t>(-barrier)};
    const MapOrders& orders = received.orders;
    for (uint32_t i = 0; i < orders.count && i < kMaxMappings; ++i) {
        const long error = carry_out(orders.orders[i], received.files);
        if (error == 0) continue;
        unmap_first(orders, i);
        return {kMapMapping, static_cast<int32_t>(-error)};
    }
    return {kMapDone, 0};
}

} // namespace

extern "C" {

// The new thread: maps what it is told to and ends. Its region is unmapped as the very last thing,
// by a jump into munmap that returns to pthread's own code.
__attribute__((visibility("hidden"))) PAYLOAD void speedbump_payload_map(Region* region) {
    // The borrowed thread still stands on the region's stack for a moment.
    while (__atomic_load_n(&region->left, __ATOMIC_ACQUIRE) == 0) pause_ns(20000);
    auto self = function<unsigned long()>(region->pthread_self);
    function<int(unsigned long)>(region->pthread_detach)(self());
    region->thread_id = static_cast<uint32_t>(raw_call(SYS_gettid));
    region->restarts = all_handlers_restart() ? 1 : 0;
    int pair[2] = {-1, -1};
    const long error = raw_call(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0,
                                reinterpret_cast<long>(pair));
    if (error < 0) {
        region->error = static_cast<int32_t>(-error);
        __atomic_store_n(&region->state, speedbump::inject::kRegionFailed, __ATOMIC_RELEASE);
        pause_ns(200000000);
        return;
    }
    region->our_fd = pair[1];
    __atomic_store_n(&region->state, speedbump::inject::kRegionWaiting, __ATOMIC_RELEASE);
    Received received;
    if (receive(pair[0], received)) {
        // The other end is the asker's alone now: who has given up, or died, has closed it, and
        // knows of nothing that is mapped later.
        raw_call(SYS_close, pair[1]);
        pair[1] = -1;
        MapAnswer answer{speedbump::inject::kMapMapping, ECANCELED};
        if (!hung_up(pair[0])) answer = carry_out_all(received);
        for (const int file : received.files) raw_call(SYS_close, file);
        const long sent = raw_call(SYS_sendto, pair[0], reinterpret_cast<long>(&answer),
                                   sizeof(answer), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && answer.step == speedbump::inject::kMapDone)
            unmap_first(received.orders, received.orders.count);
    }
    raw_call(SYS_close, pair[0]);
    if (pair[1] >= 0) raw_call(SYS_close, pair[1]);
    __atomic_store_n(&region->state, speedbump::inject::kRegionFinished, __ATOMIC_RELEASE);
}

extern const std::byte speedbump_payload_mapper[] __attribute__((visibility("hidden")));
extern const std::byte __start_speedbump_payload[] __attribute__((visibility("hidden")));

} // extern "C"

asm(R"(
    .pushsection speedbump_payload,"ax",@progbits
    .globl speedbump_payload_mapper
    .hidden speedbump_payload_mapper
    .balign 16
speedbump_payload_mapper:
    push %rbx
    mov %rdi, %rbx
    call speedbump_payload_map
    mov 24(%rbx), %rdi          # Region.address
    mov 32(%rbx), %rsi          # Region.size
    mov 40(%rbx), %rax          # Region.munmap
    pop %rbx
    jmp *%rax
    .popsection
)");
static_assert(offsetof(Region, address) == 24 && offsetof(Region, size) == 32 &&
              offsetof(Region, munmap) == 40);

namespace speedbump::inject {

uint64_t mapper_offset() {
    return static_cast<uint64_t>(speedbump_payload_mapper - __start_speedbump_payload);
}

} // namespace speedbump::inject
