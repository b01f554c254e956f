# SPDX-License-Identifier: MIT
"""speed_bump.native: the commands it writes, and the BPF engine where there is no module."""

import os
import pathlib

import pytest


def test_commands_of_the_kernel_module(python):
    result = python.script(
        """
        import json, os
        from speed_bump import native
        print(json.dumps([
            native.format_add_spec("/usr/bin/x", "f", 1000, pid=12),
            native.format_add_spec("/usr/bin/x", "f", 1000) ==
                f"+/usr/bin/x:f 1000 pid={os.getpid()}",
            native.format_add_spec("/usr/bin/x", "f", 0, pid=1),
            native.format_remove_spec("/usr/bin/x", "f")]))
        """
    )
    assert result == ["+/usr/bin/x:f 1000 pid=12", True, "+/usr/bin/x:f 0 pid=1", "-/usr/bin/x:f"]


def test_module_is_written_to(python):
    written = python.file("targets", "")
    result = python.script(
        f"""
        import json
        from speed_bump import native
        native.SYSFS_TARGETS = {written!r}
        states = [native.is_available()]
        try:
            with native.probe("/usr/bin/x", "f", delay_ns=100, pid=123):
                states.append(open({written!r}).read())
                raise KeyError("x")
        except KeyError:
            states.append(open({written!r}).read())
        native.SYSFS_TARGETS = "/nowhere/targets"
        print(json.dumps(states + [native.is_available()]))
        """
    )
    assert result == [True, "+/usr/bin/x:f 100 pid=123", "-/usr/bin/x:f", False]


def test_without_module_and_command_it_says_so(python):
    if os.path.exists("/sys/kernel/speed_bump"):
        pytest.skip("the kernel module is loaded")
    message = python.script(
        """
        import json
        from speed_bump import native
        try:
            native.add_probe("/usr/bin/x", "f", 1)
        except FileNotFoundError as error:
            print(json.dumps(str(error)))
        """,
        PATH="/nowhere:/usr/bin:/bin:/usr/sbin:/sbin",
    )
    assert "no kernel module" in message and "speedbump" in message


def test_bpf_engine_slows_this_process(python, pytestconfig):
    table = pathlib.Path(pytestconfig.getoption("--interpreters"))
    command = table.resolve().parents[1] / "speedbump"
    if not command.exists():
        pytest.skip(f"{command} is not built")
    if os.geteuid() != 0 or python.name.startswith("sid-"):
        pytest.skip("needs root, and the command in the same root folder")
    result = python.script(
        """
        import json, os, time
        from speed_bump import native
        libc = next(line.split()[-1] for line in open("/proc/self/maps") if "/libc.so" in line)
        def took():
            begin = time.perf_counter()
            for _ in range(20):
                os.getppid()
            return time.perf_counter() - begin
        times = [took()]
        with native.probe(libc, "getppid", delay_ns=2000000):
            times.append(took())
        times.append(took())
        try:
            native.add_probe(libc, "no_such_symbol", 1)
        except OSError as error:
            message = str(error)
        print(json.dumps([times, message]))
        """,
        SPEEDBUMP=str(command),
    )
    (before, during, after), message = result
    assert during >= 0.04 > max(before, after)
    assert "matches nothing" in message
