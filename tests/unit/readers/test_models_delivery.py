"""What readers deliver reaches the networks: without a copy where it can, the same from all. Needs TensorFlow."""

from typing import Any

import numpy as np
import pytest

from dlio_bench.batches import ALIGNMENT
from dlio_bench.benchmarks.model import choose
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.benchmarks.tensors import lend, shares_memory, tensorflow, unpack
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import PHYSICAL
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.registry import open_reader
from dlio_bench.harness.readers.resources import Resources
from dlio_bench.harness.readers.session import SampleView, Tally, largest, plan_batches, touch_buffer
from tests.datasets import VARIANTS, layout, made

pytestmark = pytest.mark.slow

tf = tensorflow()


@pytest.fixture(scope="module", params=VARIANTS, ids="-".join)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    workload, variant = request.param
    files = 4 if layout(workload, variant).samples_per_file == 1 else 1
    return made(tmp_path_factory.mktemp(variant) / "data", workload, files, variant, PHYSICAL)


def delivered(dataset: Dataset, reader: str) -> tuple[list[bool], list[tuple[Any, ...]]]:
    """Whether each of two batches was lent without a copy, and the parts of its samples."""
    workload = WORKLOADS[dataset.manifest.workload]
    parts = choose(workload.models, dataset.manifest.variant).sample(dataset).parts
    assert workload.decode is not None
    pipeline = workload.upstream.start() if reader == "upstream" and workload.upstream is not None else None
    decode = workload.decode(dataset) if pipeline is None else pipeline.decode(dataset)
    form = SampleView(dataset, (), decode)
    plan = plan_batches(form, [(0, [np.array([0, 1]), np.array([2, 3])])])
    resources = Resources(threads=2, staging_bytes=4 * largest(plan), batch_bytes=largest(plan))
    without, found = [], []
    try:
        with open_reader(find(reader), form, resources, pipeline=pipeline).session(plan, Tally()) as batches:
            for batch in batches:
                without.append(shares_memory(batch))
                # a batch's memory is the reader's again when the next one is asked for
                found.append(tuple(part.numpy().copy() for part in unpack(lend(batch), parts)))
    finally:
        if pipeline is not None:
            pipeline.close()
    return without, found


def test_our_readers_lend_and_agree(dataset: Dataset) -> None:
    first = delivered(dataset, "naive")
    second = delivered(dataset, "double-buffer")
    assert first[0] == second[0] == [True, True]
    for one, other in zip(first[1], second[1], strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_published_pipelines_deliver_the_same_parts(dataset: Dataset) -> None:
    if WORKLOADS[dataset.manifest.workload].upstream is None:
        return  # nobody published one that is repeated here
    _, ours = delivered(dataset, "naive")
    _, theirs = delivered(dataset, "upstream")
    exact = dataset.manifest.workload != "imagenet"  # crops its pictures by TensorFlow's own random numbers
    ordered = exact or dataset.manifest.container == "raw"
    for one, other in zip(ours, theirs, strict=True):
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            if exact:
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
            elif number and ordered:
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("size", [1, 4096, 100_001])
def test_buffers_of_readers_start_where_tensors_may(size: int) -> None:
    buffer = touch_buffer(size)
    assert (len(buffer), buffer.ctypes.data % ALIGNMENT) == (size, 0)
