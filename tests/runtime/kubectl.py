#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Stands in for kubectl, of which it does what is asked of it here: `get pods` with a selector, and
`exec -i`. Pods are namespaces (pods.py), listed in the file that SPEEDBUMP_TEST_PODS names.

As of kubectl's exec: the program in the pod is not this one's child but has pipes to it, so that a
kill of this one ends the program's input and nothing else; without -i it has no input; a status that
is not 0 is told on stderr and becomes this one's."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import threading

ROW = ('jsonpath={range .items[*]}{.metadata.namespace}{"|"}{.metadata.name}{"|"}{.status.phase}'
       '{"|"}{.metadata.deletionTimestamp}{"\\n"}{end}')


def fail(text: str, status: int = 1) -> None:
    print(text, file=sys.stderr)
    sys.exit(status)


def get(pods: list[dict], words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="kubectl get")
    parser.add_argument("what", choices=["pods"])
    parser.add_argument("-l", "--selector", default="")
    parser.add_argument("-n", "--namespace", default="default")
    parser.add_argument("-o", "--output")
    asked = parser.parse_args(words)
    if asked.output != ROW:
        fail(f"error: this stand-in has no output {asked.output!r}")
    wanted = [pair.partition("=")[::2] for pair in asked.selector.split(",") if pair]
    found = [pod for pod in pods if pod["namespace"] == asked.namespace
             and all(pod["labels"].get(key) == value for key, value in wanted)]
    if not found:
        print(f"No resources found in {asked.namespace} namespace.", file=sys.stderr)
    for pod in found:
        print(f"{pod['namespace']}|{pod['name']}|{pod['phase']}|{pod.get('deleted', '')}")


def exec_(pods: list[dict], words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="kubectl exec")
    parser.add_argument("-i", "--stdin", action="store_true")
    parser.add_argument("-n", "--namespace", default="default")
    parser.add_argument("pod")
    cut = words.index("--") if "--" in words else len(words)
    asked, command = parser.parse_args(words[:cut]), words[cut + 1:]
    pod = next((one for one in pods
                if (one["namespace"], one["name"]) == (asked.namespace, asked.pod)), None)
    if pod is None:
        fail(f'Error from server (NotFound): pods "{asked.pod}" not found')
    if pod["phase"] != "Running":
        fail(f"error: cannot exec into a container in a completed pod; current phase is {pod['phase']}")
    inside = subprocess.Popen(
        ["nsenter", "--target", str(pod["pid"]), "--pid", "--mount", "--uts", "--net", *command],
        stdin=subprocess.PIPE if asked.stdin else subprocess.DEVNULL, stdout=subprocess.PIPE,
        start_new_session=True)

    def copy(source: int, sink) -> None:
        while piece := os.read(source, 65536):
            try:
                sink.write(piece)
                sink.flush()
            except OSError:
                break
        sink.close()

    if asked.stdin:
        threading.Thread(target=copy, args=(0, inside.stdin), daemon=True).start()
    copy(inside.stdout.fileno(), open(1, "wb", buffering=0))
    status = inside.wait()
    if status != 0:
        fail(f"command terminated with exit code {status}", status if status > 0 else 137)


if __name__ == "__main__":
    listed = json.loads(pathlib.Path(os.environ["SPEEDBUMP_TEST_PODS"]).read_text())
    {"get": get, "exec": exec_}[sys.argv[1]](listed, sys.argv[2:])
