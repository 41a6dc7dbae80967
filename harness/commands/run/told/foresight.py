"""Estimates how long a run will take, for `--dry-run`."""

import math
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from msgspec.structs import replace

from dlio_bench.datagen.layout import Layout
from dlio_bench.datagen.manifest import PROGRESS
from dlio_bench.datagen.workers import ALONE, usual_workers
from dlio_bench.datagen.writers import write_file
from dlio_bench.harness.commands.run.asked.data import SEED, Source
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.asked.jobs import jobs
from dlio_bench.harness.commands.run.asked.options import WARM
from dlio_bench.harness.commands.run.asked.request import Request
from dlio_bench.harness.commands.run.asked.sizing import MARGIN
from dlio_bench.harness.plan.orders import Shape
from dlio_bench.harness.plan.policies import ON_DEMAND, Policy
from dlio_bench.harness.storage.pfs.node import REQUEST
from dlio_bench.reports.document.marks import COLD_EPOCHS
from dlio_bench.units import format_seconds

# Generated to see how long a dataset takes: at most so many files, of each so many bytes, for so long.
TRIED_FILES, TRIED_BYTES, TRIED_SECONDS = 9, 32_000_000, 0.5
KEEP_UP = ("storage and readers that keep up", "readers that keep up with the emulated file system")
WORKER_SECONDS = 0.5  # to start processes that generate
START_SECONDS = 2.0  # to start ranks and to write a report: some 2 s for 2 to 8 ranks on 2 cores
READ = 400e6  # stored bytes a second, of a local disk and of a checksum over them, on 2 cores of a machine
ROOMY = 1 << 50  # bytes of a node's memory: whether buffers fit is no matter of time
SINGLE = ("local", "mpirun")  # launchers that start ranks here, outside of a scheduler's allocation


def shape_of(source: Source, job: Job) -> Shape:
    """The shape of a job's plan over data that need not exist; orders of files may drop more samples."""
    return Shape(
        source.samples,
        job.model_ranks,
        job.batch,
        shard=job.options.shard,
        last=job.last,
        ranks_per_node=job.model_per_node,
    )


def expected_seconds(request: Request, source: Source, job: Job) -> float | None:
    """About how long one job takes in all, in tenths of a second; None if a real network decides."""
    return None if request.training or request.inference else round(least_seconds(request, source, job), 1)


def foreseen(request: Request, source: Source, job: Job, steps: int) -> str:
    """About how long one job takes: data, trials, verification. Trials assume readers that keep up."""
    parts = _parts(request, source, job, steps)
    listed = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in parts.items() if seconds)
    if request.training or request.inference:
        trials = job.all_trials * len(job.readers)
        return f"{listed}, and as long as the network needs for {trials} trials of {steps} steps"
    return f"about {format_seconds(sum(parts.values()))} with {KEEP_UP[job.pfs is not None]}: {listed}"


def least_seconds(request: Request, source: Source, job: Job) -> float:
    """Seconds that a job takes with readers that keep up, over data that are there. A network's time is not in it."""
    shape = shape_of(source, job)
    return sum(_parts(request, source, job, min(shape.steps, job.steps or shape.steps) * job.epochs).values())


def run_seconds(request: Request, source: Source) -> float:
    """Seconds that a run at one node count takes, see `least_seconds`. UsageError for one that cannot be."""
    size = request.trial_size(source.samples)
    validation, _ = request.passes(source.validation_samples, size)
    roomy = replace(request, options=replace(request.options, memory_per_node=ROOMY))
    [job] = jobs(roomy, size, source.folder, validation)
    return least_seconds(request, replace(source, files=None), job)


def revised_seconds(planned: float, finished: Iterable[tuple[float, float]]) -> float:
    """Seconds that a job probably takes, for which `planned` were foreseen: as much more as the worst finished one.

    finished: (foreseen, measured) seconds of each.
    """
    return planned * max([1.0, *(measured / foreseen for foreseen, measured in finished)])


def _parts(request: Request, source: Source, job: Job, steps: int) -> dict[str, float]:
    """Seconds by what takes them."""
    making = 0.0
    if not source.exists and source.files is not None:
        making = making_seconds(request.layout, source.files, source.folder)
    validating = 0.0
    if job.validation is not None:
        validated = job.epochs // job.validation.every * source.validation_samples
        validating = validated * job.validation.sample_seconds / job.model_ranks
    look = trials = 0.0
    for row in job.readers.values():
        epochs = _epochs(request, source, job, row, steps // job.epochs)
        trial = sum(epochs) + validating
        if request.looks_first:
            look += epochs[0] + epochs[-1]
            trial = max(trial, MARGIN * request.minimum.seconds)
        trials += job.all_trials * trial
    stored, latency = _reading(request, source, job)
    checked = max(_read_bytes(request, source), source.samples * request.view_bytes) / _read_rate(job)
    verification = max(stored, checked) + latency / job.ranks
    return {
        "making the data": making,
        "a first look of two epochs": look,
        "trials": trials,
        "verification": len(job.readers) * verification if job.options.verify else 0.0,
        "start and report": START_SECONDS,
    }


def _epochs(request: Request, source: Source, job: Job, row: Policy, steps: int) -> list[float]:
    """Seconds of each epoch of a reader, at least: what ranks compute, and what an emulated file system makes wait."""
    share = min(1.0, steps * job.batch * job.model_ranks / source.samples)  # of the samples
    stored, latency = (share * seconds for seconds in _reading(request, source, job))
    if request.is_unpaced:
        stored = max(stored, share * _read_bytes(request, source) / _read_rate(job))
    computed = steps * job.step_seconds
    cold = max(computed, stored, latency / job.ranks / max(job.most_threads, 1))
    if row.delivery == ON_DEMAND:
        cold = computed + max(stored, latency / job.ranks)
    held = job.pfs is not None and job.pfs.cache_bytes >= source.stored_bytes and job.cache != COLD_EPOCHS
    if not (held or row.rule.keeps_samples or row.rule.files):
        return [cold] * job.epochs
    first = computed if held and job.cache == WARM else cold
    return [first, *[computed] * (job.epochs - 1)]


def _read_bytes(request: Request, source: Source) -> float:
    """Bytes of all samples that a reader asks for: the fields of the view, where they are not compressed."""
    return source.stored_bytes * min(1.0, request.view_bytes / request.layout.sample_bytes)


def _read_rate(job: Job) -> float:
    """Bytes a second of all machines of a job; virtual nodes share one."""
    several = job.real or job.options.launcher not in (None, *SINGLE)
    return READ * (job.nodes if several else 1)


def _reading(request: Request, source: Source, job: Job) -> tuple[float, float]:
    """Of all samples once, behind the emulated file system: seconds of its bandwidth and opens, and of latency in all.

    As many as `copies` of a rank's samples are read. (0, 0) for real storage, whose rates are not known yet.
    """
    pfs, reads = job.pfs, source.samples * job.copies * len(job.models)
    if pfs is None:
        return 0.0, 0.0
    opens = reads if request.layout.samples_per_file == 1 else 0
    requests = -(-request.layout.sample_bytes // REQUEST)
    rate = min(pfs.bandwidth or math.inf, (pfs.per_node or math.inf) * job.nodes)
    queued = opens / pfs.opens if pfs.opens else 0.0
    stored = _read_bytes(request, source) * job.copies * len(job.models) / rate
    return max(stored, queued), opens * pfs.open_seconds + reads * requests * pfs.request_seconds


def making_seconds(layout: Layout, files: Mapping[str, int], folder: Path) -> float:
    """Seconds to generate the files of each split in `folder`, by what a few of them, or parts of them, take there.

    Workers compute side by side and share the storage. Tried is the nearest of its parents that is there, or where that
    cannot be written the temporary folder.
    """
    samples = sum(layout.split(name).samples_per_file * count for name, count in files.items())
    workers = min(usual_workers(), sum(files.values())) if samples * layout.sample_bytes > ALONE else 1
    most = max(1, round(TRIED_BYTES / layout.sample_bytes))  # of a file
    specs = [replace(spec, samples=min(spec.samples, most)) for spec in layout.splits[0].spec_files(TRIED_FILES)]
    there = next(parent for parent in [folder, *folder.parents] if parent.exists())
    there = there if os.access(there, os.W_OK) else Path(gettempdir())
    first = computed = waited = tried = 0.0
    with TemporaryDirectory(dir=there, prefix="dlio-bench-foresight-") as place:
        (Path(place) / PROGRESS).mkdir()
        for number, spec in enumerate(specs):
            started, computing = time.monotonic(), time.process_time()
            write_file(layout, spec, number, Path(place), SEED)
            ended, computing = time.monotonic(), time.process_time() - computing
            if number == 0:  # it also makes what all files share
                first = ended - started
                continue
            computed, waited = computed + computing, waited + max(0.0, ended - started - computing)
            tried += spec.samples
            if computed + waited > TRIED_SECONDS:
                break
    starting = WORKER_SECONDS if workers > 1 else 0.0
    return starting + first + samples / tried * (computed / workers + waited)
