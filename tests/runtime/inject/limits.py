# SPDX-License-Identifier: MIT
"""Programs under limits: limits.py KIND BEATS [ARGUMENT], BEATS as for targets.py.

none: under no limit.
filter FILE: under a seccomp filter, an array of struct sock_filter.
strictwx: memory that was written can't be executed (PR_SET_MDWE).
landlock: it may open no file any more.
memory BYTES: RLIMIT_AS is that much above what is in use.
tasks: RLIMIT_NPROC is what is in use; as another user, since root's tasks are not limited.
files LEFT: so many descriptors are free; ends with status 5 when another one of its own is closed.
waitall: recv(MSG_WAITALL) of 8 bytes, which come in two halves; ends with status 3 at a short one.
small LIBRARY BYTES [THREADS], smallest LIBRARY BYTES [THREADS]: a thread of 16 KB, or so many of
them, sleeps with so much of its stack left; the main thread sleeps too, or waits for all of some data.
vfork LIBRARY: the main thread makes children, one after another, that stay on its memory until killed.
"""

import ctypes
import mmap
import os
import resource
import select
import socket
import struct
import sys
import time

kind, path = sys.argv[1:3]
argument = sys.argv[3:]
with open(path, "r+b") as file:
    beats = mmap.mmap(file.fileno(), 8)
libc = ctypes.CDLL(None, use_errno=True)


def beat():
    beats[:8] = struct.pack("<Q", struct.unpack("<Q", beats[:8])[0] + 1)


def sleep():
    while True:
        beat()
        time.sleep(0.05)


def prctl(*numbers):
    if libc.prctl(*(ctypes.c_ulong(number) for number in numbers)) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def under_filter():
    with open(argument[0], "rb") as program:
        steps = program.read()
    buffer = ctypes.create_string_buffer(steps, len(steps))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(steps) // 8, ctypes.addressof(buffer)))
    prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    beat()
    poll = select.poll()  # a call that an attach makes, too: the filter needs no others
    prctl(22, 2, ctypes.addressof(head), 0, 0)  # PR_SET_SECCOMP
    while True:
        beat()
        poll.poll(50)


def strict_wx():
    prctl(65, 1, 0, 0, 0)  # PR_SET_MDWE
    sleep()


def in_landlock():
    handled = ctypes.create_string_buffer(struct.pack("@Q", (1 << 13) - 1))  # the file rights of its first ABI
    rules = libc.syscall(444, handled, ctypes.c_size_t(8), 0)  # landlock_create_ruleset
    prctl(38, 1, 0, 0, 0)
    if rules < 0 or libc.syscall(446, rules, 0) != 0:  # landlock_restrict_self
        raise OSError(ctypes.get_errno(), "Landlock")
    sleep()


def little_memory():
    with open("/proc/self/statm") as pages:
        used = int(pages.read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + int(argument[0]), -1))
    sleep()


def no_more_tasks():
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    os.setresuid(65534, 65534, 65534)
    sleep()


def few_descriptors():
    taken = [os.dup(0) for _ in range(64)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, max(taken) + 1))
    for one in taken[: int(argument[0])]:
        os.close(one)
    while True:
        beat()
        try:
            for own in (0, 1, 2, *taken[int(argument[0]) :]):
                os.fstat(own)
        except OSError:
            os._exit(5)
        time.sleep(0.05)


def wait_for_all():
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()  # so that a program that has ended is noticed
        while True:
            theirs.sendall(b"1234")
            time.sleep(0.1)
            theirs.sendall(b"5678")
    theirs.close()
    while True:
        beat()
        if len(ours.recv(8, socket.MSG_WAITALL)) != 8:
            os._exit(3)


def small_stack():
    library = ctypes.CDLL(argument[0])
    for _ in range(int(argument[2]) if len(argument) > 2 else 1):
        if library.sleep_deep(ctypes.c_ulong(int(argument[1]))) != 0:
            os._exit(4)
    if kind == "small":
        sleep()
    beat()
    ends = socket.socketpair()
    ends[0].recv(2, socket.MSG_WAITALL)  # which a stop would disturb


def in_vfork():
    library = ctypes.CDLL(argument[0])
    while True:
        beat()
        library.stay_in_vfork()


{
    "none": sleep,
    "filter": under_filter,
    "strictwx": strict_wx,
    "landlock": in_landlock,
    "memory": little_memory,
    "tasks": no_more_tasks,
    "files": few_descriptors,
    "waitall": wait_for_all,
    "small": small_stack,
    "smallest": small_stack,
    "vfork": in_vfork,
}[kind]()
