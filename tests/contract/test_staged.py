"""The suite of readers on every staged placement, and what staging promises besides, seen from one rank."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.plan.policies import Policy, find
from dlio_bench.harness.readers.registry import open_reader
from dlio_bench.harness.readers.resources import ALONE, RankContext, Resources
from dlio_bench.harness.readers.session import Tally, largest
from dlio_bench.harness.storage import tier
from tests.contract import test_readers
from tests.contract.test_readers import EVERY, WORLD, ReaderContract, harmed, view

# a fixture belongs to the module that has its name
dataset, world, nothing_is_left = test_readers.dataset, test_readers.world, test_readers.nothing_is_left


class StagedContract(ReaderContract):
    """Subclasses name the placement, and the policy whose order and delivery it is put around. A rank is a node."""

    placement: str
    place: Path  # of the node's tier

    @pytest.fixture(autouse=True)
    def _empty_tier(self, tmp_path: Path) -> Iterator[None]:
        self.place = tmp_path / "tier"
        self.place.mkdir()
        yield
        assert list(self.place.iterdir()) == []

    @property
    def row(self) -> Policy:
        return replace(find(self.policy), placement=self.placement)

    def seat(self, world: Comm, folder: Path | None = None) -> RankContext:
        return RankContext(world, tier=self.place if folder is None else folder)

    def kept(self, dataset: Dataset, files: np.ndarray) -> int:
        """Bytes of the files that are copied for a plan which reads `files`."""
        numbers = range(len(dataset.training_files)) if self.placement == "stage-replicate" else files
        return sum(dataset.manifest.files[number].bytes for number in numbers)

    def test_each_file_is_asked_for_once_and_samples_come_from_the_tier(self, dataset: Dataset, world: Comm) -> None:
        reader, plan, tally = self.make(dataset, world), self.epochs(dataset, world.size, world.rank), Tally()
        asked = reader.requested_bytes(plan)
        self.deliver(reader, plan, tally)
        for epoch in range(2):
            ids = np.concatenate([batch.ids for batch in plan if batch.epoch == epoch])
            assert tally.of(epoch).bytes_local >= dataset.locate(ids, view(dataset))[2].sum()  # and what was handed on
        if world.size == 1:
            files = np.unique(np.concatenate([dataset.locate(batch.ids, view(dataset))[0] for batch in plan]))
            assert asked == {0: self.kept(dataset, files), 1: 0}

    @pytest.mark.parametrize("harm", ["missing", "empty", "truncated", "EIO"] if WORLD == 1 else ["missing", "EIO"])
    def test_a_bad_file_is_named_in_the_step_that_needs_it(
        self, dataset: Dataset, world: Comm, harm: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All files are needed by the first step, on every rank."""
        plan = self.epochs(dataset, world.size, world.rank, epochs=1)
        victim = world.allgather(int(plan[1].ids[0]))[0]
        with (
            harmed(dataset, victim, harm, world, monkeypatch) as (path, _),
            self.make(dataset, world).session(plan, Tally()) as batches,
            pytest.raises(EnvironmentFailure if harm == "EIO" else DataError, match=path.name),
        ):
            next(batches)

    def test_a_flipped_byte_is_found_in_its_step(
        self, dataset: Dataset, world: Comm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = self.epochs(dataset, world.size, world.rank, epochs=1)
        victim = world.allgather(int(plan[1].ids[0]))[0]
        with harmed(dataset, victim, "flipped", world, monkeypatch) as (path, _):
            steps = [i for i, batch in enumerate(plan) if victim in batch.ids]
            with self.make(dataset, world, check_crc=True).session(plan, Tally()) as batches:
                for _ in range(steps[0] if steps else len(plan)):
                    next(batches)
                if steps:
                    with pytest.raises(DataError, match=path.name):
                        next(batches)
        assert sum(world.allgather(len(steps))) == 1

    @pytest.mark.alone
    def test_copies_are_whole_named_by_number_and_gone_with_the_session(self, dataset: Dataset) -> None:
        plan = self.epochs(dataset, 1, 0)
        with self.make(dataset, ALONE.comm).session(plan, Tally()) as batches:
            assert list(self.place.iterdir()) == []  # nothing before the first batch is asked for
            next(batches)
            (folder,) = self.place.iterdir()
            assert dataset.digest.removeprefix("sha256:")[:12] in folder.name
            for copy in folder.iterdir():
                assert copy.read_bytes() == dataset.path(int(copy.name)).read_bytes()
            assert sum(copy.stat().st_size for copy in folder.iterdir()) == self.kept(
                dataset, np.unique(np.concatenate([dataset.locate(batch.ids, view(dataset))[0] for batch in plan]))
            )

    @pytest.mark.alone
    def test_batches_come_from_the_copies_alone(self, dataset: Dataset, tmp_path: Path) -> None:
        plan = self.epochs(dataset, 1, 0)
        most = largest(plan)
        reader = self.make(dataset, ALONE.comm, staging=2 * most, batch_bytes=most)
        with reader.session(plan, Tally()) as batches:
            next(batches)
            aside = dataset.folder.rename(tmp_path / "aside")
            try:
                delivered = [
                    (batch.ids.copy(), [batch.sample(i).tobytes() for i in range(len(batch.ids))]) for batch in batches
                ]
            finally:
                aside.rename(dataset.folder)
        assert len(delivered) == len(plan) - 1
        with open_reader(
            find("naive"), self.form(dataset), Resources(threads=1, staging_bytes=0, batch_bytes=largest(plan))
        ).session(plan[1:], Tally()) as direct:
            for (ids, samples), batch in zip(delivered, direct, strict=True):
                assert ids.tolist() == batch.ids.tolist()
                assert samples == [batch.sample(i).tobytes() for i in range(len(batch.ids))]

    @pytest.mark.alone
    def test_a_node_without_a_tier_is_told_to_give_one(self, dataset: Dataset) -> None:
        resources = Resources(threads=1, staging_bytes=64_000_000, batch_bytes=1)
        policy = replace(find(self.policy), placement=self.placement)
        with pytest.raises(UsageError, match="--local-tier"):
            open_reader(policy, self.form(dataset), resources)

    @pytest.mark.alone
    def test_a_tier_that_is_not_there_is_named(self, dataset: Dataset) -> None:
        reader = self.make(dataset, ALONE.comm)
        self.place.rmdir()
        with (
            reader.session(self.epochs(dataset, 1, 0), Tally()) as batches,
            pytest.raises(EnvironmentFailure, match=rf"{self.place}.*--local-tier"),
        ):
            next(batches)
        self.place.mkdir()

    @pytest.mark.alone
    def test_too_little_room_is_found_before_anything_is_copied(
        self,
        dataset: Dataset,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        room = tier.room
        monkeypatch.setattr(tier, "room", lambda held: replace(room(held), free=10_000))
        tally = Tally()
        with (
            self.make(dataset, ALONE.comm).session(self.epochs(dataset, 1, 0), tally) as batches,
            pytest.raises(EnvironmentFailure, match=r"10 kB are free.*--local-tier"),
        ):
            next(batches)
        assert tally.of(0).bytes_requested == 0

    @pytest.mark.alone
    def test_what_a_dead_job_left_is_removed_and_what_is_in_use_is_not(self, dataset: Dataset) -> None:
        (self.place / f"{tier.PREFIX}dead").mkdir()
        (self.place / f"{tier.PREFIX}dead" / "0").write_bytes(b"left")
        other = tier.make(self.place, "sha256:of-another-job")
        try:
            with self.make(dataset, ALONE.comm).session(self.epochs(dataset, 1, 0), Tally()) as batches:
                next(batches)
                assert len(list(self.place.iterdir())) == 2
            assert list(self.place.iterdir()) == [other.folder]
        finally:
            other.close()

    @pytest.mark.alone
    def test_an_interrupted_trainer_leaves_nothing(self, dataset: Dataset) -> None:
        session = self.make(dataset, ALONE.comm).session(self.epochs(dataset, 1, 0), Tally())
        next(session.__enter__())
        assert list(self.place.iterdir()) != []
        interrupt = KeyboardInterrupt()
        assert not session.__exit__(KeyboardInterrupt, interrupt, None)
        assert list(self.place.iterdir()) == []


class TestPartition(StagedContract):
    policy, placement = "double-buffer", "stage-partition"
    workloads = EVERY


class TestReplicate(StagedContract):
    policy, placement = "double-buffer", "stage-replicate"


class TestSubset(StagedContract):
    policy, placement = "double-buffer", "stage-subset"


class TestPartitionOnDemand(StagedContract):
    policy, placement = "shuffled", "stage-partition"
