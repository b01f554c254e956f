#!/bin/bash
# SPDX-License-Identifier: MIT
# Builds a small kernel from the distribution's source package that finds mistakes in the module:
# KASAN, lockdep, sleeping in atomic context, leaks, undefined behaviour. Takes tens of minutes.
#
#   scripts/debug_kernel.sh VERSION [FOLDER]     VERSION: 6.1 or 6.12; FOLDER: build/vm/debug-VERSION
#
# Prints the folder, which tests/kmod/run.sh and scripts/vm.sh take in place of a version. A folder
# that is complete is used as it is. It needs the packages of `scripts/setup.sh vm` and some 2 GB.
set -euo pipefail

version=${1:?usage: debug_kernel.sh VERSION [FOLDER]}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${2:-$root/build/vm/debug-$version}
if [ -e "$folder/complete" ]; then
    echo "$folder"
    exit 0
fi
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
source=$folder/headers/build

# What the tests and the machine around them use.
needed=(
    64BIT SMP PCI ACPI TTY PRINTK EARLY_PRINTK SERIAL_8250 SERIAL_8250_CONSOLE BLK_DEV_INITRD
    BINFMT_ELF BINFMT_SCRIPT MULTIUSER FUTEX EPOLL SIGNALFD TIMERFD EVENTFD POSIX_TIMERS FILE_LOCKING
    ADVISE_SYSCALLS MEMBARRIER AIO COREDUMP ELF_CORE INOTIFY_USER HIGH_RES_TIMERS PROC_FS PROC_KCORE PROC_SYSCTL SYSCTL
    SYSFS DEVTMPFS TMPFS SHMEM DEBUG_FS BLOCK NET UNIX INET NAMESPACES PID_NS USER_NS UTS_NS CGROUPS
    MEMCG CPUSETS MODULES MODULE_UNLOAD PERF_EVENTS FTRACE UPROBE_EVENTS KALLSYMS BUG UNIX98_PTYS
    TRANSPARENT_HUGEPAGE CHECKPOINT_RESTORE PREEMPT IKCONFIG PROC_PAGE_MONITOR RSEQ
    HYPERVISOR_GUEST PARAVIRT HPET_TIMER X86_TSC
)
# What finds mistakes.
checks=(
    DEBUG_KERNEL DEBUG_BUGVERBOSE KASAN KASAN_GENERIC KASAN_OUTLINE KASAN_VMALLOC PROVE_LOCKING
    PROVE_RCU DEBUG_ATOMIC_SLEEP DEBUG_LIST DEBUG_PREEMPT DEBUG_OBJECTS DEBUG_OBJECTS_FREE
    DEBUG_OBJECTS_TIMERS DEBUG_OBJECTS_WORK DEBUG_OBJECTS_RCU_HEAD DEBUG_OBJECTS_PERCPU_COUNTER
    SLUB_DEBUG SLUB_DEBUG_ON DEBUG_VM SCHED_STACK_END_CHECK DEBUG_KMEMLEAK DETECT_HUNG_TASK
    SOFTLOCKUP_DETECTOR WQ_WATCHDOG UBSAN UBSAN_BOUNDS STACKTRACE UNWINDER_FRAME_POINTER
)

if [ ! -e "$source/Makefile" ]; then
    echo "debug_kernel.sh: fetching linux-source-$version" >&2
    (cd "$folder" && apt-get -q download "linux-source-$version" >&2)
    dpkg-deb --fsys-tarfile "$folder"/linux-source-*.deb |
        tar -xO "./usr/src/linux-source-$version.tar.xz" >"$folder/source.tar.xz"
    mkdir -p "$source"
    tar -xJf "$folder/source.tar.xz" -C "$source" --strip-components=1
    rm "$folder/source.tar.xz" "$folder"/linux-source-*.deb
fi

cd "$source"
make -s tinyconfig
enable=() without=()
for option in "${needed[@]}" "${checks[@]}"; do enable+=(--enable "$option"); done
scripts/config --disable CC_OPTIMIZE_FOR_SIZE --enable CC_OPTIMIZE_FOR_PERFORMANCE \
    --disable KASAN_INLINE --disable EMBEDDED --disable EXPERT --disable WERROR \
    --disable PREEMPT_NONE --module OVERLAY_FS \
    "${enable[@]}" --set-val DEBUG_KMEMLEAK_MEM_POOL_SIZE 40000 --set-val FRAME_WARN 2048
make -s olddefconfig
for option in "${checks[@]}"; do
    grep -q "^CONFIG_$option=y" .config || without+=("$option")
done
[ ${#without[@]} -eq 0 ] || echo "debug_kernel.sh: this kernel has no ${without[*]}" >&2

# The compiler's cache makes a second try short.
compiler=gcc
if command -v ccache >/dev/null; then compiler="ccache gcc"; fi
make -s -j"$(nproc)" CC="$compiler" bzImage modules >&2
make -s CC="$compiler" INSTALL_MOD_PATH="$folder/installed" modules_install >&2
cp arch/x86/boot/bzImage "$folder/vmlinuz"
rm -rf "$folder/modules"
mv "$folder"/installed/lib/modules/* "$folder/modules"
rm -rf "$folder/installed"
touch "$folder/complete"
echo "$folder"
