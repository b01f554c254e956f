# SPDX-License-Identifier: MIT
"""A Slurm of the distribution: slurmctld here, a slurmd on each of some hosts (hosts.py), with keys,
state and logs in a folder of its own."""

import os
import pathlib
import secrets
import subprocess

from harness import leave_none, need, scratch, wait_for
from hosts import Hosts
from services import free_port

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel",
             "sinfo")

_CONFIGURATION = """\
ClusterName=speedbump
SlurmctldHost=controller({address})
SlurmctldPort={port}
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Slurm:
    """A cluster of so many nodes h1, h2, ..., until the end of the test. Slurm's commands find it by
    the environment that this sets."""

    def __init__(self, count: int):
        for program in _PROGRAMS:
            need(program)
        self.hosts = Hosts(count)
        self.folder = scratch()
        nodes = "\n".join(f"NodeName={name} NodeAddr={self.hosts.net}.{number} CPUs=4 State=UNKNOWN"
                          for number, name in enumerate(self.hosts.names, 1))
        self._conf = self.folder / "slurm.conf"
        self._conf.write_text(_CONFIGURATION.format(
            address=f"{self.hosts.net}.254", port=free_port(), folder=self.folder, nodes=nodes))
        # A host's own /sys has no cgroups, and none are asked for.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        for name in ("state", *(f"spool.{name}" for name in self.hosts.names)):
            (self.folder / name).mkdir()
        os.environ["SLURM_CONF"] = str(self._conf)
        leave_none(lambda: os.environ.pop("SLURM_CONF", None))
        self._start_munge()
        # Its configuration names the host that it is to run on.
        self._start("unshare", "--uts", "sh", "-c",
                    f"hostname controller; exec {need('slurmctld')} -D -f {self._conf}")
        for name in self.hosts.names:
            self.hosts.start(name, need("slurmd"), "-D", "-f", str(self._conf))
        wait_for(lambda: self._idle() == count, 60, f"a Slurm of {count} nodes: {self._logs()}")

    def _start(self, *command: str) -> None:
        log = (self.folder / "log").open("a")
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   start_new_session=True)
        leave_none(lambda: (process.kill(), process.wait()))

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        self._start(need("munged"), "--foreground", "--force",
                    *(f"--{kind}={self.folder}/munge.{kind.removesuffix('-file')}"
                      for kind in ("socket", "pid-file", "log-file", "seed-file")),
                    f"--key-file={key}")
        wait_for(lambda: (self.folder / "munge.socket").exists(), 30, "munged")

    def _idle(self) -> int:
        said = subprocess.run(["sinfo", "--noheader", "--Node", "--format=%t"], capture_output=True,
                              text=True, timeout=30)
        return said.stdout.split().count("idle")

    def _logs(self) -> str:
        return "".join(path.read_text()[-2000:] for path in pathlib.Path(self.folder).glob("*log"))

    def submit(self, command: str, nodes: int, *options: str) -> str:
        """A job with this command once on each node; its id, as soon as it runs."""
        job = subprocess.run(
            ["sbatch", "--parsable", f"--nodes={nodes}", f"--ntasks={nodes}", "--output=/dev/null",
             *options, "--wrap", f"exec srun {command}"], check=True, capture_output=True, text=True,
            timeout=30, cwd="/").stdout.strip()
        if "--hold" not in options:
            wait_for(lambda: self.state(job) == "RUNNING", 60, f"job {job}")
        return job

    def state(self, job: str) -> str:
        return subprocess.run(
            ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"],
            capture_output=True, text=True, timeout=30).stdout.strip()
