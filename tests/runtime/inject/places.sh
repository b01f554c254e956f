#!/bin/sh
# SPDX-License-Identifier: MIT
# places.sh PROBE CORE SID_ROOT PYTHON: gets into interpreters in awkward places: other name
# spaces, other users, a chroot without /proc, a limit of tasks. As root.
set -u
probe=$1
core=$2
sid_root=$3
python=$4
failed=0
program='import time
while True: time.sleep(0.2)'

# A directory that only root may enter: its path is of no use to other users or in a chroot.
private=$(mktemp -d)
trap 'rm -rf "$private"' EXIT
cp "$core" "$private/_core.abi3.so"

# check NAME PID PATTERN: two cycles on PID say PATTERN, and leave it alive.
check() {
    sleep 0.5
    output=$("$probe" --cycles 2 "$private/_core.abi3.so" "$2" 2>&1)
    if ! printf '%s\n' "$output" | grep -q "$3"; then
        echo "$1: expected '$3', got: $output" >&2
        failed=1
    elif ! kill -0 "$2"; then
        echo "$1: the target is gone" >&2
        failed=1
    else
        echo "$1: good"
    fi
    kill -9 "$2"
    wait "$2" 2>/dev/null
}

setpriv --reuid=65534 --regid=65534 --clear-groups "$python" -c "$program" &
check "another user" $! gone
setpriv --no-new-privs --bounding-set=-all "$python" -c "$program" &
check "no new privileges" $! gone
unshare --user --map-root-user "$python" -c "$program" &
check "user name space" $! gone
unshare --mount --net --ipc --uts "$python" -c "$program" &
check "mount and network name spaces" $! gone
unshare --mount sh -c "mount -o remount,bind,ro / && exec \"\$0\" -c \"\$1\"" "$python" "$program" &
check "read-only root" $! gone
setpriv --reuid=65533 --regid=65533 --clear-groups prlimit --nproc=1 "$python" -c "$program" &
check "limit of tasks" $! 'at its limit of tasks'
sleep 60 &
check "no Python" $! 'has no Python interpreter'

if [ -x "$sid_root/usr/bin/python3.14" ]; then
    chroot "$sid_root" /usr/bin/python3.14 -c "$program" &
    check "chroot without /proc" $! gone
    mkdir "$private/root"
    mount --bind "$sid_root" "$private/root"
    mount -o remount,bind,ro "$private/root"
    chroot "$private/root" /usr/bin/python3.14 -c "$program" &
    check "read-only chroot without /proc" $! gone
    umount -l "$private/root"
else
    echo "chroot without /proc: skipped, no sid root (scripts/sid-root.sh)"
fi
exit $failed
