// SPDX-License-Identifier: MIT
#include "elf/demangle.h"

#include <libiberty/demangle.h>
#include <pthread.h>

#include <algorithm>
#include <csetjmp>
#include <cstdlib>
#include <memory>
#include <unordered_map>

#include "elf/rust_name.h"

namespace speedbump::elf {
namespace {

// libiberty refuses C++ names above this by itself, unless it is told to go without limits.
constexpr size_t kMaxDirect = 1000;
// Above this a name is left mangled. Templates of boost and PyTorch reach a few thousand.
constexpr size_t kMaxMangled = 16u << 10;
// Back references let a short name stand for an exponentially long one.
constexpr size_t kMaxDemangled = 128u << 10;
// What any thread has that demangles.
constexpr size_t kCallersStack = 1u << 20;
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

// The text that a printer, given `append` and an Output, gives, or empty when it refused or it grew
// too long.
template <typename Printer>
std::string print(const Printer& printer) {
    Output output;
    if (setjmp(output.too_long) != 0) return {};
    if (printer(append, &output) == 0) return {};
    return std::move(output.text);
}

std::string print_rust(const std::string& mangled, int options) {
    return print([&mangled, options](demangle_callbackref take, void* opaque) {
        return rust_demangle_callback(mangled.c_str(), options, take, opaque);
    });
}

using Component = demangle_component;

// The subtrees of a component, either may be null; false: of a type that is not known.
bool subtrees(const Component& of, const Component*& left, const Component*& right) {
    left = right = nullptr;
    switch (of.type) {
        case DEMANGLE_COMPONENT_NAME:
        case DEMANGLE_COMPONENT_TEMPLATE_PARAM:
        case DEMANGLE_COMPONENT_FUNCTION_PARAM:
        case DEMANGLE_COMPONENT_SUB_STD:
        case DEMANGLE_COMPONENT_BUILTIN_TYPE:
        case DEMANGLE_COMPONENT_EXTENDED_BUILTIN_TYPE:
        case DEMANGLE_COMPONENT_OPERATOR:
        case DEMANGLE_COMPONENT_CHARACTER:
        case DEMANGLE_COMPONENT_NUMBER:
        case DEMANGLE_COMPONENT_UNNAMED_TYPE:
            return true;
        case DEMANGLE_COMPONENT_CTOR:
            left = of.u.s_ctor.name;
            return true;
        case DEMANGLE_COMPONENT_DTOR:
            left = of.u.s_dtor.name;
            return true;
        case DEMANGLE_COMPONENT_EXTENDED_OPERATOR:
            left = of.u.s_extended_operator.name;
            return true;
        case DEMANGLE_COMPONENT_FIXED_TYPE:
            left = of.u.s_fixed.length;
            return true;
        case DEMANGLE_COMPONENT_LAMBDA:
        case DEMANGLE_COMPONENT_DEFAULT_ARG:
            left = of.u.s_unary_num.sub;
            return true;
        default:
            left = of.u.s_binary.left;
            right = of.u.s_binary.right;
            return of.type < DEMANGLE_COMPONENT_EXTENDED_BUILTIN_TYPE;
    }
}

// The size of a pack that is a parameter of a lambda has libiberty look for it without end.
bool may_size_packs(std::string_view mangled) {
    return mangled.find("sZ") != mangled.npos || mangled.find("sP") != mangled.npos;
}

// What printing a tree may take. A substitution stands for a subtree again, so that a few of them
// are exponentially many components, which libiberty may walk without printing any (d_find_pack());
// and for each pair of a template and a reference to a template's parameter it puts something on
// the stack before it prints anything (d_print_init()).
class Cost {
  public:
    // Whether a stack of so many bytes is enough, half of it for these pairs.
    static bool is_small(const Component& root, std::string_view mangled, size_t stack) {
        Cost cost;
        return cost.walked(&root) <= kMaxWalked && fits(cost.templates_, cost.references_, stack) &&
               (cost.lambdas_ == 0 || cost.expressions_ == 0 || !may_size_packs(mangled));
    }
    // Each component is counted twice at most there, and a pair takes 16 bytes.
    static bool fits(uint64_t templates, uint64_t references, size_t stack) {
        return 4 * 16 * templates * references <= stack / 2;
    }

  private:
    static constexpr uint64_t kMaxWalked = 1u << 20;

    // Components below and with this one; too many for an unknown type and for a circle.
    uint64_t walked(const Component* component) {
        if (component == nullptr) return 0;
        const auto [known, is_new] = walked_.try_emplace(component, kMaxWalked + 1);
        if (!is_new) return known->second;
        const Component *left, *right;
        if (!subtrees(*component, left, right)) return kMaxWalked + 1;
        templates_ += component->type == DEMANGLE_COMPONENT_TEMPLATE ? 1 : 0;
        lambdas_ += component->type == DEMANGLE_COMPONENT_LAMBDA ? 1 : 0;
        expressions_ += component->type == DEMANGLE_COMPONENT_UNARY ? 1 : 0;
        references_ += component->type == DEMANGLE_COMPONENT_REFERENCE ||
                               component->type == DEMANGLE_COMPONENT_RVALUE_REFERENCE
                           ? 1
                           : 0;
        const uint64_t sum = std::min(1 + walked(left) + walked(right), kMaxWalked + 1);
        walked_[component] = sum;
        return sum;
    }

    std::unordered_map<const Component*, uint64_t> walked_;
    uint64_t templates_ = 0;
    uint64_t references_ = 0;
    uint64_t lambdas_ = 0;
    uint64_t expressions_ = 0;
};

// Whether the mangled name alone shows that its Cost is small: nearly all do. Components are two
// for each byte at most, and a substitution at most doubles them.
bool is_plain(std::string_view mangled, size_t stack) {
    constexpr size_t kFew = 8;
    size_t templates = 0, references = 0, substitutions = 0;
    for (size_t i = 0; i < mangled.size(); ++i) {
        const char c = mangled[i], next = i + 1 < mangled.size() ? mangled[i + 1] : '\0';
        templates += c == 'I' ? 1 : 0;
        references += c == 'R' || c == 'O' ? 1 : 0;
        const bool is_index =
            next == '_' || (next >= '0' && next <= '9') || (next >= 'A' && next <= 'Z');
        substitutions += c == 'S' && is_index ? 1 : 0;
    }
    return mangled.size() <= kMaxDirect && substitutions <= kFew &&
           Cost::fits(templates, references, stack) &&
           (mangled.find("Ul") == mangled.npos || !may_size_packs(mangled));
}

// With so much of the stack.
std::string print_on_stack(const std::string& mangled, int options, size_t stack) {
    if (is_plain(mangled, stack))
        return print([&mangled, options](demangle_callbackref take, void* opaque) {
            return cplus_demangle_v3_callback(mangled.c_str(), options, take, opaque);
        });
    void* memory = nullptr;
    Component* root = cplus_demangle_v3_components(mangled.c_str(), options, &memory);
    const std::unique_ptr<void, decltype(&std::free)> owner(memory, std::free);
    if (root == nullptr || !Cost::is_small(*root, mangled, stack)) return {};
    return print([root, options](demangle_callbackref take, void* opaque) {
        return cplus_demangle_print_callback(options, root, take, opaque);
    });
}

struct LongName {
    const std::string& mangled;
    int options;
    std::string text;
};

// Operators that convert, and whatever reads like one: libiberty reads a template's arguments
// behind one twice, so that each within another doubles the time.
bool has_many_conversions(std::string_view mangled) {
    constexpr size_t kMany = 4; // in 347,000 names of libraries there are 3 at most
    size_t count = 0;
    for (size_t at = mangled.find("cv"); at != mangled.npos; at = mangled.find("cv", at + 2))
        ++count;
    return count > kMany;
}

std::string print_cpp(const std::string& mangled, int options) {
    if (has_many_conversions(mangled)) return {};
    if (mangled.size() <= kMaxDirect) return print_on_stack(mangled, options, kCallersStack);
    LongName name{mangled, options | DMGL_NO_RECURSE_LIMIT, {}};
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    pthread_t thread;
    auto run = [](void* argument) -> void* {
        auto* task = static_cast<LongName*>(argument);
        task->text = print_on_stack(task->mangled, task->options, kStackSize);
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
    if (symbol.starts_with("_R") && !is_plain_rust_name(symbol)) return {};
    std::string mangled(symbol);
    Demangled names;
    // A legacy Rust name is a valid C++ name too, so Rust comes first.
    names.with_signature = print_rust(mangled, DMGL_VERBOSE);
    if (!names.with_signature.empty()) {
        names.without_signature = print_rust(mangled, 0);
        return names;
    }
    if (!symbol.starts_with("_Z")) return {};
    names.with_signature = print_cpp(mangled, DMGL_PARAMS | DMGL_ANSI);
    if (names.with_signature.empty()) return {};
    names.without_signature = print_cpp(mangled, DMGL_ANSI);
    if (std::string_view fragment = fragment_suffix(symbol);
        !fragment.empty() && !names.without_signature.empty())
        names.without_signature += " [clone " + std::string(fragment) + "]";
    return names;
}

} // namespace speedbump::elf
