#!/bin/bash
# SPDX-License-Identifier: MIT
# Installs the packages of the distribution that speedbump needs and this host lacks.
#
#   scripts/setup.sh [GROUP...]     GROUP: build check test demo bench package vm aarch64 all; default: build test
#
# For Debian 12 and 13 and Ubuntu 24.04, as root or with sudo. Does nothing when nothing is missing.
# The group test also makes the root with the newest Pythons (sid-root.sh), aarch64 the one with the
# arm64 libraries (arm64-root.sh); all is all but aarch64.
# Services that the packages bring (redis, nginx) are not started.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}

[ -r /etc/os-release ] || die "no /etc/os-release: install the packages named in this script by hand"
# shellcheck source=/dev/null
. /etc/os-release
distribution=$ID
codename=${VERSION_CODENAME:-}
case " $distribution ${ID_LIKE:-} " in
*" debian "*) ;;
*) die "$PRETTY_NAME has no apt: install the packages named in this script by hand" ;;
esac

# --- what is needed, by group

# libbpf 1.3 is needed; it and what it is built with must come from one suite.
versioned="libbpf-dev libelf-dev libdw-dev bpftool"
minimum_libbpf="1:1.3"
# Not in Debian 12 itself, but in its backports.
newer="python3-scikit-build-core"

packages_of() {
    case $1 in
    build)
        echo "$versioned" \
            clang llvm g++ cmake ninja-build ccache pkg-config git binutils libc6-dev \
            libcli11-dev nlohmann-json3-dev libfmt-dev libzydis-dev libiberty-dev libboost-dev \
            liblzma-dev zlib1g-dev libcap-dev libcurl4-openssl-dev libseccomp-dev libre2-dev libjs-chart.js \
            python3-dev pybind11-dev
        ;;
    check) echo libgtest-dev libgmock-dev clang-format shellcheck flake8 mandoc python3 gcc zsh fish \
        bsdextrautils xz-utils procps ;;
    test)
        packages_of check
        echo clang-tidy strace python3-pytest python3-numpy redis-server redis-tools nginx postgresql apache2-utils \
            util-linux gunicorn python3-flask chromium python3-pip python3-venv golang-go "$newer" \
            python3-django python3-fastapi uvicorn python3-celery python3-redis python3-psycopg2 \
            debootstrap perl ruby php-cli nodejs default-jdk-headless sqlite3 openssl \
            openssh-server openssh-client iproute2 openmpi-bin libopenmpi-dev python3-mpi4py \
            slurmctld slurmd slurm-client munge
        ;;
    demo) echo redis-server redis-tools gunicorn python3-flask apache2-utils python3 procps ;;
    bench) echo bpftrace linux-perf apache2-utils wrk redis-server redis-tools nginx gunicorn \
        python3-flask ;;
    package) # the archive, packages and wheels
        echo busybox-static libbz2-dev libzstd-dev dpkg-dev rpm lintian debootstrap musl-tools \
            python3-pip python3-wheel "$newer"
        ;;
    vm)
        echo qemu-system-x86 busybox-static cpio kmod make gcc bc flex bison libssl-dev \
            libelf-dev debootstrap dkms sparse
        ;;
    aarch64) # on x86-64, besides build and check: cmake --preset aarch64
        echo g++-aarch64-linux-gnu binutils-aarch64-linux-gnu qemu-user-static qemu-system-arm cpio kmod make
        ;;
    *) die "unknown group '$1': build check test demo bench package vm aarch64 all" ;;
    esac
}

# The name that this distribution gives to a package.
local_name() {
    case $distribution:$1 in
    ubuntu:chromium) ;; # a snap there: the test is skipped
    ubuntu:linux-perf) echo linux-tools-generic ;;
    ubuntu:bpftool)
        if has_candidate bpftool; then echo bpftool; else echo linux-tools-generic; fi
        ;;
    *) echo "$1" ;;
    esac
}

# --- helpers

# Output is kept before it is searched: a reader that leaves a pipe early fails it under pipefail.
has_candidate() {
    local policy
    policy=$(LC_ALL=C apt-cache policy "$1" 2>/dev/null) || return 1
    grep -q '^  Candidate: [^(]' <<<"$policy"
}

is_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ] || return 1
    [ "$1" != libbpf-dev ] ||
        dpkg --compare-versions "$(dpkg-query -W -f '${Version}' libbpf-dev)" ge "$minimum_libbpf"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "must be root, or have sudo, to run: $*"
    fi
}

apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
        apt-get -q -y -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 "$@" </dev/null
}

# The host's own source of packages for its release, with another suite in it: whatever mirror and
# key the host uses, the backports come from there too.
source_with_suite() {
    local suite=$1 file
    for file in /etc/apt/sources.list.d/*.sources; do
        [ -r "$file" ] || continue
        awk -v RS= -v code="$codename" -v suite="$suite" '
            $0 ~ "(^|\n)Enabled:[ \t]*no" { next }
            $0 ~ "(^|\n)Types:[^\n]*deb" && $0 ~ "(^|\n)Suites:([^\n]*[ \t])?" code "([ \t\n]|$)" {
                sub("Suites:[^\n]*", "Suites: " suite)
                sub("Types:[^\n]*", "Types: deb")
                print
                exit
            }' "$file"
    done | awk -v RS= 'NR == 1' >"$2.sources"
    if [ -s "$2.sources" ]; then
        echo sources
        return
    fi
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -r "$file" ] || continue
        sed -nE "s/^[[:space:]]*(deb[[:space:]]+(\[[^]]*\][[:space:]]+)?[^[:space:]]+[[:space:]]+)$codename([[:space:]]+.*)$/\1$suite\3/p" "$file"
    done | awk 'NR == 1' >"$2.list"
    [ -s "$2.list" ] && echo list
}

has_suite() {
    local policy
    policy=$(LC_ALL=C apt-cache policy libbpf-dev) || return 1
    grep -q "$1/" <<<"$policy"
}

add_backports() {
    local suite=$1 form
    if has_suite "$suite"; then return; fi
    say "updating the package lists"
    apt_get update >&2
    if has_suite "$suite"; then return; fi
    form=$(source_with_suite "$suite" "$scratch/backports") ||
        die "found no source for $codename under /etc/apt: add $suite by hand"
    say "adding $suite as /etc/apt/sources.list.d/speedbump-backports.$form"
    as_root install -m 644 "$scratch/backports.$form" \
        "/etc/apt/sources.list.d/speedbump-backports.$form"
    apt_get update >&2
    has_suite "$suite" || die "no libbpf-dev in $suite after adding it"
}

# --- what is missing

scratch=$(mktemp -d)
made_policy=
running_before=
cleanup() {
    [ -z "$made_policy" ] || as_root rm -f /usr/sbin/policy-rc.d
    rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

groups=("$@")
[ ${#groups[@]} -gt 0 ] || groups=(build test)
[ "${groups[*]}" != all ] || groups=(build test demo bench package vm)

missing=()
for group in "${groups[@]}"; do
    wanted=$(packages_of "$group")
    for package in $wanted; do
        name=$(local_name "$package")
        [ -n "$name" ] || continue
        case " ${missing[*]-} " in *" $name "*) continue ;; esac
        is_installed "$name" || missing+=("$name")
    done
done

# Ubuntu's bpftool of linux-tools-common only works for the running kernel's own package; any
# version can make a skeleton.
link_bpftool() {
    local real
    if bpftool version >/dev/null 2>&1 || /usr/sbin/bpftool version >/dev/null 2>&1; then return; fi
    real=$(find /usr/lib/linux-tools* -name bpftool 2>/dev/null | sort -V | tail -n 1) || true
    [ -n "$real" ] || die "no working bpftool: install the linux-tools package of any kernel"
    say "linking $real as /usr/local/sbin/bpftool"
    as_root ln -sf "$real" /usr/local/sbin/bpftool
}

# What is needed besides packages.
finish() {
    case " ${groups[*]} " in *" aarch64 "*)
        scripts/arm64-root.sh || die "no arm64 libraries to build with"
        ;;
    esac
    case " ${groups[*]} " in *" build "*) link_bpftool ;; esac
    case " ${groups[*]} " in
    *" test "*)
        mkdir -p build # the user's, not root's
        if [ "$(id -u)" = 0 ] || command -v sudo >/dev/null; then
            as_root env HOME="${HOME:-/root}" "XDG_CACHE_HOME=${XDG_CACHE_HOME:-}" scripts/sid-root.sh
        else
            scripts/sid-root.sh
        fi
        ;;
    esac
}

if [ ${#missing[@]} -eq 0 ]; then
    finish
    exit 0
fi

say "$PRETTY_NAME lacks: ${missing[*]}"

# --- install

# Some packages' scripts run as users of their own, which must get into the root directory: that of a
# chroot is often for its owner alone.
if [ "$(id -u)" = 0 ] && [[ $(stat -c %A /) != *[xt] ]]; then
    say "the root directory is for its owner alone: installing where it is for all"
    if ! command -v python3 >/dev/null; then
        apt_get update >&2
        apt_get install --no-install-recommends python3 >&2
    fi
    cleanup
    exec scripts/whole_root.py scripts/setup.sh "${groups[@]}"
fi

# Packages must not start their services: a benchmark or a test starts its own.
if [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' >"$scratch/policy-rc.d"
    as_root install -m 755 "$scratch/policy-rc.d" /usr/sbin/policy-rc.d
    made_policy=yes
fi
services="redis-server nginx apache2 postgresql ssh munge slurmctld slurmd"
is_active() { [ -d /run/systemd/system ] && systemctl is-active --quiet "$1" 2>/dev/null; }
for service in $services; do
    if is_active "$service"; then running_before+=" $service"; fi
done

from_backports=()
others=()
for package in "${missing[@]}"; do
    case " $versioned $newer " in
    *" $package "*) from_backports+=("$package") ;;
    *) others+=("$package") ;;
    esac
done
if [ ${#from_backports[@]} -gt 0 ] && [ "$codename" = bookworm ]; then
    add_backports bookworm-backports
    # All together: a libdw-dev of the release does not fit a libelf1 of the backports.
    # shellcheck disable=SC2206
    [ "${from_backports[*]}" = "$newer" ] || from_backports+=($versioned)
    apt_get install --no-install-recommends -t bookworm-backports "${from_backports[@]}" >&2
else
    say "updating the package lists"
    apt_get update >&2
    others+=("${from_backports[@]}")
fi
if [ ${#others[@]} -gt 0 ]; then
    apt_get install --no-install-recommends "${others[@]}" >&2
fi
for service in $services; do
    case "$running_before " in *" $service "*) continue ;; esac
    if is_active "$service"; then as_root systemctl disable --now "$service" >&2; fi
done
finish
say "done"
