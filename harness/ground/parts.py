"""A plan whose parts are commands of dlio-bench: carried out one after the other, in a folder that they share.

A plan brings its own parts, and how to see that one is finished. What is alike is here: one process works in the
folder, a journal says when each part began and ended, nothing begins that the job's time does not allow, and who stops
it is told how to go on.
"""

import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from dlio_bench import signals
from dlio_bench.errors import EnvironmentFailure, OutOfTime
from dlio_bench.harness.cluster import walltime
from dlio_bench.harness.cluster.environment import timestamp
from dlio_bench.harness.ground.folders import JOURNAL, lock_folder, make_folder
from dlio_bench.harness.ground.subcommands import run_command

KEPT = "What is finished stays finished."
WAIT_SECONDS = 40.0  # for another process that ends its ranks

Part = TypeVar("Part")
Say = Callable[[str], None]  # tells a user what happens


def print_line(line: str) -> None:
    """Print a line on stderr."""
    print(line, file=sys.stderr, flush=True)


def note(folder: Path, part: str, event: str, **facts: Any) -> None:
    """Add a line to the journal of a plan's folder. OSError."""
    with (folder / JOURNAL).open("a") as journal:
        journal.write(json.dumps({"at": timestamp(), "part": part, "is": event, **facts}) + "\n")


@contextmanager
def work_in(folder: Path, total: int, resume: str, say: Say = print_line) -> Iterator["PartRunner"]:
    """The work in a folder, made if it is absent. UsageError, EnvironmentFailure: see `make_folder`, `lock_folder`."""
    with lock_folder(make_folder(folder), WAIT_SECONDS, say) as (handle, _):
        yield PartRunner(folder, total, resume, say, handle)


class PartRunner:
    """A plan of `total` parts at work in its folder.

    resume: what a user gives to go on. handle: of the folder; commands keep it open, so that the folder stays locked
    while one of them runs. kept: what a user who stops the work is told of the parts before.
    """

    def __init__(self, folder: Path, total: int, resume: str, say: Say = print_line, handle: int | None = None) -> None:
        self.folder, self.total, self.resume, self.kept = folder, total, resume, KEPT
        self.number = 0
        self._say, self._handles = say, () if handle is None else (handle,)

    def iterate(self, parts: Sequence[Part]) -> Iterator[Part]:
        """The parts in turn; `number` counts them, from 1 on."""
        for part in parts:
            self.number += 1
            yield part

    def say(self, text: str) -> None:
        """Tell a user what happens to this part."""
        self._say(f"[{self.number}/{self.total}] {text}")

    def require_time(self, title: str, seconds: float) -> None:
        """OutOfTime if the job ends before a part that takes about so many seconds would."""
        try:
            walltime.require(title, seconds)
        except OutOfTime as error:
            raise OutOfTime(f"{error} {self.kept} Go on with: {self.resume}") from None

    def run(
        self,
        part: str,
        title: str,
        words: Sequence[str],
        *,
        folder: Path | None = None,
        message: Path | None = None,
        quiet: bool = False,
    ) -> int:
        """Run the command of a part in a folder; its exit status. EnvironmentFailure for an interruption.

        part: its name in the journal. message, quiet: see `run_command`.
        """
        note(self.folder, part, "begun")
        try:
            status = run_command(words, self.resume, folder=folder, handles=self._handles, quiet=quiet, message=message)
        except KeyboardInterrupt:
            signals.mark_handled()
            note(self.folder, part, "interrupted")
            raise EnvironmentFailure(
                f"{signals.interrupt_reason()} in {title}. {self.kept} Go on with: {self.resume}"
            ) from None
        note(self.folder, part, "ended", status=status)
        return status


def ending(status: int) -> str:
    """How a command that failed ended: 'ended with status 4', 'was ended by SIGKILL'."""
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
