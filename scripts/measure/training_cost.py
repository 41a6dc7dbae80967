"""What the harness adds to a training step.

    python scripts/measure/training_cost.py [--side 224] [--batch 8] [--steps 3] [--pairs 30] [--json]

It trains the HEP-CNN on images in memory, in one process, by turns: in a loop of TensorFlow alone, and through a
reader, the timed loop and the trainer. Prints the median over the pairs of (harness / bare loop - 1), its quartiles and
the 95 % bootstrap interval of the median. The bare
loop has its tensors ready, and is one graph for a step.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dlio_bench.benchmarks.hepcnnb import decode
from dlio_bench.benchmarks.hepcnnb.model import HEPCNNB_CNN, fields
from dlio_bench.benchmarks.model import Course, Part, Sample, build, keys, objective
from dlio_bench.benchmarks.pipeline import Decode
from dlio_bench.benchmarks.registry import find as find_workload
from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import PHYSICAL
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.commands.run.measured import loop
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.registry import open_reader
from dlio_bench.harness.readers.resources import Resources
from dlio_bench.harness.readers.session import Reader, SampleView, Tally, largest, plan_batches
from dlio_bench.harness.timeline import StepLog
from dlio_bench.harness.training.exchange.exchange import open_exchange
from dlio_bench.harness.training.exchange.options import ExchangeOptions
from dlio_bench.harness.training.network import NetworkTrainer, start_tensorflow
from dlio_bench.reports.numbers.metrics import PHASES

SAMPLES = 64  # of the dataset, one tiny file
RATE = 1e-3


def content(side: int) -> tuple[np.ndarray, Sample]:
    """Samples as the application's decoding delivers them, uint8 [SAMPLES, bytes], and how they are read."""
    numbers = np.random.Generator(np.random.Philox(1))
    labels = numbers.integers(0, 2, (SAMPLES, 1)).astype(np.int32)
    images = numbers.random((SAMPLES, side * side * 3), np.float32) / 2 + labels.astype(np.float32) / 2
    beside = np.zeros((SAMPLES, 3), np.float32)  # weights, and which events pass the cuts
    words = np.concatenate([images, labels.view(np.float32), beside], axis=1)
    scalars = [Part(name, kind, ()) for name, kind in (("label", "int32"), ("weight", "float32"),
               ("normweight", "float32"), ("psr", "int32"))]  # fmt: skip
    shape = (side, side, 3)
    return words.view(np.uint8), Sample((Part("data", "float32", shape), *scalars), shape, fields)


def in_memory(dataset: Dataset, held: np.ndarray, batch: int) -> tuple[Reader, SampleView]:
    """The reader `double-buffer`: its threads read a scalar of a sample from a file, and copy the rest from memory."""

    def apply(sample: int, parts: Sequence[memoryview], out: memoryview) -> None:
        del parts
        out[:] = memoryview(held[sample])

    form = SampleView(dataset, (), Decode(("label",), held.shape[1], apply, decode.WHAT))
    most = largest(plan_batches(form, [(0, [np.arange(batch)])]))
    return open_reader(
        find("double-buffer"), form, Resources(threads=1, staging_bytes=8 * most, batch_bytes=most)
    ), form


def bare_step(sample: Sample) -> Callable[[Any, Any], Any]:
    """(parts of a batch, key) -> loss; forward, backward and update in one graph."""
    tf = tensorflow()
    network = build(HEPCNNB_CNN, sample.shape, seed=1)
    optimizer = HEPCNNB_CNN.optimizer()
    optimizer.build(network.trainable_variables)

    def step(lent: Any, key: Any) -> Any:
        with tf.GradientTape() as tape:
            loss, _ = objective(HEPCNNB_CNN, sample, network, lent, key, training=True)
        optimizer.apply(tape.gradient(loss, [one.value for one in network.trainable_variables]))
        return loss

    return tf.function(step, autograph=False)  # type: ignore[no-any-return]


def pairs(side: int, batch: int, steps: int, count: int, folder: Path, device: str = "cpu") -> dict[str, Any]:
    """Seconds of a step in each turn of both loops, [count], the losses of both, and the harness's phases.

    TensorFlow has been started on `device`.
    """
    tf, comm = tensorflow(), Solo()
    held, sample = content(side)
    dataset = generate(find_workload("hepcnnb").variants["224"](True, PHYSICAL), 1, folder / "data", seed=1, workers=1)
    reader, form = in_memory(dataset, held, batch)
    course = Course(steps * (count + 1), batch)
    trainer = NetworkTrainer(
        comm, HEPCNNB_CNN, sample, course, open_exchange(comm, ExchangeOptions()), device=device, seed=1
    )
    trainer.compile([(batch, (held.shape[1],))], [])
    trainer.begin("double-buffer", 0, 0)
    step = bare_step(sample)
    ids = [(np.arange(batch) + batch * number) % SAMPLES for number in range(steps)]
    # as separate tensors: a loop that holds its data in memory has no need to take samples apart
    ready = [
        (tf.constant(held[own].view(np.float32)[:, :-4]), tf.constant(held[own].view(np.float32)[:, -4:]))
        for own in ids
    ]
    log, losses = StepLog.empty(steps, batch), list[float]()

    def bare() -> float:
        masks = [tf.constant(keys(own, len(losses) + number)) for number, own in enumerate(ids)]
        began = time.perf_counter()
        for lent, mask in zip(ready, masks, strict=True):
            losses.append(float(step(lent, mask)))
        return (time.perf_counter() - began) / steps

    def harnessed() -> float:
        with reader.session(plan_batches(form, [(0, ids)]), Tally()) as batches:
            elapsed = loop.run_steps(
                comm, batches, ids, log, trainer=trainer, sync="step", ordered=True,
            )  # fmt: skip
        for name, seconds in log.phases().items():
            phases[name].append(float(seconds.mean()))
        return elapsed.loop / steps

    phases: dict[str, list[float]] = {name: [] for name in PHASES}

    def timed(turn: Callable[[], float], name: str) -> None:
        busy = time.process_time()
        found[name].append(turn())
        found[f"{name}_cpu"].append((time.process_time() - busy) / steps)

    bare(), harnessed()  # whatever is made the first time
    for own in phases.values():
        own.clear()
    found: dict[str, list[float]] = {"bare": [], "harness": [], "bare_cpu": [], "harness_cpu": []}
    for number in range(count):
        for name in ("bare", "harness") if number % 2 else ("harness", "bare"):
            timed(bare if name == "bare" else harnessed, name)
    trained = trainer.end()
    trainer.close()
    return {
        **found,
        "losses": [losses, trained.losses.tolist()],
        "phases": {name: statistics.median(own) for name, own in phases.items()},
    }


def summary(found: dict[str, Any]) -> dict[str, float]:
    """The harness's cost as a share of a bare step: median, quartiles, and 95 % interval of the median."""
    cost = np.array(found["harness"]) / np.array(found["bare"]) - 1
    drawn = np.random.Generator(np.random.Philox(2)).integers(0, len(cost), (4000, len(cost)))
    low, high = np.percentile(np.median(cost[drawn], axis=1), [2.5, 97.5])
    quarter, median, three_quarters = np.percentile(cost, [25, 50, 75])
    return {
        "median": float(median),
        "quartile_1": float(quarter),
        "quartile_3": float(three_quarters),
        "low": float(low),
        "high": float(high),
        "cpu_median": float(np.median(np.array(found["harness_cpu"]) / np.array(found["bare_cpu"]) - 1)),
        "bare_seconds": statistics.median(found["bare"]),
        "harness_seconds": statistics.median(found["harness"]),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=224, help="pixels; 16 as with --tiny")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3, help="of a turn")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    device = start_tensorflow(Solo())
    with tempfile.TemporaryDirectory() as folder:
        found = pairs(asked.side, asked.batch, asked.steps, asked.pairs, Path(folder), device)
    short = summary(found)
    if asked.json:
        print(json.dumps(found | short))
        return
    spent = ", ".join(f"{name} {seconds * 1e3:.2f}" for name, seconds in found["phases"].items())
    print(
        f"step: bare loop {short['bare_seconds'] * 1e3:.2f} ms, through the harness "
        f"{short['harness_seconds'] * 1e3:.2f} ms; the harness costs {100 * short['median']:+.2f} % "
        f"(quartiles {100 * short['quartile_1']:+.2f} and {100 * short['quartile_3']:+.2f} %, 95 % interval of the "
        f"median {100 * short['low']:+.2f} to {100 * short['high']:+.2f} %) over {asked.pairs} pairs of {asked.steps} "
        f"steps; in CPU time, which others on the machine disturb less, {100 * short['cpu_median']:+.2f} %\n"
        f"phases (ms): {spent}"
    )


if __name__ == "__main__":
    main()
