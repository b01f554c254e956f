# SPDX-License-Identifier: MIT
"""Bad input, missing rights, hosts that cannot, and targets that go away at the wrong moment."""

import ctypes
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from harness import (
    LIBRARY, MS, PUPPET, SPEEDBUMP, Run, Session, Skip, _leftovers, as_nobody, calls, changed_bytes,
    children, expect_restored, expect_slowed, main, need, readable, scratch, start_puppet, targets_file,
    wait_for,
)
from pythons import find as find_pythons

PUSH = targets_file("+exe:work_push delay=1ms")
FAILED, USAGE, NOTHING, PERMISSION, HOST = 1, 2, 3, 4, 5


def attach(pid: int | str, targets: str = PUSH, **options) -> Run:
    return Run("attach", "--json", "--duration=200ms", "--pid", str(pid), targets, **options)


def expect(done: Run, status: int, *words: str) -> None:
    assert done.status == status, f"not {status}: {done}"
    for word in words:
        assert word in done.err, f"no {word!r} in: {done}"


def unused_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


# --- processes


def test_no_such_process() -> None:
    pid = unused_pid()
    expect(attach(pid), FAILED, f"no process {pid}")


def test_pid_that_is_no_pid() -> None:
    for text in ("0", "-1", "x", "99999999999999999999", ""):
        expect(attach(text), USAGE)


def test_process_that_ends_between_look_up_and_attach() -> None:
    """Ended at any moment of the attach: an answer each time, no crash, no hang."""
    random.seed(2)
    for _ in range(20):
        target = start_puppet()
        loader = subprocess.Popen(
            [SPEEDBUMP, "attach", "-q", "--pid", str(target.pid), PUSH],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        time.sleep(random.uniform(0, 0.5))
        target.kill()
        out, err = loader.communicate(timeout=20)
        assert loader.returncode in (0, FAILED, NOTHING), (loader.returncode, out, err)
        if loader.returncode == FAILED:
            assert "process" in err or "zombie" in err, err


def test_kernel_thread() -> None:
    kernel_thread = 2
    if "kthreadd" not in pathlib.Path("/proc/2/comm").read_text():
        raise Skip("kernel threads are not visible here")
    expect(attach(kernel_thread), FAILED, "kernel thread")


def test_zombie() -> None:
    process = subprocess.Popen(["true"])
    wait_for(lambda: "State:\tZ" in pathlib.Path(f"/proc/{process.pid}/status").read_text(), 5,
             "a zombie")
    expect(attach(process.pid), FAILED, "zombie")
    process.wait()


def test_a_thread_is_no_process() -> None:
    target = start_puppet()
    target.send("threads 2 work_push 1000000000")
    tasks = pathlib.Path(f"/proc/{target.pid}/task")
    wait_for(lambda: len(list(tasks.iterdir())) == 3, 5, "threads")
    thread = next(int(task.name) for task in tasks.iterdir() if int(task.name) != target.pid)
    expect(attach(thread), FAILED, "thread", str(target.pid))
    target.kill()


def test_init_of_a_container_from_inside() -> None:
    """PID 1 of a PID namespace and all its descendants, but not speedbump, which runs in there."""
    unshare, nsenter = need("unshare"), need("nsenter")
    probe = subprocess.run([unshare, "-pf", "--mount-proc", "true"], capture_output=True, text=True)
    if probe.returncode:
        raise Skip(f"no PID namespaces: {probe.stderr.strip()}")
    init = start_puppet(before=[unshare, "-pf", "--kill-child", "--mount-proc"])
    child = init.offspring("child")
    (outer,) = children(init.pid)
    with Session("+exe:work_push delay=1ms", "--duration=2s", pid=1,
                 before=[nsenter, "-t", str(outer), "-p", "-m"]) as session:
        expect_slowed(init, "work_push", MS)
        expect_slowed(child, "work_push", MS)
        final = session.wait()
    processes = {one["pid"]: one["command"] for one in final["processes"]}
    assert processes == {1: "puppet", int(child.ask("pid")): "puppet"}, processes


def test_speedbump_itself() -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "{SPEEDBUMP}" attach --pid $$ "{PUSH}"'], capture_output=True,
        text=True, timeout=20,
    )
    assert done.returncode == USAGE and "itself" in done.stderr, done


def test_tree_that_holds_speedbump_leaves_it_out() -> None:
    with Session(f"+{SPEEDBUMP}:main delay=1ms\n+libc.so.6:read delay=1us", "--missing=ignore",
                 pid=os.getpid()) as session:
        assert session.process.pid not in [
            one["pid"] for one in session.matched["processes"]
        ]


def test_target_exits_while_attached() -> None:
    target = start_puppet()
    session = Session("+exe:work_push delay=1us", pid=target.pid)
    target.call("work_push", 7)
    target.end()
    final = session.wait()
    assert final["reason"] == "processes-ended" and final["all"]["calls"] == 7


def test_target_execs_another_program_while_attached() -> None:
    target = start_puppet()
    with Session("+exe:work_push delay=1us", pid=target.pid) as session:
        target.call("work_push", 7)
        target.send("exec /bin/true")
        assert target.process.wait(timeout=10) == 0
        assert session.wait()["all"]["calls"] == 7


def test_target_execs_during_attach() -> None:
    random.seed(3)
    for _ in range(6):
        target = start_puppet()
        loader = subprocess.Popen(
            [SPEEDBUMP, "attach", "-q", "--duration=1500ms", "--pid", str(target.pid), PUSH],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        time.sleep(random.uniform(0, 0.5))
        target.exec(PUPPET)
        spent = target.ask(f"first work_push {int(0.9 * MS)} 5000")
        _, err = loader.communicate(timeout=20)
        assert loader.returncode == 0 and spent.isdigit(), (spent, loader.returncode, err)
        target.end()


EXECS_ITSELF = """
#include <unistd.h>
__attribute__((noinline)) int work(int x) { __asm__ volatile(""); return x + 1; }
int main(int count, char** arguments) {
    volatile int sum = 0;
    for (int i = 0; i < 1000; ++i) sum += work(i);
    execv(arguments[0], arguments);
    return count;
}
"""


def test_a_program_that_execs_without_end_is_found() -> None:
    """For a moment of each exec it maps no code."""
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/execs_itself"
        subprocess.run([need("gcc"), "-O1", "-x", "c", "-o", program, "-"], input=EXECS_ITSELF, text=True,
                       check=True)
        process = subprocess.Popen([program])
        try:
            for _ in range(30):
                expect(attach(process.pid, targets_file("+exe:work delay=1us")), 0)
        finally:
            process.kill()
            process.wait()


FAMILY = """
import mmap, os, struct, sys, time
with open(sys.argv[1], "r+b") as file:
    shared = mmap.mmap(file.fileno(), 0)
def work(): pass
def serve(slot):
    for beat in range(1, 10**9):
        work()
        struct.pack_into("<Q", shared, slot * 8, beat)
        time.sleep(0.01)
for slot in range(len(shared) // 8):
    os.fork() or serve(slot)
os.wait()
"""


def test_more_processes_than_descriptors() -> None:
    """30 interpreters and a loader that may open 64 files: it works, or says why it does not."""
    count = 30
    slots, program = scratch() / "slots", scratch() / "family.py"
    slots.write_bytes(bytes(8 * count))
    program.write_text(FAMILY)
    family = subprocess.Popen([sys.executable, str(program), str(slots)], start_new_session=True)
    _leftovers.append(lambda: (os.killpg(family.pid, signal.SIGKILL), family.wait()))

    def beats() -> tuple[int, ...]:
        return struct.unpack(f"<{count}Q", slots.read_bytes())

    wait_for(lambda: min(beats()) > 0, 60, "all work")
    few = [need("prlimit"), "--nofile=64:64"]
    done = Run("attach", "--json", "--duration=1s", "--pid", str(family.pid),
               targets_file("*:work delay=1ms"), before=few, timeout=200)
    assert 0 <= done.status <= 5, done
    assert done.status == 0 or "speedbump: error: " in done.err, done
    before = beats()
    wait_for(lambda: all(now > then for now, then in zip(beats(), before)), 60, "all work on")
    assert len(children(family.pid)) == count


# --- rights


def _attach_as(before: list[str], pid: int) -> subprocess.CompletedProcess:
    targets = targets_file("+exe:work_push delay=1ms")
    os.chmod(targets, 0o644)
    return subprocess.run(
        [*before, readable(SPEEDBUMP), "attach", "--json", "--duration=200ms", "--pid",
         str(pid), targets], capture_output=True, text=True, timeout=30,
    )


def test_each_missing_capability_is_named() -> None:
    needed = ("bpf", "perfmon", "sys_ptrace")
    target = start_puppet()
    for missing in needed:
        done = _attach_as(as_nobody(*[one for one in needed if one != missing]), target.pid)
        assert done.returncode == PERMISSION, (missing, done)
        assert f"CAP_{missing.upper()}" in done.stderr, (missing, done)
        assert "setcap" in done.stderr, done
        for other in needed:
            if other != missing:
                assert f"CAP_{other.upper()} is missing" not in done.stderr, (missing, done)


def test_the_line_that_grants_capabilities_grants_nothing_to_others() -> None:
    """What doctor says mends it, done: whoever is not in the group can't start the program."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="speedbump-grant-", dir="/var/tmp"))
    _leftovers.append(lambda: shutil.rmtree(folder))
    folder.chmod(0o755)
    program, sudo = folder / "speedbump", folder / "sudo"
    shutil.copy(SPEEDBUMP, program)
    program.chmod(0o755)
    nobody = as_nobody()
    done = subprocess.run([*nobody, str(program), "doctor", "--json"], capture_output=True,
                          text=True, timeout=60)
    lines = {check["remedy"] for check in json.loads(done.stdout)["checks"]
             if "setcap" in check["remedy"]}
    assert len(lines) == 1, lines
    # No group is made here: this one stands for it.
    group = 54321
    sudo.write_text(f'#!/bin/sh\n[ "$1" != groupadd ] || exit 0\n'
                    f'[ "$1 $2" != "chgrp speedbump" ] || exec chgrp {group} "$3"\nexec "$@"\n')
    sudo.chmod(0o755)
    need("setcap")
    granted = subprocess.run(["sh", "-ec", lines.pop()], capture_output=True, text=True,
                             env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
    assert granted.returncode == 0, granted
    state = program.stat()
    assert state.st_gid == group and state.st_mode & 0o7777 == 0o750, oct(state.st_mode)
    assert b"\x01" in os.getxattr(program, "security.capability")[:4]
    try:
        done = subprocess.run([*nobody, str(program), "--version"], capture_output=True)
        assert done.returncode != 0, done
    except PermissionError:
        pass
    member = [need("setpriv"), "--reuid=65534", "--regid=65534", f"--groups={group}"]
    assert subprocess.run([*member, str(program), "--version"], stdout=subprocess.DEVNULL).returncode == 0


def test_user_without_rights() -> None:
    target = start_puppet()
    done = _attach_as(as_nobody(), target.pid)
    assert done.returncode == PERMISSION and "CAP_BPF" in done.stderr, done
    assert changed_bytes(target.pid) == 0


def test_three_capabilities_are_enough() -> None:
    target = start_puppet(readable(PUPPET), before=as_nobody())
    done = _attach_as(as_nobody("bpf", "perfmon", "sys_ptrace"), target.pid)
    assert done.returncode == 0, done


def test_capabilities_alone_reach_nobody_elses_processes() -> None:
    target = start_puppet()
    rights = as_nobody("bpf", "perfmon", "sys_ptrace")
    program = readable(SPEEDBUMP)
    done = _attach_as(rights, target.pid)
    assert done.returncode == PERMISSION and "another user's" in done.stderr, done
    for command in (["list"], ["dump"], ["discover", "--for", "1s"], ["check", readable(PUSH)]):
        done = subprocess.run([*rights, program, *command, "--pid", str(target.pid)],
                              capture_output=True, text=True, timeout=30)
        assert done.returncode == PERMISSION and "another user's" in done.stderr, (command, done)
    assert changed_bytes(target.pid) == 0


def test_a_program_with_other_rights_leaves_the_tree() -> None:
    """A user's process execs what runs as root: it is not slowed, from its first instruction. The
    loader, which stands still meanwhile, has no part in that."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="speedbump-suid-", dir="/var/tmp"))
    _leftovers.append(lambda: shutil.rmtree(folder))
    folder.chmod(0o755)
    risen = folder / "puppet"
    shutil.copy(PUPPET, risen)
    risen.chmod(0o4755)
    if os.statvfs(folder).f_flag & os.ST_NOSUID:
        raise Skip("no file system here takes set-user-ID programs")
    before = [need("setpriv"), "--reuid=65534", "--regid=65534", "--clear-groups"]
    target = start_puppet(readable(PUPPET), before=before)
    with Session(
        f"+{risen}:work_push delay=1ms", pid=target.pid, program=readable(SPEEDBUMP),
        before=as_nobody("bpf", "perfmon", "sys_ptrace"),
    ) as session:
        session.process.send_signal(signal.SIGSTOP)
        target.exec(str(risen))
        target.call("work_push", 20)
        session.process.send_signal(signal.SIGCONT)
        final = session.wait()  # the tree has no other process
    assert calls(final, "work_push") == 0, final
    assert changed_bytes(target.pid, str(risen)) == 0
    told = [line for line in session.warnings if "with other rights" in line]
    assert len(told) == 1 and f"process {target.pid} (puppet)" in told[0], session.warnings


# --- hosts


def test_host_without_type_information() -> None:
    target = start_puppet()
    expect(attach(target.pid, without="btf"), HOST, "/sys/kernel/btf/vmlinux")


def test_host_without_bpf() -> None:
    target = start_puppet()
    expect(attach(target.pid, without="bpf"), HOST, "BPF")


def test_host_that_tells_of_no_mappings_says_so() -> None:
    target = start_puppet()
    with Session("+exe:work_push delay=1ms", pid=target.pid, without="mmap_events") as session:
        expect_slowed(target, "work_push", MS)
        session.stop()
        assert "loaded later" in "".join(session.warnings), session.warnings


def test_doctor_tells_of_what_is_absent() -> None:
    good = Run("doctor", "--json")
    states = {one["name"]: one["state"] for one in good.final()["checks"]}
    assert states["BTF"] == "good" and states["uprobes from BPF"] == "good", states
    assert states["code of processes"] == "good", states
    bad = Run("doctor", "--json", without="btf,uprobe_multi,sleepable")
    states = {one["name"]: one for one in bad.final()["checks"]}
    assert states["BTF"]["state"] == "bad" and states["BTF"]["remedy"], states
    assert states["uprobe_multi"]["state"] == "degraded", states


def test_kernel_module_that_is_not_there() -> None:
    if pathlib.Path("/sys/kernel/speed_bump").exists():
        raise Skip("the kernel module is loaded")
    target = start_puppet()
    done = Run("attach", "--engine=kmod", "--pid", str(target.pid), PUSH)
    expect(done, HOST, "module")


# --- targets files


def expect_bad_file(path: str, *words: str) -> None:
    target = start_puppet()
    expect(attach(target.pid, targets=path), USAGE, *words)
    assert changed_bytes(target.pid) == 0
    target.end()


def test_missing_file() -> None:
    expect_bad_file(str(scratch() / "none.txt"), "none.txt")


def test_directory_device_and_fifo_are_no_targets_file() -> None:
    fifo = scratch() / "fifo"
    os.mkfifo(fifo)
    for path in (str(scratch()), "/dev/zero", str(fifo)):
        expect_bad_file(path, "regular file")


def test_binary_file() -> None:
    expect_bad_file(PUPPET, "puppet:1")


def test_huge_file_and_huge_line() -> None:
    expect_bad_file(targets_file(b"# x\n" * (5 << 20)), "16 MiB")
    expect_bad_file(targets_file(b"+exe:" + b"a" * 5000 + b"\n"), ":1:")


def test_hostile_lines_are_all_reported_with_line_and_column() -> None:
    path = targets_file(
        b"+exe:work_push\n+exe\n+exe:work_push delay=11s\n+exe:work_nop\0\n"
        b"+exe:a every=0\n+exe:b delay=1ms delay=2ms\n+exe:[z-a\n:::\n+:\n@nothing=1\n"
    )
    target = start_puppet()
    done = attach(target.pid, targets=path)
    expect(done, USAGE)
    for line in (2, 3, 4, 5, 6, 10):
        assert f"targets.txt:{line}:" in done.err, (line, done)
    assert "^" in done.err


def test_hostile_globs_do_not_take_forever() -> None:
    target = start_puppet()
    lines = "".join(f"+exe:{'*a' * 200}{index}*b\n" for index in range(200))
    start = time.monotonic()
    done = attach(target.pid, targets=targets_file(lines))
    assert done.status == NOTHING and time.monotonic() - start < 20, done


def test_unreadable_file() -> None:
    path = targets_file("+exe:work_push\n")
    os.chmod(path, 0)
    target = start_puppet()
    done = subprocess.run(
        [*as_nobody("bpf", "perfmon", "sys_ptrace"), readable(SPEEDBUMP), "attach",
         "--duration=100ms", "--pid", str(target.pid), path],
        capture_output=True, text=True, timeout=30,
    )
    assert done.returncode in (USAGE, PERMISSION) and "Permission denied" in done.stderr, done


def test_nothing_matches() -> None:
    target = start_puppet()
    path = targets_file("+exe:no_such_function\n")
    done = attach(target.pid, targets=path)
    expect(done, NOTHING, "no_such_function")
    both = targets_file("+exe:no_such_function\n+exe:work_push\n")
    for policy, status in (("error", NOTHING), ("warn", 0), ("ignore", 0)):
        done = Run("attach", "--json", "--duration=100ms", f"--missing={policy}", "--pid",
                   str(target.pid), both)
        assert done.status == status, (policy, done)
        assert ("no_such_function" in done.err) == (policy != "ignore"), (policy, done)


def test_wrong_usage() -> None:
    for arguments in ((), ("attach",), ("attach", PUSH), ("no-such-command",),
                      ("attach", "--pid", "1", "--delay=11s", PUSH),
                      ("attach", "--pid", "1", "--every=0", PUSH),
                      ("run", PUSH), ("check",)):
        done = Run(*arguments)
        assert done.status == USAGE, (arguments, done)


# --- ELF files


def test_named_file_that_is_no_elf_or_damaged() -> None:
    """Said, each in a line; the good file beside it is slowed all the same."""
    folder = scratch()
    good = pathlib.Path(LIBRARY).read_bytes()
    (folder / "text.so").write_text("hello")
    (folder / "empty.so").write_bytes(b"")
    (folder / "head.so").write_bytes(good[:40])
    (folder / "half.so").write_bytes(good[: len(good) // 2])
    (folder / "wild.so").write_bytes(good[:32] + b"\xff" * 32 + good[64:])
    target = start_puppet()
    lines = "".join(f"+{path}:lib_work\n" for path in sorted(folder.iterdir()))
    with Session(lines + "+exe:work_push delay=1ms\n", pid=target.pid) as session:
        expect_slowed(target, "work_push", MS)
        skipped = {pathlib.Path(one["container"]).name for one in session.matched["skipped"]}
        assert skipped == {"text.so", "empty.so", "head.so", "half.so", "wild.so"}, session.matched


def test_check_of_an_executable_that_is_none() -> None:
    path = scratch() / "plain"
    path.write_text("hello")
    done = Run("check", "--exe", str(path), PUSH)
    assert done.status in (FAILED, NOTHING) and "plain" in done.out + done.err, done
    done = Run("check", "--exe", "/no/such/file", PUSH)
    assert done.status == FAILED and "/no/such/file" in done.err, done


def test_program_truncated_while_it_runs() -> None:
    """A process whose file has been cut cannot be read any more; that is said, nothing hangs."""
    program = scratch() / "cut"
    shutil.copy(LIBRARY, program)
    target = start_puppet()
    target.ask(f"load {program}")
    os.truncate(program, 100)
    with Session("+cut:lib_work delay=1ms\n+exe:work_push delay=1ms", pid=target.pid) as session:
        expect_slowed(target, "work_push", MS)
        assert any("cut" in one["container"] for one in session.matched["skipped"])


def test_an_instruction_that_the_kernel_refuses_is_passed_over() -> None:
    """A function that begins with a locked instruction is probed at the next one."""
    target = start_puppet()
    with Session("+exe:locked_work delay=1ms", pid=target.pid) as session:
        assert session.matched["skipped"] == [], session.matched
        (matched,) = session.matched["targets"]
        assert matched["site"]["instruction"] == "ret", matched
        assert changed_bytes(target.pid) == 1
        session.stop()
    expect_restored(target.pid)


LIMITS = pathlib.Path(__file__).parent / "inject" / "limits.py"


def start_limited(kind: str, *arguments: str) -> subprocess.Popen:
    """A Python program under a limit (inject/limits.py), of the first Python that has a core."""
    for python in find_pythons():
        beats = scratch() / "beats"
        beats.write_bytes(bytes(8))
        process = subprocess.Popen([*python.command, str(LIMITS), kind, str(beats), *arguments])
        _leftovers.append(lambda: (process.kill(), process.wait()))
        wait_for(lambda: struct.unpack("<Q", beats.read_bytes())[0] > 1, 10, kind)
        if "no core is built" not in attach(process.pid, targets_file("nowhere:nothing")).err:
            return process
    raise Skip("no core for any Python here")


def test_a_first_hook_that_fails_says_why() -> None:
    """Not that nothing matches; and the status is that of the reason."""
    line = targets_file("__main__:beat delay=1ms")
    # socketpair() kills: if (nr == 53) return KILL_PROCESS; return ALLOW
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 53), (6, 0, 0, 0x80000000), (6, 0, 0, 0x7FFF0000)]
    program = scratch() / "filter"
    program.write_bytes(b"".join(struct.pack("<HBBI", *step) for step in steps))
    filtered = start_limited("filter", str(program))
    done = attach(filtered.pid, line)
    expect(done, PERMISSION, "seccomp filter", "socketpair (it would be killed)")
    assert "matches anything" not in done.err, done
    limited = start_limited("strictwx")
    done = attach(limited.pid, line)
    expect(done, HOST, "memory-deny-write-execute")
    assert "matches anything" not in done.err, done
    stopped = start_limited("none")
    os.kill(stopped.pid, signal.SIGSTOP)
    done = attach(stopped.pid, line)
    expect(done, FAILED, "is stopped by a signal")
    assert "matches anything" not in done.err, done
    for process in filtered, limited, stopped:
        assert process.poll() is None


def test_a_program_that_may_open_no_files_is_refused() -> None:
    if ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) < 1:  # landlock_create_ruleset: its version
        raise Skip("this kernel has no Landlock")
    program = start_limited("landlock")
    expect(attach(program.pid, targets_file("__main__:beat delay=1ms")), PERMISSION, "Landlock")
    assert program.poll() is None


if __name__ == "__main__":
    main(globals())
