#!/bin/bash
# SPDX-License-Identifier: MIT
# Boots one of the distribution's kernels in QEMU (software emulation where there is no KVM) and runs
# a command in it. Nothing is installed: packages are fetched and unpacked into a cache folder.
set -euo pipefail
shopt -s inherit_errexit
PATH=$PATH:/usr/sbin:/sbin

usage() {
    cat <<'TEXT'
usage: vm.sh KERNEL [OPTION...] -- COMMAND [ARG...]
       vm.sh KERNEL --fetch          fetch and unpack image, modules and headers, print the folder
       vm.sh KERNEL --make FOLDER [ARG...]   build the module in FOLDER for that kernel, by its Kbuild
       vm.sh --check [MACHINE]       status 0 when everything needed is there, else says what is not

KERNEL is a version of the distribution's kernels (6.1, 6.12: the newest package of it), `sid` for the
newest of Debian sid (needs root and debootstrap), or a folder that has `vmlinuz` and may have
`modules/`. The machine is what the image is for, x86-64 or aarch64. Of an image for aarch64 that is
alone, modules and headers are fetched by its version where they are asked for.

  --add FILE[:DEST]   a file or folder for the machine, with the shared libraries that it needs;
                      DEST is its path there, or its folder with a trailing slash (default: its own
                      path). Repeatable.
  --root FOLDER       where busybox and libraries of another architecture are (arm64-root.sh)
  --module NAME       load this module of the kernel, and what it depends on, first. Repeatable.
  --append TEXT       more words for the kernel's command line. Repeatable.
  --cpus N            (2; 6.1 and 7.x in a QEMU before 8.1: 1)    --memory MIB  (1024)
  --timeout SECONDS   (1200) of the machine's own clock; of the host at most as much CPU time, and
                      3 times that by its clock
  --log FILE          keep the console there (it is shown when the run fails)

COMMAND runs as root in a machine that has busybox and what was added, with /proc, /sys, /dev, /tmp,
debugfs and tracefs mounted and a loopback device. Exit status: the command's; 125 when the machine
did not boot, hung, or crashed, or when its kernel warned about anything; 127: something is missing.
Kernels are kept in the user's cache ($XDG_CACHE_HOME/speedbump/vm) until it is emptied.
Environment: SPEEDBUMP_VM_CACHE, another folder for them; SPEEDBUMP_VM_KVM=1 uses /dev/kvm.
TEXT
}

cache=${SPEEDBUMP_VM_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/speedbump/vm}
flavour=amd64

fail() {
    echo "vm.sh: $*" >&2
    exit 127
}

# What the host lacks, one word a line.
missing() {
    local tool qemu=qemu-system-x86_64:qemu-system-x86
    [ "$machine" = x86_64 ] || qemu=qemu-system-$machine:qemu-system-arm
    for tool in "$qemu" cpio:cpio dpkg-deb:dpkg apt-get:apt ldd:libc-bin \
        depmod:kmod; do
        command -v "${tool%%:*}" >/dev/null || echo "${tool##*:}"
    done
    # that of another machine is in its root
    [ "$machine" != x86_64 ] && [ -z "$root" ] || find_busybox >/dev/null || echo busybox-static
}

# A busybox that needs no library.
find_busybox() {
    local candidate
    for candidate in "$root/bin/busybox" "$root/usr/bin/busybox"; do
        if [ -x "$candidate" ] && [ -z "$(libraries_of "$candidate")" ]; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

# The newest package linux-image-VERSION.* of the plain flavour; nothing where there is none.
image_package() {
    apt-cache search --names-only "^linux-image-${1//./\\.}[.][0-9].*-$flavour\$" 2>/dev/null |
        awk '{print $1}' | grep -Ev -- '-(cloud|rt)-|unsigned' | sort -V | tail -1 || true
}

# fetch VERSION: prints the folder with vmlinuz, modules/ and what builds modules for that kernel.
fetch() {
    local version=$1 dir=$cache/$1
    # what was fetched once is used until the cache is emptied: no network, and always the same kernel
    if [ ! -e "$dir/complete" ]; then
        mkdir -p "$cache"
        exec 9>"$cache/$version.lock"
        flock 9
        if [ ! -e "$dir/complete" ]; then
            work=$(mktemp -d "$cache/fetch.XXXXXX")
            trap 'rm -rf "$work"' EXIT # of the subshell that this runs in
            rm -rf --one-file-system "$dir"
            case $version in
            sid) fetch_sid "$work" ;;
            *-arm64) fetch_arm64 "$version" "$work" ;;
            *) fetch_packages "$version" "$work" ;;
            esac
            touch "$dir/complete"
        fi
        exec 9>&-
    fi
    echo "$dir"
}

# From the packages that the host's own apt knows.
fetch_packages() {
    local version=$1 work=$2 image release common kbuild
    image=$(image_package "$version")
    [ -n "$image" ] || fail "no package linux-image-$version.*-$flavour (apt-get update? backports?)"
    release=${image#linux-image-}
    echo "vm.sh: fetching $image and its headers" >&2
    common=linux-headers-${release%-"$flavour"}-common
    kbuild=$(apt-cache depends "linux-headers-$release" 2>/dev/null |
        awk '$2 ~ /^linux-kbuild/ && !found {print $2; found = 1}')
    (cd "$work" && apt-get -q download "$image" "linux-headers-$release" "$common" "$kbuild" >&2) ||
        fail "can't fetch the packages of $release"
    keep_packages "$work" "$release"
}

# fetch_arm64 RELEASE WORK: that one and no other, whose image somebody has. What runs while modules are
# built (linux-kbuild) is the host's, or in a root of sid.
fetch_arm64() {
    local release=$1 work=$2 headers=linux-headers-$1 apt kbuild version
    # shellcheck source=scripts/arm64-apt.sh
    . "$(dirname "${BASH_SOURCE[0]}")/arm64-apt.sh"
    echo "vm.sh: fetching linux-image-$release and its headers" >&2
    arm64_apt "$work/apt" ""
    version=$(apt-cache "${apt[@]}" show "$headers" 2>/dev/null |
        awk '/^Version: / && !found {print $2; found = 1}' || true)
    if [ -z "$version" ]; then
        fetch_sid "$work" "$release"
        return
    fi
    kbuild=$(apt-cache "${apt[@]}" depends "$headers" |
        awk '$2 ~ /^linux-kbuild/ && !found {print $2; found = 1}')
    (cd "$work" && apt-get -q "${apt[@]}" download "linux-image-$release" "$headers" \
        "${headers%-arm64}-common" >&2 && apt-get -q download "$kbuild=$version" >&2) ||
        fail "can't fetch the packages of $release, and $kbuild $version of this host"
    keep_packages "$work" "$release"
}

# keep_packages WORK RELEASE: takes a kernel and what builds its modules out of the packages in WORK.
keep_packages() {
    local work=$1 release=$2 deb
    for deb in "$work"/*.deb; do
        dpkg-deb -x "$deb" "$work/tree"
        rm "$deb"
    done
    # the headers name each other by where the package would have put them
    sed -i "s|/usr/src/|$dir/headers/src/|" "$work/tree/usr/src/linux-headers-$release/Makefile"
    # without it a module gets no BTF, and building it needs no pahole
    rm -f "$work/tree/usr/src/linux-headers-$release/vmlinux"
    keep_image "$work/tree" "$release"
    mkdir -p "$dir/headers/lib"
    mv "$work/tree/usr/src" "$dir/headers/src"
    move_kbuild "$work/tree/usr" "$dir/headers"
    ln -s "src/linux-headers-$release" "$dir/headers/build"
}

# fetch_sid WORK [RELEASE]: the newest kernel, or the one of arm64, from a root of sid: the host's apt need not
# know it, and the compiler and the tools that its headers bring run there and not here.
fetch_sid() {
    local work=$1 release=${2:-} machine='' needed=linux-headers-$flavour mirror deb
    command -v debootstrap >/dev/null || fail "sid needs debootstrap"
    [ "$(id -u)" = 0 ] || fail "sid needs root, to make a root of it"
    # shellcheck source=scripts/debian-mirror.sh
    . "$(dirname "${BASH_SOURCE[0]}")/debian-mirror.sh"
    [ -z "$release" ] || machine=:arm64 needed=linux-kbuild-${release%-arm64},gcc-aarch64-linux-gnu
    echo "vm.sh: making a root of sid" >&2
    debootstrap --variant=minbase --include="$needed,make" sid "$work/root" \
        ${mirror:+"$mirror"} >"$cache/sid.log" 2>&1 9>&- || # else debootstrap's own
        fail "debootstrap failed ($cache/sid.log)${release:+; of arm64 the newest kernels alone are there: make the root anew}"
    apt-config dump Acquire >"$work/root/etc/apt/apt.conf.d/00host"
    if [ -z "$release" ]; then
        release=$(basename "$work"/root/usr/src/linux-headers-*-"$flavour")
        release=${release#linux-headers-}
    fi
    # shellcheck disable=SC2016 # expanded there
    chroot "$work/root" sh -euc 'cd /tmp
        [ -z "$2" ] || dpkg --add-architecture arm64
        apt-get -q update
        parts=$(apt-cache depends "linux-image-$1$2" | sed -n "s/^  Depends: \(linux-.*$1\)\(:.*\)*\$/\1$2/p")
        [ -z "$2" ] || parts="$parts linux-headers-$1$2 linux-headers-${1%-*}-common"
        apt-get -q download "linux-image-$1$2" $parts' sh "$release" "$machine" >>"$cache/sid.log" 2>&1 ||
        fail "can't fetch linux-image-$release ($cache/sid.log)"
    for deb in "$work"/root/tmp/linux-headers-*.deb; do [ ! -e "$deb" ] || dpkg-deb -x "$deb" "$work/root"; done
    rm -f "$work"/root/tmp/linux-headers-*.deb
    for deb in "$work"/root/tmp/linux-*.deb; do dpkg-deb -x "$deb" "$work/tree"; done
    rm -f "$work"/root/tmp/linux-*.deb "$work"/root/var/cache/apt/archives/*.deb
    # without it a module gets no BTF, and building it needs no pahole
    [ -z "$machine" ] || rm -f "$work/root/usr/src/linux-headers-$release/vmlinux"
    [ -e "$work/tree/lib" ] || ln -s usr/lib "$work/tree/lib"
    keep_image "$work/tree" "$release"
    mv "$work/root" "$dir/root"
}

# keep_image TREE RELEASE: takes the kernel and its modules out of an unpacked package.
keep_image() {
    # installing the package would do this
    depmod -b "$1" "$2"
    mkdir -p "$dir"
    mv "$1/lib/modules/$2" "$dir/modules"
    # newer packages have it beside its modules
    mv "$1/boot/vmlinuz-$2" "$dir/vmlinuz" 2>/dev/null || mv "$dir/modules/vmlinuz" "$dir/vmlinuz"
    echo "$2" >"$dir/release"
}

# make_module FOLDER [ARG...]
make_module() {
    local folder inside status=0
    folder=$(readlink -f "$1")
    shift
    if [ "$(machine_of "$kernel/vmlinuz")" = aarch64 ]; then
        command -v aarch64-linux-gnu-gcc >/dev/null || fail "missing packages: gcc-aarch64-linux-gnu"
        set -- ARCH=arm64 CROSS_COMPILE=aarch64-linux-gnu- "$@"
    fi
    if [ ! -e "$kernel/root" ]; then
        make -C "$(readlink -f "$kernel/headers/build")" M="$folder" "$@" modules
        return
    fi
    inside=$(mktemp -d "$kernel/root/tmp/module.XXXXXX")
    cp -a "$folder/." "$inside"
    # objtool asks /proc for the limit of its stack
    # shellcheck disable=SC2016 # expanded there
    unshare --mount sh -c 'mount -t proc proc "$1/proc" && shift && exec chroot "$@"' sh "$kernel/root" \
        "$kernel/root" make -C "/usr/src/linux-headers-$(cat "$kernel/release")" \
        M="/tmp/$(basename "$inside")" "$@" modules || status=$?
    cp -a "$inside/." "$folder"
    rm -rf "$inside"
    return "$status"
}

# linux-kbuild lies in /usr/lib, to which the headers' links point, or is a link to /usr/src.
move_kbuild() {
    local entry
    for entry in "$1"/lib/linux-kbuild-*; do
        if [ -L "$entry" ]; then
            ln -s "../src/$(basename "$(readlink "$entry")")" "$2/lib/$(basename "$entry")"
        elif [ -d "$entry" ]; then
            mv "$entry" "$2/lib/"
        fi
    done
}

# add FILE[:DEST]: copies into the machine's root, with libraries.
add() {
    local file=${1%%:*} dest
    [ -e "$file" ] || fail "no such file: $file"
    dest=$file
    [[ "$1" == *:* ]] && dest=${1#*:}
    [[ "$dest" == /* ]] || dest=/$dest
    [[ "$dest" == */ ]] && dest=$dest$(basename "$file")
    mkdir -p "$tree$(dirname "$dest")"
    cp -rL --preserve=mode "$file" "$tree$dest"
    find "$tree$dest" -type f | while read -r file; do add_libraries "$file"; done
}

# The libraries that a file needs, by their paths in the machine, one a line; of what is no program, none.
libraries_of() {
    local name
    if [ -z "$root" ]; then
        ldd "$1" 2>/dev/null | grep -o '/[^ ]*' || true
        return
    fi
    { readelf -ldW "$1" 2>/dev/null || true; } |
        sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p; s/.*program interpreter: (.*)\]/\1/p' |
        while read -r name; do
            case $name in
            /*) echo "$name" ;;
            *) find "$root/usr/lib" -maxdepth 2 -name "$name" -printf '/usr/lib/%P\n' ;;
            esac
        done
}

add_libraries() {
    local library
    libraries_of "$1" | while read -r library; do
        [ -e "$root$library" ] && [ ! -e "$tree$library" ] || continue
        mkdir -p "$tree$(dirname "$library")"
        cp -L --preserve=mode "$root$library" "$tree$library"
        [ -z "$root" ] || add_libraries "$tree$library"
    done
}

# add_module NAME: its file and those it depends on, in the order to load them.
add_module() {
    local line file name
    ! grep -q "/$1\.ko$" "$kernel/modules/modules.builtin" 2>/dev/null || return 0
    line=$(grep -m1 -E "/${1//[_-]/[_-]}\.ko[^:]*:" "$kernel/modules/modules.dep") ||
        fail "no module $1 in $kernel"
    for file in $(echo "$line" | tr -d : | tr ' ' '\n' | tac); do
        name=$(basename "${file%.xz}")
        grep -qx "$name" "$tree/modules.load" 2>/dev/null && continue
        case $file in
        *.xz) xz -dc "$kernel/modules/$file" >"$tree/$name" ;;
        *) cp "$kernel/modules/$file" "$tree/" ;;
        esac
        echo "$name" >>"$tree/modules.load"
    done
}

# kernel_release VMLINUZ: what the image says of itself (kernel_version of the boot protocol), since its
# folder may have any name.
kernel_release() {
    local place
    place=$(od -An -tu2 -j $((0x20e)) -N 2 "$1")
    dd if="$1" bs=1 skip=$((place + 0x200)) count=64 status=none | tr '\0' ' ' |
        awk 'NR == 1 { print $1 }'
}

# is_emulator VERSION: whether it is that one or newer.
is_emulator() {
    local own
    own=$("qemu-system-$machine" --version | sed -n '1s/.*version \([0-9.]*\).*/\1/p')
    printf '%s\n' "$1" "$own" | sort -V -C
}

write_init() {
    local word
    {
        cat <<'INIT'
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp /run /root /etc
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin:/sbin:/usr/sbin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts
mount -t devpts pts /dev/pts
mount -t tmpfs tmp /tmp
mount -t debugfs debug /sys/kernel/debug 2>/dev/null
mount -t tracefs trace /sys/kernel/tracing 2>/dev/null
mount -t securityfs security /sys/kernel/security 2>/dev/null
ip link set lo up
[ -e /etc/passwd ] || echo root:x:0:0:root:/root:/bin/sh >/etc/passwd
[ -e /etc/group ] || echo root:x:0: >/etc/group
echo 1 >/proc/sys/kernel/panic_on_oops
# 6.5 and later put an idle console to sleep by a timer, and wake it for a line of text: a processor once
# waited 21 s for the lock of that timer, with nothing else to do.
for control in /sys/bus/serial-base/devices/*/power/control; do
    [ ! -e "$control" ] || echo on >"$control"
done
if [ -e /modules.load ]; then
    while read -r module; do insmod "/$module" || echo "vm: insmod $module failed"; done </modules.load
fi
cd /
INIT
        printf 'limit=%q\n' "$limit"
        cat <<'INIT'
seconds() { cut -d. -f1 /proc/uptime; }
start=$(seconds)
INIT
        # its clock counts instructions: whether the time is enough does not depend on the host
        # shellcheck disable=SC2016 # expanded there
        printf 'timeout -s KILL "$limit" '
        for word in "$@"; do printf '%q ' "$word"; done
        echo
        cat <<'INIT'
status=$?
[ "$status" != 137 ] || [ $(($(seconds) - start)) -lt "$limit" ] ||
    status="no end within $limit s of its own clock"
INIT
        echo "dmesg -r >/dev/$dmesg_port 2>/dev/null"
        echo "echo \"\$status\" >/dev/$status_port"
        echo 'sync; poweroff -f'
    } >"$tree/init"
    chmod 755 "$tree/init"
}

# What an image is for, by its own header (Documentation/arch/arm64/booting.rst).
machine_of() {
    if [ "$(dd if="$1" bs=1 skip=56 count=4 status=none | tr -d '\0')" = ARMd ]; then
        echo aarch64
    else
        echo x86_64
    fi
}

# with_parts FOLDER: the folder that has modules and headers beside the image of FOLDER: itself, or what
# is fetched for that image of aarch64.
with_parts() {
    if [ -e "$1/modules" ] || [ "$(machine_of "$1/vmlinuz")" != aarch64 ]; then
        echo "$1"
    else # it is not compressed, and says who it is
        fetch "$(grep -aom1 'Linux version [^ ]*-arm64' "$1/vmlinuz" | sed -n '1s/.* //p')"
    fi
}

# What a kernel says when something is wrong with it.
bad_messages='WARNING:|BUG:|BUG |Oops|Kernel panic|general protection|Call Trace|KASAN|UBSAN|KCSAN|KFENCE: |Object padding'
bad_messages+='|rcu.*(stall|self-detected)|soft lockup|hard LOCKUP|hung_task|blocked for more than'
bad_messages+='|possible (recursive|circular|irq)|suspicious RCU|bad unlock balance|held lock freed'
bad_messages+='|sleeping function called|scheduling while atomic|refcount_t:|list_(add|del) corruption'
bad_messages+='|unreferenced object|bad rc=|leaking uprobe|failed to (un)?register'

machine=x86_64 root=''
if [ "${1:-}" = --check ]; then
    machine=${2:-$machine}
    lacking=$(missing | tr '\n' ' ')
    [ -z "$lacking" ] && exit 0
    echo "missing packages: $lacking"
    exit 1
fi
if [ $# -lt 1 ] || [ "$1" = --help ]; then
    usage
    exit $(($# < 1 ? 127 : 0))
fi

kernel=$1
shift
if [ ! -e "$kernel/vmlinuz" ]; then
    kernel=$(fetch "$kernel")
fi
adds=() modules=() append=() cpus='' memory=1024 limit=1200 log=''
while [ $# -gt 0 ]; do
    case $1 in
    --fetch) with_parts "$kernel"; exit ;;
    --make) shift; kernel=$(with_parts "$kernel"); make_module "$@"; exit ;;
    --add) adds+=("$2"); shift 2 ;;
    --root) root=$2; shift 2 ;;
    --module) modules+=("$2"); shift 2 ;;
    --append) append+=("$2"); shift 2 ;;
    --cpus) cpus=$2; shift 2 ;;
    --memory) memory=$2; shift 2 ;;
    --timeout) limit=$2; shift 2 ;;
    --log) log=$2; shift 2 ;;
    --) shift; break ;;
    *) fail "unknown option $1 (--help)" ;;
    esac
done
[ $# -gt 0 ] || fail "no command (--help)"
[ ${#modules[@]} -eq 0 ] || kernel=$(with_parts "$kernel")
machine=$(machine_of "$kernel/vmlinuz")
# the console, what tells the status, and what the kernel's messages
if [ "$machine" = aarch64 ]; then
    board=(-machine virt) console=ttyAMA0 status_port=ttyS0 dmesg_port=ttyS1
else
    board=() console=ttyS0 status_port=ttyS1 dmesg_port=ttyS2
fi
lacking=$(missing | tr '\n' ' ')
[ -z "$lacking" ] || fail "missing packages: $lacking"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
mkdir -p "$tree/bin"
cp "$(find_busybox)" "$tree/bin/busybox"
for entry in "${adds[@]}"; do add "$entry"; done
for entry in "${modules[@]}"; do add_module "$entry"; done
write_init "$@"
(cd "$tree" && find . | cpio --quiet -o -H newc -R 0:0) >"$work/initrd"

# nothing but the machine itself may turn this into success
echo "did not boot" >"$work/status"
: >"$work/dmesg"
# One thread for all processors: in parallel an emulated one now and then executes the breakpoint of a
# static key that has been patched meanwhile. Its clock counts instructions, 8 ns each, and leaps over
# the time in which all sleep: in the machine nothing takes longer because the host has other work.
acceleration=(-accel "tcg,thread=single" -icount "shift=3,sleep=off")
processor=max
[ "$machine" != aarch64 ] || processor=max,pauth-impdef=on # else signing pointers is most of the work
if [ "${SPEEDBUMP_VM_KVM:-0}" = 1 ]; then
    acceleration=(-accel kvm)
    processor=host
fi
# Before 8.1 (by "ensure fairness with icount") an emulator whose clock counts instructions gives the second
# processor no time while the first is busy, but for the moment in which that sets a timer. 6.1 never gets
# past bringing it up; 7.2 holds the lock of its timers just then, and hung now and then.
if [ -z "$cpus" ]; then
    cpus=2
    if [ "$processor" != host ] && ! is_emulator 8.1; then
        case $(kernel_release "$kernel/vmlinuz") in 6.1.* | [7-9].*) cpus=1 ;; esac
    fi
fi
ports=(-serial "file:$work/status" -serial "file:$work/dmesg")
[ "$machine" != aarch64 ] || # the board has one port, and takes more as cards
    ports=(-chardev "file,id=status,path=$work/status" -device "pci-serial,chardev=status"
        -chardev "file,id=dmesg,path=$work/dmesg" -device "pci-serial,chardev=dmesg")
ended=0
# no_timer_check: on a busy host an emulated timer fails the kernel's test of it
(
    ulimit -S -c 0 -t "$limit"
    exec timeout --foreground $((3 * limit)) "qemu-system-$machine" "${board[@]}" "${acceleration[@]}" -cpu "$processor" \
        -smp "$cpus" -m "$memory" -nodefaults -no-user-config -display none -no-reboot \
        -kernel "$kernel/vmlinuz" -initrd "$work/initrd" \
        -append "console=$console panic=-1 loglevel=5 no_timer_check tsc=reliable mitigations=off rdinit=/init ${append[*]}" \
        -serial stdio "${ports[@]}"
) </dev/null 2>"$work/qemu" | tee "$work/console" | grep --line-buffered -av '^\[ *[0-9.]*\] ' ||
    ended=${PIPESTATUS[0]}

[ -z "$log" ] || cat "$work/console" "$work/dmesg" >"$log"
problem=''
if [ "$ended" = 124 ]; then
    problem="no end within $((3 * limit)) s"
elif [ "$ended" = $((128 + 24)) ]; then # SIGXCPU
    problem="no end within $limit s of CPU time"
elif ! grep -qxE '[0-9]+' <(tr -d '\r' <"$work/status"); then
    problem="no exit status: $(tr -d '\r' <"$work/status" | tail -1) $(tail -2 "$work/qemu")"
fi
messages=$(cat "$work/console" "$work/dmesg" | grep -aE "$bad_messages" || true)
[ -z "$messages" ] || problem+="${problem:+; }the kernel says: $(head -3 <<<"$messages")"
if [ -n "$problem" ]; then
    grep -a '' "$work/console" | tail -60 >&2
    echo "vm.sh: $problem" >&2
    exit 125
fi
exit "$(tr -d '\r' <"$work/status" | grep -xE '[0-9]+' | tail -1)"
