# SPDX-License-Identifier: MIT
"""Files as the target sees them: mapped later, replaced, in a chroot, a mount namespace, an overlay."""

import contextlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time

from harness import (
    LIBRARY, MS, PUPPET, Patience, Run, Session, Skip, await_slowed, await_wide, calls, calls_by_pid,
    calls_now, changed_bytes, delays, expect_restored, expect_slowed, expect_unslowed, fork_ns,
    leave_none, main, need, scratch, start_puppet, targets_file, wait_for,
)

LATE = "+libslowlib.so:lib_work delay=2ms"


def expect_slowed_within_100_ms(session: Session, puppet, name: str) -> None:
    patience = Patience(session.process.pid, puppet.pid)
    spent = puppet.ask(f"first {name} {int(1.8 * MS)} 10000")
    waited = patience.ns() + patience.stolen_ns()
    fork = fork_ns()  # the loader starts a helper for each set of probes, whose waits are in no sum
    print(f"  slowed after {spent} ns, of which {waited} without a CPU, a fork {fork:.0f}")
    assert spent.isdigit() and int(spent) - waited < 100 * MS + 10 * fork, (spent, waited, fork)


def test_dlopen_after_attach() -> None:
    """Nothing matches yet: --missing=ignore waits for the library."""
    target = start_puppet()
    with Session(LATE, "--missing=ignore", pid=target.pid) as session:
        time.sleep(0.2)
        target.ask(f"load {LIBRARY}")
        expect_slowed_within_100_ms(session, target, "lib_work")
        expect_slowed(target, "lib_work", 2 * MS)
        session.stop()
    expect_restored(target.pid, os.path.realpath(LIBRARY))
    target.end()


def test_path_that_nothing_maps_yet_is_slowed_from_its_first_call() -> None:
    target = start_puppet()
    with Session(f"+{os.path.realpath(LIBRARY)}:lib_work delay=2ms", pid=target.pid) as session:
        assert [one["name"] for one in session.matched["targets"]] == ["lib_work"]
        target.ask(f"load {LIBRARY}")
        assert min(target.each("lib_work", 10)) > 1.9 * MS
        assert calls(session.stop(), "lib_work") == 10


def test_exec_of_a_program_with_targets() -> None:
    other = scratch() / "other"
    shutil.copy(PUPPET, other)
    target = start_puppet()
    with Session("+*/other:work_push delay=2ms\n+exe:work_nop delay=2ms",
                 pid=target.pid) as session:
        expect_unslowed(target, "work_push", 2 * MS)
        await_wide(session, target, "work_nop")  # else it may be moving its probes just then
        target.exec(str(other))
        expect_slowed_within_100_ms(session, target, "work_push")
        expect_slowed_within_100_ms(session, target, "work_nop")


def test_new_child_that_maps_it() -> None:
    target = start_puppet()
    with Session(LATE + "\n+exe:work_nop", pid=target.pid) as session:
        await_wide(session, target, "work_nop")  # else it may be moving its probes just then
        child = target.offspring("child")
        child.ask(f"load {LIBRARY}")
        expect_slowed_within_100_ms(session, child, "lib_work")
        target.ask(f"load {LIBRARY}")
        expect_slowed_within_100_ms(session, target, "lib_work")


def test_program_deleted_while_it_runs() -> None:
    program = scratch() / "gone"
    shutil.copy(PUPPET, program)
    target = start_puppet(str(program))
    program.unlink()
    with Session("+exe:work_* delay=1ms", pid=target.pid):
        expect_slowed(target, "work_push", MS)
        child = target.offspring("child")
        await_slowed(child, "work_nop", MS)
        expect_slowed(child, "work_nop", MS)
    expect_restored(target.pid)
    expect_unslowed(target, "work_push", MS)


def test_program_replaced_while_it_runs() -> None:
    """The mapped file's functions are meant, not those of the file that has its name now."""
    program = scratch() / "service"
    shutil.copy(PUPPET, program)
    old = start_puppet(str(program))
    replacement = program.with_suffix(".new")
    shutil.copy("/bin/sleep", replacement)
    replacement.rename(program)
    with Session("+service:work_push delay=1ms\n+exe:work_nop delay=1ms", pid=old.pid):
        expect_slowed(old, "work_push", MS)
        expect_slowed(old, "work_nop", MS)


def test_library_replaced_while_it_is_mapped() -> None:
    folder = scratch()
    library = folder / "libslowlib.so"
    shutil.copy(LIBRARY, library)
    target = start_puppet()
    target.ask(f"load {library}")
    library.unlink()
    library.write_text("no ELF any more")
    with Session("+libslowlib.so:lib_work delay=1ms", pid=target.pid):
        expect_slowed(target, "lib_work", MS)


def _copy_with_libraries(program: str, root: pathlib.Path) -> None:
    """The program as /puppet below root, with the libraries that it needs."""
    shutil.copy(program, root / "puppet")
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for word in listed.split():
        if word.startswith("/"):
            (root / word[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(word, root / word[1:])
    shutil.copy(LIBRARY, root / "libslowlib.so")


def test_chroot() -> None:
    root = scratch()
    _copy_with_libraries(PUPPET, root)
    target = start_puppet("/puppet", before=[need("chroot"), str(root)])
    with Session(
        "+/puppet:work_push delay=1ms\n+exe:work_nop delay=1ms\n+/libslowlib.so:lib_work delay=1ms",
        pid=target.pid,
    ):
        expect_slowed(target, "work_push", MS)
        expect_slowed(target, "work_nop", MS)
        target.ask("load /libslowlib.so")
        expect_slowed(target, "lib_work", MS)


@contextlib.contextmanager
def _in_mount_namespace(script: str):
    """A puppet started by a shell script in a mount namespace of its own; $PUPPET is the program,
    $FOLDER a folder that only it fills."""
    folder = scratch()
    unshare = need("unshare")
    probe = subprocess.run([unshare, "-m", "true"], capture_output=True, text=True)
    if probe.returncode:
        raise Skip(f"no mount namespaces: {probe.stderr.strip()}")
    environment = {**os.environ, "FOLDER": str(folder), "PUPPET": PUPPET, "LIBRARY": LIBRARY}
    target = start_puppet("-", before=[unshare, "-m", "sh", "-ec", script], env=environment)
    yield target, folder
    target.kill()


def test_mount_namespace() -> None:
    """The path that the target sees is a file that does not exist here."""
    script = 'mount -t tmpfs none $FOLDER; cp $PUPPET $FOLDER/p; cp $LIBRARY $FOLDER/l.so; exec $FOLDER/p'
    with _in_mount_namespace(script) as (target, folder):
        assert not (folder / "p").exists()
        with Session(
            f"+{folder}/p:work_push delay=1ms\n+{folder}/l.so:lib_work delay=1ms", pid=target.pid
        ) as session:
            assert {one["name"] for one in session.matched["targets"]} == {"work_push", "lib_work"}
            expect_slowed(target, "work_push", MS)
            target.ask(f"load {folder}/l.so")
            expect_slowed(target, "lib_work", MS)
        expect_unslowed(target, "work_push", MS)


def test_same_path_in_two_mount_namespaces_is_two_files() -> None:
    with _in_mount_namespace(
        "mount -t tmpfs none $FOLDER; cp $PUPPET $FOLDER/p; exec $FOLDER/p"
    ) as (inside, folder):
        shutil.copy(PUPPET, folder / "p")
        outside = start_puppet(str(folder / "p"))
        with Session(f"+{folder}/p:work_push delay=1ms", pid=inside.pid):
            expect_slowed(inside, "work_push", MS)
            expect_unslowed(outside, "work_push", MS)
            assert changed_bytes(outside.pid) == 0


def test_overlay() -> None:
    script = (
        "mount -t tmpfs none $FOLDER; cd $FOLDER; mkdir lower upper work merged; "
        "cp $PUPPET lower/p; cp $LIBRARY lower/l.so; "
        "mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged; "
        "exec $FOLDER/merged/p"
    )
    if "\toverlay\n" not in pathlib.Path("/proc/filesystems").read_text():
        raise Skip("the kernel has no overlay file system")
    with _in_mount_namespace(script) as (target, folder):
        with Session(
            f"+{folder}/merged/p:work_push delay=1ms\n+l.so:lib_work delay=1ms", pid=target.pid
        ):
            expect_slowed(target, "work_push", MS)
            target.ask(f"load {folder}/merged/l.so")
            await_slowed(target, "lib_work", MS)
            expect_slowed(target, "lib_work", MS)
            child = target.offspring("child")
            await_slowed(child, "work_push", MS)
            expect_slowed(child, "work_push", MS)
        expect_unslowed(target, "work_push", MS)


_TWO_MOUNTS = (
    "mount -t tmpfs none $FOLDER; cd $FOLDER; mkdir lower; cp $PUPPET lower/p; "
    "for one in a b; do mkdir $one up$one work$one; "
    "mount -t overlay o$one -o lowerdir=lower,upperdir=up$one,workdir=work$one $one; done; "
)


@contextlib.contextmanager
def _in_two_overlays():
    """A puppet in each of two mounts of one program, as containers of one image have them."""
    if "\toverlay\n" not in pathlib.Path("/proc/filesystems").read_text():
        raise Skip("the kernel has no overlay file system")
    with _in_mount_namespace(_TWO_MOUNTS + "exec $FOLDER/a/p") as (one, folder):
        enter = [need("nsenter"), "-t", str(one.pid), "-m"]
        yield one, start_puppet(str(folder / "b/p"), before=enter)


def test_each_call_counts_once_in_two_overlays_of_one_file() -> None:
    with _in_two_overlays() as (one, other):
        with Session("+exe:work_push delay=1ms", "--pid", str(other.pid), pid=one.pid) as session:
            # For longer than it takes until files that no outsider maps have wide probes.
            for _ in range(30):
                one.call("work_push", 10)
                other.call("work_push", 5)
                time.sleep(0.1)
            child = other.offspring("child")
            await_slowed(child, "work_push", MS)
            before = calls_now(session, "work_push")
            child.call("work_push", 10)
            final = session.stop()
    by_pid = calls_by_pid(final, "work_push")
    assert (by_pid[one.pid], by_pid[other.pid]) == (300, 150), by_pid
    assert calls(final, "work_push") == before + 10, by_pid
    assert delays(final, "work_push") == calls(final, "work_push"), final


def test_each_call_counts_once_in_two_overlays_where_probes_cannot_be_aimed() -> None:
    with _in_two_overlays() as (one, other):
        with Session("+exe:work_push delay=1ms", "--pid", str(other.pid), pid=one.pid,
                     without="uprobe_multi_pid") as session:
            one.call("work_push", 10)
            other.call("work_push", 5)
            final = session.stop()
    assert calls_by_pid(final, "work_push") == {one.pid: 10, other.pid: 5}, final
    assert delays(final, "work_push") == 15, final


def test_outsiders_in_another_overlay_of_the_file_pay_nothing() -> None:
    with _in_two_overlays() as (one, other):
        with Session("+exe:work_push delay=1ms", pid=one.pid):
            for _ in range(20):
                assert changed_bytes(other.pid) == 0
                time.sleep(0.1)
            expect_slowed(one, "work_push", MS)


def test_a_process_whose_main_thread_has_ended_is_told_of() -> None:
    """/proc shows nothing of its memory, and the kernel probes nothing there."""
    program = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "print(flush=True)\n"
        f"ctypes.CDLL(None).syscall({60 if platform.machine() == 'x86_64' else 93}, 0)\n"
    )
    started = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    leave_none(lambda: (started.kill(), started.wait()))
    started.stdout.readline()
    state = pathlib.Path(f"/proc/{started.pid}/stat")
    wait_for(lambda: state.read_text().rpartition(")")[2].split()[0] == "Z", 10, "its main thread's end")
    other = start_puppet()
    with Session(
        "+*:malloc delay=0ns\n+exe:work_push delay=0ns", "--pid", str(started.pid), pid=other.pid
    ) as session:
        said = f"process {started.pid} ("
        wait_for(lambda: any(said in one for one in session.warnings), 10, "a word")
    assert any(said in one and "its main thread has ended" in one for one in session.warnings)
    done = Run("attach", "--pid", str(started.pid), targets_file("+*:malloc delay=0ns"))
    assert done.status != 0 and "its main thread has ended" in done.err, done
    assert "zombie" not in done.err and "matches" not in done.err, done


def test_hard_links_and_symbolic_links_are_one_file() -> None:
    folder = scratch()
    shutil.copy(PUPPET, folder / "one")
    os.link(folder / "one", folder / "two")
    (folder / "three").symlink_to("two")
    target = start_puppet(str(folder / "three"))
    with Session("+*/two:work_push delay=1ms", pid=target.pid):
        expect_slowed(target, "work_push", MS)


def test_check_lists_what_a_process_maps_and_attaches_nothing() -> None:
    target = start_puppet()
    done = Run("check", "--json", "--pid", str(target.pid), targets_file("+exe:work_*\n"))
    assert done.status == 0, done
    names = [one["name"] for one in done.final()["lines"][0]["matches"]]
    assert sorted(names) == ["work_late", "work_nop", "work_push", "work_step"], names
    assert changed_bytes(target.pid) == 0


if __name__ == "__main__":
    main(globals())
