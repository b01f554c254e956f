# SPDX-License-Identifier: MIT
"""Packs what a small machine needs to run this Python into a folder: python_zip.py FOLDER [ROOT].

FOLDER gets bin/python3, the compiled library in one archive, and the modules that are libraries. With
ROOT the interpreter and library of the same version there: of another architecture."""

import pathlib
import shutil
import sys
import sysconfig
import zipfile

UNUSED = {"test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "pydoc_data",
          "distutils", "site-packages", "dist-packages", "config", "venv", "sqlite3"}


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    library, interpreter = pathlib.Path(sysconfig.get_path("stdlib")), pathlib.Path(sys.executable)
    if sys.argv[2:]:
        library = pathlib.Path(sys.argv[2], "usr", "lib", f"python{version}")
        interpreter = pathlib.Path(sys.argv[2], "usr", "bin", f"python{version}")
    target = folder / "usr" / "lib"
    shutil.rmtree(folder, ignore_errors=True)
    (target / f"python{version}").mkdir(parents=True)
    (folder / "usr" / "bin").mkdir()
    shutil.copy(interpreter.resolve(), folder / "usr" / "bin" / "python3")
    shutil.copytree(library / "lib-dynload", target / f"python{version}" / "lib-dynload")
    archive = target / f"python{version.replace('.', '')}.zip"
    with zipfile.PyZipFile(archive, "w", zipfile.ZIP_STORED, optimize=0) as packed:
        packed.writepy(str(library))
        for package in sorted(library.iterdir()):
            if (package / "__init__.py").exists() and package.name not in UNUSED:
                packed.writepy(str(package))


if __name__ == "__main__":
    main()
