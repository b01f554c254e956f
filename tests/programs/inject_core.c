// SPDX-License-Identifier: MIT
/*
 * A core that slows nothing: what the tests of getting into an interpreter load. One library for
 * every CPython with a GIL from 3.10 on (stable ABI). serve(channel, core) says "loaded", answers
 * "ready" to the begin, and "gone" to a detach or nothing to a hang-up.
 *
 * With SB_FLOOD one that works against the loader: after "ready" it sends matches without end and
 * ignores the detach, and a list it never ends: the first one of packets without functions, those
 * that follow of packets that are full of them.
 */
#define PY_SSIZE_T_CLEAN
#ifndef SB_FREE_THREADED /* which has no stable ABI: built for each of them */
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>
#include <errno.h>
#ifdef SB_FLOOD
#include <pthread.h>
#include <stdio.h>
#endif
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int sessions;

static void answer(int channel, const char *text)
{
    if (send(channel, text, strlen(text), MSG_NOSIGNAL) < 0)
        return; /* hung up: recv says so next */
}

#ifdef SB_FLOOD
struct flood {
    int channel;
    const char *op, *entries;
    unsigned long names;
    char packet[60000];
};

/* Long, so that to read it takes longer than to send it; each function by a name of its own. */
static void fill(struct flood *flood)
{
    char *at = flood->packet;
    char *end = flood->packet + sizeof(flood->packet) - 64;

    at += sprintf(at, "{\"op\":\"%s\",\"%s\":[{}", flood->op, flood->entries);
    while (at < end)
        at += sprintf(at, ",{\"name\":\"f%lu\"}", flood->names++);
    sprintf(at, "]}");
}

static void *send_for_ever(void *argument)
{
    struct flood *flood = argument;

    ssize_t sent;

    do {
        fill(flood);
        sent = send(flood->channel, flood->packet, strlen(flood->packet), MSG_NOSIGNAL);
    } while (sent >= 0 || errno == EINTR);
    return NULL;
}

static void talk(int channel)
{
    static int lists;
    static struct flood flood;
    char packet[65536];
    pthread_t thread;
    int flows = 0;
    ssize_t got;

    flood.channel = channel;
    while ((got = recv(channel, packet, sizeof(packet) - 1, 0)) > 0 || (got < 0 && errno == EINTR)) {
        if (got < 0 || flows)
            continue;
        packet[got] = '\0';
        if (strstr(packet, "\"begin\"")) {
            answer(channel, "{\"op\":\"ready\",\"matched\":[]}");
            flood.op = flood.entries = "matched";
        } else {
            flood.op = "functions";
            flood.entries = lists++ ? "functions" : "others";
        }
        flows = pthread_create(&thread, NULL, send_for_ever, &flood) == 0;
    }
    if (flows)
        pthread_join(thread, NULL);
}
#else
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
#endif

static PyObject *serve(PyObject *module, PyObject *arguments)
{
    int channel, core;

    (void)module;
    if (!PyArg_ParseTuple(arguments, "ii", &channel, &core))
        return NULL;
    close(core);
    answer(channel, "{\"op\":\"loaded\"}");
    ++sessions;
    Py_BEGIN_ALLOW_THREADS
    talk(channel);
    close(channel);
    Py_END_ALLOW_THREADS
    --sessions;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"serve", serve, METH_VARARGS, "Serves one session on a socket."},
    {NULL, NULL, 0, NULL},
};

static int add_protocol(PyObject *module)
{
    return PyModule_AddIntConstant(module, "protocol", 1);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)add_protocol},
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
