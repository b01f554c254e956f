// SPDX-License-Identifier: MIT
#include "inject/left_stub.h"

#include <cstring>
#include <vector>

#include "inject/fire.h"
#include "inject/payload.h"
#include "inject/stop_all.h"
#include "inject/write_code.h"
#include "process/memory.h"
#include "process/remote_elf.h"

namespace speedbump::inject {
Result<bool> remove_left_stub(const Turn& turn, Clock::time_point deadline) {
    const pid_t pid = turn.pid();
    const auto modules = process::load_modules(pid);
    if (!modules) return modules.error();
    const auto stub = find_stub_place(process::RemoteMemory(pid), *modules, is_stub);
    if (!stub) return true;
    const size_t size = stub_bytes().size;
    Witness witness{*stub, {}};
    std::memcpy(witness.bytes.data(), stub_bytes().data, witness.bytes.size());
    // Opened before it is looked at: an exec meanwhile would have it lead to another program.
    const auto memory = process::open_memory(pid);
    if (!memory) return memory.error();
    Quiet quiet{*stub, *stub + size, false};
    if (auto looked = change_code(turn, witness, {}, &quiet, deadline); !looked)
        return std::move(looked).error();
    if (!quiet.is_quiet) return false;
    // Whoever was in it has left, and nobody else will enter it: that takes the lock.
    const std::vector<char> zeros(size);
    auto written = write_code(pid, *memory, *stub, zeros.data(), size);
    if (!written) return std::move(written).error();
    return true;
}

} // namespace speedbump::inject
