# SPDX-License-Identifier: MIT
"""System calls of the loader that fail: a clear error or none, no crash, the target as before."""

import collections
import os
import pathlib
import random
import signal
import subprocess

from harness import (
    MS, SPEEDBUMP, expect_restored, expect_unslowed, main, need, scratch, start_puppet,
    targets_file,
)

# What each may fail with, by its manual page.
FAILURES = {
    "openat": ("EMFILE", "ENFILE", "ENOMEM", "EINTR"),
    "read": ("EINTR", "EIO"),
    "pread64": ("EINTR", "EIO"),
    "fstat": ("ENOMEM",),
    "newfstatat": ("ENOMEM",),
    "readlinkat,readlink": ("ENOMEM",),
    "mmap": ("ENOMEM", "EAGAIN"),
    "bpf": ("ENOMEM", "EAGAIN", "EINTR", "E2BIG"),
    "perf_event_open": ("EMFILE", "ENOMEM", "EINTR"),
    "ioctl": ("ENOMEM", "EINTR"),
    "clone3": ("EAGAIN", "ENOMEM"),
    "pidfd_open": ("EMFILE", "ENOMEM"),
    "process_vm_readv": ("ENOMEM", "EPERM"),
    "epoll_create1": ("EMFILE", "ENOMEM"),
    "epoll_ctl": ("ENOMEM", "ENOSPC"),
    "epoll_wait,epoll_pwait": ("EINTR",),
    "poll,ppoll": ("EINTR", "ENOMEM"),
    "socket,socketpair": ("EMFILE", "ENOMEM"),
    "bind": ("ENOMEM", "EADDRINUSE"),
    "pipe2": ("EMFILE",),
    "memfd_create": ("EMFILE", "ENOMEM"),
    "eventfd2,signalfd4,timerfd_create": ("EMFILE", "ENOMEM"),
    "fcntl": ("EMFILE", "EINTR"),
    "mkdir,unlinkat": ("ENOMEM", "ENOSPC"),
    "write": ("EINTR", "EAGAIN"),
}
STATUSES = range(0, 6)
TIMES = int(os.environ.get("SPEEDBUMP_FAILURES", "1"))


def attach(target, path: str, log: pathlib.Path, *strace: str) -> subprocess.CompletedProcess:
    """One attach from its command to its end; its system calls are written to the log."""
    log.write_text("")
    command = [need("strace"), "-f", "-qq", "-o", str(log), *strace, SPEEDBUMP, "attach", "-q",
               "--duration=50ms", "--pid", str(target.pid), path]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          errors="replace", start_new_session=True) as process:
        try:
            _, said = process.communicate(timeout=60)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # without its tracer the loader would go on
            raise
    return subprocess.CompletedProcess(command, process.returncode, None, said)


def calls_of_the_first_thread(log: pathlib.Path) -> collections.Counter:
    lines = [line.split(maxsplit=1) for line in log.read_text(errors="replace").splitlines()]
    return collections.Counter(
        rest.partition("(")[0] for pid, rest in lines if pid == lines[0][0])


def before_main() -> int:
    """How often the dynamic linker maps memory: where the first time fails, any program ends by a
    signal."""
    done = subprocess.run([need("strace"), "-qq", "-e", "trace=mmap", SPEEDBUMP, "--version"],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return done.stderr.count("mmap(")


def what_is_wrong(loader: subprocess.CompletedProcess) -> str:
    """Nothing when it ended well or with a clear error."""
    said = loader.stderr.strip()
    if loader.returncode == 127 and "loading shared libraries" in said:
        return ""  # not ours yet
    if loader.returncode not in STATUSES:
        return f"ended with {loader.returncode}: {said[-300:]}"
    if loader.returncode != 0 and not said:
        return f"ended with {loader.returncode} and no word"
    return ""


def test_each_mapping_of_a_bpf_map_fails() -> None:
    """libbpf leaves a program without its variables where one of them can't be mapped."""
    target = start_puppet()
    path, log = targets_file("+exe:work_* delay=1ms\n"), scratch() / "calls"
    assert attach(target, path, log, "-e", "trace=mmap").returncode == 0
    lines = [line.split(maxsplit=1) for line in log.read_text(errors="replace").splitlines()]
    ours = [rest for pid, rest in lines if pid == lines[0][0] and rest.startswith("mmap(")]
    first = before_main()
    shared = [at for at, call in enumerate(ours, 1)
              if "MAP_SHARED" in call and "MAP_ANONYMOUS" not in call and at > first]
    assert len(shared) > 5, ours
    wrong = []
    for at in shared:
        loader = attach(target, path, log, "-e", "trace=mmap", "-e",
                        f"inject=mmap:error=EAGAIN:when={at}")
        if said := what_is_wrong(loader):
            wrong.append(f"{ours[at - 1]}: {said}")
        expect_restored(target.pid)
    print(f"  {len(shared)} mappings")
    assert not wrong, "\n" + "\n".join(wrong)


def test_each_call_fails() -> None:
    random.seed(int(os.environ.get("SPEEDBUMP_SEED", "5")))
    target = start_puppet()
    path, log = targets_file("+exe:work_* delay=1ms\n"), scratch() / "calls"
    assert attach(target, path, log).returncode == 0
    made = calls_of_the_first_thread(log)
    wrong, tried, failed = [], 0, 0
    for calls, errors in FAILURES.items():
        first = before_main() if calls == "mmap" else 0
        last = max(made[name] for name in calls.split(","))
        for _ in range(TIMES if last > first else 0):
            error, at = random.choice(errors), random.randint(first + 1, last)
            loader = attach(target, path, log, "-e", f"trace={calls}", "-e",
                            f"inject={calls}:error={error}:when={at}")
            tried += 1
            failed += "(INJECTED)" in log.read_text(errors="replace")
            if said := what_is_wrong(loader):
                wrong.append(f"{calls} {error} at {at}: {said}")
            assert target.process.poll() is None, (calls, error, at)
            expect_restored(target.pid)
    expect_unslowed(target, "work_push", MS)
    print(f"  {failed} failures")
    assert failed > tried * 3 / 4, (failed, tried)  # how many calls are made varies a little
    assert not wrong, "\n" + "\n".join(wrong)


if __name__ == "__main__":
    main(globals())
