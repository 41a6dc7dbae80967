"""The suite of readers on every placement of samples, and what tiers promise besides."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.benchmarks.registry import find as find_workload
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import DataError
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.commands.run.measured.consumer import find_damage
from dlio_bench.harness.plan.orders import Shape
from dlio_bench.harness.plan.policies import POLICIES, Policy, find, resolve
from dlio_bench.harness.readers.placed import reader as placed
from dlio_bench.harness.readers.placed.rules import draw_of
from dlio_bench.harness.readers.placed.tiers import Tiers
from dlio_bench.harness.readers.resources import RankContext
from dlio_bench.harness.readers.session import Planned, SampleView, Tally, plan_batches
from dlio_bench.harness.storage.tier_files import MEMORY_NAME
from tests.contract import test_readers
from tests.contract.test_readers import BATCH, EVERY, WORLD, ReaderContract, harmed
from tests.processes import open_files

# of a file system that is not bypassed, as the one of the tests would be, whose files are in memory
SLOW = {"pfs": 1e6, "remote": 1e9, "ram": 1e9, "disk": 1e9}

# a fixture belongs to the module that has its name
dataset, world, nothing_is_left = test_readers.dataset, test_readers.world, test_readers.nothing_is_left


class PlacedContract(ReaderContract):
    """Subclasses name the policy. A rank is a node, and its tiers hold the dataset."""

    place: Path  # of the node's disk tier

    @pytest.fixture(autouse=True)
    def _empty_tier(self, tmp_path: Path) -> Iterator[None]:
        self.place = tmp_path / "tier"
        self.place.mkdir()
        yield
        assert list(self.place.iterdir()) == []
        assert [name for name in open_files().values() if f"memfd:{MEMORY_NAME}" in name] == []

    def tiers(self, dataset: Dataset) -> Tiers:
        return Tiers(ram=self.bytes(dataset), disk=self.bytes(dataset), rates=SLOW)

    def bytes(self, dataset: Dataset) -> int:
        return int(Tiers().sizes_of(self.form(dataset)).sum())

    def seat(self, world: Comm, folder: Path | None = None) -> RankContext:
        return RankContext(world, tier=folder or self.place)

    def accounted(self, cost: Cost) -> int:
        """What came from elsewhere is spared, what was brought into tiers was asked for besides."""
        return cost.bytes_requested - cost.bytes_kept + cost.bytes_spared

    @pytest.mark.alone
    def test_a_flipped_byte_is_seen_by_the_verification_of_content(
        self, dataset: Dataset, world: Comm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As inherited, but ranks leave the session together: one that fails leaves it alone, and ends the job."""
        reader, plan = self.make(dataset, world), self.everything(dataset, world.size, world.rank)
        lines: list[str] = []
        with harmed(dataset, 0, "flipped", world, monkeypatch) as (path, _), reader.session(plan, Tally()) as batches:
            try:
                for batch in batches:
                    lines += find_damage(batch, reader.sample_view)
            except DataError as error:  # a compressed sample has a checksum of its own
                lines.append(str(error))
        assert [path.name in line for line in lines] == ([True] if world.rank == 0 else [])


class OneModelContract(PlacedContract):
    """Every rank reads what one rank would, so that nodes and the ranks of a node all want the same at a time."""

    ranks_per_node = 1

    def seat(self, world: Comm, folder: Path | None = None) -> RankContext:
        return RankContext(
            world, self.ranks_per_node if world.size % self.ranks_per_node == 0 else 1, folder or self.place
        )

    def epochs(self, dataset: Dataset, ranks: int, rank: int, epochs: int = 2) -> list[Planned]:
        return super().epochs(dataset, 1, 0, epochs)

    @pytest.mark.parametrize("ranks", [WORLD])
    def test_it_delivers_the_plan_with_the_generated_bytes(self, dataset: Dataset, world: Comm, ranks: int) -> None:
        """Each sample comes to every rank, from the file system to one of them."""
        reader, tally = self.make(dataset, world), Tally()
        seen = np.concatenate(self.deliver(reader, self.epochs(dataset, ranks, world.rank), tally))
        assert len({ids.tobytes() for ids in world.allgather(seen)}) == 1
        assert np.bincount(seen).max() == 2  # once in each epoch
        requested = world.allgather(sum(cost.bytes_requested for cost in tally.epochs.values()))
        if self.policy == "cooperative":
            assert sum(requested) == reader.sample_view.stored_size(np.unique(seen))
            assert all(requested)  # they took turns


class DrawnContract(PlacedContract):
    """Policies whose placement draws the order."""

    def epochs(self, dataset: Dataset, ranks: int, rank: int, epochs: int = 2) -> list[Planned]:
        shape, tiers = Shape(dataset.samples, ranks, BATCH), self.tiers(dataset)
        form = self.form(dataset)
        draw = draw_of(self.row.rule, tiers.sizes_of(form), tiers.capacities, shape, epochs)
        return plan_batches(form, [(epoch, list(ids)) for epoch, ids in enumerate(draw(rank, shape.steps, 5))])


class TestCooperative(PlacedContract):
    policy = "cooperative"
    workloads = EVERY


class TestCooperativeOnFastStorage(PlacedContract):
    """Whose files are in memory already: they are read there, and the tiers stay empty."""

    policy = "cooperative"

    def tiers(self, dataset: Dataset) -> Tiers:
        return Tiers(ram=self.bytes(dataset))

    def test_nothing_is_kept(self, dataset: Dataset, world: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(placed, "_is_cached", lambda _: True)
        plan, tally = self.epochs(dataset, world.size, world.rank), Tally()
        with self.make(dataset, world).session(plan, tally) as batches:
            for _ in batches:
                pass
        for cost in tally.epochs.values():
            assert cost.bytes_kept == cost.bytes_ram == cost.bytes_remote == 0 < cost.bytes_requested


class TestCooperativeOneModel(OneModelContract):
    policy = "cooperative"


class TestCooperativeOneModelOnNodesOfTwo(OneModelContract):
    policy = "cooperative"
    ranks_per_node = 2


class TestClairvoyant(PlacedContract):
    """Nodes are asked for what they are guessed to have."""

    policy = "clairvoyant"


class TestLbannDynamic(PlacedContract):
    """Threads wait for the copy that is planned."""

    policy = "lbann-dynamic"


class TestDeepioOpportunistic(DrawnContract):
    policy = "deepio-opportunistic"


class TestCooperativeWithoutRoom(PlacedContract):
    """Both tiers together hold a third of what the nodes read, so that samples keep coming from the file system."""

    policy = "cooperative"

    def tiers(self, dataset: Dataset) -> Tiers:
        size = self.bytes(dataset) // (6 * WORLD)
        return Tiers(ram=size, disk=size, rates=SLOW)


class TestDeepioWithoutRoom(TestCooperativeWithoutRoom):
    """Its threads leave out what no node keeps; the trainer reads it."""

    policy = "deepio-ordered"


class TestCooperativeOnDemand(PlacedContract):
    """The trainer's own thread asks for samples, which other threads have brought, or not."""

    policy = "cooperative"

    @property
    def row(self) -> Policy:
        return resolve(self.policy, delivery="on demand")


class TestCooperativeDecoded(PlacedContract):
    """Samples are kept as they are stored, and decoded on their way to the trainer."""

    policy = "cooperative"
    workloads, harmed = EVERY[-2:], EVERY[-2:][:1]  # records compressed as a whole, and pictures
    compared = 5

    def form(self, dataset: Dataset) -> SampleView:
        workload = find_workload(dataset.manifest.workload)
        return SampleView(dataset, workload.view, None if workload.decode is None else workload.decode(dataset))


def mechanism(row: Policy) -> tuple[object, ...]:
    """What decides which code carries out a row; rows that differ by an array alone have the same."""
    rule = row.rule
    return rule.behaviour, rule.first, rule.seen is None, rule.draws_order


def _classes() -> Iterator[type[PlacedContract]]:
    """A class for each mechanism of the table that no class above has: a new one is tested by being there."""
    bases = (PlacedContract, DrawnContract)
    here = [one for one in globals().values() if getattr(one, "__base__", None) in bases and hasattr(one, "policy")]
    seen = {mechanism(find(one.policy)) for one in here}
    for row in POLICIES.values():
        if row.rule.keeps_samples and mechanism(row) not in seen:
            seen.add(mechanism(row))
            base = DrawnContract if row.rule.draws_order else PlacedContract
            yield type(f"Test{row.name.title().replace('-', '')}", (base,), {"policy": row.name, "workloads": ("cdb",)})


globals().update({one.__name__: one for one in _classes()})
