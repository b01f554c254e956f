# SPDX-License-Identifier: MIT
"""Hosts that are network namespaces with an OpenSSH server each, on a bridge of their own. Each has a
host name and processes of its own, too; the clock is everybody's."""

import itertools
import os
import pathlib
import shlex
import shutil
import subprocess

from harness import SPEEDBUMP, Skip, children, leave_none, need, program_below, scratch, wait_for

_numbers = itertools.count()
# What this machine's user has in it, a shell that sshd starts would run: there it is no such host's.
HIDE_PROFILE = "for file in ~/.bashrc ~/.ssh/rc; do [ ! -e $file ] || mount --bind /dev/null $file; done"


def _sh(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


class Hosts:
    """So many hosts, named h1, h2, ...; gone at the end of the test."""

    def __init__(self, count: int):
        for program in ("ip", "ssh", "sshd", "ssh-keygen", "unshare", "nsenter"):
            need(program)
        self.folder = scratch()
        self.folder.chmod(0o700)
        self.tag = f"sb{os.getpid() % 100000}{next(_numbers)}"
        self.net = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self.names = [f"h{number}" for number in range(1, count + 1)]
        self.pids: dict[str, int] = {}  # of the first process of each
        pathlib.Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for key in ("host_key", "user_key"):
            _sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key))
        (self.folder / "user_key.pub").rename(self.folder / "authorized")
        bridge = f"{self.tag}b"
        try:
            _sh("ip", "link", "add", bridge, "type", "bridge")
        except (OSError, subprocess.CalledProcessError) as error:
            raise Skip(f"no network bridge can be made: {error}") from error
        leave_none(lambda: subprocess.run(["ip", "link", "del", bridge], capture_output=True))
        _sh("ip", "addr", "add", f"{self.net}.254/24", "dev", bridge)
        _sh("ip", "link", "set", bridge, "up")
        for number in range(1, count + 1):
            self._start(number, bridge)
        (self.folder / "ssh_config").write_text(self._ssh_config())
        self.ssh = ["ssh", "-F", str(self.folder / "ssh_config")]
        for name in self.names:
            wait_for(lambda: subprocess.run([*self.ssh, name, "true"], capture_output=True)
                     .returncode == 0, 30, f"the SSH server of {name}")

    def _start(self, number: int, bridge: str) -> None:
        name, space = f"h{number}", f"{self.tag}n{number}"
        link = f"{self.tag}v{number}"
        _sh("ip", "netns", "add", space)
        leave_none(lambda: subprocess.run(["ip", "netns", "del", space], capture_output=True))
        _sh("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        _sh("ip", "link", "set", link, "master", bridge, "up")
        for words in (f"addr add {self.net}.{number}/24 dev eth0", "link set eth0 up",
                      "link set lo up"):
            _sh("ip", "-n", space, *words.split())
        config = self.folder / f"sshd_{name}"
        config.write_text(f"ListenAddress {self.net}.{number}\nHostKey {self.folder}/host_key\n"
                          f"AuthorizedKeysFile {self.folder}/authorized\nPidFile none\n"
                          "UsePAM no\nStrictModes no\nPermitRootLogin yes\nMaxStartups 100\n"
                          "PasswordAuthentication no\nAcceptEnv SPEEDBUMP_*\nPrintMotd no\n")
        server = subprocess.Popen(
            ["ip", "netns", "exec", space, "unshare", "--pid", "--fork", "--kill-child",
             "--mount-proc", "--uts", "sh", "-c",
             f"hostname {name}; {HIDE_PROFILE}; exec {need('sshd')} -D -e -f {config}"],
            stderr=(self.folder / f"log_{name}").open("w"), start_new_session=True)
        leave_none(lambda: (server.kill(), server.wait()))
        wait_for(lambda: children(server.pid), 10, f"the processes of {name}")
        self.pids[name] = children(server.pid)[0]

    def _ssh_config(self) -> str:
        text = (f"Host h*\n User root\n IdentityFile {self.folder}/user_key\n BatchMode yes\n"
                " IdentitiesOnly yes\n StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n"
                " LogLevel ERROR\n ConnectTimeout 20\n")
        for number, name in enumerate(self.names, 1):
            text += f"Host {name}\n HostName {self.net}.{number}\n"
        return text

    def launch(self, name: str, **environment: str) -> str:
        """What --at takes for this host."""
        words = [*self.ssh, name]
        if environment:
            words += ["env", *(f"{key}={value}" for key, value in environment.items())]
        return shlex.join(words)

    def start(self, name: str, *command: str) -> subprocess.Popen:
        """A program on that host, until the end of the test."""
        started = subprocess.Popen(
            ["nsenter", "--target", str(self.pids[name]), "--pid", "--uts", "--net", "--mount",
             *command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

        def end() -> None:
            for child in children(started.pid):
                subprocess.run(["kill", "-9", str(child)], capture_output=True)
            started.kill()
            started.wait()

        leave_none(end)
        program_below(started.pid, command[0])
        return started

    def copy(self, name: str, program: str) -> str:
        """A program as a file of that host's own: probes are in files."""
        folder = self.folder / name
        folder.mkdir(mode=0o755, exist_ok=True)
        return shutil.copy(program, folder)


def pid_of(started: subprocess.Popen) -> int:
    """Here, of a program that Hosts.start() has started."""
    return children(started.pid)[0]


def at(hosts: Hosts, **options: dict[str, str]) -> list[str]:
    """--at for each of the hosts, with the environment that `options` has for it."""
    words = [f"--at-binary={SPEEDBUMP}"]
    for name in hosts.names:
        words += ["--at", hosts.launch(name, **options.get(name, {}))]
    return words
