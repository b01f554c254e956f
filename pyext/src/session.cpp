// SPDX-License-Identifier: MIT
#include "session.h"

#include <pthread.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "clock.h"
#include "gil.h"
#include "python_util.h"
#include "qualname.h"
#include "targets/matcher.h"

namespace speedbump::python {
namespace {

struct Session {
    SessionSpec spec;
    uint32_t first_generation = 0;
    // The lines that decide here, and for each its index in the file.
    targets::TargetsFile deciding;
    std::vector<uint32_t> deciding_index;
};

// Everything that slow paths share. Its mutex is held across no Python call, so that it can be
// taken with or without a GIL.
struct Shared {
    std::mutex mutex;
    std::unique_ptr<Session> session;
    std::vector<Interpreter*> interpreters;
};

Shared& shared() {
    // Never destroyed: hooks may run until the very end of the process.
    static Shared* instance = new Shared;
    return *instance;
}

constexpr const char* kCapsuleName = "speed_bump._core.interpreter";

void release_interpreter(PyObject* capsule) {
    auto* interpreter = static_cast<Interpreter*>(PyCapsule_GetPointer(capsule, kCapsuleName));
    abandon(*interpreter);
    {
        const std::lock_guard lock(shared().mutex);
        std::erase(shared().interpreters, interpreter);
    }
    delete interpreter;
}

void collect_deciding(Session& session) {
    std::vector<bool> applies(session.spec.file.lines.size());
    for (const uint32_t index : session.spec.applies) {
        if (index < applies.size()) applies[index] = true;
    }
    session.deciding.lines.clear();
    session.deciding_index.clear();
    for (uint32_t index = 0; index < session.spec.file.lines.size(); ++index) {
        const targets::TargetLine& line = session.spec.file.lines[index];
        if (line.runtime != targets::Runtime::kPython || (!line.exclude && !applies[index]))
            continue;
        session.deciding.lines.push_back(line);
        session.deciding_index.push_back(index);
    }
}

void next_generation() {
    g_live.no_match.fetch_add(Decision{1} << 32);
}

// Every writer needs a slot of its own again. The mutex is held.
void claim_anew() {
    for (Interpreter* interpreter : shared().interpreters) interpreter->slot = nullptr;
    g_live.writers.fetch_add(1);
}

void (*g_in_child)() = nullptr;

uint64_t g_forked_at_ns = 0; // under the mutex

void before_fork() {
    shared().mutex.lock();
    g_forked_at_ns = now_ns();
}
void after_fork_in_parent() {
    shared().mutex.unlock();
}
void after_fork_in_child() {
    claim_anew();
    // A child may be born into another time namespace, and its clock then jumps.
    constexpr int64_t kJumpNs = 1'000'000'000;
    const auto passed = static_cast<int64_t>(now_ns() - g_forked_at_ns);
    if (passed < 0 || passed > kJumpNs) g_live.place.clock_offset_ns += passed;
    shared().mutex.unlock();
    if (g_in_child != nullptr) g_in_child();
}

} // namespace

Interpreter* this_interpreter() {
    PyInterpreterState* state = PyInterpreterState_Get();
    PyObject* dict = PyInterpreterState_GetDict(state);
    if (dict == nullptr) {
        PyErr_SetString(PyExc_RuntimeError, "the interpreter has no dict for extensions");
        return nullptr;
    }
    // One entry per copy of this library: an attached core and an installed one don't mix.
    static char anchor;
    const Ref key(PyUnicode_FromFormat("speed_bump._core@%p", static_cast<void*>(&anchor)));
    if (!key) return nullptr;
    if (PyObject* capsule = PyDict_GetItemWithError(dict, key.get())) {
        return static_cast<Interpreter*>(PyCapsule_GetPointer(capsule, kCapsuleName));
    }
    if (PyErr_Occurred()) return nullptr;
    // Found in sys.modules when it is needed.
    const Ref gc(stay([] { return PyImport_ImportModule("gc"); }));
    if (!gc) return nullptr;
    auto interpreter = std::make_unique<Interpreter>();
    interpreter->state = state;
    interpreter->decision_index = request_code_extra_index(nullptr);
    interpreter->name_index = request_name_index();
    if (interpreter->decision_index < 0) {
        PyErr_SetString(PyExc_RuntimeError, "no code extra index is free");
        return nullptr;
    }
    const Ref capsule(PyCapsule_New(interpreter.get(), kCapsuleName, release_interpreter));
    if (!capsule) return nullptr;
    Interpreter* raw = interpreter.release();
    {
        const std::lock_guard lock(shared().mutex);
        shared().interpreters.push_back(raw);
    }
    if (PyDict_SetItem(dict, key.get(), capsule.get()) != 0) return nullptr;
    return raw;
}

Result<void> begin_session(SessionSpec spec) {
    auto session = std::make_unique<Session>();
    session->spec = std::move(spec);
    collect_deciding(*session);
    const std::lock_guard lock(shared().mutex);
    if (shared().session) return make_error(ErrorKind::kInvalid, "there is a session already");
    const Table& table = session->spec.table;
    if (table.target_count() < session->spec.file.lines.size()) {
        return make_error(ErrorKind::kInvalid, "the table has fewer targets than the file");
    }
    claim_anew();
    g_live.settings = table.settings();
    g_live.targets = table.targets();
    g_live.counters = table.counters();
    g_live.turns = table.turns();
    g_live.schedule = table.schedule();
    g_live.columns = table.columns();
    g_live.slices_offset = sb_slot_slices_offset(table.target_count());
    g_live.shared_slot = table.slot(0);
    g_live.roots = session->spec.roots;
    g_live.place = session->spec.place;
    next_generation();
    session->first_generation = generation_of(g_live.no_match.load());
    shared().session = std::move(session);
    g_live.running.store(1, std::memory_order_release);
    return {};
}

void stop_delays() {
    g_live.running.store(0, std::memory_order_release);
}

void end_session() {
    stop_delays();
    std::unique_ptr<Session> ended;
    {
        const std::lock_guard lock(shared().mutex);
        ended = std::move(shared().session);
        for (Interpreter* interpreter : shared().interpreters) {
            if (interpreter->slot != nullptr) {
                __atomic_store_n(&interpreter->slot->busy, 0u, __ATOMIC_RELEASE);
            }
            interpreter->slot = nullptr;
        }
        next_generation();
    }
}

void set_place(const Place& place) {
    const std::lock_guard lock(shared().mutex);
    if (std::exchange(g_live.place, place).pid_namespace != place.pid_namespace) claim_anew();
}

bool has_session() {
    const std::lock_guard lock(shared().mutex);
    return shared().session != nullptr;
}

std::string session_identity() {
    const std::lock_guard lock(shared().mutex);
    return shared().session ? shared().session->spec.identity : std::string();
}

const Table& session_table() {
    return shared().session->spec.table;
}

void set_line(uint32_t index, const targets::TargetLine& line, bool applies) {
    const std::lock_guard lock(shared().mutex);
    Session& session = *shared().session;
    session.spec.file.lines[index] = line;
    std::erase(session.spec.applies, index);
    if (applies) session.spec.applies.push_back(index);
    collect_deciding(session);
    next_generation();
}

void forget_decisions() {
    next_generation();
}

void regroup(Grouping& grouping) {
    const std::lock_guard lock(shared().mutex);
    if (!shared().session) return;
    std::swap(shared().session->spec.grouping, grouping);
    next_generation();
}

uint32_t session_grouping() {
    const std::lock_guard lock(shared().mutex);
    return shared().session ? shared().session->spec.grouping.number : 0;
}

namespace {

std::string module_name(PyObject* globals) {
    return globals != nullptr && PyDict_Check(globals)
               ? text_of(PyDict_GetItemString(globals, "__name__"))
               : "";
}

} // namespace

Decision decide(Interpreter& interpreter, PyCodeObject* code, PyObject* globals) noexcept {
    const ErrorAside aside;
    const Decision no_match = g_live.no_match.load(std::memory_order_acquire);
    Decision decision = no_match;
    const auto known = static_cast<Decision>(
        reinterpret_cast<uintptr_t>(code_extra(code, interpreter.decision_index)));
    try {
        FoundFunction function;
        note_nested_names(interpreter, code);
        function.name = qualified_name(interpreter, code);
        function.file = text_of(code->co_filename);
        function.module = module_name(globals);
        std::function<void(FoundFunction)> found;
        {
            const std::lock_guard lock(shared().mutex);
            if (shared().session) {
                const Session& session = *shared().session;
                const targets::TargetLine* line = targets::decide_python(
                    session.deciding, function.module, function.file, function.name);
                if (line != nullptr) {
                    function.line = session.deciding_index[static_cast<size_t>(
                        line - session.deciding.lines.data())];
                    const Grouping& grouping = session.spec.grouping;
                    const auto target = grouping.target_of(function.line, function.module,
                                                           function.file, function.name);
                    if (target) decision |= uint64_t{*target} + 1;
                    // Grouped anew they are told of already.
                    const bool is_new = generation_of(known) < session.first_generation;
                    if (grouping.number == 0 || is_new) found = session.spec.found;
                }
            }
        }
        if (found) found(std::move(function));
    } catch (...) {
        // Out of memory: the function counts as one that no line matches.
        decision = no_match;
    }
    if (!set_code_extra(code, interpreter.decision_index,
                        reinterpret_cast<void*>(static_cast<uintptr_t>(decision)))) {
        PyErr_Clear();
    }
    return decision;
}

bool any_hooked() {
    const std::lock_guard lock(shared().mutex);
    return std::any_of(shared().interpreters.begin(), shared().interpreters.end(),
                       [](const Interpreter* interpreter) { return interpreter->hooked; });
}

void register_fork_handlers(void (*in_child)()) {
    static std::once_flag once;
    g_in_child = in_child;
    std::call_once(
        once, [] { ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); });
}

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

bool collect_functions(std::vector<Ref>& functions) {
#if SB_GC_LACKS_FUNCTIONS
    collect_from_modules(functions);
#endif
#if SB_MONITORING
    PyUnstable_GC_VisitObjects(
        [](PyObject* object, void* argument) {
            if (PyFunction_Check(object)) {
                static_cast<std::vector<Ref>*>(argument)->push_back(Ref::borrow(object));
            }
            return 1;
        },
        &functions);
    return true;
#else
    const Ref gc(stay([] { return PyImport_ImportModule("gc"); }));
    if (!gc) return false;
    const Ref objects(PyObject_CallMethod(gc.get(), "get_objects", nullptr));
    if (!objects) return false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects.get()); ++i) {
        PyObject* object = PyList_GET_ITEM(objects.get(), i);
        if (PyFunction_Check(object)) functions.push_back(Ref::borrow(object));
    }
    return true;
#endif
}

// All functions of the interpreter, their code's names known.
bool collect_named_functions(Interpreter& interpreter, std::vector<Ref>& functions) {
    if (!collect_functions(functions)) return false;
    // A name that the enclosing code gives is exact, one from the function object may have been
    // set by functools.wraps: enclosing code first.
    for (const Ref& function : functions) {
        note_nested_names(interpreter,
                          reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function.get())));
    }
    for (const Ref& function : functions) note_function_name(interpreter, function.get());
    return true;
}

// Calls `look` with the code and the globals of each function, giving the GIL up now and then.
template <typename Look>
void for_each_function(const std::vector<Ref>& functions, Look look) {
    constexpr uint64_t kHoldNs = 1000000;
    uint64_t held_since = now_ns();
    for (const Ref& function : functions) {
        look(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function.get())),
             PyFunction_GET_GLOBALS(function.get()));
        if (now_ns() - held_since > kHoldNs) {
            { const WithoutGil without; }
            held_since = now_ns();
        }
    }
}

// Calls `look` with a code object and all that are nested in it.
template <typename Look>
void for_each_nested(PyCodeObject* code, Look look) {
    if (!look(code)) return;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_consts); ++i) {
        PyObject* constant = PyTuple_GET_ITEM(code->co_consts, i);
        if (PyCode_Check(constant))
            for_each_nested(reinterpret_cast<PyCodeObject*>(constant), look);
    }
}

} // namespace

bool look_at_existing(Interpreter& interpreter) {
    std::vector<Ref> functions;
    if (!collect_named_functions(interpreter, functions)) return false;
    for_each_function(functions, [&](PyCodeObject* code, PyObject* globals) {
        // An inner function is known as soon as the outer one is.
        for_each_nested(code, [&](PyCodeObject* nested) {
            const auto known = static_cast<Decision>(
                reinterpret_cast<uintptr_t>(code_extra(nested, interpreter.decision_index)));
            if (is_current(known)) return false;
            decide(interpreter, nested, globals);
            return true;
        });
    });
    return true;
}

bool list_functions(Interpreter& interpreter, std::vector<FoundFunction>& list) {
    std::vector<Ref> functions;
    if (!collect_named_functions(interpreter, functions)) return false;
    std::unordered_set<PyCodeObject*> seen; // their functions are held
    for_each_function(functions, [&](PyCodeObject* code, PyObject* globals) {
        const std::string module = module_name(globals);
        for_each_nested(code, [&](PyCodeObject* nested) {
            if (!seen.insert(nested).second) return false;
            note_nested_names(interpreter, nested);
            if ((nested->co_flags & CO_OPTIMIZED) == 0)
                return true; // the body of a module or class
            list.push_back(
                {0, module, qualified_name(interpreter, nested), text_of(nested->co_filename)});
            return true;
        });
    });
    return true;
}

} // namespace speedbump::python
