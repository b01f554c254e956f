// SPDX-License-Identifier: MIT
/*
 * A core that slows nothing: what the tests of getting into an interpreter load. One library for
 * every CPython with a GIL from 3.10 on (stable ABI). serve(channel) answers "ready" to the begin,
 * and "gone" to a detach or nothing to a hang-up.
 */
#define PY_SSIZE_T_CLEAN
#ifndef SB_FREE_THREADED /* which has no stable ABI: built for each of them */
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int sessions;

static void answer(int channel, const char *text)
{
    if (send(channel, text, strlen(text), MSG_NOSIGNAL) < 0)
        return; /* hung up: recv says so next */
}

static void talk(int channel)
{
    char packet[65536];

    for (;;) {
        ssize_t got = recv(channel, packet, sizeof(packet) - 1, 0);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return;
        packet[got] = '\0';
        if (strstr(packet, "\"begin\""))
            answer(channel, "{\"op\":\"ready\",\"matched\":[]}");
        if (strstr(packet, "\"detach\"")) {
            answer(channel, "{\"op\":\"gone\",\"reason\":\"detach\"}");
            return;
        }
    }
}

static PyObject *serve(PyObject *module, PyObject *argument)
{
    long channel = PyLong_AsLong(argument);

    (void)module;
    if (channel < 0)
        return NULL;
    ++sessions;
    Py_BEGIN_ALLOW_THREADS
    talk((int)channel);
    close((int)channel);
    Py_END_ALLOW_THREADS
    --sessions;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"serve", serve, METH_O, "Serves one session on a socket."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef SB_FREE_THREADED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_core",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
