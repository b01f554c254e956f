// SPDX-License-Identifier: MIT
#include "cpython/layout.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <initializer_list>

#include "cpython/offsets.h"

namespace speedbump::cpython {
namespace {

Layout table(int minor) {
    Layout layout;
    layout.minor = minor;
#define OFFSET(name, value, type, member) layout.name = value;
#define SIZE(name, value, type) layout.name = value;
    switch (minor) {
        case 10:
#include "cpython/layout_310.inc"
            break;
        case 11:
#include "cpython/layout_311.inc"
            break;
        default:
#include "cpython/layout_312.inc"
            break;
    }
#undef OFFSET
#undef SIZE
    return layout;
}

// What the tables of all versions have in common.
template <typename Offsets>
Layout from_offsets(const Offsets& o) {
    auto narrow = [](u64 value) { return static_cast<uint32_t>(std::min<u64>(value, kNone - 1)); };
    Layout layout;
    layout.free_threaded = o.free_threaded != 0;
    layout.runtime_head = narrow(o.runtime.interpreters_head);
    layout.gil = narrow(o.interpreter.ceval_gil);
    layout.gil_locked = narrow(o.interpreter.gil_locked - o.interpreter.gil);
    layout.gil_holder = narrow(o.interpreter.gil_holder - o.interpreter.gil);
    layout.gil_interval = narrow(o.interpreter.gil_holder - o.interpreter.gil - 8); // before it
    layout.interpreter_id = narrow(o.interpreter.id);
    layout.interpreter_next = narrow(o.interpreter.next);
    layout.interpreter_threads = narrow(o.interpreter.threads_head);
    layout.thread_next = narrow(o.thread.next);
    layout.thread_frame = narrow(o.thread.current_frame);
    layout.thread_id = narrow(o.thread.thread_id);
    layout.thread_native_id = narrow(o.thread.native_thread_id);
    layout.frame_previous = narrow(o.frame.previous);
    layout.frame_code = narrow(o.frame.executable);
    layout.frame_ip = narrow(o.frame.instr_ptr);
    layout.frame_owner = narrow(o.frame.owner);
    layout.code_size = narrow(o.object.size); // ob_size follows the header
    layout.code_file = narrow(o.code.filename);
    layout.code_name = narrow(o.code.qualname);
    layout.code_lines = narrow(o.code.linetable);
    layout.code_first_line = narrow(o.code.firstlineno);
    layout.code_version = narrow(o.code.firstlineno + 24);
    layout.code_bytes = narrow(o.code.bytecode);
    layout.object_type = narrow(o.object.ob_type);
    layout.bytes_size = narrow(o.bytes.ob_size);
    layout.bytes_data = narrow(o.bytes.ob_sval);
    layout.text_length = narrow(o.text.length);
    layout.text_state = narrow(o.text.state);
    layout.text_ascii_data = narrow(o.text.ascii_size);
    layout.text_data = narrow(o.text.ascii_size + 16); // utf8_length, utf8
    if constexpr (requires { o.interpreter.code_generation; }) {
        layout.interpreter_generation = narrow(o.interpreter.code_generation);
        if (layout.free_threaded) {
            layout.frame_bytecode_copy = narrow(o.frame.tlbc_index);
            layout.code_bytecode_copies = narrow(o.code.tlbc);
        }
    }
    return layout;
}

uint32_t frame_bytes(const Layout& layout) {
    uint32_t end = std::max({layout.frame_previous, layout.frame_code, layout.frame_ip}) + 8;
    const auto reach = [&end](uint32_t offset, uint32_t size) {
        if (offset != kNone) end = std::max(end, offset + size);
    };
    reach(layout.frame_owner, 1);
    reach(layout.frame_entry, 1);
    reach(layout.frame_generator, 8);
    reach(layout.frame_bytecode_copy, 4);
    return end;
}

uint32_t code_header_bytes(const Layout& layout) {
    uint32_t end = std::max({layout.object_type, layout.code_file, layout.code_name,
                             layout.code_lines, layout.code_first_line,
                             layout.minor == 10 ? layout.code_bytes : layout.code_size}) +
                   8;
    if (layout.code_version != kNone) end = std::max(end, layout.code_version + 4);
    if (layout.code_bytecode_copies != kNone) end = std::max(end, layout.code_bytecode_copies + 8);
    return end;
}

// What follows from where the fields are.
Layout complete(Layout layout) {
    layout.is_python = 1;
    layout.ip_is_int = layout.minor == 10 ? 1 : 0;
    layout.text_ascii_bit = 16U << layout.text_kind_shift();
    layout.frame_bytes = frame_bytes(layout);
    layout.code_header_bytes = code_header_bytes(layout);
    return layout;
}

// A hostile or damaged table must not make the reader copy without bounds.
bool is_credible(const Layout& layout) {
    auto all_below = [](uint32_t limit, std::initializer_list<uint32_t> offsets) {
        return std::all_of(offsets.begin(), offsets.end(),
                           [&](uint32_t offset) { return offset < limit; });
    };
    return all_below(1 << 20, {layout.runtime_head, layout.gil, layout.interpreter_id,
                               layout.interpreter_next, layout.interpreter_threads}) &&
           all_below(4096, {layout.thread_next, layout.thread_frame, layout.thread_id,
                            layout.thread_native_id, layout.gil_interval, layout.gil_locked,
                            layout.gil_holder}) &&
           all_below(512, {layout.frame_previous, layout.frame_code, layout.frame_ip,
                           layout.frame_owner, layout.code_size, layout.code_file, layout.code_name,
                           layout.code_lines, layout.code_first_line, layout.code_bytes,
                           layout.object_type, layout.bytes_size, layout.bytes_data,
                           layout.text_length, layout.text_state, layout.text_ascii_data}) &&
           layout.text_length + 8 <= layout.text_ascii_data &&
           layout.text_state + 4 <= layout.text_ascii_data &&
           (layout.interpreter_generation == kNone || layout.interpreter_generation < 1 << 20) &&
           (layout.frame_bytecode_copy == kNone ||
            (layout.frame_bytecode_copy < 512 && layout.code_bytecode_copies < 512));
}

template <typename Offsets>
Result<Layout> read_offsets(const process::Source& source, const Interpreter& interpreter) {
    auto refuse = [&](const std::string& why) {
        return make_error(ErrorKind::kUnsupported, interpreter.describe() + ": " + why);
    };
    const auto offsets = source.value<Offsets>(interpreter.runtime_address);
    if (!offsets) return refuse("its runtime state can't be read");
    if (std::memcmp(offsets->cookie, "xdebugpy", sizeof(offsets->cookie)) != 0)
        return refuse("built without debug offsets (_Py_DebugOffsets)");
    if (static_cast<int>(offsets->version >> 24) != 3 ||
        static_cast<int>(offsets->version >> 16 & 0xff) != interpreter.minor)
        return refuse("its debug offsets are those of another version");
    Layout layout = from_offsets(*offsets);
    layout.minor = interpreter.minor;
    if (!is_credible(layout)) return refuse("its debug offsets make no sense");
    return complete(layout);
}

} // namespace

Layout::Layout()
    : sb_python_layout{.is_python = 0,
                       .thread_frame = kNone,
                       .cframe_frame = kNone,
                       .frame_previous = kNone,
                       .frame_code = kNone,
                       .frame_ip = kNone,
                       .frame_owner = kNone,
                       .frame_entry = kNone,
                       .frame_generator = kNone,
                       .frame_bytecode_copy = kNone,
                       .code_version = kNone,
                       .code_name = kNone,
                       .code_file = kNone,
                       .code_lines = kNone,
                       .code_first_line = kNone,
                       .text_length = kNone,
                       .text_state = kNone,
                       .text_ascii_bit = 0,
                       .text_ascii_data = kNone,
                       .gil_locked = kNone,
                       .gil_holder = kNone,
                       .ip_is_int = 0,
                       .frame_bytes = 0,
                       .code_header_bytes = 0} {}

Result<Layout> layout_of(const process::Source& source, const Interpreter& interpreter) {
    if (interpreter.major != 3 || interpreter.minor < 10 || interpreter.minor > 15)
        return make_error(ErrorKind::kUnsupported,
                          interpreter.describe() +
                              ": the stacks of CPython 3.10 to 3.15 can be "
                              "read, not of this version");
    switch (interpreter.minor) {
        case 13:
            return read_offsets<Offsets313>(source, interpreter);
        case 14:
            return read_offsets<Offsets314>(source, interpreter);
        case 15:
            return read_offsets<Offsets315>(source, interpreter);
        default:
            if (interpreter.debug)
                return make_error(ErrorKind::kUnsupported,
                                  interpreter.describe() +
                                      ": debug builds before 3.13 don't say "
                                      "how their state is laid out");
            return complete(table(interpreter.minor));
    }
}

} // namespace speedbump::cpython
