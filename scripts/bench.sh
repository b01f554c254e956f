#!/bin/bash
# SPDX-License-Identifier: MIT
# Prints the figures of docs/measurements.md, both sides of each in one run. Needs root and a quiet
# machine.
#
#   scripts/bench.sh [PART]...   cost error outsider syscall attach tree newborn family
#                               python pause regroup inject experiment ab services inspect; default: all
#   scripts/bench.sh inprocess   hits and delays of the in-process engine beside BPF, bpftrace and an untouched call;
#                               redis' lookupKey under pipelined load with both engines
#   scripts/bench.sh slices      services with all targets at once, and one after the other
#   scripts/bench.sh parts       units that the edges of slices cut, told by when they were done and by their number; 25 minutes
#   scripts/bench.sh targets     a hundred functions of which four matter, all at once and one after the other
#   scripts/bench.sh shapes      the worked examples of docs/methodology.md
#   scripts/bench.sh device      who waits for whom, of 100 random hosts and devices whose answer is known
#   scripts/bench.sh scale       a tree of 200 processes, 1,000 threads, 20,000 Python and 250,000 native functions
#   scripts/bench.sh stacks      how many stacks are wrong, of a million of each program and Python
#   scripts/bench.sh coverage    how often the model of experiments is right, of 4,000 simulated services
#                                and 2,000 jobs of ranks
#   scripts/bench.sh live        how often it is right, of 120 running services drawn at random; 50 minutes
#                               AB_PAIRS=200 scripts/bench.sh ab: as many live pairs, a minute each
#   scripts/bench.sh fleet       many hosts: a straggler and slack of eight ranks, clocks, what dies; 8 minutes
#   scripts/bench.sh module      the kernel module beside BPF and a trace event, in virtual machines
set -euo pipefail
cd "$(dirname "$0")/.."

default=(cost error outsider syscall attach tree newborn family python pause regroup inject experiment ab services inspect)
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=("${default[@]}")
for part in "${parts[@]}"; do
    case " ${default[*]} inprocess slices parts targets shapes device scale stacks coverage live fleet module " in
    *" $part "*) ;;
    *)
        echo "unknown part '$part': ${default[*]} inprocess slices parts targets shapes device scale stacks coverage live fleet module" >&2
        exit 2
        ;;
    esac
done

scripts/setup.sh build bench >&2
cmake --preset release >/dev/null
cmake --build --preset release -j "$(nproc)" | tail -n 1 >&2
echo "speedbump benchmark: $(uname -sr), $(nproc) CPUs, $(date -u +%Y-%m-%d)"
for part in "${parts[@]}"; do
    case $part in
    cost | error | outsider | syscall | attach | tree | newborn | family)
        build/tests/bench/native_bench "$PWD/build/tests/bench/bench_target" "$part"
        ;;
    python)
        python3 tests/bench/python_hook.py build/pyext/interpreters.tsv
        python3 tests/bench/python_startup.py build/pyext/interpreters.tsv
        ;;
    pause)
        while IFS=$'\t' read -r _ python package; do
            "$python" tests/bench/python_pause.py "$package"/speed_bump/_core*.so
        done <build/pyext/interpreters.tsv
        ;;
    regroup)
        while IFS=$'\t' read -r name python package; do
            case $name in sid-*) continue ;; esac # in a root of its own, without these files
            "$python" tests/bench/python_regroup.py "$package"/speed_bump/_core*.so
        done <build/pyext/interpreters.tsv
        ;;
    module)
        for kernel in 6.1 6.12; do
            echo "Linux $kernel, emulated:"
            tests/kmod/run.sh "$kernel" "build/bench-module-$kernel" cost_of_a_hit many_targets |
                grep '^  '
        done
        ;;
    experiment) python3 tests/bench/experiment.py build/speedbump build/programs ;;
    ab)
        build/tests/simulated/pairs 4000
        python3 tests/bench/ab.py build/speedbump build/programs "${AB_PAIRS:-10}"
        ;;
    inprocess)
        python3 tests/bench/inprocess.py build/speedbump build/tests/bench/bench_target
        python3 tests/bench/inprocess.py build/speedbump build/tests/bench/bench_target experiment
        ;;
    slices) python3 tests/bench/slices.py build/speedbump ;;
    parts) python3 tests/bench/parts.py build/speedbump build/programs ;;
    targets) python3 tests/bench/targets.py build/speedbump build/programs/hundred ;;
    shapes) python3 tests/bench/shapes.py build/speedbump build/programs ;;
    device)
        SPEEDBUMP_PROGRAMS=$PWD/build/programs SPEEDBUMP_DEVICE_CONFIGS=${DEVICE_CONFIGS:-100} \
            SPEEDBUMP_DEVICE_SEED=${DEVICE_SEED:-1} build/tests/runtime/device_live_test \
            --gtest_filter='*RandomConfigurations*'
        ;;
    scale) python3 tests/bench/scale.py build/speedbump ;;
    services) python3 tests/bench/experiment_services.py build/speedbump build/bench-services ;;
    inspect)
        scripts/sid-root.sh >&2
        python3 tests/bench/remote_unwinder.py build/speedbump "${SID_ROOT:-build/sid-root}"
        python3 tests/bench/inspect_cost.py build/speedbump
        ;;
    coverage)
        build/tests/simulated/coverage 4000
        build/tests/simulated/ranks 2000
        ;;
    live) python3 tests/bench/live_coverage.py build/speedbump build/programs "${LIVE_SERVICES:-120}" ;;
    fleet) python3 tests/bench/fleet.py build/speedbump build/programs ;;
    stacks) python3 tests/bench/stacks.py build/programs ;;
    inject) tests/runtime/inject/stress.sh build 100 ;;
    esac
done
