// SPDX-License-Identifier: MIT
// The payload as bytes. Not in the file that has it, which is compiled to lie anywhere by itself.
#include "inject/payload.h"

extern "C" {
extern const std::byte speedbump_stub_begin[] __attribute__((visibility("hidden")));
extern const std::byte speedbump_stub_end[] __attribute__((visibility("hidden")));
extern const std::byte __start_speedbump_payload[] __attribute__((visibility("hidden")));
extern const std::byte __stop_speedbump_payload[] __attribute__((visibility("hidden")));
extern const std::byte speedbump_payload_borrowed[] __attribute__((visibility("hidden")));
extern const std::byte speedbump_payload_thread[] __attribute__((visibility("hidden")));
}

namespace speedbump::inject {

Bytes payload_bytes() {
    return {__start_speedbump_payload,
            static_cast<size_t>(__stop_speedbump_payload - __start_speedbump_payload)};
}

Bytes stub_bytes() {
    return {speedbump_stub_begin, static_cast<size_t>(speedbump_stub_end - speedbump_stub_begin)};
}

uint64_t borrowed_offset() {
    return static_cast<uint64_t>(speedbump_payload_borrowed - __start_speedbump_payload);
}

uint64_t thread_offset() {
    return static_cast<uint64_t>(speedbump_payload_thread - __start_speedbump_payload);
}

} // namespace speedbump::inject
