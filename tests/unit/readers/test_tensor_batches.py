"""Delivered bytes as tensors: memory is lent where it can be, and cut into the parts of a sample. Needs TensorFlow."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dlio_bench.batches import Batch, Block
from dlio_bench.benchmarks.model import Fields, Model, Part, choose
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.benchmarks.tensors import array, lend, shares_memory, unpack
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import DataError
from tests.datasets import batch_of

pytestmark = pytest.mark.slow

Decoded = tuple[Dataset, npt.NDArray[np.uint8]]
FORMS = [
    pytest.param(model, workload, variant, id=f"{model.name}-{variant}")
    for workload in WORKLOADS.values()
    for model in workload.models
    if model.cutting is None  # else pieces of samples, whose number differs
    for variant in model.variants
]


@pytest.mark.parametrize(("model", "workload", "variant"), FORMS)
def test_the_parts_of_a_sample_are_its_delivered_bytes(
    model: Model, workload: Any, variant: str, tiny: Callable[[str, str], Decoded]
) -> None:
    dataset, samples = tiny(workload.name, variant)
    sample = model.sample(dataset)
    assert sum(part.words for part in sample.parts) * 4 == samples.shape[1]
    for count in (1, 2):
        found = unpack(lend(batch_of(samples[:count])), sample.parts)
        rows = [np.asarray(part).reshape(count, -1).view(np.uint8) for part in found]
        np.testing.assert_array_equal(np.concatenate(rows, axis=1), samples[:count])
        assert [(part.dtype.name, tuple(part.shape[1:])) for part in found] == [
            (part.dtype, part.shape) for part in sample.parts
        ]


@pytest.mark.parametrize(("model", "workload", "variant"), FORMS)
def test_a_batch_in_several_blocks_is_the_same_batch(
    model: Model, workload: Any, variant: str, tiny: Callable[[str, str], Decoded]
) -> None:
    dataset, samples = tiny(workload.name, variant)
    sample = model.sample(dataset)
    ends = np.cumsum([4 * part.words for part in sample.parts])[:-1]
    columns = np.split(samples[:2], ends, axis=1)
    batch = Batch(np.arange(2), tuple(Block.even(column) for column in columns))
    one, several = (unpack(lend(each), sample.parts) for each in (batch_of(samples[:2]), batch))
    for a, b in zip(one, several, strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()


def test_networks_are_given_what_their_decode_delivers(tiny: Callable[[str, str], Decoded]) -> None:
    def given(workload: str, variant: str) -> tuple[Fields, npt.NDArray[np.float32], npt.NDArray[np.int32]]:
        dataset, samples = tiny(workload, variant)
        sample = choose(WORKLOADS[workload].models, variant).sample(dataset)
        found = sample.fields(unpack(lend(batch_of(samples[:2])), sample.parts))
        assert tuple(found.inputs.shape) == (2, *sample.shape)
        return found, samples[:2].view(np.float32), samples[:2].view(np.int32)

    found, floats, integers = given("hepcnnb", "224")
    np.testing.assert_array_equal(np.ravel(found.inputs), floats[:, :768].ravel())
    np.testing.assert_array_equal(found.labels, integers[:, 768])
    found, floats, integers = given("cdb", "cori")
    pixels = 48 * 72
    np.testing.assert_array_equal(np.asarray(found.inputs)[1, ..., 3].ravel(), floats[1, 3 * pixels : 4 * pixels])
    np.testing.assert_array_equal(np.asarray(found.labels)[1].ravel(), integers[1, 4 * pixels : 5 * pixels])
    np.testing.assert_array_equal(np.asarray(found.weights)[1].ravel(), floats[1, 5 * pixels :])
    found, floats, integers = given("imagenet", "tfrecord")
    blocks = floats[:, :-1].reshape(2, 32, 7, 32, 7, 3).mean(axis=(2, 4))
    np.testing.assert_allclose(found.inputs, blocks, rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(found.labels, integers[:, -1] - 1)
    assert np.asarray(found.labels).min() >= 0
    found, floats, _ = given("cosmoflow", "sc18")
    np.testing.assert_array_equal(found.labels, floats[:, -3:])


def test_lent_memory_is_the_readers_own() -> None:
    batch = batch_of(np.arange(2 * 64, dtype=np.uint8).reshape(2, 64))
    (lent,) = lend(batch)
    assert shares_memory(batch)
    assert array(lent).ctypes.data == batch.blocks[0].data.ctypes.data


def test_a_single_samples_parts_are_no_copies() -> None:
    parts = [Part("a", "float32", (16,)), Part("b", "int32", (4, 4))]
    batch = batch_of(np.arange(128, dtype=np.uint8)[None])
    a, b = unpack(lend(batch), parts)
    assert array(a).ctypes.data == batch.blocks[0].data.ctypes.data
    assert array(b).ctypes.data == batch.blocks[0].data.ctypes.data + 64


@pytest.mark.parametrize("why", ["misaligned", "read-only"])
def test_memory_that_cannot_be_shared_is_copied(why: str) -> None:
    batch = batch_of(np.arange(2 * 64, dtype=np.uint8).reshape(2, 64), shift=16 if why == "misaligned" else 0)
    if why == "read-only":
        batch.blocks[0].data.flags.writeable = False
    (lent,) = lend(batch)
    assert not shares_memory(batch)
    assert array(lent).ctypes.data != batch.blocks[0].data.ctypes.data
    assert lent.numpy().tobytes() == batch.blocks[0].data.tobytes()


def test_samples_of_another_size_are_refused() -> None:
    with pytest.raises(DataError, match="64 bytes were delivered where image have 48"):
        unpack(lend(batch_of(np.zeros((2, 64), np.uint8))), [Part("image", "float32", (12,))])
    uneven = Batch(np.arange(2), (Block(np.zeros(64, np.uint8), np.array([0, 24, 64])),))
    with pytest.raises(DataError, match="different sizes"):
        lend(uneven)
    halves = Batch(np.arange(1), (Block.even(np.zeros((1, 8), np.float32)), Block.even(np.zeros((1, 8), np.float32))))
    with pytest.raises(DataError, match="'image' is cut in two"):
        unpack(lend(halves), [Part("image", "float32", (16,))])
