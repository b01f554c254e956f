# SPDX-License-Identifier: MIT
"""speedbump experiment --at: what is known of a service before the first delay."""

import json
import pathlib

from fleets import SERVICE, Fleet
from harness import SPEEDBUMP, alone, main, scratch
from hosts import Hosts, at
from known_experiments import PROGRESS

TOLD = str(pathlib.Path(__file__).with_name("dying_agent.py"))


class Heard(Fleet):
    """An experiment on services that are started with these arguments, one on each host, and what it
    and the agent of each said to each other."""

    def __init__(self, services: list[list[str]], targets: str, *arguments: str, slice_ms: int = 50):
        hosts = Hosts(len(services))
        for name, service in zip(hosts.names, services):
            hosts.start(name, hosts.copy(name, SERVICE), *service)
        logs = {name: scratch() / "heard" for name in hosts.names}
        words = at(hosts, **{name: {"SPEEDBUMP_TEST_AGENT": SPEEDBUMP, "SPEEDBUMP_TEST_HEARD": str(log)}
                             for name, log in logs.items()})[1:]
        super().__init__([f"--at-binary={TOLD}", *words], targets, "--exe=pulse", "--progress", PROGRESS,
                         *arguments, slice_ms=slice_ms)
        self.said = [[json.loads(line) for line in log.read_bytes().splitlines()]
                     for log in logs.values()]

    def period_s(self, host: int) -> tuple[float, int]:
        """Of a unit there, as its guard is told first; and how often slices were left out before, or
        begun anew, as each time a unit may be cut off."""
        gaps = -1  # the first begin is none
        for line in self.said[host]:
            if line["type"] == "begin" and line["period_ns"] > 0:
                return line["period_ns"] / 1e9, gaps
            gaps += line["type"] in ("begin", "late")
        raise AssertionError(f"no period was told: {self}")


@alone
def test_the_pace_of_a_slow_service() -> None:
    unit_s = 0.75
    done = Heard([[str(int(unit_s * 1e6))]], "+exe:work_a\n", "--time=2s", "--doses=1ms")
    period, gaps = done.period_s(0)
    print(f"{period:.3f} s, {gaps} gaps")
    # Of 15 units, of which one may have begun before.
    assert abs(period / unit_s - 1) < min(0.1 + gaps / 15, 0.5), (period, gaps, done)


@alone
def test_the_pace_of_each_of_unlike_hosts() -> None:
    """The fast one is known at once; the other is waited for."""
    fast_s, slow_s = 0.001, 1
    done = Heard([[str(int(unit_s * 1e6))] for unit_s in (fast_s, slow_s)], "+exe:work_a\n",
                 "--time=2s", "--doses=100us")
    (fast, _), (slow, gaps) = done.period_s(0), done.period_s(1)
    print(f"{fast:.4f} s, {slow:.3f} s, {gaps} gaps")
    assert 0.9 * fast_s < fast < slow_s / 10, (fast, done)
    # Of 5 units at least, of which one may have begun before.
    low, high = max(0.4, 0.75 - gaps / 5), 1.25 + gaps / 5
    assert low < slow / slow_s < high, (slow, gaps, done)


def test_what_is_called_every_few_seconds_is_found() -> None:
    done = Heard([["1000", "2000"]], "+exe:work_a\n+exe:now_and_then\n", "--time=2s", slice_ms=5)
    assert done.status in (0, 1) and done.document["complete"], done
    rare = [one for one in done.document["targets"] if one["name"] == "+exe:now_and_then"]
    assert len(rare) == 1 and rare[0]["doses_ns"], done
    assert "was not called" not in done.out, done


if __name__ == "__main__":
    main(globals())
