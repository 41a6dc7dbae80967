"""How a launch of ranks ended and why it failed: the output of ranks and launcher, what it means, what Slurm says."""

import json
import re
import shlex
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from msgspec import Struct

from dlio_bench.errors import ERRORS, BenchError, EnvironmentFailure, JobEnded, Stalled
from dlio_bench.harness.cluster import stacks
from dlio_bench.harness.cluster.mpi_library import run_probe

MOST_BYTES = 10_000_000  # of the first lines; of those after them, the last TAIL lines are kept
TAIL = 500
LINE = 4000  # characters, of which a longer line keeps the first
# Whose line it is, as launchers lead it: tags of Open MPI, labels of srun and flux. "[3] " is right already.
_TAG = re.compile(r"^\[[^\]\s]*,(\d+)\]<std(?:out|err|diag)>: ?")
_LABEL = re.compile(r"^ *(\d+): ")
_LABELLING = ("srun", "flux")


class RankLog:
    """Appends to the file, which it makes with the first line. A full disk costs the file alone."""

    def __init__(self, path: Path, launcher: str) -> None:
        """launcher: the program's name, which tells how it leads lines."""
        self.path = path
        self._labels = launcher in _LABELLING
        self._file: IO[str] | None = None
        self._room = MOST_BYTES
        self._last: deque[str] = deque(maxlen=TAIL)
        self._cut = 0  # lines after the file was full

    def add(self, text: str) -> None:
        """A line, with or without its end."""
        line = label_line(text.rstrip("\n"), labels=self._labels)
        if not line.strip() and not self._last:
            return
        line = line if len(line) <= LINE else f"{line[:LINE]} ... ({len(line) - LINE} more characters)"
        self._last.append(line)
        if self._room < len(line):
            self._room = 0
            self._cut += 1
        else:
            self._room -= len(line) + 1
            self._write(line)

    def close(self) -> None:
        """Write the last lines of those for which there was no room."""
        if self._cut:
            kept = list(self._last)[-self._cut :]
            if self._cut > len(kept):
                self._write(f"... {self._cut - len(kept)} lines are left out here: the file is limited in size ...")
            for line in kept:
                self._write(line)
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._file, self._cut = None, 0

    @property
    def tail(self) -> str:
        """The last lines."""
        return "".join(f"{line}\n" for line in self._last)

    @property
    def is_there(self) -> bool:
        """Whether there is a file with something in it."""
        with suppress(OSError):
            return self.path.stat().st_size > 0
        return False

    def _write(self, line: str) -> None:
        try:
            if self._file is None:
                self._file = self.path.open("a", buffering=1, errors="replace")
            self._file.write(f"{line}\n")
        except OSError:
            self._room = 0


def label_line(line: str, *, labels: bool) -> str:
    """The line, led by its rank as "[3] "; lines that no rank printed stay. labels: as srun leads them."""
    if tag := _TAG.match(line):
        return f"[{tag[1]}] {line[tag.end() :]}"
    if labels and (label := _LABEL.match(line)):
        return f"[{label[1]}] {line[label.end() :]}"
    return line


ASK_SECONDS = 5.0
# Job states, squeue(1). COMPLETING: the job ends although this command has not ended yet.
_ENDED = {
    "CANCELLED": "was cancelled",
    "COMPLETING": "was cancelled",
    "DEADLINE": "was ended by its deadline",
    "PREEMPTED": "had to make room for another",
    "TIMEOUT": "was ended by its time limit",
}


def why_job_ended(env: Mapping[str, str]) -> str | None:
    """A sentence about the end of the job that this process is in; None outside of one, or while the job goes on."""
    job = env.get("SLURM_JOB_ID")
    if job is None:
        return None
    answer = run_probe(("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}"), env, ASK_SECONDS)
    how = _ENDED.get(answer.out.strip()) if answer.status == 0 else None
    return f"Slurm job {job} {how}, and its ranks with it." if how else None


CHARACTERS = 600  # of last words
# What srun and mpirun print where nothing failed, or beside a failure
_NOISE = re.compile(
    r"srun: cluster configuration lacks support for cpu binding"
    r"|srun: [Ww]arning: |srun: launch/slurm: |srun: Job step aborted: Waiting|srun: Force Terminated"
    r"|\[\S+\] plm:\w+: Warning: "
)
_CAUSES = {
    r"More processors requested than permitted": (
        "Slurm has given this job fewer processors than it wants ranks on a node. Ask for whole nodes (salloc "
        "--exclusive), or for as many tasks as ranks (--ntasks-per-node R)."
    ),
    r"There are not enough slots available": (
        "mpirun was given fewer slots than ranks on a node. Ask for whole nodes, or for as many tasks as ranks; or "
        "give --launcher-args '--map-by :OVERSUBSCRIBE'."
    ),
    r"Missing requested host: (?P<host>\S+)": (
        "{host} of the host file is not in the allocation that this command runs in, and mpirun starts ranks nowhere "
        "else. Leave --hostfile (and its variable) out: the scheduler tells mpirun the hosts of the job."
    ),
}


def known_cause(output: str) -> str | None:
    """A known cause in what the launcher printed, in a sentence or two with the fix; None if there is none."""
    for words, sentence in _CAUSES.items():
        if match := re.search(words, output):
            return sentence.format(**match.groupdict())
    return None


def last_words(output: str) -> str:
    """The last lines on one line, those that tell nothing left out if others are there; (none) without a line."""
    lines = [line for raw in output.splitlines() if (line := raw.replace("\ufffd", "").strip()).strip(" -")]
    telling = [line for line in lines if not _NOISE.match(line)] or lines
    chosen: list[str] = []
    for line in reversed(telling):
        if chosen and sum(map(len, chosen)) + len(line) > CHARACTERS:
            break
        chosen.insert(0, line[-CHARACTERS:])
    return " / ".join(chosen) or "(none)"


# "srun: error: node2: tasks 2-3,5: Killed"
_TASKS_ENDED = re.compile(r"^srun: error: \S+: tasks? ([\d,\[\]-]+): ", re.MULTILINE)
_FAILED = re.compile(r"^srun: error: Node failure on (\S+)", re.MULTILINE)
# Open MPI's: "Remote daemon: [prterun-node1-572@0,1] on node node2"
_UNREACHABLE = re.compile(r"has lost communication with a remote.*?Remote daemon *: \S+ on node (\S+)", re.DOTALL)
_GIVEN_UP = "srun: error: Timed out waiting for job step to complete"


def lost_nodes(output: str, hosts: Mapping[int, str], lost: str, *, waited: bool = False) -> str | None:
    """What the output of srun or mpirun says of nodes that failed, as sentences; None if nothing.

    hosts: the host of each rank, as far as known. lost: what is lost with the job. waited: the job's time limit is
    over. srun names a node that the controller has given up; before that, it waits in vain for the ends of ranks. Its
    words are those of Slurm 22.05.
    """
    hint = "`sinfo -R` may say why; leave the node out of the next job with --exclude."
    if failed := _FAILED.search(output):
        return f"Slurm gave up {failed[1]}, which failed or was cut off, and ended the job: {lost}. {hint}"
    if broken := _UNREACHABLE.search(output):
        there = ", ".join(f"rank {rank}" for rank, host in sorted(hosts.items()) if _short(host) == _short(broken[1]))
        return (
            f"{broken[1]} was lost{there and f', with {there}'} (it failed or was cut off: mpirun's connection "
            f"broke): {lost}."
        )
    ended = {rank for ranks in _TASKS_ENDED.findall(output) for rank in _numbers(ranks)}
    heard = {hosts[rank] for rank in ended if rank in hosts}
    silent = {rank: host for rank, host in sorted(hosts.items()) if host not in heard}
    if not silent or not (_GIVEN_UP in output or (waited and ended)):
        return None
    names, ranks = ", ".join(dict.fromkeys(silent.values())), ", ".join(f"rank {rank}" for rank in silent)
    return (
        f"{names} did not tell how {ranks} ended (it failed, was cut off, or cannot end processes that wait for "
        f"storage): {lost}. {hint}"
    )


def _short(host: str) -> str:
    return host.partition(".")[0]


def _numbers(ranks: str) -> list[int]:
    """Slurm's "0-1,4" -> [0, 1, 4]."""
    spans = [span.partition("-") for span in ranks.strip("[]").split(",")]
    return [number for first, _, last in spans for number in range(int(first), int(last or first) + 1)]


RETRIES = 2  # of a job step that ended in MPI_Init by signal 11
_NOT_LAUNCHED = re.compile(r"^srun: error: task \d+ launch failed", re.MULTILINE)  # srun may end with status 0 then
_STAGING = "harness.commands.run."  # modules of the ranks whose command has --staging


def memory_hint(argv: Sequence[str]) -> str:
    """Why the kernel may have killed a rank, and what needs less. argv: of the launch."""
    less = "fewer ranks or a smaller --staging need less" if _STAGING in " ".join(argv) else "fewer ranks need less"
    return f"The kernel does so when memory runs out (see dmesg); {less}."


class LaunchOutcome(Struct, frozen=True):
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
        return self.status != 0 or launched_nothing or lost_nodes(output.tail, self.hosts, lost) is not None

    def died_in_init(self, argv: Sequence[str]) -> bool:
        """Whether srun's ranks died by signal 11 before they met."""
        failed = self.status != 0 and self.stalled is None and not self.reports and not _load_reports(self.folder)
        return failed and not self.began and self.crashed and Path(argv[0]).name == "srun"


def _load_reports(folder: Path) -> list[dict[str, Any]]:
    """The reports that ranks have written to files of the work folder."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("error-*.json"))]


def why_stalled(outcome: LaunchOutcome, folder: Path, output: RankLog, lost: str) -> Stalled:
    """Why a job was ended in which a rank stood still. folder: with the stacks."""
    # ranks that srun has ended are silent too: the node of which it waits to hear is at fault
    why = lost_nodes(output.tail, outcome.hosts, lost, waited=True) or outcome.stalled or ""
    return Stalled(why + _stacks(folder) + _output_hint(output))


def why_failed(
    outcome: LaunchOutcome, argv: Sequence[str], env: Mapping[str, str], output: RankLog, lost: str
) -> BenchError:
    """Why a job failed: the scheduler ended its own, a rank reported it, or the launcher says what died."""
    if end := why_job_ended(env):
        return JobEnded(end + _output_hint(output))
    status, program, printed, folder = outcome.status, Path(argv[0]).name, output.tail, outcome.folder
    if reports := outcome.reports + _load_reports(folder):
        return _reported_failure(reports, folder, output)
    if death := lost_nodes(printed, outcome.hosts, lost) or _killed_rank(printed, lost, argv):
        return EnvironmentFailure(death + _output_hint(output))
    if outcome.died_in_init(argv):
        return EnvironmentFailure(
            f"{program} ended in MPI_Init by signal 11, {RETRIES + 1} times, before any rank worked: {lost}. The MPI "
            f"library does not start under this {program} reliably; use --launcher mpirun, or another MPI library."
            f"{_output_hint(output)}"
        )
    if status < 0:  # the process that was started is the rank itself, or the launcher was ended
        name = signal.Signals(-status).name
        hint = f" {memory_hint(argv)}" if -status == signal.SIGKILL else ""
        return EnvironmentFailure(f"The process {program} was ended by {name}: {lost}.{hint}{_output_hint(output)}")
    output.add(f"The command was: {shlex.join(argv)}")
    output.close()
    why = known_cause(printed) or (
        f"The launcher {program} ended with status {status} before the ranks were done. "
        f"Its last words: {last_words(printed)}."
    )
    return EnvironmentFailure(f"{why}{_output_hint(output)}")


def _reported_failure(reports: Sequence[dict[str, Any]], folder: Path, output: RankLog) -> BenchError:
    """The failure that ranks have reported themselves."""
    # a defect goes first, with the place of its trace; else the failure of the lowest status
    report = sorted(reports, key=lambda entry: (entry["expected"], entry["status"]))[0]
    if report["expected"]:
        kind = ERRORS[report["status"]]
        if kind is not EnvironmentFailure:  # the user's data or words, which explain themselves
            output.path.unlink(missing_ok=True)
        return kind(report["message"] + _stacks(folder) + _output_hint(output))
    last = report["message"].strip().splitlines()[-1]
    trace = _save_explanation(folder / "defect.txt", report["message"])
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


def _output_hint(output: RankLog) -> str:
    """A sentence that says where the output of ranks and launcher is; empty where there is none."""
    return f" What the ranks and their launcher printed is in {output.path}." if output.is_there else ""


def _stacks(folder: Path) -> str:
    """A sentence that says where the ranks' stacks are; empty where there are none."""
    files = stacks.stack_files(folder)
    return f" The stacks of {len(files)} ranks are in {folder}/stacks-*.txt." if files else ""


def _save_explanation(path: Path, text: str) -> str:
    """Write the explanation of a failure, and say where; a full disk must not hide the failure itself."""
    try:
        path.write_text(text)
    except OSError as error:
        return f"the rest could not be kept in {path}: {error.strerror}"
    return f"the whole is in {path}"
