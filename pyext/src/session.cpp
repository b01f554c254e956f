// SPDX-License-Identifier: MIT
#include "session.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "clock.h"
#include "cpython_state.h"
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
    targets::PythonLines deciding;
    std::vector<uint32_t> deciding_index;
    std::vector<bool> have_functions; // by line of the file
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
    session.have_functions.resize(session.spec.file.lines.size());
    std::vector<bool> applies(session.spec.file.lines.size());
    for (const uint32_t index : session.spec.applies) {
        if (index < applies.size()) applies[index] = true;
    }
    std::vector<targets::TargetLine> deciding;
    session.deciding_index.clear();
    for (uint32_t index = 0; index < session.spec.file.lines.size(); ++index) {
        const targets::TargetLine& line = session.spec.file.lines[index];
        if (line.runtime != targets::Runtime::kPython || (!line.exclude && !applies[index]))
            continue;
        deciding.push_back(line);
        session.deciding_index.push_back(index);
    }
    session.deciding = targets::PythonLines(std::move(deciding));
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

// When the process forks, under the mutex. Two clocks: that of the wall is the same in all time
// namespaces, so what they differ by is no time that the fork took.
uint64_t g_forked_at_ns = 0;
uint64_t g_forked_at_wall_ns = 0;

// How many threads are in hooks; several of it, so that they seldom meet there.
struct alignas(64) Inside {
    std::atomic<uint32_t> threads{0};
};
constexpr size_t kInside = 64;
Inside g_inside[kInside];

// Waits until all threads have left the hooks that they were in; no delay starts meanwhile. False:
// one is stopped in there. GIL held, but given up.
bool wait_for_hooks() {
    constexpr int kTries = 1000;
    int tries = 0;
    for (Inside& inside : g_inside) {
        while (inside.threads.load() != 0) { // once none is enough: who comes in goes at once
            if (++tries > kTries) return false;
            const WithoutGil without;
            ::poll(nullptr, 0, 1);
        }
    }
    return true;
}

void before_fork() {
    sb_before_fork();
    shared().mutex.lock();
    g_forked_at_ns = now_ns();
    g_forked_at_wall_ns = read_clock_ns(CLOCK_REALTIME);
}
void after_fork_in_parent() {
    sb_after_fork_in_parent();
    shared().mutex.unlock();
}
void after_fork_in_child() {
    sb_after_fork_in_child();
    for (Inside& inside : g_inside) inside.threads.store(0); // those threads are not in the child
    claim_anew();
    g_live.pid = static_cast<uint32_t>(::getpid()); // before the child can forbid itself to ask
    if (shared().session && shared().session->spec.is_trial) {
        g_live.running.store(0);
        next_generation();                // so that each call sees it
        (void)shared().session.release(); // not freed: an allocator may not be ready yet
    }
    // A child may be born into another time namespace, and its clock then jumps.
    constexpr int64_t kJumpNs = 1'000'000'000;
    const uint64_t took = read_clock_ns(CLOCK_REALTIME) - g_forked_at_wall_ns;
    const auto jump = static_cast<int64_t>(now_ns() - g_forked_at_ns - took);
    if (jump < -kJumpNs || jump > kJumpNs) g_live.place.clock_offset_ns += jump;
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
    auto interpreter = std::make_unique<Interpreter>();
    interpreter->state = state;
    interpreter->decision_index = request_code_extra_index(nullptr);
    interpreter->name_index = request_name_index();
    interpreter->runs_beside = sb_runs_beside_others() != 0;
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
    if (!has_session() && !wait_for_hooks()) {
        return make_error(ErrorKind::kInvalid, "a thread is still in a hook of the session before");
    }
    const std::lock_guard lock(shared().mutex);
    if (shared().session) return make_error(ErrorKind::kInvalid, "there is a session already");
    const Table& table = session->spec.table;
    if (table.target_count() < session->spec.file.lines.size()) {
        return make_error(ErrorKind::kInvalid, "the table has fewer targets than the file");
    }
    claim_anew();
    g_live.pid = static_cast<uint32_t>(::getpid());
    g_live.table = &table;
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
    g_live.armed_as.store(SB_ARMED(session->spec.grouping.number));
    next_generation();
    session->first_generation = generation_of(g_live.no_match.load());
    shared().session = std::move(session);
    g_live.running.store(1);
    return {};
}

void stop_delays() {
    g_live.running.store(0);
}

std::atomic<uint32_t>& InHook::enter() {
    // The address of what each thread has for itself; multiplied, its upper bits are like random.
    const auto thread = reinterpret_cast<uintptr_t>(::pthread_self());
    const uint64_t hash = uint64_t{thread} * 0x9e3779b97f4a7c15;
    std::atomic<uint32_t>& threads = g_inside[hash >> 58].threads;
    threads.fetch_add(1);
    return threads;
}

bool end_session() {
    stop_delays();
    const bool is_left = wait_for_hooks();
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
    if (!is_left) (void)ended.release(); // its table stays, for the thread that is stopped in there
    return is_left;
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

bool is_left_over() {
    const std::lock_guard lock(shared().mutex);
    return shared().session && !shared().session->spec.identity.empty() &&
           (g_live.running.load() == 0 || is_over(*g_live.settings));
}

const Table& session_table() {
    return shared().session->spec.table;
}

void set_line(uint32_t index, const targets::TargetLine& line, bool applies) {
    const std::lock_guard lock(shared().mutex);
    Session& session = *shared().session;
    session.spec.file.lines[index] = line;
    session.have_functions[index] = false;
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
    g_live.armed_as.store(SB_ARMED(shared().session->spec.grouping.number));
}

uint32_t session_grouping() {
    const std::lock_guard lock(shared().mutex);
    return shared().session ? shared().session->spec.grouping.number : 0;
}

std::vector<targets::Pattern> modules_without_functions() {
    const std::lock_guard lock(shared().mutex);
    std::vector<targets::Pattern> modules;
    if (!shared().session) return modules;
    const Session& session = *shared().session;
    for (const uint32_t line : session.spec.applies)
        if (line < session.have_functions.size() && !session.have_functions[line])
            modules.push_back(session.spec.file.lines[line].container);
    return modules;
}

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
                Session& session = *shared().session;
                const auto line =
                    session.deciding.decide(function.module, function.file, function.name);
                if (line && !session.deciding.lines()[*line].exclude) {
                    function.line = session.deciding_index[*line];
                    session.have_functions[function.line] = true;
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
                       [](const Interpreter* interpreter) { return interpreter->is_hooked(); });
}

void register_fork_handlers(void (*in_child)()) {
    static std::once_flag once;
    g_in_child = in_child;
    std::call_once(
        once, [] { ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); });
}

} // namespace speedbump::python
