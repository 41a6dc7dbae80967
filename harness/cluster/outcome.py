"""How a launch of ranks ended, and why it failed."""

import json
import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from dlio_bench.errors import ERRORS, BenchError, EnvironmentFailure, JobEnded, Stalled
from dlio_bench.harness.cluster import ended_job, last_words, lost_nodes, stacks
from dlio_bench.harness.cluster.rank_log import RankLog

RETRIES = 2  # of a job step that ended in MPI_Init by signal 11
_NOT_LAUNCHED = re.compile(r"^srun: error: task \d+ launch failed", re.MULTILINE)  # srun may end with status 0 then
_STAGING = "harness.commands.run."  # modules of the ranks whose command has --staging


def memory_hint(argv: Sequence[str]) -> str:
    """Why the kernel may have killed a rank, and what needs less. argv: of the launch."""
    less = "fewer ranks or a smaller --staging need less" if _STAGING in " ".join(argv) else "fewer ranks need less"
    return f"The kernel does so when memory runs out (see dmesg); {less}."


class Outcome(Struct, frozen=True):
    """How a launch ended. stalled: why it was ended from here. reports: failures that a rank could not write to a file.

    began: a rank has met the others, or has said more than that it lives. hosts: of the ranks that gave signs of life.
    """

    status: int
    stalled: str | None
    reports: list[dict[str, Any]]
    began: bool
    folder: Path
    crashed: bool
    hosts: Mapping[int, str]

    def has_failed(self, output: RankLog, lost: str) -> bool:
        """Whether it failed. mpirun may end with status 0 after it has lost a host, srun if it could launch nothing."""
        launched_nothing = not self.began and _NOT_LAUNCHED.search(output.tail) is not None
        return self.status != 0 or launched_nothing or lost_nodes.told(output.tail, self.hosts, lost) is not None

    def died_in_init(self, argv: Sequence[str]) -> bool:
        """Whether srun's ranks died by signal 11 before they met."""
        failed = self.status != 0 and self.stalled is None and not self.reports and not _written_reports(self.folder)
        return failed and not self.began and self.crashed and Path(argv[0]).name == "srun"


def _written_reports(folder: Path) -> list[dict[str, Any]]:
    """The reports that ranks have written to files of the work folder."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("error-*.json"))]


def why_stalled(outcome: Outcome, folder: Path, output: RankLog, lost: str) -> Stalled:
    """Why a job was ended in which a rank stood still. folder: with the stacks."""
    # ranks that srun has ended are silent too: the node of which it waits to hear is at fault
    why = lost_nodes.told(output.tail, outcome.hosts, lost, waited=True) or outcome.stalled or ""
    return Stalled(why + _stacks(folder) + _printed(output))


def why_failed(outcome: Outcome, argv: Sequence[str], env: Mapping[str, str], output: RankLog, lost: str) -> BenchError:
    """Why a job failed: the scheduler ended its own, a rank reported it, or the launcher says what died."""
    if end := ended_job.told(env):
        return JobEnded(end + _printed(output))
    status, program, printed, folder = outcome.status, Path(argv[0]).name, output.tail, outcome.folder
    if reports := outcome.reports + _written_reports(folder):
        return _reported(reports, folder, output)
    if death := lost_nodes.told(printed, outcome.hosts, lost) or _killed_rank(printed, lost, argv):
        return EnvironmentFailure(death + _printed(output))
    if outcome.died_in_init(argv):
        return EnvironmentFailure(
            f"{program} ended in MPI_Init by signal 11, {RETRIES + 1} times, before any rank worked: {lost}. The MPI "
            f"library does not start under this {program} reliably; use --launcher mpirun, or another MPI library."
            f"{_printed(output)}"
        )
    if status < 0:  # the process that was started is the rank itself, or the launcher was ended
        name = signal.Signals(-status).name
        hint = f" {memory_hint(argv)}" if -status == signal.SIGKILL else ""
        return EnvironmentFailure(f"The process {program} was ended by {name}: {lost}.{hint}{_printed(output)}")
    output.add(f"The command was: {shlex.join(argv)}")
    output.close()
    why = last_words.cause(printed) or (
        f"The launcher {program} ended with status {status} before the ranks were done. "
        f"Its last words: {last_words.quoted(printed)}."
    )
    return EnvironmentFailure(f"{why}{_printed(output)}")


def _reported(reports: Sequence[dict[str, Any]], folder: Path, output: RankLog) -> BenchError:
    """The failure that ranks have reported themselves."""
    # a defect goes first, with the place of its trace; else the failure of the lowest status
    report = sorted(reports, key=lambda entry: (entry["expected"], entry["status"]))[0]
    if report["expected"]:
        kind = ERRORS[report["status"]]
        if kind is not EnvironmentFailure:  # the user's data or words, which explain themselves
            output.path.unlink(missing_ok=True)
        return kind(report["message"] + _stacks(folder) + _printed(output))
    last = report["message"].strip().splitlines()[-1]
    trace = _kept(folder / "defect.txt", report["message"])
    return EnvironmentFailure(f"A rank failed unexpectedly: {last}. That is a defect of dlio-bench; {trace}.")


def _killed_rank(printed: str, lost: str, argv: Sequence[str]) -> str | None:
    """What mpirun says of a rank that a signal ended, as sentences."""
    killed = re.search(r"rank (\d+) with PID (\d+) on node (\S+) exited on\s+signal (\d+)", printed)
    if killed is None:
        return None
    rank, pid, host, number = killed.groups()
    name, hint = signal.Signals(int(number)).name, f" {memory_hint(argv)}" if number == "9" else ""
    where = f"process {pid} on {host}" if pid != "0" else f"on {host}"  # PRRTE does not always know
    return f"Rank {rank} ({where}) was ended by {name}, and the job with it: {lost}.{hint}"


def _printed(output: RankLog) -> str:
    """A sentence that says where the output of ranks and launcher is; empty where there is none."""
    return f" What the ranks and their launcher printed is in {output.path}." if output.is_there else ""


def _stacks(folder: Path) -> str:
    """A sentence that says where the ranks' stacks are; empty where there are none."""
    files = stacks.written(folder)
    return f" The stacks of {len(files)} ranks are in {folder}/stacks-*.txt." if files else ""


def _kept(path: Path, text: str) -> str:
    """Write the explanation of a failure, and say where; a full disk must not hide the failure itself."""
    try:
        path.write_text(text)
    except OSError as error:
        return f"the rest could not be kept in {path}: {error.strerror}"
    return f"the whole is in {path}"
