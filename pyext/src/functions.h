// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "compat.h"
#include "python_util.h"

namespace speedbump::python {

#if !SB_FREE_THREADED
// Finds the functions of the running interpreter by what leads to them from the names of its
// modules: classes with what they are derived from, and, over a few steps, closures, wrappers,
// methods, objects with their classes, and small tables. That is far less than all objects, of
// which a program has millions, and it need not be done at once: what is not found so, its first
// call tells of. Runs no code of the program: the way from an object to others is that of the
// collector. GIL held.
class FunctionFinder {
  public:
    // Functions with such globals, and what they alone lead to, are left out.
    using LeavesOut = std::function<bool(PyObject* globals)>;
    explicit FunctionFinder(LeavesOut leaves_out);

    // Goes on, for some 0.1 ms; false when all is found. The GIL may be given up in between.
    bool step();

    // Those found so far.
    std::vector<Ref>& functions() { return functions_; }

  private:
    // A dict of names that has been looked through up to a place.
    struct Names {
        Ref dict;
        Py_ssize_t at = 0;
    };
    void add_names(PyObject* dict);
    void add_class(PyTypeObject* type);
    void meet(PyObject* object);
    void follow(PyObject* value);

    LeavesOut leaves_out_;
    std::unordered_set<PyObject*>
        seen_; // not held: who gets the place of one that is gone is passed over
    std::deque<Names> names_;
    std::vector<Ref> functions_;
    // Of one value of a name, whose objects are not held:
    std::vector<std::pair<PyObject*, unsigned>> ahead_; // with the steps to them
    unsigned steps_ = 0;                                // to the one that is looked at
    Py_ssize_t references_ = 0;                         // of that one, so far
};
#endif

} // namespace speedbump::python
