// SPDX-License-Identifier: MIT
// What functions there are in an interpreter.

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "clock.h"
#include "functions.h"
#include "gil.h"
#include "python_util.h"
#include "qualname.h"
#include "session.h"

namespace speedbump::python {
namespace {

#if SB_GC_LACKS_FUNCTIONS
// The functions that are values of a module's names or of its classes'.
void collect_from_names(PyObject* names, std::unordered_set<PyObject*>& seen,
                        std::vector<Ref>& functions) {
    const Ref copy(PyDict_Copy(names)); // other threads change the dict meanwhile
    if (!copy || !seen.insert(names).second) return;
    PyObject* value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(copy.get(), &at, nullptr, &value);) {
        if (PyFunction_Check(value) && seen.insert(value).second)
            functions.push_back(Ref::borrow(value));
        const Ref members(
            PyType_Check(value) ? PyType_GetDict(reinterpret_cast<PyTypeObject*>(value)) : nullptr);
        if (members) collect_from_names(members.get(), seen, functions);
    }
}

void collect_from_modules(std::vector<Ref>& functions) {
    std::unordered_set<PyObject*> seen;
    const Ref modules(PyDict_Copy(PyImport_GetModuleDict()));
    PyObject* module = nullptr;
    for (Py_ssize_t at = 0; modules && PyDict_Next(modules.get(), &at, nullptr, &module);)
        if (PyModule_Check(module)) collect_from_names(PyModule_GetDict(module), seen, functions);
    PyErr_Clear();
}
#endif

// The modules of an interpreter by their dicts, which are held: a key of name and file, by which
// processes agree on them. What has no file may be anything, and has no key.
class Modules {
  public:
    Modules() {
        const Ref all(PyDict_Copy(PyImport_GetModuleDict()));
        PyObject* module = nullptr;
        for (Py_ssize_t at = 0; all && PyDict_Next(all.get(), &at, nullptr, &module);) {
            if (!PyModule_Check(module)) continue;
            PyObject* names = PyModule_GetDict(module);
            const std::string file = text_of(PyDict_GetItemString(names, "__file__"));
            const std::string name = text_of(PyDict_GetItemString(names, "__name__"));
            keys_[names] = file.empty() ? 0 : key_of(name, file);
            held_.push_back(Ref::borrow(names));
        }
        PyErr_Clear();
    }

    // Whether nothing of this module, or of whatever has such globals, is to be looked at.
    bool is_known(PyObject* globals, const std::unordered_set<uint64_t>& known) const {
        const auto found = keys_.find(globals);
        return found != keys_.end() && found->second != 0 && known.contains(found->second);
    }
    bool are_known(const std::unordered_set<uint64_t>& known) const {
        return std::all_of(keys_.begin(), keys_.end(), [&](const auto& module) {
            // Builtin modules have no functions to speak of; the program itself has.
            return module.second == 0 || known.contains(module.second);
        });
    }
    void add_new(const std::unordered_set<uint64_t>& known, std::vector<uint64_t>& keys) const {
        for (const auto& [names, key] : keys_)
            if (key != 0 && !known.contains(key)) keys.push_back(key);
    }

  private:
    // FNV-1a: the same in all cores, whatever library they are compiled with.
    static uint64_t key_of(std::string_view name, std::string_view file) {
        uint64_t key = 0xcbf29ce484222325;
        const auto add = [&key](unsigned char byte) { key = (key ^ byte) * 0x100000001b3; };
        for (const char byte : name) add(static_cast<unsigned char>(byte));
        add(0);
        for (const char byte : file) add(static_cast<unsigned char>(byte));
        return key == 0 ? 1 : key;
    }

    std::unordered_map<PyObject*, uint64_t> keys_;
    std::vector<Ref> held_;
};

// The GIL in turns with the program. It must have a pause: who gives the GIL up and asks for it at
// once has it again before another thread has woken up, and each time anew, for which that thread
// waits without end (sb_take_gil() says why).
class Turns {
  public:
    explicit Turns(Look& look) : look_(look), since_(now_ns()) {}

    // Called again and again; false: to go on no longer. `lasts`: what was done last need not be
    // done again when it has to end.
    bool next(bool lasts = false) {
        if (look_.keeps_gil) return !lasts || next_lasting();
        constexpr uint64_t kLongestNs = 5'000'000;
        const uint64_t held = now_ns() - since_;
        if (held < kHoldNs) return true;
        {
            const WithoutGil without;
            without.leave(std::min(held, kLongestNs));
            look_.is_stopped = !look_.goes_on();
        }
        since_ = now_ns();
        return !look_.is_stopped;
    }

  private:
    static constexpr uint64_t kHoldNs = 1'000'000;

    // Where the GIL can't be given up, what lasts may take as long again as all that had to be done
    // before the first of it, which is always done: each visit comes further than the one before.
    bool next_lasting() {
        const uint64_t now = now_ns();
        if (ends_ == 0) ends_ = now + std::max(now - since_, kHoldNs);
        look_.is_unfinished = now >= ends_;
        return !look_.is_unfinished;
    }

    Look& look_;
    uint64_t since_;
    uint64_t ends_ = 0; // of what lasts; 0: nothing of it is done yet
};

struct Collecting {
    std::vector<Ref>& functions;
    const Modules& modules;
    const std::unordered_set<uint64_t>& known;
    size_t left; // objects that may be visited
    bool is_cut = false;
};

// Which functions are looked for: all that the collector knows, for which each object is visited in
// one hold of the GIL; or, where there are many objects, those that names lead to.
enum class Reach { kAll, kNames };

// Without a GIL nobody but the collector may go from object to object.
constexpr Reach kQuick = SB_FREE_THREADED ? Reach::kAll : Reach::kNames;
constexpr size_t kFewObjects = 50000;

// The functions that exist, but for those of modules that are known. `reach` becomes kAll where
// there are few objects.
bool collect_functions(std::vector<Ref>& functions, const Modules& modules, const Look& look,
                       Reach& reach, [[maybe_unused]] Turns& turns) {
    Collecting collecting{functions, modules, look.known,
                          reach == Reach::kAll ? SIZE_MAX : kFewObjects};
#if SB_GC_LACKS_FUNCTIONS
    collect_from_modules(functions);
    std::erase_if(functions, [&](const Ref& function) {
        return modules.is_known(PyFunction_GET_GLOBALS(function.get()), look.known);
    });
#endif
    const bool visited = visit_objects(
        [](PyObject* object, void* argument) {
            auto* into = static_cast<Collecting*>(argument);
            into->is_cut = into->left-- == 0;
            if (into->is_cut) return 0;
            if (PyFunction_Check(object) &&
                (into->known.empty() ||
                 !into->modules.is_known(PyFunction_GET_GLOBALS(object), into->known)))
                into->functions.push_back(Ref::borrow(object));
            return 1;
        },
        &collecting);
    if (!collecting.is_cut) {
        reach = Reach::kAll;
        return visited;
    }
#if !SB_FREE_THREADED
    functions.clear();
    FunctionFinder finder([&](PyObject* globals) { return modules.is_known(globals, look.known); });
    while (finder.step() && turns.next()) {
    }
    functions = std::move(finder.functions());
#endif
    return true;
}

// Calls `use`, which returns whether that lasts, with each function, in turns with the program.
template <typename Use>
bool in_turns(std::vector<Ref>& functions, Turns& turns, Use use) {
    return std::all_of(functions.begin(), functions.end(),
                       [&](Ref& function) { return turns.next(use(function)); });
}

// All functions of the interpreter that are to be looked at, their code's names known.
bool collect_named_functions(Interpreter& interpreter, std::vector<Ref>& functions,
                             const Modules& modules, Look& look, Reach& reach, Turns& turns) {
    if (!collect_functions(functions, modules, look, reach, turns)) return false;
    if (look.is_stopped || interpreter.name_index < 0) return true; // code knows its name
    // A name that the enclosing code gives is exact, one from the function object may have been
    // set by functools.wraps: enclosing code first.
    const auto note_nested = [&](const Ref& function) {
        note_nested_names(interpreter,
                          reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function.get())));
        return false;
    };
    if (in_turns(functions, turns, note_nested)) {
        in_turns(functions, turns, [&](const Ref& function) {
            note_function_name(interpreter, function.get());
            return false;
        });
    }
    return true;
}

// Calls `use`, which returns whether that lasts, with the code and the globals of each function,
// and lets go of it.
template <typename Use>
void for_each_function(std::vector<Ref>& functions, Turns& turns, Use use) {
    in_turns(functions, turns, [&](Ref& function) {
        const bool lasts = use(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function.get())),
                               PyFunction_GET_GLOBALS(function.get()));
        function = Ref();
        return lasts;
    });
}

// Calls `use` with a code object and all that are nested in it.
template <typename Use>
void for_each_nested(PyCodeObject* code, Use use) {
    if (!use(code)) return;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_consts); ++i) {
        PyObject* constant = PyTuple_GET_ITEM(code->co_consts, i);
        if (PyCode_Check(constant)) for_each_nested(reinterpret_cast<PyCodeObject*>(constant), use);
    }
}

// Decides for all of them, and for what is nested in them: an inner function is known as soon as
// the outer one is.
void decide_all(Interpreter& interpreter, std::vector<Ref>& functions, Turns& turns) {
    for_each_function(functions, turns, [&](PyCodeObject* code, PyObject* globals) {
        bool has_decided = false;
        for_each_nested(code, [&](PyCodeObject* nested) {
            const auto known = static_cast<Decision>(
                reinterpret_cast<uintptr_t>(code_extra(nested, interpreter.decision_index)));
            if (is_current(known)) return false;
            decide(interpreter, nested, globals);
            has_decided = true;
            return true;
        });
        return has_decided;
    });
}

// Whether a line without a function may name one that no name leads to.
bool may_name_more(const Look& look) {
    if (!look.known.empty()) return false; // its functions may be those of other processes
    const std::vector<targets::Pattern> modules = modules_without_functions();
    return std::any_of(modules.begin(), modules.end(), [](const targets::Pattern& module) {
        const bool may_be_file =
            module.text.find('/') != std::string::npos || module.text.ends_with(".py");
        return module.is_glob || may_be_file ||
               PyDict_GetItemString(PyImport_GetModuleDict(), module.text.c_str()) != nullptr;
    });
}

} // namespace

bool name_existing(Interpreter& interpreter, Look& look) {
    if (interpreter.name_index < 0) return true; // code knows its name
    Turns turns(look);
    Reach reach = kQuick;
    std::vector<Ref> functions;
    if (!collect_named_functions(interpreter, functions, Modules(), look, reach, turns))
        return false;
    for_each_function(functions, turns, [](PyCodeObject*, PyObject*) { return false; });
    return true;
}

bool look_at_existing(Interpreter& interpreter, Look& look) {
    Turns turns(look);
    const Modules modules;
    if (!look.known.empty() && modules.are_known(look.known)) return true;
    Reach reach = kQuick;
    for (bool is_done = false; !is_done;) {
        std::vector<Ref> functions;
        if (!turns.next()) return true;
        if (!collect_named_functions(interpreter, functions, modules, look, reach, turns))
            return false;
        if (look.is_stopped) return true;
        decide_all(interpreter, functions, turns);
        if (look.is_stopped || look.is_unfinished) return true;
        is_done = reach == Reach::kAll || !may_name_more(look);
        reach = Reach::kAll;
    }
    modules.add_new(look.known, look.modules);
    return true;
}

bool list_functions(Interpreter& interpreter, bool keeps_gil, std::vector<FoundFunction>& list) {
    Look look; // at all
    look.keeps_gil = keeps_gil;
    Turns turns(look);
    std::vector<Ref> functions;
    Reach reach = Reach::kAll;
    if (!collect_named_functions(interpreter, functions, Modules(), look, reach, turns))
        return false;
    std::unordered_set<PyCodeObject*> seen;
    std::vector<Ref> held; // the code that was seen, so that no other gets its place
    for_each_function(functions, turns, [&](PyCodeObject* code, PyObject* globals) {
        const std::string module = module_name(globals);
        held.push_back(Ref::borrow(reinterpret_cast<PyObject*>(code)));
        for_each_nested(code, [&](PyCodeObject* nested) {
            if (!seen.insert(nested).second) return false;
            note_nested_names(interpreter, nested);
            if ((nested->co_flags & CO_OPTIMIZED) == 0)
                return true; // the body of a module or class
            list.push_back(
                {0, module, qualified_name(interpreter, nested), text_of(nested->co_filename)});
            return true;
        });
        return false;
    });
    return true;
}

} // namespace speedbump::python
