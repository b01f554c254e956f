// SPDX-License-Identifier: MIT
#pragma once

#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "../cpu_time.h"

// Inputs that are judged by the CPU time that they take, and of which the one that ends the program
// - by a stack that is full, say, where no handler runs - can be told.
namespace speedbump::fuzz {

// Sanitizers, and code without optimization, are slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
inline constexpr int kSlower = 20;
#else
inline constexpr int kSlower = 1;
#endif

// What the child of run_watched() is at; its parent reads it.
struct Watched {
    const char* step; // a literal, which is at the same place in both
    size_t size;
    char input[64u << 10];
};
inline Watched* watched = nullptr;

inline constexpr size_t kMakersStack = 256u << 20; // of names that are as deep as they are long

inline void watch(std::string_view input) {
    if (watched == nullptr) return;
    watched->size = std::min(input.size(), sizeof watched->input);
    std::memcpy(watched->input, input.data(), watched->size);
}

// As C would write it between quotes.
inline std::string escaped(std::string_view text) {
    std::string shown;
    char code[8];
    for (const char c : text) {
        std::snprintf(code, sizeof code, c < ' ' || c > '~' ? "\\%03o" : "%c",
                      c < ' ' || c > '~' ? static_cast<unsigned char>(c) : c);
        if (c == '"' || c == '\\') shown += '\\';
        shown += code;
    }
    return shown;
}

// Runs `work`, which gives the exit status for main, in a child, and says what it was at if it
// died.
template <typename Work>
int run_watched(const Work& work) {
    void* shared =
        ::mmap(nullptr, sizeof(Watched), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) std::abort();
    watched = static_cast<Watched*>(shared);
    std::fflush(stdout);
    const pid_t child = ::fork();
    if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        std::exit(work());
    }
    int status = 0;
    if (child < 0 || ::waitpid(child, &status, 0) != child) std::abort();
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
    if (WIFSIGNALED(status))
        std::fprintf(stderr, "ended by %s%s\n", ::strsignal(WTERMSIG(status)),
                     WTERMSIG(status) == SIGPROF ? ": an input takes CPU time without end" : "");
    std::fprintf(stderr, "the last input (%zu bytes): \"%s\"\nwhat was done: %s\n", watched->size,
                 escaped({watched->input, watched->size}).c_str(),
                 watched->step == nullptr ? "" : watched->step);
    return 1;
}

// On a thread that has a stack of so many bytes.
template <typename Work>
void on_stack(size_t size, const Work& work) {
    pthread_attr_t attributes;
    pthread_t thread;
    ::pthread_attr_init(&attributes);
    if (::pthread_attr_setstacksize(&attributes, size) != 0) std::abort();
    const auto run = [](void* opaque) -> void* {
        (*static_cast<const Work*>(opaque))();
        return nullptr;
    };
    if (::pthread_create(&thread, &attributes, run, const_cast<Work*>(&work)) != 0) std::abort();
    ::pthread_join(thread, nullptr);
    ::pthread_attr_destroy(&attributes);
}

// Calls `work` and gives the CPU time that it took, of all of its threads. Says so and ends the
// program if that is more than `limit`, and ends it by SIGPROF long after that.
template <typename Work>
std::chrono::nanoseconds require_soon(const char* step, std::chrono::nanoseconds limit,
                                      const Work& work) {
    if (watched != nullptr) watched->step = step;
    limit_cpu_time(std::chrono::duration_cast<std::chrono::seconds>(2 * limit) +
                   std::chrono::seconds(2));
    const auto begin = CpuClock::now();
    work();
    const std::chrono::duration<double> took = CpuClock::now() - begin;
    const std::chrono::duration<double> allowed = limit;
    if (took > allowed) {
        std::fprintf(stderr, "broken: %.3f s of CPU time %s, more than %.3f s\n", took.count(),
                     step, allowed.count());
        std::abort();
    }
    return std::chrono::duration_cast<std::chrono::nanoseconds>(took);
}

} // namespace speedbump::fuzz
