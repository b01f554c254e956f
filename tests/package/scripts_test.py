# SPDX-License-Identifier: MIT
"""What the scripts behind packages and roots do on a host that lacks something, and when a step fails.

scripts_test.py BUILD       Status 77: skipped, with the reason.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

BUILD = pathlib.Path(sys.argv[1])
SOURCE = pathlib.Path(__file__).resolve().parents[2]
HERE = SOURCE / "tests/package"
SKIPPED = 77


def run(*command: object, **options) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
                          **options)


def expect(status: int, words: str, *command: object, **options) -> None:
    done = run(*command, **options)
    assert done.returncode == status and words in done.stdout, (command, done.returncode, done.stdout)


def put_before(folder: pathlib.Path, name: str, script: str) -> dict[str, str]:
    """An environment in which a program, and each that was put there before, is a script instead."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def command_of(name: str) -> list[str]:
    """What CTest runs as this test."""
    listed = run("ctest", "--test-dir", BUILD, "--show-only=json-v1", "-R", "^package[.]").stdout
    tests = json.loads(listed[listed.index("{"):])["tests"]
    return next(test["command"] for test in tests if test["name"] == name)


def test_the_archives_test_without_rights(folder: pathlib.Path) -> None:
    command = command_of("package.archive")
    test = next(index for index, word in enumerate(command) if word.endswith("archive_test.py"))
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    if run(*as_nobody, "test", "-r", command[test]).returncode:
        print("nobody can't read the sources: not tried as that user")
    else:
        expect(SKIPPED, "SKIP: not root", *as_nobody, *command)
    command[test + 1] = str(folder / "any.tar.gz")
    (folder / "any.tar.gz").touch()
    expect(SKIPPED, "SKIP: no mount namespace", "setpriv", "--bounding-set=-sys_admin", *command)


def without_sources(folder: pathlib.Path) -> dict[str, str]:
    """The environment of a host on which the static libraries can't be built."""
    return {**put_before(folder, "dpkg-query", "exit 1"), "XDG_CACHE_HOME": str(folder / "cache")}


def test_no_archive_without_its_libraries(folder: pathlib.Path) -> None:
    for name in ("scripts", "CMakeLists.txt"):
        (shutil.copytree if name == "scripts" else shutil.copy)(SOURCE / name, folder / name)
    archive = pathlib.Path(command_of("package.symbols.archive")[-1])
    old = folder / "build" / archive.name
    old.parent.mkdir()
    old.touch()
    environment = {**without_sources(folder), "SOURCE_DATE_EPOCH": "1"}
    expect(SKIPPED, "SKIP", folder / "scripts/archive.sh", "build", env=environment)
    assert not old.exists()
    expect(SKIPPED, f"SKIP: no {old}", sys.executable, HERE / "symbols.py", "archive", old)
    expect(SKIPPED, "SKIP: no /no/core.so", sys.executable, HERE / "symbols.py", "core", "/no/core.so")


def test_nothing_to_build_again_without_its_libraries(folder: pathlib.Path) -> None:
    if run("git", "-C", SOURCE, "rev-parse").returncode:
        print("not a clone: not tried")
        return
    expect(SKIPPED, "SKIP", HERE / "reproducible_test.sh", folder, "core", env=without_sources(folder))


def with_roots(folder: pathlib.Path, text: str, **environment: str) -> subprocess.CompletedProcess:
    return run("bash", "-euo", "pipefail", "-c", f". '{SOURCE}/scripts/debian-root.sh'\n{text}",
               env={**os.environ, **environment, "XDG_CACHE_HOME": str(folder / "cache")})


def test_a_root_that_could_not_be_kept(folder: pathlib.Path) -> None:
    """As on a full disk: what was packed in part is not taken for a root by the next one."""
    root = folder / "root"
    root.mkdir()
    put_before(folder, "debootstrap", f"mkdir '{root}/etc'")
    environment = put_before(folder, "tar",
                             'while [ "$1" != -cf ]; do shift; done; echo part >"$2"; exit 2')
    made = with_roots(folder, f"make_root anysuite '{root}' || echo failed", **environment)
    assert made.stdout == "failed\n", made.stdout
    assert not (folder / "cache/speedbump/root-anysuite.tar").exists()


def test_a_place_that_is_not_there_is_not_bound(folder: pathlib.Path) -> None:
    busybox = pathlib.Path("/bin/busybox")
    if not busybox.exists():
        print("no busybox here: in_root not tried")
        return
    root = folder / "root"
    for name in ("bin", "usr/bin", "proc", "sys", "dev", "var/cache/apt/archives"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / "bin/busybox")
    (root / "usr/bin/env").symlink_to("/bin/busybox")
    (folder / "there").mkdir()
    (folder / "there/file").touch()
    done = with_roots(folder, f"in_root '{root}' --bind-try '{folder}/absent' srv/absent "
                              f"--bind-try '{folder}/there' srv/there /bin/busybox find /srv")
    assert done.stdout.splitlines() == ["/srv", "/srv/there", "/srv/there/file"], done.stdout


def test_an_upgrade_by_rpm_leaves_one_version_to_dkms(folder: pathlib.Path) -> None:
    """In rpm's order: the new %post, called with 2, then the old %preun, with 1."""
    if not shutil.which("dkms") or not pathlib.Path("/var/lib/dkms").exists():
        print("no dkms here: an upgrade not tried")
        return
    for script in ("postinst", "prerm"):
        text = (SOURCE / f"scripts/packages/dkms/{script}.in").read_text()
        for version in ("0.0.8", "0.0.9", "0.1.0"):
            (folder / f"{script}-{version}").write_text(text.replace("@module_version@", version))
    done = run("unshare", "--mount", "--propagation", "private", "bash", "-euc", """
        for place in /var/lib/dkms /usr/src /lib/modules; do
            [ ! -d $place ] || mount -t tmpfs tmpfs $place
        done
        install_version() {
            mkdir /usr/src/speed-bump-$1
            cp "$0"/kmod/{Kbuild,Makefile,dkms.conf,*.[ch]} /usr/src/speed-bump-$1
            sed -i "s/^PACKAGE_VERSION=.*/PACKAGE_VERSION=\\"$1\\"/" /usr/src/speed-bump-$1/dkms.conf
        }
        cd "$1"
        install_version 0.0.8
        sh postinst-0.0.8 1
        install_version 0.0.9
        dkms add speed-bump/0.0.9 # left behind by an upgrade before
        install_version 0.1.0
        sh postinst-0.1.0 2
        sh prerm-0.0.8 1
        echo
        echo then: $(dkms status | cut -d: -f1)
        sh prerm-0.1.0 0
        echo at last: $(dkms status)
        """, SOURCE, folder)
    lines = done.stdout.splitlines()
    assert "then: speed-bump/0.1.0" in lines and lines[-1] == "at last:", done.stdout


def fake_kernel(folder: pathlib.Path, release: str) -> pathlib.Path:
    """A folder with an image that has the boot protocol's kernel_version, and nothing else."""
    image = bytearray(0x400)
    image[0x20e:0x210] = (0x100).to_bytes(2, "little")
    banner = f"{release} (builder@host) #1 SMP".encode() + b"\0"
    image[0x300:0x300 + len(banner)] = banner
    folder.mkdir(exist_ok=True)
    (folder / "vmlinuz").write_bytes(image)
    return folder


def test_processors_by_image_and_emulator(folder: pathlib.Path) -> None:
    if run(SOURCE / "scripts/vm.sh", "--check").returncode:
        print("no virtual machines here: not tried")
        return
    for name, release, version, kvm, processors in (
            ("linux-6.1.50-debug", "6.1.50-debug", "7.2.22 (Debian 1:7.2+dfsg-7)", "0", "1"),
            ("mine", "6.1.0-9", "8.0.5", "0", "1"), ("not-6.1", "6.12.1", "7.2.22", "0", "2"),
            ("linux-6.10.3", "6.10.3", "7.2.22", "0", "2"), ("newer", "7.2.13", "7.2.22", "0", "1"),
            ("mine", "6.1.0-9", "8.1.0", "0", "2"), ("newer", "7.2.13", "10.0.2", "0", "2"),
            ("newer", "7.2.13", "7.2.22", "1", "2")):
        kernel = fake_kernel(folder / name, release)
        environment = put_before(
            folder, "qemu-system-x86_64",
            f'[ "$1" != --version ] || {{ echo "QEMU emulator version {version}"; exit; }}\n'
            f'while [ "$1" != -smp ]; do shift; done; echo "$2" >"{folder}/smp"')
        run(SOURCE / "scripts/vm.sh", kernel, "--", "true", env={**environment, "SPEEDBUMP_VM_KVM": kvm})
        assert (folder / "smp").read_text().strip() == processors, (release, version, kvm)


def test_services_that_are_missing(folder: pathlib.Path) -> None:
    environment = {**os.environ, "SPEEDBUMP_BINARY": str(BUILD / "speedbump"),
                   "SPEEDBUMP_PROGRAMS": str(BUILD / "programs"), "PATH": str(folder)}
    expect(SKIPPED, "SKIP: redis-server is not installed", sys.executable,
           SOURCE / "tests/runtime/soak.py", "1", env=environment)
    # a host on which a whole campaign is skipped
    (folder / "SOURCE/scripts").mkdir(parents=True)
    (folder / "SOURCE/tests/runtime").mkdir(parents=True)
    shutil.copy(SOURCE / "scripts/soak.sh", folder / "SOURCE/scripts")
    (folder / "SOURCE/tests/runtime/soak.py").write_text("print('SKIP: nothing'); raise SystemExit(77)")
    expect(SKIPPED, "SKIP: this host", folder / "SOURCE/scripts/soak.sh", "--minutes", "1", "services")


def test_without_home(_: pathlib.Path) -> None:
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("HOME", "XDG_CACHE_HOME")}
    expect(0, "usage:", SOURCE / "scripts/vm.sh", "--help", env=environment)
    # What a script under `set -u` says of HOME it says of an unset one, too.
    for place in ("scripts", "tests"):
        for script in (SOURCE / place).rglob("*.sh"):
            assert not re.search(r"\$HOME\b|\$\{HOME\}", script.read_text()), script


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("SKIP: not root")
        raise SystemExit(SKIPPED)
    chosen = sys.argv[2:]
    for name, test in list(globals().items()):
        if name.startswith("test_") and (not chosen or name in chosen):
            with tempfile.TemporaryDirectory(prefix="speedbump-package-") as scratch:
                os.chmod(scratch, 0o755)
                test(pathlib.Path(scratch))
            print(f"{name}: good", flush=True)
