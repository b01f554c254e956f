#!/bin/bash
# SPDX-License-Identifier: MIT
# Slows one function of a running redis-server down and shows what that does to its throughput.
#
#   scripts/demo.sh
#
# Installs what is missing, builds, starts a redis-server of its own on a free port in a scratch
# folder, loads it with redis-benchmark, attaches three delays one after the other, and cleans up.
set -euo pipefail
cd "$(dirname "$0")/.."

requests=60000
clients=20
delays="5us 20us 50us"

say() { printf 'demo: %s\n' "$*" >&2; }

say "looking for what is missing"
scripts/setup.sh build demo
say "building"
cmake -G Ninja -S . -B build-demo -DSPEEDBUMP_TESTS=OFF -DSPEEDBUMP_PYTHON=OFF >/dev/null
cmake --build build-demo --target speedbump -j "$(nproc)" | tail -n 1 >&2
speedbump=$PWD/build-demo/speedbump

root=()
[ "$(id -u)" = 0 ] || root=(sudo)

scratch=$(mktemp -d)
server=
tool=
cleanup() {
    trap - EXIT INT TERM
    [ -z "$tool" ] || "${root[@]}" kill -TERM "$tool" 2>/dev/null || true
    [ -z "$tool" ] || wait "$tool" 2>/dev/null || true
    [ -z "$server" ] || kill -TERM "$server" 2>/dev/null || true
    [ -z "$server" ] || wait "$server" 2>/dev/null || true
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

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
say "starting redis-server on port $port"
redis-server --port "$port" --bind 127.0.0.1 --save '' --appendonly no --dir "$scratch" \
    >"$scratch/redis.log" 2>&1 &
server=$!
wait_for 10 redis-cli -p "$port" ping || {
    cat "$scratch/redis.log" >&2
    exit 1
}

# Requests per second of one run of GETs.
throughput() {
    redis-benchmark -p "$port" -c "$clients" -n "$requests" -t get --csv |
        python3 -c 'import csv, sys; print(round(float(list(csv.reader(sys.stdin))[-1][1])))'
}

echo '+exe:processCommand' >"$scratch/targets.txt"
say "what the line '$(cat "$scratch/targets.txt")' matches:"
"${root[@]}" "$speedbump" check "$scratch/targets.txt" --pid "$server" >&2

say "loading it with $clients clients, $requests GETs each time"
throughput >/dev/null # warm-up
before=$(throughput)
printf '\n%-22s %12s %12s %18s\n' '' requests/s expected 'measured per call'
printf '%-22s %12s\n' before "$before"
for delay in $delays; do
    "${root[@]}" "$speedbump" attach --pid "$server" --delay "$delay" --json \
        -o "$scratch/$delay.json" "$scratch/targets.txt" 2>"$scratch/tool.log" &
    tool=$!
    wait_for 20 grep -q '"type":"sample"' "$scratch/$delay.json" || {
        cat "$scratch/tool.log" >&2
        exit 1
    }
    during=$(throughput)
    "${root[@]}" kill -INT "$tool"
    wait "$tool"
    tool=
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
