"""The suite of readers on every placement of samples, and what tiers promise besides."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import DataError
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.readers.placed.tiers import Tiers
from dlio_bench.harness.readers.registry import Resources, Seat, open_reader
from dlio_bench.harness.readers.session import Reader, Tally, largest
from dlio_bench.harness.run.consumer import damaged
from dlio_bench.harness.storage import shelf, tier
from tests.contract import test_readers
from tests.contract.test_readers import WORLDS, ReaderContract, harmed

# a fixture belongs to the module that has its name
dataset, world, nothing_is_left = test_readers.dataset, test_readers.world, test_readers.nothing_is_left


class PlacedContract(ReaderContract):
    """Subclasses name the policy. A rank is a node, and its tiers hold the dataset."""

    place: Path  # of the node's disk tier

    @pytest.fixture(autouse=True)
    def _empty_tier(self, tmp_path: Path, world: Comm) -> Iterator[None]:
        self.place = tmp_path / "tier"
        self.place.mkdir()
        yield
        world.barrier()
        assert list(self.place.iterdir()) == []
        assert not list(shelf.SHARED_MEMORY.glob(f"{tier.PREFIX}*"))

    def tiers(self, dataset: Dataset) -> Tiers:
        return Tiers(ram=self.bytes(dataset), disk=self.bytes(dataset))

    def bytes(self, dataset: Dataset) -> int:
        return int(Tiers().sizes_of(self.form(dataset)).sum())

    def make(
        self,
        dataset: Dataset,
        world: Comm,
        *,
        staging: int = 64_000_000,
        batch_bytes: int | None = None,
        check_crc: bool = False,
    ) -> Reader:
        if batch_bytes is None:
            plans = [self.everything(dataset), *(self.epochs(dataset, ranks, 0) for ranks in WORLDS)]
            batch_bytes = max(world.allgather(max(map(largest, plans))))
        resources = Resources(3, staging, batch_bytes, check_crc, tiers=self.tiers(dataset))
        return open_reader(self.row, self.form(dataset), resources, Seat(world, tier=self.place))

    def test_the_bytes_recorded_are_the_bytes_asked(self, dataset: Dataset, world: Comm) -> None:
        """What came from elsewhere is spared, what was brought into tiers was asked for besides."""
        tally, plan = Tally(), self.epochs(dataset, world.size, world.rank)
        reader = self.make(dataset, world)
        asked = reader.asks(plan)
        self.deliver(reader, plan, tally)
        for epoch, planned in asked.items():
            cost = tally.of(epoch)
            assert cost.requested - cost.kept + cost.spared == planned
            assert cost.read_seconds > 0

    def test_a_flipped_byte_is_seen_by_the_verification_of_content(
        self, dataset: Dataset, world: Comm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As inherited, but ranks leave the session together: one that fails leaves it alone, and ends the job."""
        reader, plan = self.make(dataset, world), self.everything(dataset, world.size, world.rank)
        lines: list[str] = []
        with harmed(dataset, 0, "flipped", world, monkeypatch) as (path, _), reader.session(plan, Tally()) as batches:
            try:
                for batch in batches:
                    lines += damaged(batch, reader.form)
            except DataError as error:  # a compressed sample has a checksum of its own
                lines.append(str(error))
        assert [path.name in line for line in lines] == ([True] if world.rank == 0 else [])


class TestCooperative(PlacedContract):
    policy = "cooperative"


class TestClairvoyant(PlacedContract):
    policy = "clairvoyant"


class TestLbannDynamic(PlacedContract):
    policy = "lbann-dynamic"


class TestLbannPreload(PlacedContract):
    policy = "lbann-preload"


class TestDeepioOrdered(PlacedContract):
    policy = "deepio-ordered"


class TestLocalityAware(PlacedContract):
    policy = "locality-aware"
