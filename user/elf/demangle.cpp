// SPDX-License-Identifier: MIT
#include "elf/demangle.h"

#include <libiberty/demangle.h>
#include <pthread.h>

#include <csetjmp>

namespace speedbump::elf {
namespace {

// libiberty refuses C++ names above this by itself, unless it is told to go without limits.
constexpr size_t kMaxDirect = 1000;
// Above this a name is left mangled. Templates of boost and PyTorch reach a few thousand.
constexpr size_t kMaxMangled = 16u << 10;
// Back references let a short name stand for an exponentially long one.
constexpr size_t kMaxDemangled = 128u << 10;
// What a name of kMaxMangled bytes needs when every byte of it opens a level.
constexpr size_t kStackSize = 64u << 20;

struct Output {
    std::string text;
    std::jmp_buf too_long;
};

void append(const char* text, size_t size, void* opaque) {
    auto* output = static_cast<Output*>(opaque);
    // libiberty has no way to be told to stop. Between here and the setjmp lie only its C frames,
    // which keep everything on the stack.
    if (output->text.size() + size > kMaxDemangled) std::longjmp(output->too_long, 1);
    output->text.append(text, size);
}

using Printer = int (*)(const char*, int, demangle_callbackref, void*);

// The printer's text, or empty when it refused or it grew too long.
std::string print(Printer printer, const char* mangled, int options) {
    Output output;
    if (setjmp(output.too_long) != 0) return {};
    if (printer(mangled, options, append, &output) == 0) return {};
    return std::move(output.text);
}

struct LongName {
    const char* mangled;
    int options;
    std::string text;
};

std::string print_cpp(const char* mangled, size_t size, int options) {
    if (size <= kMaxDirect) return print(cplus_demangle_v3_callback, mangled, options);
    LongName name{mangled, options | DMGL_NO_RECURSE_LIMIT, {}};
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    pthread_t thread;
    auto run = [](void* argument) -> void* {
        auto* task = static_cast<LongName*>(argument);
        task->text = print(cplus_demangle_v3_callback, task->mangled, task->options);
        return nullptr;
    };
    bool started = ::pthread_attr_setstacksize(&attributes, kStackSize) == 0 &&
                   ::pthread_create(&thread, &attributes, run, &name) == 0;
    ::pthread_attr_destroy(&attributes);
    if (!started) return {};
    ::pthread_join(thread, nullptr);
    return name.text;
}

// What the compiler appended to a name for a part or variant of the function: ".part.0" is kept
// in every form, since such a part is not the function; ".constprop.0" and the like are.
std::string_view fragment_suffix(std::string_view symbol) {
    for (std::string_view mark : {".cold", ".part."}) {
        size_t at = symbol.find(mark);
        if (at != std::string_view::npos) return symbol.substr(at);
    }
    return {};
}

} // namespace

bool is_mangled(std::string_view symbol) {
    if (symbol.starts_with("_Z")) return symbol.size() > 2;
    return symbol.size() > 2 && symbol.starts_with("_R") &&
           ((symbol[2] >= 'A' && symbol[2] <= 'Z') || (symbol[2] >= '0' && symbol[2] <= '9'));
}

Demangled demangle(std::string_view symbol) {
    if (!is_mangled(symbol) || symbol.size() > kMaxMangled) return {};
    std::string mangled(symbol);
    Demangled names;
    // A legacy Rust name is a valid C++ name too, so Rust comes first.
    names.with_signature = print(rust_demangle_callback, mangled.c_str(), DMGL_VERBOSE);
    if (!names.with_signature.empty()) {
        names.without_signature = print(rust_demangle_callback, mangled.c_str(), 0);
        return names;
    }
    if (!symbol.starts_with("_Z")) return {};
    names.with_signature = print_cpp(mangled.c_str(), mangled.size(), DMGL_PARAMS | DMGL_ANSI);
    if (names.with_signature.empty()) return {};
    names.without_signature = print_cpp(mangled.c_str(), mangled.size(), DMGL_ANSI);
    if (std::string_view fragment = fragment_suffix(symbol);
        !fragment.empty() && !names.without_signature.empty())
        names.without_signature += " [clone " + std::string(fragment) + "]";
    return names;
}

} // namespace speedbump::elf
