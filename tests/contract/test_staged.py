"""The suite of readers on every staged placement, and what staging promises besides, seen from one rank."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError
from dlio_bench.harness.plan.orders import every_sample_once
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.registry import ALONE, Resources, open_reader
from dlio_bench.harness.readers.session import Reader, Tally, largest, planned
from dlio_bench.harness.storage import tier
from tests.contract import test_readers
from tests.contract.test_readers import ReaderContract, form, view

dataset = test_readers.dataset  # a fixture belongs to the module that has its name
no_thread_is_left = test_readers.no_thread_is_left


class StagedContract(ReaderContract):
    """Subclasses name the placement, and the policy whose order and delivery it is put around."""

    placement: str
    place: Path  # of the node's tier

    @pytest.fixture(autouse=True)
    def _empty_tier(self, tmp_path: Path) -> Iterator[None]:
        self.place = tmp_path / "tier"
        self.place.mkdir()
        yield
        assert list(self.place.iterdir()) == []

    def make(self, dataset: Dataset, *, staging: int = 64_000_000, batch_bytes: int | None = None) -> Reader:
        if batch_bytes is None:
            batch_bytes = largest(planned(form(dataset), [(0, every_sample_once(dataset.samples, 1, 0, 7))]))
            batch_bytes = max(batch_bytes, largest(self.epochs(dataset, 1, 0)))
        resources = Resources(threads=3, staging_bytes=staging, batch_bytes=batch_bytes)
        policy = replace(find(self.policy), placement=self.placement)
        return open_reader(policy, form(dataset), resources, replace(ALONE, tier=self.place))

    def kept(self, dataset: Dataset, files: np.ndarray) -> int:
        """Bytes of the files that are copied for a plan which reads `files`."""
        numbers = range(len(dataset.training_files)) if self.placement == "stage-replicate" else files
        return sum(dataset.manifest.files[number].bytes for number in numbers)

    def test_requested_bytes_are_the_extents_of_the_plan(self, dataset: Dataset) -> None:
        """Each file once in the first epoch; the samples themselves come from the tier."""
        reader, plan, tally = self.make(dataset), self.epochs(dataset, 2, 1), Tally()
        asked = reader.asks(plan)
        with reader.session(plan, tally) as batches:
            assert len(list(batches)) == len(plan)
        files = np.unique(np.concatenate([dataset.locate(batch.ids, view(dataset))[0] for batch in plan]))
        assert asked == {0: self.kept(dataset, files), 1: 0}
        for epoch in range(2):
            ids = np.concatenate([batch.ids for batch in plan if batch.epoch == epoch])
            assert tally.of(epoch).requested == asked[epoch]
            assert tally.of(epoch).local == dataset.locate(ids, view(dataset))[2].sum()

    @pytest.mark.parametrize("harm", ["gone", "short"])
    def test_a_bad_file_is_named_in_the_step_that_needs_it(self, dataset: Dataset, harm: str) -> None:
        """All files are needed by the first step."""
        plan = self.epochs(dataset, 1, 0, epochs=1)
        victim = int(dataset.locate(plan[3].ids[:1], view(dataset))[0][0])
        with (
            test_readers._harmed(dataset.path(victim), harm) as path,
            self.make(dataset).session(plan, Tally()) as batches,
            pytest.raises(DataError, match=path.name),
        ):
            next(batches)

    def test_copies_are_whole_named_by_number_and_gone_with_the_session(self, dataset: Dataset) -> None:
        plan = self.epochs(dataset, 1, 0)
        with self.make(dataset).session(plan, Tally()) as batches:
            assert list(self.place.iterdir()) == []  # nothing before the first batch is asked for
            next(batches)
            (folder,) = self.place.iterdir()
            assert dataset.digest.removeprefix("sha256:")[:12] in folder.name
            for copy in folder.iterdir():
                assert copy.read_bytes() == dataset.path(int(copy.name)).read_bytes()
            assert sum(copy.stat().st_size for copy in folder.iterdir()) == self.kept(
                dataset, np.unique(np.concatenate([dataset.locate(batch.ids, view(dataset))[0] for batch in plan]))
            )

    def test_batches_come_from_the_copies_alone(self, dataset: Dataset, tmp_path: Path) -> None:
        plan = self.epochs(dataset, 1, 0)
        with self.make(dataset, staging=2 * largest(plan), batch_bytes=largest(plan)).session(plan, Tally()) as batches:
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
            find("naive"), form(dataset), Resources(threads=1, staging_bytes=0, batch_bytes=largest(plan))
        ).session(plan[1:], Tally()) as direct:
            for (ids, samples), batch in zip(delivered, direct, strict=True):
                assert ids.tolist() == batch.ids.tolist()
                assert samples == [batch.sample(i).tobytes() for i in range(len(batch.ids))]

    def test_a_node_without_a_tier_is_told_to_give_one(self, dataset: Dataset) -> None:
        resources = Resources(threads=1, staging_bytes=64_000_000, batch_bytes=1)
        policy = replace(find(self.policy), placement=self.placement)
        with pytest.raises(UsageError, match="--local-tier"):
            open_reader(policy, form(dataset), resources)

    def test_a_tier_that_is_not_there_is_named(self, dataset: Dataset) -> None:
        reader = self.make(dataset)
        self.place.rmdir()
        with (
            reader.session(self.epochs(dataset, 1, 0), Tally()) as batches,
            pytest.raises(EnvironmentFailure, match=rf"{self.place}.*--local-tier"),
        ):
            next(batches)
        self.place.mkdir()

    def test_too_little_room_is_found_before_anything_is_copied(
        self,
        dataset: Dataset,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        room = tier.room
        monkeypatch.setattr(tier, "room", lambda held: replace(room(held), free=10_000))
        tally = Tally()
        with (
            self.make(dataset).session(self.epochs(dataset, 1, 0), tally) as batches,
            pytest.raises(EnvironmentFailure, match=r"10 kB are free.*--local-tier"),
        ):
            next(batches)
        assert tally.of(0).requested == 0

    def test_what_a_dead_job_left_is_removed_and_what_is_in_use_is_not(self, dataset: Dataset) -> None:
        (self.place / f"{tier.PREFIX}dead").mkdir()
        (self.place / f"{tier.PREFIX}dead" / "0").write_bytes(b"left")
        other = tier.make(self.place, "sha256:of-another-job")
        try:
            with self.make(dataset).session(self.epochs(dataset, 1, 0), Tally()) as batches:
                next(batches)
                assert len(list(self.place.iterdir())) == 2
            assert list(self.place.iterdir()) == [other.folder]
        finally:
            other.close()

    def test_an_interrupted_trainer_leaves_nothing(self, dataset: Dataset) -> None:
        session = self.make(dataset).session(self.epochs(dataset, 1, 0), Tally())
        next(session.__enter__())
        assert list(self.place.iterdir()) != []
        interrupt = KeyboardInterrupt()
        assert not session.__exit__(KeyboardInterrupt, interrupt, None)
        assert list(self.place.iterdir()) == []


class TestPartition(StagedContract):
    policy, placement = "double-buffer", "stage-partition"


class TestReplicate(StagedContract):
    policy, placement = "double-buffer", "stage-replicate"


class TestSubset(StagedContract):
    policy, placement = "double-buffer", "stage-subset"


class TestPartitionOnDemand(StagedContract):
    policy, placement = "shuffled", "stage-partition"


class TestReplicateOnDemand(StagedContract):
    policy, placement = "shuffled", "stage-replicate"
