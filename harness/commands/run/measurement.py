"""One job from its launch to the drafts of its results; before it, a first look at readers of an unknown step time."""

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from dlio_bench import signals
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import BenchError, DataError, UsageError
from dlio_bench.harness.cluster import allocation, stacks
from dlio_bench.harness.cluster.job import MEASURED_FILE
from dlio_bench.harness.cluster.process import LOG, launch
from dlio_bench.harness.cluster.start import JOB, Launch, Ranks
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.request import Request
from dlio_bench.harness.commands.run.asked.sizing import LONGER, Minimum, TrialSize
from dlio_bench.harness.commands.run.asked.tracing import SPANS, XPLANE
from dlio_bench.harness.commands.run.measured import documents, unfinished_spans
from dlio_bench.harness.commands.run.measured.documents import JobMeasured, ReaderMeasured
from dlio_bench.harness.commands.run.measured.outlook import SAMPLE
from dlio_bench.harness.commands.run.told.building import RunSetting, build
from dlio_bench.harness.ground.folders import work_folder
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.live.journal import Journal
from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.harness.storage.pfs import process
from dlio_bench.harness.storage.pfs.process import emulation_of
from dlio_bench.harness.storage.tier import NODES
from dlio_bench.reports.document.environment import Launcher
from dlio_bench.reports.document.types import Draft
from dlio_bench.reports.numbers.meetings import Steps
from dlio_bench.reports.traces.timeline import SPANS_NAME, xplane_name

EpochSeconds = tuple[float, float]  # of the first and of a later epoch


@contextmanager
def tier_folders(nodes: int, below: Path | None = None) -> Iterator[tuple[str, ...]]:
    """A local-tier folder for each node of this machine, in `below` or the temporary folder. They go with the run.

    UsageError if `below` is not a folder.
    """
    if below is not None and not below.is_dir():
        raise UsageError(f"--local-tier {below} is not a folder. Give one on node-local storage.")
    with temp_folder(NODES, below) as base:
        folders = [base / f"node{number:03d}" for number in range(nodes)]
        for folder in folders:
            folder.mkdir()
        yield tuple(map(str, folders))


@contextmanager
def local_tiers(options: Options) -> Iterator[tuple[str, ...]]:
    """The local-tier folder of every virtual node of a run. Real nodes make their own: see measured/node.py."""
    if allocation.nodes() is None:
        with tier_folders(max(options.nodes), options.local_tier) as folders:
            yield folders
    else:
        yield ()


@contextmanager
def place_job(template: Job, dataset: Dataset, tiers: tuple[str, ...]) -> Iterator[Job]:
    """The job with its dataset, the folders of its nodes, and the mounts of the emulated file system if it has one.

    On real hosts the ranks make the mounts.
    """
    job = replace(template, dataset_digest=dataset.digest, tier_folders=tiers[: template.nodes])
    if job.pfs is None or allocation.nodes() is not None:
        yield job
        return
    if job.store:
        with process.links(job.nodes) as (nodes, shared):
            yield replace(job, mounts=nodes, board=shared)
        return
    with emulation_of(job.pfs, dataset, job.nodes) as emulation:
        yield replace(job, mounts=tuple(map(str, emulation.mounts)), board=str(emulation.board))


def plan_launch(job: Job, work: Path = JOB) -> Launch:
    """Choose the launcher and build its command. UsageError or EnvironmentFailure if that is impossible."""
    per_node, launcher = job.layout.ranks_per_node, job.options.launcher
    return Ranks("commands.run.measured.rank", job.nodes, per_node, launcher, job.virtual).start(work)


def measure(
    job: Job,
    setting: RunSetting,
    folder: Path,
    progress: Progress,
    place: Callable[[str, Job], Path] | None = None,
    journal: Journal | None = None,
) -> Iterator[tuple[Draft, Steps]]:
    """Run one job: a draft result and its step times (arrays [trial, rank, step]) for each reader.

    place: where the caller saves the result of a reader; its spans go there behind it, if the job records any.
    journal: the status of the run.
    If it fails or is interrupted, it yields the readers that finished all their trials, and then raises the error.
    """
    work = work_folder(folder)
    work.mkdir()
    job.save(work)
    start = plan_launch(job, work.resolve())
    launched_at, ready, began, verifying = time.monotonic(), 0.0, False, False

    def handle_event(event: dict[str, Any]) -> None:
        nonlocal ready, began, verifying
        if event["event"] == "ready":
            ready = time.monotonic() - launched_at
        if journal is not None:
            journal.event(event)
        if event["event"] == SAMPLE:
            return
        began = began or event["event"] == "trial"
        verifying = verifying or event["event"] == "verify"
        progress.event(event)
        signals.check()

    failure: BaseException | None = None
    damage: str | None = None
    retries = 0
    finished = tuple(job.readers)
    try:
        env = {**os.environ, **start.env}
        retries = launch(start.argv, env, work, handle_event, log=folder / LOG, one_host=start.one_host)
    except (BenchError, KeyboardInterrupt) as error:
        finished = tuple(reader for reader in job.readers if (work / f"{reader}.json").exists())
        if began and SPANS in job.options.trace and place is not None:
            _rescue(job, [reader for reader in job.readers if reader not in finished], setting, work, place)
        if not finished:
            raise
        signals.mark_handled()
        failure = error
        damage = str(error) if verifying and isinstance(error, DataError) else None
    measured = documents.load(work / MEASURED_FILE, JobMeasured)
    started = Launcher(start.launcher, list(start.argv), retries)
    environment = replace(measured.environment, launcher=started, startup_seconds=ready)
    measured = replace(measured, environment=environment)
    for reader in finished:
        reader_measured, steps = _collect_left(work, reader, damage)
        yield build(reader, setting, measured, reader_measured, steps), steps
        if SPANS in job.options.trace and place is not None:
            (work / f"{reader}-{SPANS_NAME}").replace(place(reader, job) / SPANS_NAME)
            for name in map(xplane_name, range(job.ranks) if XPLANE in job.options.trace else ()):
                with suppress(FileNotFoundError):  # a reader that has nothing of TensorFlow's
                    (work / f"{reader}-{name}").replace(place(reader, job) / name)
    if failure is not None:
        raise failure
    stacks.save_stacks(work, folder)
    shutil.rmtree(work)


def first_look(
    template: Job, request: Request, dataset: Dataset, tiers: tuple[str, ...], folder: Path, progress: Progress
) -> list[EpochSeconds]:
    """Seconds of the first and of a later epoch of each reader of a job, which count in no result."""
    options = replace(template.options, verify=False, trace=())
    short = replace(template, options=options, epochs=2, trials=1, warmup_trials=0, validation=None)
    with place_job(short, dataset, tiers) as job:
        progress.begin(f"{job.heading}  first look", trials=job.all_trials, epochs=job.all_epochs)
        drafts = list(measure(job, RunSetting(request, dataset, ()), folder, progress))
    epochs = [drafted.trials[0].epochs for drafted, _ in drafts]
    return [(first.seconds, later.seconds) for first, later in epochs]


def extend(
    planned: Sequence[Job], size: TrialSize, minimum: Minimum, seconds: Sequence[EpochSeconds]
) -> tuple[list[Job], TrialSize]:
    """The jobs and their size, with as many epochs as the fastest reader needs for a long enough trial."""
    epochs = max(size.epochs, minimum.epochs(seconds))
    if epochs == size.epochs:
        return list(planned), size
    fastest = min(first + (epochs - 1) * later for first, later in seconds)
    note = f"a trial takes {epochs} epochs, which the fastest reader reads in {fastest:.1f} s by a first look"
    notes = (*(known for known in size.notes if not known.startswith(LONGER)), note)
    steps = math.ceil(size.trial_steps / size.epochs) * epochs
    longer = replace(size, epochs=epochs, notes=notes, trial_steps=steps)
    return [replace(job, epochs=epochs) for job in planned], longer


def _collect_left(work: Path, reader: str, damage: str | None) -> tuple[ReaderMeasured, Steps]:
    """What the ranks left of a reader. damage: see ReaderMeasured; of readers that are not verified."""
    measured = documents.load(work / f"{reader}.json", ReaderMeasured)  # written after the arrays
    if measured.verified is None:
        measured = replace(measured, damage=damage)
    with np.load(work / f"{reader}.npz") as arrays:
        return measured, dict(arrays)


def _rescue(
    job: Job, readers: Sequence[str], setting: RunSetting, work: Path, place: Callable[[str, Job], Path]
) -> None:
    """Keep what ranks had recorded of unfinished readers. The failure that ended them is told, and none of this."""
    with suppress(OSError):
        names = [file.name for file in setting.dataset.manifest.files]
        unfinished_spans.write(work, job.ranks, readers, names, lambda reader: place(reader, job))
