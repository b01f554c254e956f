#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs a command where the root directory is what it is on a machine: a mount, whose mounts are nobody
else's, and which all users may enter.

  whole_root.py --check         status 1: it is not
  whole_root.py COMMAND...      in a mount namespace where it is; needs root

In a chroot it is a mere folder, often one for its owner alone: `unshare --mount` fails there, as it can't
make the mounts private, and so does every program of another user.
"""

import ctypes
import os
import stat
import sys

CLONE_NEWNS = 0x20000  # os.unshare() and os.setns() are there from Python 3.12 on
MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 1 << 12, 1 << 14, 1 << 18, 2
LIBC = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments) -> None:
    if getattr(LIBC, name)(*arguments):
        number = ctypes.get_errno()
        sys.exit(f"whole_root: {name}{arguments}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags),
         options.encode())


def is_whole() -> bool:
    with open("/proc/self/mountinfo") as lines:
        is_mount = any(line.split()[4] == "/" for line in lines)
    return is_mount and bool(os.stat("/").st_mode & stat.S_IXOTH)


def enter() -> None:
    folder = os.getcwd()
    call("unshare", CLONE_NEWNS)
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    # Into the namespace that it is in already, which leads to the namespace's own root.
    call("setns", os.open("/proc/self/ns/mnt", os.O_RDONLY), CLONE_NEWNS)
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    old = os.readlink(f"/proc/self/fd/{here}")
    new = os.path.join(old, "mnt")  # empty by convention, and covered in this namespace alone
    mount("root", new, "tmpfs", options="mode=755")
    for entry in os.scandir(old):
        place = os.path.join(new, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), place)
            continue
        if entry.is_dir():
            os.mkdir(place)
        else:
            open(place, "w").close()
        if entry.path != new:
            mount(entry.path, place, flags=MS_BIND | MS_REC)
    os.close(here)
    os.chdir(new)
    call("pivot_root", b".", b".")  # the old one lies over the new one now (pivot_root(2))
    call("umount2", b".", MNT_DETACH)
    os.chdir(folder)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if is_whole() else 1)
    if not sys.argv[1:]:
        sys.exit(__doc__)
    enter()
    os.execvp(sys.argv[1], sys.argv[1:])
