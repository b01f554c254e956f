#!/bin/bash
# SPDX-License-Identifier: MIT
# Installs what is missing, builds, and runs every test.
#
#   scripts/test.sh [--no-setup] [--long] [LABEL...]   LABEL: those of `order` below; default: all
#   of them; and by name fuzz, vm, a part of kmod, and tsan
#   scripts/test.sh --runs N [--busy] [LABEL...]   N runs in a row of runtime and python, or of what is
#   named; with --busy beside a process for each CPU that never waits
#   scripts/test.sh --into FOLDER LABEL...   leaves the results there and counts nothing; it calls
#   itself so
#
# --long also runs the campaigns, which take hours. The last line is "N passed, M failed, K skipped".
# The exit status is 0 when nothing failed; a run that lacks a test of the sources has failed.
set -euo pipefail
cd "$(dirname "$0")/.."

# fresh is a new root of the distribution, in which nothing is installed; asan has the fuzzers, too; aarch64 is
# what is of that machine alone, cross-built, and sessions in a machine with its kernel
order=(check unit package runtime python kmod aarch64 asan tidy fresh)

say() { printf '\n== %s [%d:%02d]\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)); }

arguments=("$@")
with_setup=yes
long=
into=
times=
busy=
runs=()
while [ $# -gt 0 ]; do
    case $1 in
    --no-setup) with_setup= ;;
    --long) long=yes ;;
    --runs)
        times=${2:-}
        [[ $times =~ ^[1-9][0-9]*$ ]] || {
            echo "--runs takes a number of runs, not '$times'" >&2
            exit 2
        }
        shift
        ;;
    --busy) busy=yes ;;
    --into)
        into=$2 with_setup=
        shift
        ;;
    *)
        case " ${order[*]} fuzz vm tsan " in
        *" $1 "*) runs+=("$1") ;;
        *)
            echo "unknown label '$1': ${order[*]} fuzz vm tsan" >&2
            exit 2
            ;;
        esac
        ;;
    esac
    shift
done
[ -z "$busy" ] || [ -n "$times" ] || {
    echo "--busy goes with --runs" >&2
    exit 2
}
[ -z "$times" ] || [ ${#runs[@]} -gt 0 ] || runs=(runtime python)
[ ${#runs[@]} -gt 0 ] || runs=("${order[@]}")
[ -z "$long" ] || runs+=(campaign)

if [ -n "$with_setup" ]; then
    groups=(build test)
    case " ${runs[*]} " in *" package "*) groups+=(package) ;; esac
    case " ${runs[*]} " in *" kmod "* | *" vm "*) groups+=(vm) ;; esac
    say "setup: ${groups[*]}"
    scripts/setup.sh "${groups[@]}"
    # Where that fails it is skipped, with the reason.
    case "$(uname -m) ${runs[*]} " in x86_64*" aarch64 "*) scripts/setup.sh aarch64 || true ;; esac
fi

if [ "$(id -u)" = 0 ] && ! scripts/whole_root.py --check; then
    say "the root directory is that of a chroot: the tests run in a mount namespace with one like a machine's"
    exec scripts/whole_root.py scripts/test.sh --no-setup "${arguments[@]}"
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

results=${into:-$(mktemp -d)}
beside=() # sessions that are to end with this script
# shellcheck disable=SC2317 # the trap calls it
clean_up() {
    local one
    for one in "${beside[@]}"; do kill -- "-$one" 2>/dev/null || true; done
    [ -n "$into" ] || rm -rf "$results"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
jobs=$(nproc)
failed=0

# build PRESET [--target NAME]: configures and builds; on failure nothing of it can run.
build() {
    say "build: $1"
    local folder=build-$1 new=()
    [ "$1" != release ] || folder=build
    # Where somebody builds already, as they have chosen.
    [ -e "$folder/CMakeCache.txt" ] || new=(-DSPEEDBUMP_UNITY=ON)
    cmake --preset "$1" "${new[@]}" >"$results/build-$1.log" 2>&1 || {
        cat "$results/build-$1.log"
        return 1
    }
    cmake --build --preset "$1" -j "$jobs" "${@:2}" 2>&1 | tee "$results/build-$1.log"
}

# run_tests RUN PRESET LABEL JOBS: false when one failed.
run_tests() {
    local run=$1 preset=$2 label=$3 parallel=$4 command=() excluded=() timeout=900
    # What runs behind everything waits as long as that takes.
    [ -z "$into" ] || timeout=2700
    say "tests: $run"
    case $run in
    tsan) command=(setarch --addr-no-randomize) ;; # its shadow does not fit every random layout
    esac
    # A test with two labels runs with the first of them.
    local one earlier=
    for one in "${runs[@]}"; do
        [ "$one" != "$run" ] || break
        earlier+="${earlier:+|}$one"
    done
    [ -z "$earlier" ] || [ "$preset" != release ] || excluded=(-LE "^($earlier)\$")
    case $run in asan | tsan | check) ;; *) command=("${root[@]}") ;; esac
    "${command[@]}" ctest --preset "$preset" -L "^$label\$" "${excluded[@]}" -j "$parallel" \
        --timeout "$timeout" --no-tests=ignore --output-junit "$results/$run.xml" </dev/null
}

# skip_run RUN REASON: what the summary shows of it.
skip_run() {
    say "tests: $1: skipped, $2"
    printf '<testsuite><testcase name="%s" status="disabled"><system-out>SKIP: %s</system-out></testcase></testsuite>' \
        "$1" "$2" >"$results/$1.xml"
}

# run_all RUN...: builds what they need and runs them, one after the other; false when one failed.
run_all() {
    local run preset label parallel target status=0
    local -A built=([release]=$release_built)
    for run in "$@"; do
        preset=release label=$run parallel=$jobs target=()
        case $run in
        asan) preset=asan label='(unit|fuzz)' ;;
        tsan) preset=tsan label=unit ;;
        aarch64) preset=aarch64 target=(--target short_tests) ;;
        runtime | python) parallel=$((jobs + 1)) ;; # they wait more than they compute
        campaign) parallel=1 ;;
        esac
        if [ "$preset" = aarch64 ] && [ ! -e build/arm64-root/packages ]; then
            skip_run "$run" "no arm64 libraries here (scripts/setup.sh aarch64)"
            continue
        fi
        if [ -z "${built[$preset]+known}" ]; then
            built[$preset]=yes
            build "$preset" "${target[@]}" || built[$preset]=no
        fi
        if [ "${built[$preset]}" = no ]; then
            echo "$run: not run, the build failed"
            ln -sf "build-$preset.log" "$results/$run.log" # the summary says why
            status=1
            continue
        fi
        run_tests "$run" "$preset" "$label" "$parallel" || status=1
    done
    return "$status"
}

release_built=yes
build release || release_built=no
if [ -n "$into" ]; then
    run_all "${runs[@]}"
    exit
fi

# count: the summary of what ran last, whose last line is how many passed, failed and were skipped.
count() {
    python3 scripts/count_tests.py "$results" "${runs[@]}" "failed=$failed"
}

# One run after the other, each whole, whatever failed in it; a line for each.
in_a_row() {
    local run begun good=0
    if [ -n "$busy" ]; then
        for ((run = 0; run < jobs; ++run)); do
            setsid sh -c 'while :; do :; done' &
            beside+=($!)
        done
    fi
    for ((run = 1; run <= times; ++run)); do
        begun=$SECONDS failed=0
        rm -f "$results"/*.xml
        run_all "${runs[@]}" || failed=1
        if count >"$results/summary"; then good=$((good + 1)); fi
        say "run $run of $times${busy:+, beside $jobs busy processes}, $((SECONDS - begun)) s"
        cat "$results/summary"
    done
    echo "$good of $times runs without a failure"
    [ "$good" -eq "$times" ]
}

if [ -n "$times" ]; then
    [ "$release_built" = yes ] || exit 1
    in_a_row
    exit
fi

# What judges real processes runs ahead of all else (tests/ahead.sh). The rest has the time in which
# those wait: behind everything, in a session of its own, since the kernel shares the CPUs between
# sessions first. An emulated machine's clock counts instructions.
timed=() others=()
for run in "${runs[@]}"; do
    case $run in
    runtime | python | campaign) timed+=("$run") ;;
    *) others+=("$run") ;;
    esac
done
if [ "$release_built" = yes ] && [ ${#timed[@]} -gt 0 ] && [ ${#others[@]} -gt 0 ]; then
    say "beside the tests that follow: ${others[*]}; what they print comes after"
    # shellcheck disable=SC2016 # expanded there
    setsid sh -c '
        [ ! -e /proc/self/autogroup ] || echo 19 >/proc/self/autogroup
        exec nice -n 19 "$@"' sh scripts/test.sh --into "$results" "${others[@]}" >"$results/others.log" 2>&1 &
    beside+=($!)
    runs_here=("${timed[@]}")
else
    runs_here=("${runs[@]}")
fi
run_all "${runs_here[@]}" || failed=1
if [ ${#beside[@]} -gt 0 ]; then
    wait "${beside[0]}" || failed=1
    beside=()
    cat "$results/others.log"
fi

say "summary"
status=0
count >"$results/summary" || status=$?
# When the campaigns last ran, and how that ended.
record=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/speedbump/campaigns
if [ -n "$long" ]; then
    mkdir -p "${record%/*}"
    printf '%s at %s: %s\n' "$(date -u +'%F %H:%M UTC')" "$(git rev-parse --short HEAD)" \
        "$(tail -n 1 "$results/summary")" >"$record"
fi
printf 'campaigns (--long) last ran: %s\n' "$(cat "$record" 2>/dev/null || echo never here)"
cat "$results/summary"
exit "$status"
