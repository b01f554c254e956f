#!/bin/bash
# SPDX-License-Identifier: MIT
# Slows running services down, through all their layers, and shows what that does to throughput.
#
#   scripts/demo.sh
#
# Installs what is missing, builds, starts services of its own on free ports in a scratch folder,
# and cleans up on every way out:
# - a Flask application over SQLite under gunicorn: a Python function slowed, a C function of the
#   library below it, and both
# - a redis-server: three delays one after the other
set -euo pipefail
cd "$(dirname "$0")/.."

shop_requests=400
python_delay=2ms
native_delay=500us
requests=60000
clients=20
delays="5us 20us 50us"

say() { printf 'demo: %s\n' "$*" >&2; }

say "looking for what is missing"
scripts/setup.sh build demo
say "building"
build_log=$(mktemp)
trap 'rm -f "$build_log"' EXIT
build() {
    "$@" >"$build_log" 2>&1 || {
        cat "$build_log" >&2
        say "the build failed: $*"
        exit 1
    }
}
build cmake -G Ninja -S . -B build-demo -DSPEEDBUMP_TESTS=OFF -DSPEEDBUMP_UNITY=ON
core=core-$(/usr/bin/python3 -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
build cmake --build build-demo --target speedbump "$core" -j "$(nproc)"
rm -f "$build_log"
speedbump=$PWD/build-demo/speedbump

root=()
[ "$(id -u)" = 0 ] || root=(sudo)

scratch=$(mktemp -d)
services=
tool=
cleanup() {
    trap - EXIT INT TERM
    [ -z "$tool" ] || "${root[@]}" kill -TERM "$tool" 2>/dev/null || true
    [ -z "$tool" ] || wait "$tool" 2>/dev/null || true
    [ -z "$services" ] || kill -TERM "$services" 2>/dev/null || true
    [ -z "$services" ] || wait "$services" 2>/dev/null || true
    "${root[@]}" rm -rf "$scratch"
}
trap cleanup EXIT
trap 'cleanup; exit 130' INT
trap 'cleanup; exit 143' TERM

# wait_for SECONDS COMMAND...: until the command succeeds.
wait_for() {
    local left=$(($1 * 20))
    shift
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || return 1
        sleep 0.05
    done
}

# attach NAME COMMAND-LINE...: a session that runs, its report in $scratch/NAME.json.
attach() {
    local name=$1
    shift
    "${root[@]}" "$speedbump" attach --json -o "$scratch/$name.json" "$@" 2>"$scratch/tool.log" &
    tool=$!
    wait_for 20 grep -q '"type":"sample"' "$scratch/$name.json" || {
        cat "$scratch/tool.log" >&2
        exit 1
    }
}

detach() {
    "${root[@]}" kill -INT "$tool"
    wait "$tool"
    tool=
}

say "starting redis-server, and a Flask application over SQLite under gunicorn with 2 workers"
/usr/bin/python3 -B tests/runtime/services.py shop redis >"$scratch/services" 2>"$scratch/log" &
services=$!
wait_for 60 grep -q ^redis "$scratch/services" || {
    cat "$scratch/log" >&2
    exit 1
}
read -r _ shop shop_port < <(grep ^shop "$scratch/services")
read -r _ redis redis_port < <(grep ^redis "$scratch/services")

# --- Python and C in one service

port=$shop_port
# Requests per second, one after the other, by the median; every one must be answered.
shop_throughput() {
    ab -q -l -n "$shop_requests" -c 1 -e "$scratch/ab.csv" "http://127.0.0.1:$port/buy/7/2" \
        >"$scratch/ab.txt" 2>&1 &&
        grep -q '^Failed requests: *0$' "$scratch/ab.txt" &&
        ! grep -q '^Non-2xx' "$scratch/ab.txt" || {
        cat "$scratch/ab.txt" >&2
        return 1
    }
    awk -F, '$1 == 50 { printf "%.0f\n", 1000 / $2 }' "$scratch/ab.csv"
}
python_line="*:price_of delay=$python_delay"
native_line="+libsqlite3.so*:sqlite3_step delay=$native_delay"
printf '%s\n' "$python_line" >"$scratch/python.txt"
printf '%s\n' "$native_line" >"$scratch/native.txt"
printf '%s\n' "$python_line" "$native_line" >"$scratch/both.txt"
say "the targets: $python_line"
say "             $native_line"
shop_throughput >/dev/null # warm-up
before=$(shop_throughput)
printf '\n%-22s %12s %12s %24s\n' '' requests/s expected 'measured per request'
printf '%-22s %12s\n' before "$before"
for slowed in python native both; do
    attach "$slowed" --pid "$shop" "$scratch/$slowed.txt"
    during=$(shop_throughput)
    detach
    python3 - "$scratch/$slowed.json" "$slowed" "$before" "$during" "$shop_requests" <<'PYTHON'
import json, sys

path, slowed, before, during, requests = sys.argv[1:]
with open(path) as file:
    final = [json.loads(line) for line in file][-1]["all"]
measured = final["measured_ns"] / int(requests)
expected = 1e9 / (1e9 / float(before) + measured)
print(f"{'slowed: ' + slowed:<22} {during:>12} {expected:>12.0f} {measured / 1e6:>21.2f} ms")
PYTHON
done
printf '%-22s %12s\n\n' after "$(shop_throughput)"

# --- redis

port=$redis_port

# Requests per second of one run of GETs.
throughput() {
    redis-benchmark -p "$port" -c "$clients" -n "$requests" -t get --csv |
        python3 -c 'import csv, sys; print(round(float(list(csv.reader(sys.stdin))[-1][1])))'
}

echo '+exe:processCommand' >"$scratch/targets.txt"
say "what the line '$(cat "$scratch/targets.txt")' matches:"
"${root[@]}" "$speedbump" check "$scratch/targets.txt" --pid "$redis" >&2

say "loading it with $clients clients, $requests GETs each time"
throughput >/dev/null # warm-up
before=$(throughput)
printf '\n%-22s %12s %12s %18s\n' '' requests/s expected 'measured per call'
printf '%-22s %12s\n' before "$before"
for delay in $delays; do
    attach "$delay" --pid "$redis" --delay "$delay" "$scratch/targets.txt"
    during=$(throughput)
    detach
    python3 - "$scratch/$delay.json" "$delay" "$before" "$during" <<'PYTHON'
import json, sys

path, delay, before, during = sys.argv[1:]
with open(path) as file:
    final = [json.loads(line) for line in file][-1]["all"]
measured = final["measured_ns"] / final["delays"]
expected = 1e9 / (1e9 / float(before) + measured)
print(f"{'slowed by ' + delay:<22} {during:>12} {expected:>12.0f} {measured / 1000:>15.2f} us")
PYTHON
done
after=$(throughput)
printf '%-22s %12s\n\n' after "$after"
say "redis executes commands one after the other: each call's delay adds to each request."
say "expected: 1 / (time per request before + measured delay)"
