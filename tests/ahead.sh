#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs a test that judges times ahead of whatever else the machine does.
#   ahead.sh COMMAND [ARG...]
# The kernel shares the CPUs between sessions first (sched_autogroup, sched(7)), so that nice(1) alone
# does nothing against a process of another one: the test gets a session of its own. Without root it
# runs as it is.
[ "$(id -u)" = 0 ] || exec "$@"
# shellcheck disable=SC2016 # expanded there
exec setsid --wait sh -c '
    [ ! -e /proc/self/autogroup ] || echo -20 >/proc/self/autogroup
    exec nice -n -20 "$@"' sh "$@"
