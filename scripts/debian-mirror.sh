# shellcheck shell=sh
# SPDX-License-Identifier: MIT
# For scripts that make a root of another suite: sets `mirror` to the one of which this host's own
# apt gets Debian's packages (empty: debootstrap's own), and exports the proxy that it uses.
# shellcheck disable=SC2034 # it is for who sources this
mirror=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null |
    awk '/\/debian\/?$/ && !found++') || mirror=
http_proxy=${http_proxy:-$(apt-config dump --format '%v' Acquire::http::Proxy)}
export http_proxy
