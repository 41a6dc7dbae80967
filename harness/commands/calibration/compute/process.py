"""The process that measures step times: it loads TensorFlow, which the command itself does without.

Batches are decoded samples in memory, which the workload's own generator makes.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from dlio_bench.batches import Batch, Block, Bytes, Ids
from dlio_bench.benchmarks.model import Course, choose
from dlio_bench.benchmarks.registry import find
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import PHYSICAL, Layout
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.entry import Caller, run_measuring_rank
from dlio_bench.harness.cluster.job import SavedJob
from dlio_bench.harness.readers.session import touch_buffer
from dlio_bench.harness.storage.extents import ExtentReader
from dlio_bench.harness.training.exchange.exchange import open_exchange
from dlio_bench.harness.training.exchange.options import ExchangeOptions
from dlio_bench.harness.training.network import NetworkTrainer, start_tensorflow, widths

WARM = 2  # steps behind the compilation that are not timed: devices choose their algorithms, memory is touched first
LEAST, MOST, SECONDS = 5, 50, 2.0  # timed steps without --steps: at least, at most, and seconds
COURSE = Course(1000, 1)  # any: rates of learning take no time
DIGITS = 5  # of the times that are written
SAMPLES = 8  # different ones: larger batches have each of them several times, which no layer is quicker for
SEED = 1


class ComputeJob(SavedJob, frozen=True):
    """batches: ascending. steps: timed of each batch, 0: as many as a fair median needs. threads: 0 for all cores."""

    workload: str
    variant: str
    model: str
    tiny: bool
    batches: tuple[int, ...]
    steps: int
    threads: int

    @property
    def ranks(self) -> int:
        """A process of its own."""
        return 1


def measure(job: ComputeJob, comm: Comm, caller: Caller) -> dict[str, Any]:
    """{device, threads, tensorflow, dtype, shape, rows: [{batch, seconds, spread, steps, forward_seconds}]}.

    A step is what `run --compute train` calls compute: forward, backward, update; not the tensors of a batch, and no
    exchange. device: None where it is the processor. BenchError, OSError.
    """
    device = start_tensorflow(comm, job.threads)
    workload = find(job.workload)
    layout = workload.variants[job.variant](job.tiny, PHYSICAL)
    caller.show_activity("making samples")
    with tempfile.TemporaryDirectory(dir=caller.folder) as folder:  # which the command removes, however this ends
        dataset = make(layout, job.batches[-1], Path(folder) / "data")
        content = decode_samples(workload, dataset)
        model = choose(workload.models, job.variant, job.model)
        sample = model.sample(dataset)
    exchange = open_exchange(comm, ExchangeOptions("none"))
    trainer = NetworkTrainer(comm, model, sample, COURSE, exchange, device=device, seed=1)
    rows = rows_of(job, lambda size: _row(trainer, batch_of(content, size), job, caller))
    trainer.close()
    about = trainer.described
    return {
        "device": None if device == "cpu" else device,
        "threads": about.threads,
        "tensorflow": about.tensorflow,
        "dtype": about.precision,
        "shape": list(sample.shape),
        "rows": rows,
    }


def shrink_layout(layout: Layout, samples: int) -> Layout:
    """The layout with so many samples at most in its first training file; the file's shape is not the published one."""
    split = layout.splits[0]
    (first,) = split.spec_files(1)
    short = replace(first, samples=min(first.samples, samples))
    return replace(layout, splits=(replace(split, spec_files=lambda _: (short,)), *layout.splits[1:]), joint_files=None)


def make(layout: Layout, samples: int, folder: Path) -> Dataset:
    """A dataset of a single file with at most `samples` (and SAMPLES) in `folder`. BenchError, OSError."""
    return generate(shrink_layout(layout, min(samples, SAMPLES)), 1, folder, SEED, workers=1)


def decode_samples(workload: Workload, dataset: Dataset) -> Bytes:
    """What the application makes of the dataset's training samples, uint8 [samples, bytes]. BenchError, OSError."""
    assert workload.decode is not None
    decode = workload.decode(dataset)
    out = np.empty((dataset.training_samples, decode.sample_bytes), np.uint8)
    reader = ExtentReader(dataset, decode.fields, decode)
    try:
        reader.read(_ids(len(out)), memoryview(out.reshape(-1)), Cost())
    finally:
        reader.close()
    return out


def batch_of(samples: Bytes, size: int) -> Batch:
    """A batch of `size` of these samples, again from the first where they are fewer, as readers deliver one."""
    content = touch_buffer(size * samples.shape[1]).reshape(size, -1)
    for place in range(size):
        content[place] = samples[place % len(samples)]
    return Batch(_ids(size), (Block.even(content),))


def _ids(count: int) -> Ids:
    return np.arange(count, dtype=np.int64)


def rows_of(job: ComputeJob, row: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """`row` of each batch. EnvironmentFailure that names the batch, and those before it, which went well."""
    rows: list[dict[str, Any]] = []
    for size in job.batches:
        try:
            rows.append(row(size))
        except EnvironmentFailure as error:
            known = ",".join(str(row["batch"]) for row in rows)
            fix = f" Smaller ones went well: --batch {known}." if known else ""
            raise EnvironmentFailure(f"With a batch of {size}: {error}{fix}") from error
    return rows


def _row(trainer: NetworkTrainer, batch: Batch, job: ComputeJob, caller: Caller) -> dict[str, Any]:
    size = len(batch.ids)
    heading = f"{job.model}  batch {size}"
    caller.show_activity(f"{heading}  compiling")
    trainer.compile([(size, widths(batch))], [(size, widths(batch))])
    trainer.begin("calibrate", 0, 1)

    def time_steps(what: str, step: Callable[[], float]) -> list[float]:
        times: list[float] = []
        for _ in range(WARM):
            step()
        while not are_enough(times, job.steps):
            times.append(step())
            caller.show_activity(f"{heading}  {what} {len(times)}, {times[-1]:.3g} s")
        return times

    training = time_steps("step", lambda: _step(trainer, batch))
    forward = time_steps("forward pass", lambda: _forward(trainer, batch))
    low, _, high = statistics.quantiles(training, n=4, method="inclusive")
    return {
        "batch": size,
        "seconds": _round_seconds(statistics.median(training)),
        "spread": [_round_seconds(low), _round_seconds(high)],
        "steps": len(training),
        "forward_seconds": _round_seconds(statistics.median(forward)),
    }


def are_enough(times: list[float], steps: int) -> bool:
    """Whether these times are as many as were asked for (0: as a fair median needs)."""
    if steps:
        return len(times) >= steps
    return len(times) >= MOST or (len(times) >= LEAST and sum(times) >= SECONDS)


def _step(trainer: NetworkTrainer, batch: Batch) -> float:
    started = time.perf_counter()
    spent = trainer.step(batch)
    return time.perf_counter() - started - spent.convert - spent.exchange


def _forward(trainer: NetworkTrainer, batch: Batch) -> float:
    started = time.perf_counter()
    trainer.forward(batch)
    return time.perf_counter() - started


def _round_seconds(seconds: float) -> float:
    return float(f"{seconds:.{DIGITS}g}")


if __name__ == "__main__":
    raise SystemExit(run_measuring_rank(ComputeJob, measure))
