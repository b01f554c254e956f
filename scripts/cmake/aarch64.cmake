# SPDX-License-Identifier: MIT
# Toolchain of `cmake --preset aarch64`: Debian's cross compiler, with the libraries and headers of
# build/arm64-root (scripts/arm64-root.sh). Tests run in qemu's user emulation.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

get_filename_component(arm64_root ${CMAKE_CURRENT_LIST_DIR}/../../build/arm64-root REALPATH)
if(NOT EXISTS ${arm64_root}/newer/linux/bpf.h)
    message(FATAL_ERROR "no build/arm64-root: scripts/setup.sh aarch64 makes it")
endif()
set(CMAKE_SYSROOT ${arm64_root})
set(SPEEDBUMP_PYTHON_ROOTS arm64-python-*) # beside it, of newer Debians (arm64-root.sh trixie, sid)
set(CMAKE_C_FLAGS_INIT "-isystem ${arm64_root}/newer")
set(CMAKE_CXX_FLAGS_INIT "-isystem ${arm64_root}/newer")
set(CMAKE_FIND_ROOT_PATH ${arm64_root})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${arm64_root})
set(ENV{PKG_CONFIG_LIBDIR} ${arm64_root}/usr/lib/aarch64-linux-gnu/pkgconfig:${arm64_root}/usr/share/pkgconfig)

find_program(qemu_aarch64 NAMES qemu-aarch64-static qemu-aarch64)
if(qemu_aarch64)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${qemu_aarch64} -L ${arm64_root})
endif()
