#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes a Debian 13 root with its PyTorch, which is tested from outside, and links it as
# build/torch-root. Takes some minutes and 2 GB the first time; does nothing when it is there.
set -eu
# shellcheck source=scripts/kept-root.sh
. "$(dirname "$0")/kept-root.sh"
kept_root torch-root trixie python3-torch usr/lib/python3/dist-packages/torch/__init__.py
