#!/bin/bash
# SPDX-License-Identifier: MIT
# Makes folders of Debian's arm64 packages, unpacked and not installed, so that the host's own packages stay
# as they are and no root is needed (docs/decisions/0017-two-architectures.md).
#
#   scripts/arm64-root.sh          build/arm64-root: the libraries and headers that `cmake --preset aarch64`
#                                  builds with, and the kernels (boot/), busybox and Python with which
#                                  scripts/vm.sh boots what was built: of this host's own release and backports
#   scripts/arm64-root.sh SUITE    build/arm64-python-SUITE, trixie or sid: the Pythons there, with what they
#                                  need, their headers and pybind11: cores are built for them, too; and the kernel
#                                  of sid
#
# `packages` in it says what it holds: name, source and its version, a line each. They are kept in the user's
# cache for all source trees. Takes a minute the first time, does nothing when they are there. Status 77, with
# the reason, where the packages can't be had.
set -euo pipefail
cd "$(dirname "$0")/.."

# The first are taken from the backports where the release has some: libbpf 1.3 is needed.
versioned=(libbpf-dev libbpf1 libelf-dev libelf1 libdw-dev libdw1)
packages=(libc6-dev libstdc++6 libcli11-dev nlohmann-json3-dev libfmt-dev libzydis-dev
    libiberty-dev libboost-dev liblzma-dev zlib1g-dev libcap-dev libcurl4-openssl-dev
    libseccomp-dev libre2-dev libgtest-dev libgmock-dev libpython3-dev pybind11-dev libzstd-dev libbz2-dev
    busybox-static python3-minimal)
suite=${1:-}
case $suite in
"") pythons=() kernels=boot ;;
trixie) pythons=(3.13) kernels= ;;
sid) pythons=(3.14 3.15) kernels=boot ;;
*)
    echo "arm64-root.sh: no Pythons are taken from '$suite', but from trixie or sid" >&2
    exit 2
    ;;
esac
if [ -n "$suite" ]; then
    versioned=()
    packages=(libstdc++6 busybox-static pybind11-dev)
    for python in "${pythons[@]}"; do packages+=("python$python" "libpython$python-dev"); done
fi

skip() {
    echo "SKIP: $*" >&2
    exit 77
}

# shellcheck source=/dev/null
. /etc/os-release
[ "$ID" = debian ] || skip "$PRETTY_NAME has its arm64 packages elsewhere: only Debian is known here"
wanted=$(cksum <<<"${versioned[*]} ${packages[*]} $kernels")
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/speedbump
name=${suite:+arm64-python-$suite}
name=${name:-arm64-root}
place=$cache/$name-${suite:-$VERSION_CODENAME}-${wanted%% *}
mkdir -p "$cache" build
link() { ln -sfnT "$place" "build/$name"; }
exec 9>"$place.lock"
flock 9 # another tree may be making it
if [ -e "$place/packages" ]; then
    link
    exit 0
fi

work=$(mktemp -d "$place.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/root/usr/lib" "$work/root/usr/bin"
list=
if [ -n "$suite" ]; then # the host's own mirror has it, too
    # shellcheck source=scripts/debian-mirror.sh
    . scripts/debian-mirror.sh
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    { [ -n "$mirror" ] && [ -r "$keys" ]; } || skip "no mirror of Debian is known here"
    list=$work/suite.list
    echo "deb [signed-by=$keys] $mirror $suite main" >"$list"
fi
# shellcheck source=scripts/arm64-apt.sh
. scripts/arm64-apt.sh
arm64_apt "$work" "$list" "${versioned[@]}" linux-libc-dev
apt-get -q -y "${apt[@]}" install --download-only "${versioned[@]}" "${packages[@]}" >>"$work/log" 2>&1 || {
    tail -n 20 "$work/log" >&2
    skip "no arm64 packages of ${suite:-$PRETTY_NAME}"
}
# Of each version of Linux the newest image; of it the kernel alone, which newer packages have in one of its own.
unpack_kernels() {
    local images parts package image version
    images=$(apt-cache "${apt[@]}" search --names-only '^linux-image-[0-9].*-arm64$' |
        awk '$1 !~ /unsigned|cloud|-rt-/ { print $1 }' | sort -V |
        awk '{ split($1, parts, /[-.+]/); newest[parts[3] "." parts[4]] = $1 } END { for (one in newest) print newest[one] }')
    # shellcheck disable=SC2086 # words
    parts=$(apt-cache "${apt[@]}" depends $images | awk '$1 == "Depends:" && $2 ~ /^linux-binary-/ { print $2 }')
    # shellcheck disable=SC2086 # words
    (mkdir "$work/images" && cd "$work/images" && apt-get -q "${apt[@]}" download $images $parts) >>"$work/log" 2>&1 ||
        skip "no arm64 kernels of ${suite:-$PRETTY_NAME}"
    mkdir "$work/unpacked"
    for package in "$work"/images/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x --no-same-owner -C "$work/unpacked" --exclude '*.ko*'
    done
    for image in "$work"/unpacked/boot/vmlinuz-* "$work"/unpacked/usr/lib/modules/*/vmlinuz; do
        [ -e "$image" ] || continue
        version=${image#"$work"/unpacked/boot/vmlinuz-}
        version=${version#"$work"/unpacked/usr/lib/modules/}
        mkdir -p "$work/root/boot/$(cut -d. -f1,2 <<<"$version")"
        mv "$image" "$work/root/boot/$(cut -d. -f1,2 <<<"$version")/vmlinuz"
    done
}
[ -z "$kernels" ] || unpack_kernels
ln -s usr/lib "$work/root/lib" # merged, whatever the packages still say
for package in "$work"/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" |
        tar -x --keep-directory-symlink --no-same-owner -C "$work/root" --exclude 'libpython*.a'
    # shellcheck disable=SC2016 # for dpkg-deb
    dpkg-deb --show --showformat='${Package} ${source:Package} ${source:Version}\n' "$package"
done >"$work/packages"
# What points into the root by an absolute path is found from outside, too.
find "$work/root" -type l -lname '/*' -print0 | while IFS= read -r -d '' name; do
    target=$work/root$(readlink "$name")
    ln -sfnr "$target" "$name"
done
if [ -z "$suite" ]; then
    # The compiler has kernel headers of its own, those of the release, and looks there first. This one
    # must be as new as libbpf: the toolchain file puts it in front.
    mkdir -p "$work/root/newer/linux"
    ln -s ../../usr/include/linux/bpf.h "$work/root/newer/linux/bpf.h"
fi
mv "$work/packages" "$work/root/packages"
chmod 755 "$work/root"
rm -rf "$place"
mv "$work/root" "$place"
link
echo "arm64 packages: $place"
