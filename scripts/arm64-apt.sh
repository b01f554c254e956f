# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# For scripts that take packages of arm64 and install none: defines arm64_apt.

# arm64_apt FOLDER LIST [PACKAGE...]: sets `apt` to the options with which apt knows the packages of arm64:
# from the sources in the file LIST, or (empty) the host's own, with lists and a state of their own in FOLDER,
# in which nothing is installed. The PACKAGEs are taken from the backports where the release has some. A source
# of others that has nothing for arm64 fails and harms nothing: what counts is found or not found afterwards.
arm64_apt() {
    local folder=$1 list=$2 suite
    shift 2
    suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    mkdir -p "$folder/lists/partial" "$folder/archives/partial"
    : >"$folder/status"
    : >"$folder/preferences"
    [ $# -eq 0 ] || cat >"$folder/preferences" <<END
Package: $*
Pin: release n=$suite-backports
Pin-Priority: 990
END
    apt=(-o APT::Architecture=arm64 -o APT::Architectures=arm64
        -o "Dir::State::Lists=$folder/lists" -o "Dir::State::Status=$folder/status"
        -o "Dir::Cache::Archives=$folder/archives" -o Dir::Cache::srcpkgcache= -o Dir::Cache::pkgcache=
        -o "Dir::Etc::Preferences=$folder/preferences" -o Dir::Etc::PreferencesParts=/dev/null
        -o Acquire::Languages=none -o APT::Sandbox::User= -o APT::Install-Recommends=false
        -o "Debug::NoLocking=1")
    [ -z "$list" ] || apt+=(-o "Dir::Etc::SourceList=$list" -o Dir::Etc::SourceParts=/dev/null)
    apt-get -q "${apt[@]}" update >"$folder/log" 2>&1 || true
}
