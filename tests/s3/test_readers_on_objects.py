"""The suite of readers on datasets in an object store: each way to deliver and to place, and a store that fails."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.batches import Ids
from dlio_bench.datagen import objects
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import DataError, EnvironmentFailure
from dlio_bench.harness.cluster.comm import Comm, Solo
from dlio_bench.harness.readers.session import Tally
from tests.contract import test_placed, test_readers, test_staged
from tests.contract.test_placed import PlacedContract
from tests.contract.test_readers import EVERY, ReaderContract, layout, view
from tests.contract.test_staged import StagedContract
from tests.datasets import made
from tests.s3.datasets import uploaded
from tests.s3.store import SECRET_ID, SECRET_KEY, Fault, Proxy

# a fixture belongs to the module that has its name
nothing_is_left = test_readers.nothing_is_left


@pytest.fixture(scope="module")
def world() -> Comm:
    return Solo()


@pytest.fixture(scope="module")
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, server: Proxy) -> Dataset:
    """Of a workload, of some 30 samples, in the store alone."""
    files = -(-30 // layout(request.param).samples_per_file)
    folder = tmp_path_factory.mktemp(request.param)
    prefix = f"{request.param}-{secrets.token_hex(4)}"
    return uploaded(made(folder / "local", request.param, files), prefix, folder / "cache")


@contextmanager
def harmed(
    dataset: Dataset, sample: int, harm: str, world: Comm, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, Ids]]:
    """As that of the suite: the object of a sample is bad for a while; EIO is a store that fails all the time."""
    assert dataset.store is not None
    ids, store = np.arange(dataset.samples), objects.open_store(dataset.store)
    files, offsets, stored, _ = dataset.locate(ids, view(dataset))
    file = int(files[sample])
    path, at = dataset.path(file), int(offsets[sample, 0]) + int(stored[sample, 0]) // 2
    spoiled = {
        "truncated": (files == file) & ((offsets + stored).max(axis=1) > at),
        "flipped": ids == sample,
    }.get(harm, files == file)
    name = dataset.manifest.files[file].name
    content = store.get(name)
    changed = bytearray(content)
    changed[at] ^= 1
    store.delete([name])
    spare = dataset.folder / "spare"
    if harm != "missing":
        spare.write_bytes({"empty": b"", "truncated": changed[:at], "EIO": content}.get(harm, changed))
        store.put(name, spare)
    with failing(name) if harm == "EIO" else nullcontext():
        try:
            yield path, ids[spoiled]
        finally:
            spare.write_bytes(content)
            store.put(name, spare)
            spare.unlink()


_proxy: list[Proxy] = []


@contextmanager
def failing(name: str) -> Iterator[None]:
    """Every request for this object fails."""
    _proxy[0].faults.append(Fault("500", 10**9, name))
    try:
        yield
    finally:
        _proxy[0].faults.clear()


@pytest.fixture(autouse=True)
def _store(store: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(test_readers, "harmed", harmed)
    monkeypatch.setattr(test_staged, "harmed", harmed)
    monkeypatch.setattr(test_placed, "harmed", harmed)
    _proxy[:] = [store]
    yield
    _proxy.clear()


class ObjectContract(ReaderContract):
    """Every byte of the files comes by requests for ranges, from a store that does not always answer well."""

    def test_the_kernel_may_give_less_than_was_asked_for(
        self, dataset: Dataset, world: Comm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A store may send less, break off, ask for patience or fail: no byte of that is taken, and each is counted."""
        proxy, kinds = _proxy[0], ("short", "500", "lost", "503")
        proxy.faults += [Fault(kind, 1) for kind in kinds]
        tally, plan = Tally(), self.epochs(dataset, world.size, world.rank, epochs=1)
        self.deliver(self.make(dataset, world), plan, tally)
        cost = tally.of(0)
        assert proxy.failed == cost.retries == len(kinds)
        assert proxy.ranges == cost.requests > cost.retries
        assert not any(dataset.path(number).exists() for number in range(len(dataset.manifest.files)))


class TestOnDemand(ObjectContract):
    policy = "naive"
    workloads = harmed = EVERY

    def test_neighbours_are_one_request(self, dataset: Dataset, world: Comm) -> None:
        """A sample's fields that lie side by side come together, and no request is for more than is wanted."""
        tally, plan = Tally(), self.epochs(dataset, 1, 0, epochs=1)
        self.deliver(self.make(dataset, world), plan, tally)
        ids = np.concatenate([batch.ids for batch in plan])
        _, offsets, stored, _ = dataset.locate(ids, view(dataset))
        apart = (offsets[:, 1:] != (offsets + stored)[:, :-1]).sum() + len(ids)
        assert tally.of(0).requests <= apart
        assert tally.of(0).bytes_requested == stored.sum()


class TestAhead(ObjectContract):
    policy = "double-buffer"

    @pytest.mark.parametrize(
        ("kind", "error", "said"),
        [
            ("503", EnvironmentFailure, r"503 Service Unavailable \(SlowDown\), after 5 attempts"),
            ("lost", EnvironmentFailure, "the answer ended early, after 5 attempts"),
            ("short", EnvironmentFailure, r"\d+ of \d+ bytes arrived, after 5 attempts"),
            ("404", DataError, r"404 Not Found \(NoSuchKey\), the object is gone"),
            ("403", EnvironmentFailure, r"403 Forbidden \(AccessDenied\). Check the credentials"),
        ],
    )
    def test_a_store_that_goes_on_failing_is_named_in_one_paragraph(
        self, dataset: Dataset, world: Comm, kind: str, error: type[Exception], said: str
    ) -> None:
        proxy, plan = _proxy[0], self.epochs(dataset, 1, 0, epochs=1)
        proxy.faults.append(Fault(kind, 10**9))
        with (
            self.make(dataset, world).session(plan, Tally()) as batches,
            pytest.raises(error, match=said) as failure,
        ):
            next(batches)
        text = str(failure.value)
        assert f"{dataset.store}/" in text
        assert proxy.url in text
        assert not any(secret in text for secret in (SECRET_ID, SECRET_KEY))
        assert "\n" not in text
        assert proxy.ranges == (5 if "attempts" in said else 1)


class TestStaged(ObjectContract, StagedContract):
    """Whole objects are copied, in ranges; copies are read as files."""

    policy, placement = "staged", "stage-partition"
    workloads = harmed = ("cdb",)

    def test_copies_are_whole_named_by_number_and_gone_with_the_session(self, dataset: Dataset) -> None:
        assert dataset.store is not None
        store = objects.open_store(dataset.store)
        with self.make(dataset, Solo()).session(self.epochs(dataset, 1, 0), Tally()) as batches:
            next(batches)
            (folder,) = self.place.iterdir()
            copies = list(folder.iterdir())
            assert copies
            for copy in copies:
                assert copy.read_bytes() == store.get(dataset.manifest.files[int(copy.name)].name)


class TestPlaced(ObjectContract, PlacedContract):
    """Samples that came from the store are kept in tiers, and served to other ranks."""

    policy = "cooperative"
