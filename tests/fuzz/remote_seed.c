// SPDX-License-Identifier: MIT
// What a hostile process pretends to be: a library with the symbols by which interpreters are known.
extern int puts(const char*);
extern void* malloc(unsigned long);

unsigned long _PyRuntime[64] = {0x6465746175626774, 0, 0, 0, 0, 48, 1};
unsigned long Py_Version = 0x030c01f0;
static int referred;
int* seed_pointer = &referred;

int PyModule_AddObjectRef(void) { return puts("a"); }
int PyEval_EvalFrameEx(void) { return malloc(1) != 0; }
int PyRun_SimpleStringFlags(void) { return *seed_pointer; }
int pthread_create(void) { return PyModule_AddObjectRef(); }
int dlopen(void) { return PyEval_EvalFrameEx(); }
