#!/bin/sh
# SPDX-License-Identifier: MIT
# Prints the figures of docs/measurements.md, both sides of each in one run. Needs root.
#   scripts/bench.sh [native [cost|error|outsider|attach|tree]...]
set -eu
cd "$(dirname "$0")/.."
scripts/setup.sh build bench
cmake --preset release >/dev/null
cmake --build --preset release -j "$(nproc)" >/dev/null
echo "speedbump benchmark: $(uname -sr), $(nproc) CPUs, $(date -u +%Y-%m-%d)"
[ "${1:-}" != native ] || shift
build/tests/bench/native_bench "$PWD/build/tests/bench/bench_target" "$@"
