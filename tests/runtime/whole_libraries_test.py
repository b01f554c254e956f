# SPDX-License-Identifier: MIT
"""Whole libraries probed with a delay of 0, in programs of others that check their own results.

A program tells the digest of what it has done for each line that it reads (tests/programs/checked).
Beside probes on all functions of its libraries that must be what it is without, and SIGTERM must end
it as it would have.
"""

import functools
import pathlib
import shutil
import subprocess

import services
from checked import CHECKED, Program, all_probed, compare
from harness import Skip, campaign, main, need, scratch

C_LIBRARIES = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1")
RUNS = 20  # of each program, in the campaign
GENERATORS = [f"test_generators.{case}" for case in
              ("FinalizationTest", "GeneratorTest", "ExceptionTest", "YieldFromTests")]


# --- the programs


def numpy() -> Program:
    command = [services.PYTHON, str(CHECKED / "matrices.py")]
    if subprocess.run([services.PYTHON, "-c", "import numpy"], stderr=subprocess.DEVNULL).returncode:
        raise Skip("NumPy is not installed")
    return Program(command, (*C_LIBRARIES, "libblas.so*", "liblapack.so*", "libopenblas*.so*",
                             "libgfortran.so*"))


def perl() -> Program:
    return Program([need("perl"), str(CHECKED / "text.pl")],
                   (*C_LIBRARIES, "exe", "libperl.so*", "libcrypt.so*"))


def ruby() -> Program:
    return Program([need("ruby"), str(CHECKED / "objects.rb")],
                   (*C_LIBRARIES, "libruby*.so*", "libgmp.so*", "libz.so*"))


def node() -> Program:
    return Program([need("node"), str(CHECKED / "events.js")],
                   (*C_LIBRARIES, "libcrypto.so*", "libssl.so*", "libuv.so*", "libz.so*"))


@functools.cache
def _compiled(compiler: str, source: str) -> pathlib.Path:
    folder = scratch()
    command = {
        "javac": ["javac", "-d", folder, CHECKED / source],
        "go": ["go", "build", "-o", folder / "routines", CHECKED / source],
    }[compiler]
    need(compiler)
    done = subprocess.run(command, capture_output=True, text=True,
                          env={"PATH": "/usr/bin:/bin", "HOME": str(folder)})
    if done.returncode:
        raise Skip(f"{compiler} can't make it: {done.stderr.strip()}")
    return folder


def java() -> Program:
    return Program([need("java"), "-XX:+UseSerialGC", "-cp", str(_compiled("javac", "Machine.java")),
                    "Machine"],
                   (*C_LIBRARIES, "libjvm.so", "libjava.so", "libzip.so", "libz.so*"))


def go() -> Program:
    return Program([str(_compiled("go", "routines.go") / "routines")], (*C_LIBRARIES, "exe"))


def php() -> Program:
    return Program([need("php"), str(CHECKED / "pages.php")],
                   (*C_LIBRARIES, "exe", "libpcre2-8.so*", "libcrypto.so*"))


@functools.cache
def _own_libraries(program: str) -> pathlib.Path:
    """A folder with copies of its libraries: files that nobody else maps are probed for all at once.
    Of those that other tests map, too, programs that live for milliseconds would be missed
    (docs/targets-file.md, new processes)."""
    done = subprocess.run(["ldd", need(program)], capture_output=True, text=True, check=True)
    folder = scratch() / f"libraries-of-{program}"
    folder.mkdir()
    for line in done.stdout.splitlines():
        if "=>" in line:
            shutil.copy(line.split("=>")[1].split()[0], folder)
    return folder


def _short_lived(program: str, script: str, rounds: int) -> Program:
    """A script of bash that starts the program for each line, all of them with the copies."""
    libraries = _own_libraries(program)
    return Program(["env", f"LD_LIBRARY_PATH={libraries}", "/bin/bash", str(CHECKED / script)],
                   tuple(str(path) for path in sorted(libraries.iterdir())), rounds)


def openssl() -> Program:
    return _short_lived("openssl", "ciphers.sh", rounds=3)


def sqlite() -> Program:
    return _short_lived("sqlite3", "tables.sh", rounds=1)


def cpython(*tests: str) -> Program:
    """CPython's own tests, of generators if none are named, beside probes on all of the interpreter."""
    for python in (services.PYTHON, *pathlib.Path.home().glob(".pyenv/versions/*/bin/python3")):
        has_tests = subprocess.run([python, "-c", "import test.test_generators"],
                                   stderr=subprocess.DEVNULL)
        if has_tests.returncode == 0:
            return Program([str(python), str(CHECKED / "standard_library.py"), *(tests or GENERATORS)],
                           (*C_LIBRARIES, "exe", "libpython*.so*"), rounds=1)
    raise Skip("no Python here has its own tests (the package test)")


def cpython_with_doctests() -> Program:
    """The whole module: its doctests, of which one is a knight's tour, take minutes."""
    return cpython("test_generators")


def test_numpy() -> None:
    compare(numpy())


def test_perl() -> None:
    compare(perl())


def test_ruby() -> None:
    compare(ruby())


def test_node() -> None:
    compare(node())


def test_java() -> None:
    compare(java())


def test_go() -> None:
    compare(go())


def test_php() -> None:
    compare(php())


def test_openssl() -> None:
    compare(openssl())


def test_sqlite() -> None:
    compare(sqlite())


def test_cpython() -> None:
    compare(cpython())


def test_redis() -> None:
    """Its own digest of all its data, after the same commands."""
    compare_redis()


def compare_redis(*options: str) -> None:
    def answers(service) -> str:
        def tell(*command: str) -> str:
            done = subprocess.run([need("redis-cli"), "-p", str(service.port), *command],
                                  capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            return done.stdout

        tell("flushall")
        lines = [f"set k{i} {'v' * (i % 100)}{i}\nlpush l{i % 9} {i * 7919}\nzadd z {i * 37 % 101} m{i}"
                 f"\nhset h{i % 5} f{i} {i / 7}\nsadd s{i % 3} {i}\nappend k{i % 50} x\nincr n"
                 for i in range(100)]
        done = subprocess.run(["redis-cli", "-p", str(service.port)], input="\n".join(lines),
                              capture_output=True, text=True, timeout=60)
        script = "local t = {} for i = 1, 99 do t[i] = cjson.encode({i, i / 3}) end " \
                 "return redis.sha1hex(table.concat(t))"
        return (done.stdout + tell("eval", script, "0") + tell("sort", "l3", "desc")
                + tell("zrangebyscore", "z", "3", "80", "withscores") + tell("debug", "digest"))

    with services.redis("--enable-debug-command", "local") as plain:
        reference = answers(plain)
    with services.redis("--enable-debug-command", "local") as service:
        with all_probed((*C_LIBRARIES, "exe"), service.pid, *options):
            for _ in range(3):
                assert answers(service) == reference
        assert answers(service) == reference


@campaign
def test_twenty_runs_of_each() -> None:
    for make in (numpy, perl, ruby, node, java, go, php, openssl, sqlite, cpython_with_doctests):
        try:
            program = make()
        except services.Missing as reason:
            print(f"SKIP {make.__name__}: {reason}", flush=True)
            continue
        for run in range(RUNS):
            print(f"{make.__name__} {run + 1}", flush=True)
            compare(program)
    for run in range(RUNS):
        print(f"redis {run + 1}", flush=True)
        compare_redis()


if __name__ == "__main__":
    main(globals())
