#!/bin/bash
# SPDX-License-Identifier: MIT
# Installs what is missing, builds, and runs every test.
#
#   scripts/test.sh [--no-setup] [LABEL...]   LABEL: those of `expected` below; default: all
#
# The last line is "N passed, M failed, K skipped". The exit status is 0 when nothing failed; a run
# with fewer tests than are expected has failed.
set -euo pipefail
cd "$(dirname "$0")/.."

# The least number of tests that each run must have; a run that shrinks is a failure. Raise a
# number when tests are added.
declare -A expected=(
    [check]=8
    [unit]=24
    [runtime]=30
    [python]=7
    [kmod]=12
    [vm]=11
    [fuzz]=3
    [asan]=26
    [tsan]=23
)
# vm is a part of kmod
order=(check unit runtime python kmod fuzz asan tsan)

say() { printf '\n== %s\n' "$*"; }

with_setup=yes
runs=()
for argument in "$@"; do
    case $argument in
    --no-setup) with_setup= ;;
    *)
        [ -n "${expected[$argument]+known}" ] || {
            echo "unknown label '$argument': ${!expected[*]}" >&2
            exit 2
        }
        runs+=("$argument")
        ;;
    esac
done
[ ${#runs[@]} -gt 0 ] || runs=("${order[@]}")

if [ -n "$with_setup" ]; then
    groups=(build test)
    case " ${runs[*]} " in *" kmod "* | *" vm "*) groups+=(vm) ;; esac
    say "setup: ${groups[*]}"
    scripts/setup.sh "${groups[@]}"
fi

# Attaching needs root; building does not.
root=()
if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null; then
        root=(sudo "--preserve-env=CI,PATH")
    else
        echo "not root and no sudo: what needs root is skipped" >&2
    fi
fi

# Objects are shared between clones, wherever they lie.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=true

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
jobs=$(nproc)
failed=0

# build PRESET: configures and builds; on failure nothing of it can run.
build() {
    say "build: $1"
    cmake --preset "$1" >"$results/cmake-$1.log" 2>&1 || {
        cat "$results/cmake-$1.log"
        return 1
    }
    cmake --build --preset "$1" -j "$jobs"
}

# Labels whose tests have run in the release build: a test with two labels runs once.
labels_done=

# run_tests RUN PRESET LABEL JOBS
run_tests() {
    local run=$1 preset=$2 label=$3 parallel=$4 command=() excluded=()
    say "tests: $run"
    if [ "$preset" = release ]; then
        [ -z "$labels_done" ] || excluded=(-LE "^($labels_done)\$")
        labels_done+=${labels_done:+|}$label
    fi
    # thread sanitizer's shadow does not fit every random layout of the address space
    [ "$run" != tsan ] || command=(setarch --addr-no-randomize)
    case $run in runtime | python | kmod | vm | unit) command=("${root[@]}") ;; esac
    # These judge times and real processes, on machines that others use as well: one that fails is
    # given a second try, and the log shows both.
    local tries=()
    case $run in runtime | python | kmod | vm) tries=(--repeat until-pass:2) ;; esac
    "${command[@]}" ctest --preset "$preset" -L "^$label\$" "${excluded[@]}" -j "$parallel" --timeout 900 "${tries[@]}" \
        --no-tests=ignore --output-junit "$results/$run.xml" </dev/null || failed=1
}

declare -A built=()
for run in "${runs[@]}"; do
    case $run in
    asan) preset=$run label='(unit|fuzz)' parallel=$jobs ;;
    tsan) preset=$run label=unit parallel=$jobs ;;
    unit | check) preset=release label=$run parallel=$jobs ;;
    *) preset=release label=$run parallel=1 ;;
    esac
    if [ -z "${built[$preset]+known}" ]; then
        built[$preset]=yes
        build "$preset" || built[$preset]=no
    fi
    if [ "${built[$preset]}" = no ]; then
        echo "$run: not run, the build failed"
        failed=1
        continue
    fi
    run_tests "$run" "$preset" "$label" "$parallel"
done

say "summary"
minimums=()
for run in "${runs[@]}"; do minimums+=("$run=${expected[$run]}"); done
python3 scripts/count_tests.py "$results" "${minimums[@]}" "failed=$failed"
