"""The process that measures step times: it loads TensorFlow, which the command itself does without."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlio_bench.batches import Batch
from dlio_bench.benchmarks.model import Course, choose
from dlio_bench.benchmarks.registry import find
from dlio_bench.datagen.layout import PHYSICAL
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.entry import Caller, run_measuring_rank
from dlio_bench.harness.commands.calibration.compute import samples
from dlio_bench.harness.commands.calibration.compute.job import Job
from dlio_bench.harness.training.exchange.exchange import open_exchange
from dlio_bench.harness.training.exchange.options import ExchangeOptions
from dlio_bench.harness.training.network import NetworkTrainer, start_tensorflow, widths

WARM = 2  # steps behind the compilation that are not timed: devices choose their algorithms, memory is touched first
LEAST, MOST, SECONDS = 5, 50, 2.0  # timed steps without --steps: at least, at most, and seconds
COURSE = Course(1000, 1)  # any: rates of learning take no time
DIGITS = 5  # of the times that are written


def measure(job: Job, comm: Comm, caller: Caller) -> dict[str, Any]:
    """{device, threads, tensorflow, dtype, shape, rows: [{batch, seconds, spread, steps, forward_seconds}]}.

    A step is what `run --compute train` calls compute: forward, backward, update; not the tensors of a batch, and no
    exchange. device: None where it is the processor. BenchError, OSError.
    """
    device = start_tensorflow(comm, job.threads)
    workload = find(job.workload)
    layout = workload.variants[job.variant](job.tiny, PHYSICAL)
    caller.tell("making samples")
    with tempfile.TemporaryDirectory(dir=caller.folder) as folder:  # which the command removes, however this ends
        dataset = samples.make(layout, job.batches[-1], Path(folder) / "data")
        decoded = samples.decoded(workload, dataset)
        model = choose(workload.models, job.variant, job.model)
        sample = model.sample(dataset)
    exchange = open_exchange(comm, ExchangeOptions("none"))
    trainer = NetworkTrainer(comm, model, sample, COURSE, exchange, device=device, seed=1)
    rows = rows_of(job, lambda size: _row(trainer, samples.batch_of(decoded, size), job, caller))
    trainer.close()
    about = trainer.described
    return {
        "device": None if device == "cpu" else device,
        "threads": about.threads,
        "tensorflow": about.tensorflow,
        "dtype": "float32",
        "shape": list(sample.shape),
        "rows": rows,
    }


def rows_of(job: Job, row: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
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


def _row(trainer: NetworkTrainer, batch: Batch, job: Job, caller: Caller) -> dict[str, Any]:
    size = len(batch.ids)
    heading = f"{job.model}  batch {size}"
    caller.tell(f"{heading}  compiling")
    trainer.compile([(size, widths(batch))], [(size, widths(batch))])
    trainer.begin("calibrate", 0, 1)

    def timed(what: str, step: Callable[[], float]) -> list[float]:
        times: list[float] = []
        for _ in range(WARM):
            step()
        while not enough(times, job.steps):
            times.append(step())
            caller.tell(f"{heading}  {what} {len(times)}, {times[-1]:.3g} s")
        return times

    training = timed("step", lambda: _step(trainer, batch))
    forward = timed("forward pass", lambda: _forward(trainer, batch))
    low, _, high = statistics.quantiles(training, n=4, method="inclusive")
    return {
        "batch": size,
        "seconds": _rounded(statistics.median(training)),
        "spread": [_rounded(low), _rounded(high)],
        "steps": len(training),
        "forward_seconds": _rounded(statistics.median(forward)),
    }


def enough(times: list[float], steps: int) -> bool:
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


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.{DIGITS}g}")


if __name__ == "__main__":
    raise SystemExit(run_measuring_rank(Job, measure))
