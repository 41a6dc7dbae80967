"""A loader as a tf.data.Dataset: what it delivers, how it fails, and the program of the documentation that trains."""

import gc
import re
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlio_bench
from dlio_bench.benchmarks.tensors import tensorflow
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import DataError, UsageError
from tests.datasets import made
from tests.processes import until
from tests.programs import run


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return made(tmp_path_factory.mktemp("hep"), "hepcnnb", 1)


def test_tensors_are_the_loaders_batches_and_stay(dataset: Dataset) -> None:
    tf = tensorflow()
    with dlio_bench.load(dataset.folder, batch=3, epochs=2, last="keep") as loader:
        as_tf = loader.as_tf()
        assert as_tf.element_spec["data"] == tf.TensorSpec((None, 3, 16, 16), tf.float32)
        assert int(as_tf.cardinality()) == len(as_tf) == len(loader)
        kept = list(as_tf.prefetch(3))
        kept += list(as_tf)  # the next epoch
        for epoch in range(2):
            loader.set_epoch(epoch)
            for batch in loader:
                tensors = kept.pop(0)
                assert tensors.keys() == batch.keys()
                assert all((tensors[name].numpy() == batch[name]).all() for name in batch)
        assert kept == []
        with pytest.raises(UsageError, match="Did you mean 'data'"):
            loader.as_tf("dta")


def test_it_takes_no_batch_before_it_is_asked_for(dataset: Dataset) -> None:
    with dlio_bench.load(dataset.folder, batch=3) as loader:
        first = [ids.numpy().tolist() for (ids,) in loader.as_tf("ids").take(3)]
        assert loader.step == 3
        rest = [batch["ids"].tolist() for batch in loader]
        loader.set_epoch(0)
        assert [batch["ids"].tolist() for batch in loader] == first + rest


def reading() -> list[str]:
    """The threads of readers."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("reader")]


def test_abandoned_in_mid_epoch_it_leaves_no_thread(dataset: Dataset) -> None:
    loader = dlio_bench.load(dataset.folder, batch=3, epochs=2)
    batches = iter(loader.as_tf("ids"))
    next(batches)
    alive = weakref.ref(loader)
    del loader, batches
    gc.collect()
    until(lambda: alive() is None and not reading())


def test_samples_of_varying_length_are_strings(tmp_path: Path) -> None:
    contents = [bytes([number]) * (number + 1) for number in range(4)]
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.bin").write_bytes(content)
    with dlio_bench.load(tmp_path, batch=2, reader="naive") as loader:
        strings = np.concatenate([strings.numpy() for (strings,) in loader.as_tf("content")])
    assert strings.tolist() == contents


def test_a_batch_that_samples_are_left_out_of_has_fewer(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.bin").write_bytes(b"x" * (number % 3))

    def first(sample: int, stored: Any, made: Any) -> None:
        made["first"][...] = stored[0][1]

    decode = dlio_bench.Decoder(("content",), {"first": ("<u2", ())}, first)
    with dlio_bench.load(tmp_path, batch=2, reader="naive", decode=decode, on_error="skip") as loader:
        batches = [values.numpy().tolist() for (values,) in loader.as_tf("first")]
    assert batches == [[], [ord("x")]]


def test_an_error_comes_through_tf_data_with_its_text_and_leaves_the_loader_as_its_own(tmp_path: Path) -> None:
    damaged = made(tmp_path, "hepcnnb", 1)
    damaged.path(0).write_bytes(damaged.path(0).read_bytes()[:9999])
    tensorflows = tensorflow().errors.UnknownError

    def train() -> None:
        with dlio_bench.load(tmp_path, batch=2) as loader:
            with pytest.raises(tensorflows, match=r"DataError: .*ends at"):
                list(loader.as_tf())
            list(loader.as_tf())

    with pytest.raises(DataError, match="ends at") as left:
        train()
    assert isinstance(left.value.__cause__, tensorflows)


def test_the_program_of_the_page_trains_a_keras_model(tmp_path: Path) -> None:
    output = run("Keras", tmp_path)
    losses = [float(loss) for loss in re.findall(r"loss: ([\d.e-]+)", output)]
    assert len(losses) == 2  # of one rank, two epochs
    assert losses[1] < losses[0]
