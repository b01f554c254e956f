// SPDX-License-Identifier: MIT
#include <sys/ptrace.h>

#include <cstdint>

#include "inject/stopped.h"

namespace speedbump::inject {
namespace {

constexpr int kGetRseqConfiguration = 0x420f; // PTRACE_GET_RSEQ_CONFIGURATION
constexpr uint64_t kSequenceWord = 8;         // rseq_cs in struct rseq

struct RseqConfiguration { // struct ptrace_rseq_configuration
    uint64_t area;
    uint32_t size, signature, flags, pad;
};

struct Sequence { // struct rseq_cs
    uint32_t version, flags;
    uint64_t begin, length, abort;
};

} // namespace

bool is_in_restartable_sequence(const process::RemoteMemory& memory, pid_t tid, uint64_t counter) {
    RseqConfiguration own{};
    if (ptrace(static_cast<__ptrace_request>(kGetRseqConfiguration), tid, sizeof(own), &own) <= 0 ||
        own.area == 0)
        return false;
    const auto place = memory.value<uint64_t>(own.area + kSequenceWord);
    if (!place || *place == 0) return false;
    const auto sequence = memory.value<Sequence>(*place);
    return sequence && counter - sequence->begin < sequence->length;
}

} // namespace speedbump::inject
