#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""An agent that is killed at a moment of its life: what --at-binary starts. SPEEDBUMP_TEST_DIES says
when: "hello" before it has said that, "attach" when it is told to, "warm-up" when it is to play slices,
"doses" and "experiment" when the first of them has a delay, and the 301st, "end" when its input
ends; without it, never. SPEEDBUMP_TEST_HEARD: a file for what both sides say."""

import json
import os
import subprocess
import sys
import threading

AGENT = os.environ["SPEEDBUMP_TEST_AGENT"]
dies = os.environ.get("SPEEDBUMP_TEST_DIES")
heard = open(os.environ.get("SPEEDBUMP_TEST_HEARD", os.devnull), "wb", buffering=0)
agent = subprocess.Popen([AGENT, *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def die(phase: str) -> None:
    if dies == phase:
        agent.kill()
        agent.wait()
        os._exit(137)


def hear() -> None:
    """What the coordinator says."""
    delays = 0
    for line in sys.stdin.buffer:
        heard.write(line)
        agent.stdin.write(line)
        agent.stdin.flush()
        order = json.loads(line)
        if order["type"] == "attach":
            die("attach")
        if order["type"] == "begin":
            die("warm-up")
        if order["type"] == "rows":
            delays += sum(any(row) for row in order["doses"])
        if delays > 0:
            die("doses")
        if delays > 300:
            die("experiment")
    die("end")
    agent.stdin.close()


if dies == "hello":
    die("hello")
threading.Thread(target=hear, daemon=True).start()
for said in agent.stdout:
    heard.write(said)
    sys.stdout.buffer.write(said)
    sys.stdout.buffer.flush()
sys.exit(agent.wait())
