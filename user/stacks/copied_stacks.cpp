// SPDX-License-Identifier: MIT
#include "stacks/copied_stacks.h"

#include "python_walk.h"

namespace speedbump::stacks {
namespace {

constexpr uint64_t kFarInLoop = 256; // bytes of code between two moments in the loop

} // namespace

uint32_t CopiedStacks::path_of(const std::vector<Frame>& frames) {
    uint32_t path = CallPaths::kRoot;
    for (size_t i = frames.size(); i-- > 0;) path = paths_.step(path, frames[i].function->id);
    return path;
}

StackFault CopiedStacks::read(std::span<const sb_python_frame> frames, std::vector<Frame>& result) {
    // As in SnapshotReader: nobody called it, so it is a left-over.
    if (!frames.empty() && sb_is_generator(&frames.back())) return StackFault::kChanging;
    for (size_t i = 0; i < frames.size(); ++i) {
        const sb_python_frame& raw = frames[i];
        if (raw.owner >= SB_OWNER_NOT_PYTHON) continue;
        Code* code = codes_.find_identical(sb_code_address(&raw), raw.identity);
        if (code == nullptr) return StackFault::kNoCode;
        if (raw.bytecode_copy != 0 && !code->knows_copy(raw.bytecode_copy))
            codes_.load_copy(*code, raw.bytecode_copy);
        if (!code->contains(raw.ip, raw.bytecode_copy)) return StackFault::kChanging;
        Frame frame{code->function(), code->line_at(raw.ip, raw.bytecode_copy), false, 0};
        // From 3.12 on the loop keeps a frame of its own on the C stack, the caller of the first
        // that it runs; 3.11 marks that one; in 3.10 each frame has a call of the loop.
        if (layout_.minor >= 12 && i + 1 < frames.size() &&
            frames[i + 1].owner >= SB_OWNER_NOT_PYTHON) {
            frame.is_entry = true;
            frame.c_stack = frames[i + 1].address;
        } else if (layout_.minor < 12) {
            frame.is_entry = layout_.minor == 10 || raw.is_entry != 0;
        }
        result.push_back(frame);
    }
    return StackFault::kFine;
}

ThreadStack CopiedStacks::interpret(pid_t tid, std::span<const sb_python_frame> frames,
                                    uint64_t loop_pc) {
    ThreadStack stack;
    stack.tid = tid;
    stack.fault = read(frames, stack.frames);
    if (stack.fault != StackFault::kFine) {
        stack.frames.clear();
        return stack;
    }
    const uint32_t path = path_of(stack.frames);
    if (paths_.is_proven(path)) return stack;
    // Outside of its loop the interpreter has done what it was doing to the frames, and in 3.10 a
    // frame is whole before it is linked. Within the loop a wrong link lasts for a few
    // instructions.
    const auto [seen, is_new] = loop_pcs_.try_emplace(path, loop_pc);
    const uint64_t distance =
        seen->second > loop_pc ? seen->second - loop_pc : loop_pc - seen->second;
    if (layout_.minor == 10 || loop_pc == 0 || distance >= kFarInLoop) paths_.prove(path);
    return stack;
}

} // namespace speedbump::stacks
