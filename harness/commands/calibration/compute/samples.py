"""Decoded batches in memory, of samples that the workload's own generator makes."""

from pathlib import Path

import numpy as np
from msgspec.structs import replace

from dlio_bench.batches import Batch, Block, Bytes, Ids
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import Layout
from dlio_bench.harness.readers.session import touched_buffer
from dlio_bench.harness.storage.extents import ExtentReader

SAMPLES = 8  # different ones: larger batches have each of them several times, which no layer is quicker for
SEED = 1


def few(layout: Layout, samples: int) -> Layout:
    """The layout with so many samples at most in its first training file; the file's shape is not the published one."""
    split = layout.splits[0]
    (first,) = split.spec_files(1)
    short = replace(first, samples=min(first.samples, samples))
    return replace(layout, splits=(replace(split, spec_files=lambda _: (short,)), *layout.splits[1:]), joint_files=None)


def make(layout: Layout, samples: int, folder: Path) -> Dataset:
    """A dataset of a single file with at most `samples` (and SAMPLES) in `folder`. BenchError, OSError."""
    return generate(few(layout, min(samples, SAMPLES)), 1, folder, SEED, workers=1)


def decoded(workload: Workload, dataset: Dataset) -> Bytes:
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
    content = touched_buffer(size * samples.shape[1]).reshape(size, -1)
    for place in range(size):
        content[place] = samples[place % len(samples)]
    return Batch(_ids(size), (Block.even(content),))


def _ids(count: int) -> Ids:
    return np.arange(count, dtype=np.int64)
