#!/bin/bash
# SPDX-License-Identifier: MIT
# What attaching may never do, counted: faults injected into sessions, and what was lost by them (a
# target that died, answered wrongly, stayed slowed or changed; something left behind; a process
# missed). Needs root and a release build with its tests.
#
#   scripts/soak.sh [--minutes N] [CAMPAIGN...]    default: 60 minutes, all campaigns:
#
#   kills       loader, its cgroup, all of its name, by the OOM killer, in every phase; a helper alone
#   pythons     kinds of Python programs, entered and left, the loader killed meanwhile
#   limits      targets under seccomp filters, limits of memory and tasks, small stacks, MDWE
#   tree        fork, vfork and exec at random moments of an attach
#   namespaces  targets and loaders in time, PID, user and mount namespaces
#   cpus        CPUs that go off and come back, quotas, nested cgroups
#   hostile     targets that work against the tool; what they write, send and have mapped, at random,
#               under the address sanitizer where that build (preset asan) is there
#   failures    a system call of the loader fails, each kind with each errno in turn
#   sites       functions that check their own results, probed; whole libraries in programs that do
#   inprocess   jumps put into programs that make it hard and out again; the loader killed meanwhile
#   services    gunicorn that recycles its workers, redis and C++ exceptions, a change each second:
#               memory, descriptors and kernel maps stay flat
#
# Rounds go through the campaigns in turn until the time is up. The exit status is 1 when something
# was lost, 2 for wrong usage, 77 when
# all was skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

all=(kills pythons limits tree namespaces cpus hostile failures sites inprocess services)
minutes=60
chosen=()
while [ $# -gt 0 ]; do
    case $1 in
    --minutes)
        minutes=${2:?--minutes takes a number}
        shift
        ;;
    -h | --help)
        sed -n '3,/^set -e/s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    *)
        case " ${all[*]} " in
        *" $1 "*) chosen+=("$1") ;;
        *)
            echo "unknown campaign '$1': ${all[*]}" >&2
            exit 2
            ;;
        esac
        ;;
    esac
    shift
done
case $minutes in
*[!0-9]* | '' | 0)
    echo "--minutes takes a number above 0" >&2
    exit 2
    ;;
esac
[ ${#chosen[@]} -gt 0 ] || chosen=("${all[@]}")
[ "$(id -u)" = 0 ] || {
    echo "SKIP: attaching needs root" >&2
    exit 77
}

build=${SPEEDBUMP_BUILD:-$PWD/build}
export SPEEDBUMP_BINARY=${SPEEDBUMP_BINARY:-$build/speedbump}
export SPEEDBUMP_PROGRAMS=${SPEEDBUMP_PROGRAMS:-$build/programs}
export SPEEDBUMP_CORES=${SPEEDBUMP_CORES:-$build/pyext/python}
inject=$build/tests/runtime/inject
fuzzers=$PWD/build-asan/tests/fuzz
[ -x "$fuzzers/fuzz_remote" ] || {
    fuzzers=$build/tests/fuzz
    echo "no build with the address sanitizer: hostile goes on without it" >&2
}
log=$(mktemp -t speedbump-soak.XXXXXX)
begin=$SECONDS
ran=0 # what was not skipped
end=$((begin + minutes * 60))
declare -A faults losses rounds
for name in "${chosen[@]}"; do faults[$name]=0 losses[$name]=0 rounds[$name]=0; done

pythons=()
for one in "${HOME:-/root}"/.pyenv/versions/3.1[0-9]*/bin/python3 /usr/bin/python3; do
    [ -x "$one" ] && pythons+=("$one")
done

# count CAMPAIGN FAULTS COMMAND...: runs it. FAULTS is a number, or a sed expression that finds
# numbers in the output.
count() {
    local name=$1 number=$2 status=0 output
    shift 2
    output=$(mktemp)
    "$@" >"$output" 2>&1 || status=$?
    [ -n "${number//[0-9]/}" ] && number=$(sed -n "$number" "$output" | awk '{n += $1} END {print n + 0}')
    if [ "$status" = 77 ]; then
        echo "skipped: $* ($(grep -m 1 SKIP "$output" || true))" >&2
    else
        ran=$((ran + 1))
        faults[$name]=$((faults[$name] + number))
        if [ "$status" != 0 ]; then
            losses[$name]=$((losses[$name] + 1))
            { echo "== $* ended with $status" && cat "$output"; } | tee -a "$log" >&2
        fi
    fi
    rm -f "$output"
}

cases() { # cases FILE TEST...
    local file=$1
    shift
    SPEEDBUMP_SEED=$RANDOM tests/ahead.sh /usr/bin/python3 -B "tests/runtime/${file}_test.py" "$@"
}

# What the rounds of a campaign do, one after the other.
one_of() {
    local index=$((rounds[$1] % ($# - 1) + 2))
    echo "${!index}"
}

round() {
    local name=$1 python kind
    case $name in
    kills)
        kind=$(one_of kills kills:test_the_whole_cgroup_is_killed restore:test_loader_killed_while_it_takes_probes_out \
            kills:test_all_of_its_name_are_killed kills:test_the_guard_alone_is_killed \
            kills:test_the_oom_killer_takes_it restore:test_loader_killed_at_random_moments \
            kills:test_a_keeper_alone_is_killed)
        case $kind in kills:*) number='s/^ *\([0-9]*\) kills$/\1/p' ;; *) number=50 ;; esac
        count kills "$number" cases "${kind%:*}" "${kind#*:}"
        ;;
    pythons)
        kind=$(one_of pythons sleep threads forks loop signals accept epoll asyncio select dlopen \
            longcall memmove)
        python=${pythons[$((RANDOM % ${#pythons[@]}))]}
        count pythons 60 "$inject/inject_stress" --cycles 30 --kills 30 \
            --core "$inject/_core.abi3.so" tests/runtime/inject/targets.py "$kind" "$python"
        ;;
    limits)
        kind=$(one_of limits '*ExactlyTheNeededCalls*' '*ALimitOfMemory*' '*ADeepThread*' \
            '*ALimitOfTasks*' '*AReceiveOfAll*' '*MemoryThatIsWritten*:*SaysWhat*:*Containers*' \
            '*ChildOfVfork*' 'Seccomp*')
        count limits 's/.*\[==========\] \([0-9]*\) tests\{0,1\} .* ran.*/\1/p' \
            "$inject/inject_limits_test" "--gtest_filter=$kind"
        ;;
    tree)
        kind=$(one_of tree python_tree:test_workers_forked_at_the_moment_of_the_attach \
            faults:test_target_execs_during_attach \
            tree:test_no_descendant_is_missed_while_they_fork_and_die \
            tree:test_children_of_posix_spawn_while_it_attaches \
            faults:test_process_that_ends_between_look_up_and_attach)
        count tree "$(one_of tree 6 6 100 20 20)" cases "${kind%:*}" "${kind#*:}"
        ;;
    namespaces)
        kind=$(one_of namespaces python_tree:test_windows_hold_in_a_time_namespace \
            python_tree:test_a_loader_in_a_time_namespace_has_windows_too \
            python_tree:test_a_container_is_counted_under_its_pids_here \
            tree:test_child_in_another_pid_namespace tree:test_user_and_mount_namespaces)
        count namespaces 1 cases "${kind%:*}" "${kind#*:}"
        ;;
    cpus) count cpus 1 cases cpus "$(one_of cpus test_quota test_nested_cgroups test_a_cpu_goes_and_comes)" ;;
    hostile)
        count hostile 1 cases hostile
        for kind in fuzz_packets fuzz_remote fuzz_counters; do
            count hostile 's/^\([0-9]*\) inputs.*/\1/p' "$fuzzers/$kind" 1000000 5 "$RANDOM"
        done
        ;;
    failures)
        count failures 's/^ *\([0-9]*\) failures$/\1/p' \
            env SPEEDBUMP_SEED=$RANDOM /usr/bin/python3 -B tests/runtime/failures_test.py
        ;;
    sites)
        count sites 's/^\([0-9]*\) passed.*/\1/p' cases probe_sites
        kind=$(one_of sites perl openssl sqlite redis numpy php cpython ruby node go java)
        count sites 's/^\([0-9]*\) passed.*/\1/p' cases whole_libraries "test_$kind"
        ;;
    inprocess)
        kind=$(one_of inprocess loop threads crowd alarm altstack nested throw longjmp context fork \
            vfork spawn library sleep)
        number='s/^ *\([0-9]*\) \(cycles\|kills\).*/\1/p'
        count inprocess "$number" env SPEEDBUMP_CYCLES=1000 \
            "$build/tests/runtime/jumps_live_test" "--gtest_filter=*/$kind"
        kind=$(one_of inprocess test_patching_what_runs_changes_no_result test_killed_at_random_moments)
        count inprocess "$number" cases inprocess "$kind"
        ;;
    services)
        local seconds=$(((end - begin) / 8))
        [ "$seconds" -ge 20 ] || seconds=20
        count services 's/^faults //p' /usr/bin/python3 -B tests/runtime/soak.py "$seconds"
        ;;
    esac
    rounds[$name]=$((rounds[$name] + 1))
}

while [ "$SECONDS" -lt "$end" ]; do
    for name in "${chosen[@]}"; do
        # Each campaign has its turn, however short the time.
        [ "$SECONDS" -lt "$end" ] || [ "${rounds[$name]}" = 0 ] || break
        round "$name"
    done
    [ "$ran" -gt 0 ] || {
        echo "SKIP: this host can run none of ${chosen[*]}"
        exit 77
    }
done

lost=0
printf '%-10s %8s %8s %8s\n' campaign rounds faults losses
for name in "${chosen[@]}"; do
    printf '%-10s %8d %8d %8d\n' "$name" "${rounds[$name]}" "${faults[$name]}" "${losses[$name]}"
    lost=$((lost + losses[$name]))
done
echo "$((SECONDS - begin)) s, $lost losses"
if [ "$lost" -gt 0 ]; then
    echo "what was lost: $log" >&2
    exit 1
fi
rm -f "$log"
