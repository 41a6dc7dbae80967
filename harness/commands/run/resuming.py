"""How a run that was stopped goes on in its folder: what it had decided, and which node counts are finished."""

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from dlio_bench.datagen.dataset import open_dataset
from dlio_bench.errors import BenchError, EnvironmentFailure, JobEnded, OutOfTime, UsageError
from dlio_bench.harness.cluster import walltime
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.sizing import TrialSize
from dlio_bench.harness.commands.run.told.foresight import revised_seconds
from dlio_bench.harness.ground import unfinished
from dlio_bench.harness.ground.folders import UNFINISHED
from dlio_bench.harness.ground.launching import why_ended
from dlio_bench.harness.ground.subcommands import going_on
from dlio_bench.reports.document import result
from dlio_bench.reports.document.collection import load_all
from dlio_bench.reports.document.marks import INTERRUPTED
from dlio_bench.reports.document.typed import convert, to_json
from dlio_bench.reports.document.types import Draft, Plan, Result
from dlio_bench.reports.numbers.meetings import Steps
from dlio_bench.reports.traces.timeline import UNFINISHED_NAME
from dlio_bench.reports.view.formatting import plural

Finished = tuple[Result, Steps]


class Done(Struct, frozen=True):
    """A node count whose results are all saved: seconds that it was foreseen to take, and that it took."""

    nodes: int
    foreseen: float
    seconds: float


class RunState(Struct, frozen=True, kw_only=True):
    """What a run has decided. size: of its trials, after a first look; dataset: the digest, once there is one.

    results: the digests of all results, once the run is finished.
    """

    seed: int
    dataset: str | None = None
    size: TrialSize | None = None
    done: list[Done] = []
    results: list[str] = []


def record_of(options: Options, earlier: Sequence[Result]) -> unfinished.Record:
    """The record of a run: every option that changes what is measured. earlier: results that it repeats."""
    measured = replace(options.measured_options, dry_run=False)
    return unfinished.new_record(asdict(measured) | {"repeats": [known.digest for known in earlier]})


class Folder:
    """The folder of a run at work, with its record."""

    def __init__(self, folder: Path, record: unfinished.Record, state: RunState) -> None:
        self.path, self.state = folder, state
        self._record = record
        self.note()

    def note(self, **decided: Any) -> None:
        """Remember, on disk, what was decided."""
        self.state = replace(self.state, **decided)
        self._record = replace(self._record, state=to_json(self.state))
        unfinished.save(self._record, self.path)

    def require_dataset(self, digest: str) -> None:
        """EnvironmentFailure if the run began on other data."""
        _require_dataset(self.state, digest, self.path)
        self.note(dataset=digest)

    def finish(self, results: Sequence[Result]) -> None:
        """Everything is finished."""
        self.note(results=[known.digest for known in results])
        unfinished.finish(self.path)

    def finished_results(self, job: Job) -> list[Finished]:
        """The results of a node count that is finished; none where it has to be measured."""
        if all(done.nodes != job.nodes for done in self.state.done):
            return []
        try:
            pairs = [result.load(self.result_folder(alias, job)) for alias in job.readers]
        except BenchError:  # damaged, or gone, since
            return []
        same = all(
            (known.plan.seed, known.dataset.digest, known.environment.code_digest)
            == (job.seed, self.state.dataset, job.code_digest)
            for known, _ in pairs
        )
        return pairs if same else []

    def result_folder(self, alias: str | None, job: Job | Plan) -> Path:
        """Where the result of a reader goes."""
        return self.path / f"{alias}-{job.nodes}x{job.ranks_per_node}"

    @contextmanager
    def measuring(self, job: Job, least: float) -> Iterator[None]:
        """A node count, measured inside. least: seconds that it takes at least. OutOfTime if too few are left."""
        others = [done for done in self.state.done if done.nodes != job.nodes]
        walltime.require(
            f"{job.workload} on {plural(job.nodes, 'node')}",
            revised_seconds(least, [(done.foreseen, done.seconds) for done in others]),
        )
        for alias in job.readers:  # an interrupted run leaves readers that had all their trials
            shutil.rmtree(self.result_folder(alias, job), ignore_errors=True)
        began = time.monotonic()
        yield
        self.note(done=[*others, Done(job.nodes, least, time.monotonic() - began)])


def with_mark(known: Result) -> Draft:
    """A result with the mark of an interrupted run."""
    return replace(known, marks=[*without_mark(known).marks, INTERRUPTED])


def without_mark(known: Result) -> Draft:
    """A result without the mark of an interrupted run."""
    return replace(known, marks=[mark for mark in known.marks if mark != INTERRUPTED])


def decided_state(options: Options, record: unfinished.Record) -> RunState | None:
    """What the run had decided that was stopped in the folder of --out; None where there is none to go on with.

    UsageError, EnvironmentFailure for another run.
    """
    before = unfinished.load_stopped(options.out, record)
    if before is None or options.out is None:
        return None
    try:
        return convert(before.state, RunState)
    except ValueError as error:
        raise UsageError(
            f"'{options.out / UNFINISHED}' does not say what was begun there ({error}). Choose a new folder."
        ) from None


def finished_results(options: Options, record: unfinished.Record) -> list[Finished]:
    """The results of this very run, if they are all in the folder of --out; else nothing.

    A batch script that is submitted again, or begun again by the scheduler, gives all of its commands again.
    EnvironmentFailure if the dataset of --data is another one now.
    """
    if times := walltime.restarts(os.environ):
        print(f"Slurm has begun this job again: restart {times}.", file=sys.stderr)
    facts = unfinished.load_finished(options.out, record)
    if facts is None or options.out is None:
        return []
    try:
        state, pairs = convert(facts, RunState), load_all([options.out])
    except (BenchError, ValueError):  # damaged, or gone, since
        return []
    by_digest = {known.digest: (known, steps) for known, steps in pairs}
    if not pairs or by_digest.keys() != set(state.results):
        return []
    if options.data is not None and (options.data / "manifest.json").exists():
        _require_dataset(state, open_dataset(options.data).digest, options.out)
    return [by_digest[digest] for digest in state.results]


def _require_dataset(state: RunState, digest: str, folder: Path) -> None:
    """EnvironmentFailure if the run began on other data."""
    if state.dataset not in (None, digest):
        raise EnvironmentFailure(
            f"--out {folder} was begun on another dataset ({state.dataset}; now {digest}), and results of two are "
            "never mixed. Choose a new folder."
        )


def stopped_error(error: BenchError | KeyboardInterrupt, kept: Sequence[Finished], folder: Path) -> BenchError:
    """The error that ends a run which was stopped, with the command that goes on. kept: what it has finished."""
    kind, why = why_ended(error)
    if rescued := sorted(folder.glob(f"*/{UNFINISHED_NAME}")):
        why += f" What ranks did until then: dlio-bench trace {shlex.join(map(str, rescued))}."
    if not kept and not isinstance(error, OutOfTime | JobEnded | KeyboardInterrupt):
        return kind(why) if rescued else error
    if resume := going_on(folder):
        why += f" What is finished is kept in {folder}." if kept else " Nothing was finished."
        why += f" Go on with: {resume}"
    return kind(why)
