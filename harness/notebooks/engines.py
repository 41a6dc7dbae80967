"""Engines of IPyParallel for a notebook, on their own or as ranks of one MPI job; none is ever left behind."""

import atexit
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cluster import start
from dlio_bench.harness.notebooks.commands import Command

PATIENCE = 300.0  # seconds until all engines must have come
LOOK = 0.05  # seconds between two looks
CLIENT = Path("security") / "ipcontroller-client.json"
MODULE = "notebooks.engine"


class Engines:
    """A controller, its engines, and `client`, an ipyparallel.Client of them. Leave it by `with` or `close`.

    It ends with the kernel, however that ends. Engines of an MPI job end together; others end one by one.
    """

    def __init__(self, count: int, *, mpi: bool = False, nodes: int = 1, launcher: str | None = None) -> None:
        """Start `count` engines, and wait until all have come.

        mpi: as the ranks of one job, `count` on each of `nodes` nodes, started by `launcher` (as --launcher of
        `dlio-bench run`; None: the one that fits). Its folder must then be seen by all nodes: see TMPDIR. Else they are
        processes of this machine. EnvironmentFailure, with what they wrote, where one does not come.
        """
        import ipyparallel

        self.folder = Path(tempfile.mkdtemp(prefix="dlio-bench-engines-"))
        atexit.register(self.close)
        self._count, self._mpi, self._nodes, self._launcher = count, mpi, nodes, launcher
        self._started: list[Command] = []
        self.client: Any = None
        try:
            self._controller = Command(self._controls(), self.folder / "controller.log")
            self._await((self.folder / CLIENT).exists, "The controller")
            for number in range(1 if mpi else count):
                self._start(number)
            self.client = ipyparallel.Client(str(self.folder / CLIENT))
            self._await(lambda: len(self.client.ids) == count * nodes, "An engine")
        except BaseException:
            self.close()
            raise

    def _controls(self) -> list[str]:
        address = "127.0.0.1" if self._nodes == 1 else "*"
        words = [f"--profile-dir={self.folder}", f"--ip={address}", "--usethreads", "--ping=1000", "--log-level=ERROR"]
        return [sys.executable, "-P", "-m", "ipyparallel.controller", *words]

    def _start(self, number: int) -> None:
        launch = start.Ranks(MODULE, self._nodes, self._count if self._mpi else 1, self._requested_launcher).start(
            self.folder
        )
        self._started.append(Command(launch.argv, self.folder / f"engine-{number}.log", launch.env))

    @property
    def _requested_launcher(self) -> str | None:
        return self._launcher if self._mpi else "local"

    @property
    def processes(self) -> dict[int, int]:
        """Engine -> process, of those that are alive and idle enough to answer."""
        return dict(zip(self.client.ids, self.client[:].apply_sync(_process), strict=True))

    def revive(self) -> int:
        """Start a new engine in place of each that has died, and wait for it; how many there were.

        EnvironmentFailure for engines of an MPI job: they have all ended with the first, so open others.
        """
        dead = [command for command in self._started if command.status is not None]
        if dead and self._mpi:
            raise EnvironmentFailure("An engine of the MPI job has died, and all others with it. Start engines anew.")
        before = set(self.client.ids)
        for command in dead:
            self._started.remove(command)
            self._start(len(list(self.folder.glob("engine-*.log"))))
        self._await(lambda: len(set(self.client.ids) - before) == len(dead), "A new engine")
        return len(dead)

    def _await(self, done: Any, who: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            ended = next((each for each in (*self._started, self._controller) if each.status is not None), None)
            if ended or time.monotonic() > deadline:
                why = f"ended: {ended.last_lines()}" if ended else f"did not come within {PATIENCE:g} s"
                raise EnvironmentFailure(f"{who} of the notebook {why}")
            time.sleep(LOOK)

    def close(self) -> None:
        """End all engines and the controller; a second time is harmless."""
        atexit.unregister(self.close)
        if self.client is not None:
            self.client.close()
        for command in (*self._started, *([self._controller] if hasattr(self, "_controller") else [])):
            command.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> "Engines":
        """Itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()


def _process() -> int:
    import os

    return os.getpid()
