#!/bin/bash
# SPDX-License-Identifier: MIT
# The part of roots_test.sh that runs in the root.    usage: in_root.sh deb|dkms|archive|wheel
set -euo pipefail
cd /srv

install() { apt-get -q -y -o APT::Sandbox::User=root install --no-install-recommends "$@" >/srv/log 2>&1 ||
    { tail -n 20 /srv/log; exit 1; }; }

# expect_slowed SPEEDBUMP TARGET COMMAND...: slows a function of the program for a second.
expect_slowed() {
    local speedbump=$1 target=$2 pid document
    shift 2
    "$@" &
    pid=$!
    # shellcheck disable=SC2064 # this one
    trap "kill $pid 2>/dev/null || true" EXIT
    sleep 1 # for what starts the program
    echo "$target delay=100us" >targets.txt
    document=$("$speedbump" attach --json --duration=1s --pid "$pid" targets.txt | tail -n 1)
    kill "$pid" # it has survived
    grep -qE '"all":\{"calls":[0-9]+,"delays":[1-9]' <<<"$document" || {
        echo "not slowed: $target: $document"
        exit 1
    }
    echo "slowed: $target"
}

cat >loop.py <<'PROGRAM'
import time
def slowed(): pass
while True:
    slowed()
    time.sleep(0.001)
PROGRAM

case $1 in
deb)
    apt-get -q update >/dev/null
    install ./speedbump_*.deb
    speedbump doctor | grep 'Python cores'
    # shellcheck disable=SC2016
    expect_slowed speedbump '+libc.so.6:kill' sh -c 'while :; do kill -0 $$; done'
    install ./python3-speed-bump_*.deb python3
    expect_slowed speedbump __main__:slowed python3 -S loop.py
    SPEED_BUMP_TARGETS=/srv/targets.txt python3 -c 'import sys; assert "speed_bump" in sys.modules'
    apt-get -q -y purge speedbump python3-speed-bump >/dev/null
    left=$(find /usr /etc -name '*speedbump*' -o -name '*speed_bump*')
    [ -z "$left" ] || { echo "left behind: $left"; exit 1; }
    ;;
dkms)
    apt-get -q update >/dev/null
    install ./speedbump-dkms_*.deb linux-headers-amd64
    dkms status
    kernels=(/lib/modules/*)
    release=${kernels[0]##*/}
    [ ${#kernels[@]} = 1 ] # that of the headers
    module=$(find "${kernels[0]}/updates" -name 'speed_bump.ko*')
    [ -n "$module" ] || { echo "not built for $release"; cat /srv/log; exit 1; }
    grep "^$release " <<<"$(modinfo -F vermagic "$module")"
    apt-get -q -y purge speedbump-dkms >/dev/null
    left=$(find /usr/src /var/lib/dkms /lib/modules -name '*speed*bump*')
    [ -z "$left" ] || { echo "left behind: $left"; exit 1; }
    ;;
archive)
    tar xzf speedbump-*.tar.gz -C /opt
    mv /opt/speedbump-* /opt/speedbump
    /opt/speedbump/bin/speedbump doctor | grep 'Python cores'
    # shellcheck disable=SC2016
    expect_slowed /opt/speedbump/bin/speedbump '+libc.so.6:kill' sh -c 'while :; do kill -0 $$; done'
    ;;
wheel)
    apt-get -q update >/dev/null
    install python3 python3-pip python3-venv
    if command -v cc; then exit 1; fi
    python3 -m venv /venv
    /venv/bin/pip install --quiet --no-index --find-links=. speed_bump
    echo '__main__:slowed delay=1ms' >targets.txt
    SPEED_BUMP_TARGETS=/srv/targets.txt /venv/bin/python -c '
import time
def slowed(): pass
begin = time.monotonic()
for _ in range(20): slowed()
assert time.monotonic() - begin >= 0.02'
    ;;
esac
