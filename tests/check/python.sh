#!/bin/bash
# SPDX-License-Identifier: MIT
# Python names nothing that is not there, and imports nothing for nobody (pyflakes; the form of the
# code is a matter of taste).
set -euo pipefail
. "$(dirname "$0")/files.sh"
need flake8

mapfile -t scripts < <(scripts_of 'python3?' '*.py' '*.pyi')
echo "${#scripts[@]} files"
[ "${#scripts[@]}" -gt 5 ]
flake8 --isolated --select F -- "${scripts[@]}"
