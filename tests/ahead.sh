#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs a test that judges times ahead of whatever else the machine does, and ends it with its parent.
#   ahead.sh COMMAND [ARG...]
# The kernel shares the CPUs between sessions first (sched_autogroup, sched(7)), so that nice(1) alone
# does nothing against a process of another one: the test gets a session of its own, in which Ctrl-C
# would not reach it. It goes ahead by no more than this: beside a session at -20 the kernel's own RCU
# threads had no CPU for half a minute, and putting a probe in place waits for them. Without root the
# test runs as it is.
[ "$(id -u)" = 0 ] || exec "$@"
# shellcheck disable=SC2016 # expanded there
exec setsid --wait sh -c '
    [ ! -e /proc/self/autogroup ] || echo -5 >/proc/self/autogroup
    exec setpriv --pdeathsig TERM nice -n -5 "$@"' sh "$@"
