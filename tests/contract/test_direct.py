"""The suite of readers with direct reads: each way to deliver and to place, on files that the page cache has no part
in.
"""

import mmap
import os
from collections.abc import Iterator
from typing import Any

import pytest

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.readers.session import Tally
from dlio_bench.harness.storage import cache
from tests.contract import test_readers
from tests.contract.test_placed import PlacedContract
from tests.contract.test_readers import EVERY, ReaderContract, layout
from tests.contract.test_staged import StagedContract
from tests.datasets import made_by_first
from tests.direct_folder import direct_folder

# a fixture belongs to the module that has its name
world, nothing_is_left = test_readers.world, test_readers.nothing_is_left


@pytest.fixture(scope="module")
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, world: Comm) -> Iterator[Dataset]:
    """Of a workload, of some 30 samples, where direct reads are possible."""
    files = -(-30 // layout(request.param).samples_per_file)
    with direct_folder(tmp_path_factory.mktemp(request.param)) as folder:
        yield made_by_first(world, folder, request.param, files)


class DirectContract(ReaderContract):
    """No byte of the dataset's files goes through the page cache."""

    direct = True

    def test_the_kernel_may_give_less_than_was_asked_for(
        self, dataset: Dataset, world: Comm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Direct reads stop behind whole blocks only."""
        real, handles = os.preadv, set()

        def less(handle: int, buffers: Any, offset: int) -> int:
            handles.add(handle)
            buffer = memoryview(buffers[0])
            half = len(buffer) // 2 // mmap.PAGESIZE * mmap.PAGESIZE
            return real(handle, [buffer[:half] if half else buffer], offset)

        monkeypatch.setattr(os, "preadv", less)
        self.deliver(self.make(dataset, world), self.epochs(dataset, world.size, world.rank, epochs=1))
        assert handles

    def test_no_page_of_the_files_comes_into_the_cache(self, dataset: Dataset, world: Comm) -> None:
        paths = [dataset.path(number) for number in range(len(dataset.manifest.files))]
        cache.drop(paths)
        tally = Tally()
        plan = self.epochs(dataset, world.size, world.rank, epochs=1)
        with self.make(dataset, world).session(plan, tally) as batches:
            for _ in batches:
                pass
        assert cache.residency(paths).resident_bytes == 0
        assert tally.of(0).bytes_requested > 0
        blocks = tally.of(0).bytes_requested + tally.of(0).bytes_rounded
        assert blocks <= sum(path.stat().st_size for path in paths) * 2


class TestOnDemand(DirectContract):
    policy = "naive"
    workloads = harmed = EVERY


class TestAhead(DirectContract):
    policy = "double-buffer"


class TestStaged(DirectContract, StagedContract):
    """What is copied is read directly; copies are read as they were written."""

    policy, placement = "staged", "stage-partition"
    workloads = harmed = ("cdb",)


class TestPlaced(DirectContract, PlacedContract):
    """Tiers in memory and on node-local storage are not read directly."""

    policy = "cooperative"
