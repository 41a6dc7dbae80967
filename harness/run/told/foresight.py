"""Estimates how long a run will take, for `--dry-run`."""

import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from dlio_bench.datagen.layout import Layout
from dlio_bench.datagen.workers import usual_workers
from dlio_bench.harness.plan.orders import Shape
from dlio_bench.harness.run.asked.data import SEED, Source
from dlio_bench.harness.run.asked.job import Job
from dlio_bench.harness.run.asked.request import Request
from dlio_bench.harness.run.asked.sizing import MARGIN
from dlio_bench.units import format_seconds

SAMPLES = 16  # generated to see how long a dataset takes; few enough to stay in memory
START_SECONDS = 2.0  # to start ranks and to write a report: some 2 s for 2 to 8 ranks on 2 cores
READ = 400e6  # stored bytes a second, of a local disk and of a checksum over them, on 2 cores


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
    look = ", after a first look of two epochs" if request.looks_first else ""
    return f"about {format_seconds(sum(parts.values()))} with readers that keep up: {listed}{look}"


def least_seconds(request: Request, source: Source, job: Job) -> float:
    """Seconds that a job takes with readers that keep up, over data that are there. A network's time is not in it."""
    shape = shape_of(source, job)
    return sum(_parts(request, source, job, min(shape.steps, job.steps or shape.steps) * job.epochs).values())


def expected(planned: float, finished: Iterable[tuple[float, float]]) -> float:
    """Seconds that a job probably takes, for which `planned` were foreseen: as much more as the worst finished one.

    finished: (foreseen, measured) seconds of each.
    """
    return planned * max([1.0, *(measured / foreseen for foreseen, measured in finished)])


def _parts(request: Request, source: Source, job: Job, steps: int) -> dict[str, float]:
    """Seconds by what takes them."""
    making = 0.0
    if not source.exists and source.files is not None:
        making = making_seconds(request.layout, source.files, Path(tempfile.gettempdir()))
    trial = steps * job.step_seconds
    if job.validation is not None:
        validated = job.epochs // job.validation.every * source.validation_samples
        trial += validated * job.validation.sample_seconds / job.model_ranks
    if request.is_unpaced:
        trial = job.epochs * source.stored_bytes / READ
    if request.looks_first:
        trial = max(trial, MARGIN * request.minimum.seconds)
    return {
        "making the data": making,
        "trials": job.all_trials * len(job.readers) * trial,
        "verification": len(job.readers) * source.stored_bytes / READ if job.options.verify else 0.0,
        "start and report": START_SECONDS,
    }


def making_seconds(layout: Layout, files: Mapping[str, int], folder: Path) -> float:
    """Seconds to generate the files of each split here, estimated from a few samples generated in `folder`."""
    workers = min(usual_workers(), sum(files.values()))
    with tempfile.TemporaryDirectory(dir=folder, prefix="dlio-bench-foresight-") as place:
        spec = layout.splits[0].spec_files(1)[0]
        few = replace(spec, samples=min(spec.samples, SAMPLES))
        seconds = []
        for _ in range(2):  # the first one also makes what all files share
            started = time.monotonic()
            layout.write(Path(place) / "file", few, SEED)
            seconds.append(time.monotonic() - started)
    samples = sum(layout.split(name).samples_per_file * count for name, count in files.items())
    return seconds[0] + min(seconds) * samples / few.samples / workers
