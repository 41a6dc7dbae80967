"""Commands of dlio-bench, started from a notebook: in a process group of their own, and ended with the kernel."""

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.processes import die_with_parent

GRACE = 10.0  # seconds that a process has to end by itself
LOOK = 0.05  # seconds between two looks at a process
MAKING = 7200.0  # seconds that a dataset may take


class Command:
    """A command that has been started. log: what it writes to its outputs."""

    def __init__(self, argv: Sequence[str], log: Path, env: "dict[str, str] | None" = None) -> None:
        """Start it. EnvironmentFailure where that is impossible.

        Call it in the main thread, as cells do: when the thread that started a process ends, so does the process.
        """
        self.argv, self.log = tuple(argv), log
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    self.argv,
                    env={**os.environ, **(env or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_begin,  # noqa: PLW1509 - one system call, no lock taken
                )
        except OSError as error:
            raise EnvironmentFailure(f"{self.argv[0]} cannot be started: {error.strerror}.") from error
        atexit.register(self.end)

    @property
    def pid(self) -> int:
        """Its process, which leads a group of its own."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs. Only `end` reaps it: until then no other group can have its number."""
        if self._process.returncode is not None:
            return self._process.returncode
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def wait(self, seconds: float | None = None) -> int:
        """Its exit status. EnvironmentFailure, with the end of its log, where it fails or does not end in time."""
        status = self._await(seconds)
        if status is None:
            raise EnvironmentFailure(f"{self} was not over after {seconds:g} s. Its output is in {self.log}.")
        if status:
            raise EnvironmentFailure(f"{self} ended with status {status}. {self.log} ends:\n{self.last_lines()}")
        return status

    def _await(self, seconds: float | None) -> int | None:
        deadline = None if seconds is None else time.monotonic() + seconds
        while self.status is None and (deadline is None or time.monotonic() < deadline):
            time.sleep(LOOK)
        return self.status

    def last_lines(self, count: int = 15) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    def end(self) -> None:
        """End its whole process group, and wait for it; a second time is harmless."""
        atexit.unregister(self.end)
        if self._process.returncode is not None:
            return  # reaped: its number may be another's
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(self.pid, number)
            self._await(GRACE)
        self._process.wait()

    def __str__(self) -> str:
        """Its words."""
        return " ".join(self.argv)


def _begin() -> None:
    die_with_parent(signal.SIGTERM)


def dlio_bench(*words: str, out: Path) -> Command:
    """Start `dlio-bench` with these words and `--out`; its output goes to a log beside that folder."""
    argv = [sys.executable, "-P", "-m", "dlio_bench", *words, "--out", str(out)]
    return Command(argv, out.with_name(f"{out.name}.log"))


def new_folder(parent: Path, name: str) -> Path:
    """A folder that is not there yet, named after the time: a command never mixes its results with older ones."""
    return parent / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"


def dataset(folder: Path, *words: str, seconds: float = MAKING) -> Path:
    """The folder of a dataset that `dlio-bench generate` with these words makes, unless it is there already.

    EnvironmentFailure where that fails or is not over in time.
    """
    if not (folder / "manifest.json").exists():
        command = dlio_bench("generate", *words, out=folder)
        try:
            command.wait(seconds)
        finally:
            command.end()
    return folder
