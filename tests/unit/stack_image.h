// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cpython/interpreter.h"
#include "cpython/layout.h"
#include "process/source.h"
#include "process/threads.h"

namespace speedbump::stacks {

// The memory of a made-up process that runs Python: one thread in leaf(), called by main().
class StackImage : public process::Source {
  public:
    static constexpr uint64_t kBase = 0x10000;
    static constexpr uint64_t kCodeType = 0x4242420;

    explicit StackImage(int minor) : bytes_(0x8000) {
        interpreter.major = 3;
        interpreter.minor = minor;
        interpreter.initialized = true;
        interpreter.path = "/usr/bin/python3." + std::to_string(minor);
        interpreter.runtime_address = kBase;
        if (minor >= 13) put_offsets();
        const auto known = cpython::layout_of(*this, interpreter);
        if (!known) return;
        layout = *known;
        const uint64_t state = allocate(1024);
        thread = allocate(256);
        const uint64_t gil = allocate(64);
        put(kBase + layout.runtime_head, state);
        put(state + layout.interpreter_threads, thread);
        put_thread_id(4321);
        if (minor >= 12) put(state + layout.gil, gil);
        main_frame = add_frame("main", 0);
        leaf_frame = add_frame("leaf", main_frame);
        if (layout.cframe_frame != cpython::kNone) {
            const uint64_t cframe = allocate(64);
            put(thread + layout.thread_frame, cframe);
            put(cframe + layout.cframe_frame, leaf_frame);
        } else {
            put(thread + layout.thread_frame, leaf_frame);
        }
    }

    ssize_t gather(std::span<const process::Piece> pieces, char* out) const override {
        if (before_gather) before_gather();
        ssize_t done = 0;
        for (const process::Piece& one : pieces) {
            const auto address = reinterpret_cast<uint64_t>(one.iov_base);
            if (before_piece) before_piece(address);
            const uint64_t end = kBase + bytes_.size();
            const bool is_hole = address < hole_end && address + one.iov_len > hole_start;
            if (is_hole || address < kBase || address > end || one.iov_len > end - address) break;
            std::memcpy(out + done, &bytes_[address - kBase], one.iov_len);
            done += static_cast<ssize_t>(one.iov_len);
        }
        return done;
    }

    template <typename T>
    void put(uint64_t address, T value) {
        std::memcpy(&bytes_[address - kBase], &value, sizeof(value));
    }
    template <typename T>
    T get(uint64_t address) const {
        T value;
        std::memcpy(&value, &bytes_[address - kBase], sizeof(value));
        return value;
    }
    std::vector<char>& bytes() { return bytes_; }
    uint64_t used() const { return next_; }

    cpython::Interpreter interpreter;
    cpython::Layout layout;
    uint64_t thread = 0;
    uint64_t main_frame = 0;
    uint64_t leaf_frame = 0;
    uint64_t leaf_code = 0; // of the frame that was added last
    uint64_t hole_start = 0;
    uint64_t hole_end = 0;
    std::function<void()> before_gather; // the process runs on
    std::function<void(uint64_t address)> before_piece;

  private:
    uint64_t allocate(uint64_t size) {
        const uint64_t address = next_;
        next_ += (size + 15) & ~uint64_t{15};
        return address;
    }

    uint64_t add_text(const std::string& text) {
        const uint64_t address = allocate(layout.text_data + text.size());
        put<uint64_t>(address + layout.text_length, text.size());
        put<uint32_t>(address + layout.text_state, (1U | 8 | 16) << layout.text_kind_shift());
        std::memcpy(&bytes_[address + layout.text_ascii_data - kBase], text.data(), text.size());
        return address;
    }

    uint64_t add_bytes(const std::string& text) {
        const uint64_t address = allocate(layout.bytes_data + text.size());
        put<uint64_t>(address + layout.bytes_size, text.size());
        std::memcpy(&bytes_[address + layout.bytes_data - kBase], text.data(), text.size());
        return address;
    }

    uint64_t add_frame(const std::string& name, uint64_t previous) {
        const uint64_t code = allocate(320);
        leaf_code = code;
        put(code + layout.object_type, kCodeType);
        put(code + layout.code_name, add_text(name));
        put(code + layout.code_file, add_text("app.py"));
        put<int32_t>(code + layout.code_first_line, 7);
        const uint64_t frame = allocate(layout.frame_bytes + 32);
        if (layout.minor == 10) {
            put(code + layout.code_lines, add_bytes({8, 1}));
            put(code + layout.code_bytes, add_bytes(std::string(8, 'x')));
            put<int32_t>(frame + layout.frame_ip, 1);
        } else {
            // eight bytes of bytecode, line 7 + 1
            put(code + layout.code_lines, add_bytes({'\xeb', 2}));
            put<uint64_t>(code + layout.code_size, 4);
            put(frame + layout.frame_ip, code + layout.code_bytes + 2);
        }
        put(frame + layout.frame_code, code);
        put(frame + layout.frame_previous, previous);
        return frame;
    }

    void put_thread_id(uint32_t id) {
        if (layout.thread_native_id != cpython::kNone)
            return put<uint64_t>(thread + layout.thread_native_id, id);
        const uint64_t pthread = allocate(process::kPthreadTid + 8);
        put(thread + layout.thread_id, pthread);
        put(pthread + process::kPthreadTid, id);
    }

    // _Py_DebugOffsets of 3.14, whose 64-bit words are counted here.
    void put_offsets() {
        std::memcpy(bytes_.data(), "xdebugpy", 8);
        auto word = [this](size_t index, uint64_t value) { put(kBase + index * 8, value); };
        word(1, 0x03000000U | static_cast<uint32_t>(interpreter.minor) << 16);
        word(5, 800); // interpreters.head
        const std::vector<std::pair<size_t, uint64_t>> interpreter_state = {
            {7, 8}, {8, 0}, {9, 72}, {15, 384}, {16, 400}, {18, 416}, {19, 408}, {20, 512}};
        for (const auto& [index, value] : interpreter_state) word(index, value);
        // thread: next, current_frame, thread_id, native_thread_id
        word(24, 16);
        word(26, 72);
        word(27, 152);
        word(28, 160);
        // frame: previous, executable, instr_ptr, localsplus, owner
        word(32, 8);
        word(33, 0);
        word(34, 56);
        word(35, 80);
        word(36, 74);
        // code: filename, name, qualname, linetable, firstlineno, bytecode
        word(40, 112);
        word(41, 120);
        word(42, 128);
        word(43, 136);
        word(44, 68);
        word(48, 208);
        word(50, 16); // object
        word(51, 8);
        word(75, 16); // bytes: ob_size, ob_sval
        word(76, 32);
        word(78, 32); // str: state, length, size of the ASCII header
        word(79, 16);
        word(80, 40);
    }

    std::vector<char> bytes_;
    uint64_t next_ = kBase + 1024;
};

} // namespace speedbump::stacks
