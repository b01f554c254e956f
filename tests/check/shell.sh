#!/bin/bash
# SPDX-License-Identifier: MIT
# Shell scripts pass shellcheck; its remarks of the level "info" are matters of taste.
set -euo pipefail
. "$(dirname "$0")/files.sh"
need shellcheck

scripts=()
while IFS= read -r file; do
    case $file in
    *.sh | *.bash) scripts+=("$file") ;;
    *) grep -qaE '^#!.*\b(ba)?sh\b' <(head -n 1 -- "$file") && scripts+=("$file") ;;
    esac
done < <(project_files)
echo "${#scripts[@]} scripts"
[ "${#scripts[@]}" -gt 5 ]
# SC2054: a comma inside a word of an array is meant (-Wl,-rpath)
shellcheck -x -S warning -e SC2054 -P SCRIPTDIR "${scripts[@]}"
