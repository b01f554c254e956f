#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes a Debian sid root with the newest Pythons and pybind11, which building and testing the
# Python core for all versions needs, and links it as build/sid-root. Takes a minute the first time;
# does nothing when it is there.
set -eu
# shellcheck source=scripts/kept-root.sh
. "$(dirname "$0")/kept-root.sh"
kept_root sid-root sid python3.14,python3.15,python3.14-dev,python3.15-dev,pybind11-dev \
    usr/bin/python3.15 usr/include/pybind11
