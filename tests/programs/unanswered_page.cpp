// SPDX-License-Identifier: MIT
// A hostile target: calls `spot` again and again with a stack pointer into a page that is
// registered with userfaultfd and that nobody ever provides. Prints "ready" first.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

// Returns by a register, as there is no stack to return by: the address to go on at is in %rdx.
asm(R"(
    .globl spot
    .type spot, @function
spot:
    nop
    jmp *%rdx
    .size spot, . - spot
)");

extern "C" void spot();

int main() {
    constexpr size_t kSize = 1 << 16;
    const int descriptor = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
    uffdio_api api{UFFD_API, 0, 0};
    void* memory = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uffdio_register range{
        {reinterpret_cast<uint64_t>(memory), kSize}, UFFDIO_REGISTER_MODE_MISSING, 0};
    if (descriptor < 0 || ioctl(descriptor, UFFDIO_API, &api) != 0 || memory == MAP_FAILED ||
        ioctl(descriptor, UFFDIO_REGISTER, &range) != 0) {
        std::perror("userfaultfd");
        return 77;
    }
    std::puts("ready");
    std::fflush(stdout);
    char* stack = static_cast<char*>(memory) + kSize / 2;
    for (;;) {
        usleep(1000);
        asm volatile(
            "mov %%rsp, %%r12\n\t"
            "mov %0, %%rsp\n\t"
            "lea 1f(%%rip), %%rdx\n\t"
            "jmp *%1\n"
            "1:\n\t"
            "mov %%r12, %%rsp"
            :
            : "r"(stack), "r"(&spot)
            : "r12", "rdx", "memory");
    }
}
