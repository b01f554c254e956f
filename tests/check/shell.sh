#!/bin/bash
# SPDX-License-Identifier: MIT
# Shell scripts pass shellcheck; its remarks of the level "info" are matters of taste.
set -euo pipefail
. "$(dirname "$0")/files.sh"
need shellcheck

mapfile -t scripts < <(scripts_of '(ba)?sh' '*.sh' '*.bash')
echo "${#scripts[@]} scripts"
[ "${#scripts[@]}" -gt 5 ]
# SC2054: a comma inside a word of an array is meant (-Wl,-rpath)
shellcheck -x -S warning -e SC2054 -P SCRIPTDIR "${scripts[@]}"
