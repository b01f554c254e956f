// SPDX-License-Identifier: MIT
#pragma once

#include "compat.h"
#include "cpython_state.h"
#include "gil_stay.h"

namespace speedbump::python {

// A thread that asks for the GIL once the interpreter ends never gets it. From 3.14 it waits for
// ever (gh-87135); before, CPython ends it by pthread_exit() (take_gil() in Python/ceval_gil.c),
// which unwinds its frames: destructors would run without the GIL, and the unwinding itself ends in
// abort() of the whole program (gil_stay.h). So our threads wait for ever in all versions; the
// process ends meanwhile.

// What a function of CPython returns that may ask for the GIL: it takes it back, or runs bytecode.
// `call` is that call alone, and owns nothing.
template <typename Call>
PyObject* stay(Call call) {
    struct Work {
        Call call;
        PyObject* result;
    } work{call, nullptr};
    sb_stay(
        [](void* argument) {
            auto& done = *static_cast<Work*>(argument);
            done.result = done.call();
        },
        &work);
    return work.result;
}

// Gives the GIL up for as long as it lives.
class WithoutGil {
  public:
    WithoutGil()
        : is_main_(PyInterpreterState_Get() == PyInterpreterState_Main()), thread_(sb_give_gil()) {}
    ~WithoutGil() {
        sb_stay(
            [](void* self) {
                const auto& own = *static_cast<const WithoutGil*>(self);
                sb_take_gil(own.thread_, own.is_main_ ? 1 : 0);
            },
            this);
    }
    WithoutGil(const WithoutGil&) = delete;
    WithoutGil& operator=(const WithoutGil&) = delete;

    // Leaves it to the program for so long; see sb_leave_gil().
    void leave(uint64_t ns) const {
        sb_leave_gil(thread_, is_main_ ? 1 : 0, static_cast<int64_t>(ns));
    }

  private:
    bool is_main_;
    PyThreadState* thread_;
};

} // namespace speedbump::python
