# SPDX-License-Identifier: MIT
"""speedbump experiment on the hosts of a Slurm job, in pods, and over mpirun: LAUNCH and lists of
hosts as people have them. Slurm and Open MPI are real; kubectl is a stand-in (kubectl.py)."""

import os
import shlex

from fleets import SERVICE, Fleet, Started
from harness import (
    SPEEDBUMP, Run, changed_bytes, expect_restored, main, need, scratch, targets_file, wait_for,
)
from hosts import Hosts, pid_of
from known_experiments import PROGRESS
from pods import Pods
from slurm import Slurm

EXPERIMENT = ("--exe=pulse", "--progress", PROGRESS, "--time=6s", "--doses=100us")
LINE = "+exe:work_a\n"


def refused(*words: str, status: int) -> str:
    """The error of an experiment on those hosts, which begins nothing."""
    done = Run("experiment", *words, "--exe=pulse", "--progress", PROGRESS, targets_file(LINE))
    assert done.status == status, done
    assert done.err.count("speedbump: error:") == 1, done
    return done.err


def expect_slowed(done: Fleet, names: list[str]) -> None:
    """All of these hosts had a part in all of it, and were slowed."""
    assert done.status in (0, 1), done  # 1: a sham target, that other load stirs
    document = done.document
    assert document["complete"], done
    hosts = document["fleet"]["hosts"]
    assert [host["name"] for host in hosts] == names, hosts
    slices = len(document["sliced"]["units"][0])
    assert slices > 200, done
    for host in hosts:
        assert "ended" not in host, host
        assert sum(host["targets"][0]["delays"]) > 0, host
        assert sum(host["units"][0]) > 0, host


def copies(slurm: Slurm) -> str:
    """A service on each node, of a file of its own; the command that starts it there."""
    for name in slurm.hosts.names:
        slurm.hosts.copy(name, SERVICE)
    return f"sh -c 'exec {slurm.hosts.folder}/$(hostname)/pulse'"


def services(slurm: Slurm, job: str) -> list[int]:
    """The PIDs here of a job's services."""
    found = []
    for entry in os.scandir("/proc"):
        try:
            if not os.readlink(f"/proc/{entry.name}/exe").startswith(str(slurm.hosts.folder)):
                continue
            with open(f"/proc/{entry.name}/environ", "rb") as environment:
                if f"SLURM_JOB_ID={job}".encode() in environment.read().split(b"\0"):
                    found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_the_nodes_of_a_slurm_job() -> None:
    slurm = Slurm(3)
    service = copies(slurm)
    job, other = slurm.submit(service, 2), slurm.submit(service, 3)
    for one, count in ((job, 2), (other, 3)):
        wait_for(lambda: len(services(slurm, one)) == count, 30, f"the services of job {one}")
    # A job of two of the nodes; the services of another, on the same nodes, are left alone.
    running = Started(["--at-slurm", job], LINE, *EXPERIMENT)
    running.wait_for_slices(100)
    assert all(changed_bytes(pid) for pid in services(slurm, job))
    assert not any(changed_bytes(pid) for pid in services(slurm, other))
    status, said, document = running.end()
    assert status in (0, 1) and document["complete"], said
    assert [host["name"] for host in document["fleet"]["hosts"]] == ["h1", "h2"], document["fleet"]
    assert all(sum(host["targets"][0]["delays"]) for host in document["fleet"]["hosts"]), said
    for pid in services(slurm, job):
        expect_restored(pid)
    # The same by --at.
    launches = [f"srun --overlap --jobid {other} -w {name} -N1 -n1" for name in slurm.hosts.names]
    done = Fleet([word for one in launches for word in ("--at", one)], LINE, *EXPERIMENT)
    expect_slowed(done, slurm.hosts.names)
    # Jobs that do not run.
    assert "--at-slurm 9999" in (error := refused("--at-slurm=9999", status=1)), error
    assert "Invalid job id" in error, error
    held = slurm.submit(service, 1, "--hold")
    error = refused("--at-slurm", held, status=1)
    assert f"--at-slurm {held}" in error and "PENDING" in error, error


def test_the_pods_of_a_selector() -> None:
    pods = Pods()
    for name in ("web-1", "web-2"):
        pods.add(name, SERVICE, app="web")
    pods.add("web-3", SERVICE, phase="Pending", app="web")
    pods.add("db-1", SERVICE, app="db")
    pods.add("job-1", SERVICE, phase="Succeeded", app="job")
    running = Started(["--at-pods", "app=web"], LINE, *EXPERIMENT)
    running.wait_for_slices(100)
    assert changed_bytes(pods.pids["web-1"]) and changed_bytes(pods.pids["web-2"])
    assert not changed_bytes(pods.pids["db-1"])
    status, said, document = running.end()
    assert status in (0, 1) and document["complete"], said
    assert [host["name"] for host in document["fleet"]["hosts"]] == ["web-1", "web-2"], said
    assert all(sum(host["targets"][0]["delays"]) for host in document["fleet"]["hosts"]), said
    assert "web-3 is Pending" in said, said
    # By --at; and both.
    done = Fleet(["--at", "kubectl exec -i db-1 --", "--at-pods=app=web"], LINE, *EXPERIMENT)
    expect_slowed(done, ["db-1", "web-1", "web-2"])
    for pid in pods.pids.values():
        expect_restored(pid)
    # None that matches, none that runs, no such pod.
    assert "no pod matches" in (error := refused("--at-pods=app=mail", status=1)), error
    assert "app=mail" in error, error
    error = refused("--at-pods=app=job", status=1)
    assert "job-1 is Succeeded" in error, error
    error = refused(f"--at-binary={SPEEDBUMP}", "--at=kubectl exec -i web-9 --", status=1)
    assert "web-9" in error and "not found" in error, error
    # Without its -i the agent's input ends at once.
    error = refused(f"--at-binary={SPEEDBUMP}", "--at=kubectl exec web-1 --", status=1)
    assert "kubectl exec web-1" in error and "link ended" in error, error


def test_a_list_that_cannot_be_asked_for_names_the_program() -> None:
    before = os.environ["PATH"]
    os.environ["PATH"] = str(scratch())
    try:
        error = refused("--at-slurm=42", status=5)
        assert "--at-slurm 42" in error and "no program 'squeue'" in error, error
        error = refused("--at-pods=app=web", status=5)
        assert "--at-pods 'app=web'" in error and "no program 'kubectl'" in error, error
    finally:
        os.environ["PATH"] = before
    for words in (["--at-slurm=x"], ["--at-slurm=42,43"], ["--at-pods="]):
        refused(*words, status=2)
    # What is for many hosts, without any.
    for words in (["--where=each"], ["--at-binary=x"], []):
        assert "requires --at" in (error := refused(*words, status=2)), error


def test_an_agent_over_mpirun() -> None:
    hosts = Hosts(2)
    pids = [pid_of(hosts.start(name, hosts.copy(name, SERVICE))) for name in hosts.names]
    words = [need("mpirun"), "--allow-run-as-root", "--bind-to", "none",
             "--mca", "plm_rsh_agent", shlex.join(hosts.ssh),
             "--mca", "oob_tcp_if_include", f"{hosts.net}.0/24"]
    launches = [shlex.join([*words, "--mca", "orte_tmpdir_base", str(scratch()), "-host", name, "-np", "1"])
                for name in hosts.names]
    running = Started([word for one in launches for word in ("--at", one)], LINE, *EXPERIMENT)
    running.wait_for_slices(100)
    assert all(changed_bytes(pid) for pid in pids)
    status, said, document = running.end()
    assert status in (0, 1) and document["complete"], said
    assert [host["name"] for host in document["fleet"]["hosts"]] == hosts.names, said
    assert all(sum(host["targets"][0]["delays"]) for host in document["fleet"]["hosts"]), said
    for pid in pids:
        expect_restored(pid)


if __name__ == "__main__":
    main(globals())
