"""A loader as a PyTorch dataset: what it delivers, how it fails, and the documentation's program that trains with it.

PyTorch has an environment of its own: `.ci/run` makes it, and runs these tests there.
"""

import gc
import re
import threading
import weakref
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import dlio_bench
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import DataError, UsageError
from tests.datasets import made
from tests.processes import until
from tests.programs import run


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return made(tmp_path_factory.mktemp("hep"), "hepcnnb", 1)


def test_tensors_are_the_loaders_batches_and_stay(dataset: Dataset) -> None:
    with dlio_bench.load(dataset.folder, batch=3, epochs=2, last="keep") as loader:
        batches = DataLoader(loader.as_torch(), batch_size=None)
        assert len(batches) == len(loader)
        kept = [*batches, *batches]  # two epochs
        for epoch in range(2):
            loader.set_epoch(epoch)
            for batch in loader:
                tensors = kept.pop(0)
                assert tensors.keys() == batch.keys()
                assert all(torch.equal(tensors[name], torch.from_numpy(batch[name].copy())) for name in batch)
        assert kept == []
        with pytest.raises(UsageError, match="Did you mean 'data'"):
            loader.as_torch("dta")


def reading() -> list[str]:
    """The threads of readers."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("reader")]


def test_abandoned_in_mid_epoch_it_leaves_no_thread(dataset: Dataset) -> None:
    loader = dlio_bench.load(dataset.folder, batch=3, epochs=2)
    batches = iter(DataLoader(loader.as_torch("ids"), batch_size=None))
    next(batches)
    alive = weakref.ref(loader)
    del loader, batches
    gc.collect()
    until(lambda: alive() is None and not reading())


def test_samples_of_varying_length_are_a_list(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.bin").write_bytes(bytes([number]) * (number + 1))
    with dlio_bench.load(tmp_path, batch=2, reader="naive") as loader:
        contents = [part.tolist() for (parts,) in loader.as_torch("content") for part in parts]
    assert contents == [[number] * (number + 1) for number in range(4)]


def test_it_goes_on_with_the_very_next_sample(dataset: Dataset) -> None:
    def ids(loader: "dlio_bench.Loader") -> list[list[int]]:
        return [ids.tolist() for (ids,) in DataLoader(loader.as_torch("ids"), batch_size=None)]

    with dlio_bench.load(dataset.folder, batch=3, epochs=2) as loader:
        for _, _ in zip(range(4), DataLoader(loader.as_torch("ids"), batch_size=None), strict=False):
            pass
        state = loader.state_dict()
        rest = ids(loader)
    with dlio_bench.load(dataset.folder, batch=3, epochs=2) as loader:
        loader.load_state_dict(state)
        assert ids(loader) == rest
        assert len(rest) == len(loader) - state["step"]


def test_workers_are_refused(dataset: Dataset) -> None:
    with dlio_bench.load(dataset.folder, batch=3) as loader, pytest.raises(UsageError, match="num_workers=0"):
        next(iter(DataLoader(loader.as_torch(), batch_size=None, num_workers=1)))


def test_an_error_is_the_loaders_own(tmp_path: Path) -> None:
    damaged = made(tmp_path, "hepcnnb", 1)
    damaged.path(0).write_bytes(damaged.path(0).read_bytes()[:9999])
    with dlio_bench.load(tmp_path, batch=2) as loader, pytest.raises(DataError, match="ends at"):
        list(DataLoader(loader.as_torch(), batch_size=None))


def test_the_program_of_the_page_trains_a_pytorch_model(tmp_path: Path) -> None:
    output = run("PyTorch", tmp_path)
    biases = dict(re.findall(r"(epoch \d, rank \d): bias (\[.*\])", output))
    assert sorted(biases) == [f"epoch {epoch}, rank {rank}" for epoch in range(2) for rank in range(2)]
    for epoch in range(2):
        assert biases[f"epoch {epoch}, rank 0"] == biases[f"epoch {epoch}, rank 1"]
    assert len(set(biases.values())) == 2  # it has learned something
