# SPDX-License-Identifier: MIT
"""bsp.c in Python: a bulk-synchronous job. In each step each rank works, and then waits for all others.

    bsp.py SECONDS US...    one US for each rank: what its work takes in a step
"""

import sys
import time

from mpi4py import MPI

steps = 0


def work_step(us: int) -> None:
    time.sleep(us / 1e6)


def wait_for_all() -> None:
    request = MPI.COMM_WORLD.Ibarrier()
    while not request.Test():
        time.sleep(20e-6)


def step_done() -> None:
    global steps
    steps += 1


def main() -> None:
    world = MPI.COMM_WORLD
    us = int(sys.argv[2 + world.Get_rank()])
    end = time.monotonic() + float(sys.argv[1])
    goes_on = True
    while goes_on:
        work_step(us)
        wait_for_all()
        step_done()
        # Rank 0 decides for all, now and then: a step more or less by each its own clock hangs.
        if steps % 64 == 0:
            goes_on = world.bcast(time.monotonic() < end, root=0)


main()
