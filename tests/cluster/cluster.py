"""A cluster that this machine plays, for tests: hosts node1, node2, ... with an sshd each, and Slurm if asked for."""

import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.processes import DLIO, until

SCRIPT = Path(__file__).with_name("virtual-cluster")
PATIENCE = 300.0  # seconds until a command that has not ended counts as hanging


@dataclass(frozen=True)
class Cluster:
    """`folder` is shared by all hosts, at the same path; `work` in it is where commands start."""

    folder: Path
    hosts: int

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def do(self, verb: str, *words: str) -> None:
        """`kill`, `cut`, `mend` or `shape`: see the script."""
        subprocess.run([SCRIPT, verb, self.folder, *words], check=True, capture_output=True, text=True)

    def argv(self, host: str, *command: str) -> list[str]:
        return [str(SCRIPT), "on", str(self.folder), host, *command]

    def start(self, host: str, *command: str, **env: str) -> "subprocess.Popen[str]":
        """Start a command on a host, in the folder of commands."""
        return subprocess.Popen(
            self.argv(host, *command), cwd=self.work, env=self.env() | env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def measuring(self, host: str, *command: str) -> "tuple[subprocess.Popen[str], Path]":
        """A run that has begun its first trial, and the file with what it says on standard error."""
        says = self.work / f"says-{secrets.token_hex(4)}"
        run = self.start(host, "sh", "-c", f"exec {shlex.join(command)} 2>{says.name}")
        until(lambda: says.exists() and ("trial 1" in says.read_text() or run.poll() is not None))
        assert run.poll() is None, says.read_text()
        return run, says

    def on(self, host: str, *command: str, status: int = 0, **env: str) -> "subprocess.CompletedProcess[str]":
        """Run a command on a host, which must end with this status and without a traceback."""
        process = self.start(host, *command, **env)
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"{command} was not over in time.\n{out}{err}") from None
        assert process.returncode == status, out + err
        assert "Traceback" not in out + err
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def processes(self, host: str, part: str) -> list[int]:
        """Processes of a host, in its own numbers, whose command line has this part."""
        listed = subprocess.run(self.argv(host, "pgrep", "-f", part), capture_output=True, text=True)
        return list(map(int, listed.stdout.split()))

    def dlio(self, host: str, *arguments: str, status: int = 0, **env: str) -> "subprocess.CompletedProcess[str]":
        return self.on(host, *DLIO, *arguments, status=status, **env)

    def env(self) -> Mapping[str, str]:
        beside = str(Path(sys.executable).parent)
        return os.environ | {
            "DLIO_BENCH_CACHE": str(self.folder / "cache"),
            "PATH": f"{beside}:{os.environ['PATH']}",
            "PRTE_MCA_plm_ssh_agent": str(self.folder / "ssh"),
        }


@contextmanager
def cluster(folder: Path, hosts: int, *, slurm: bool = False) -> Iterator[Cluster]:
    """The hosts, until the block ends, or this process. They see this Python, wherever it lies."""
    made = Cluster(folder, hosts)
    env = os.environ | {"OWNER": str(os.getpid()), "SHARED": f"{sys.prefix}:{sys.base_prefix}"}
    subprocess.run([SCRIPT, "up", folder, str(hosts), *(["slurm"] if slurm else [])], check=True, env=env)
    try:
        made.work.mkdir()
        yield made
    finally:
        subprocess.run([SCRIPT, "down", folder], check=True)
