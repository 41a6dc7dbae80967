"""One suite for every reader: what it delivers, how it ends, what it says when a file is bad."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.benchmarks.registry import find as find_workload
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import RANDOM
from dlio_bench.errors import BenchError, DataError, EnvironmentFailure, UsageError
from dlio_bench.harness.plan.orders import ORDERS, Shape, every_sample_once
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.form import Form
from dlio_bench.harness.readers.registry import Resources, open_reader
from dlio_bench.harness.readers.session import Planned, Reader, Tally, largest, planned
from dlio_bench.harness.run.consumer import damaged

WORKLOADS = ("hepcnnb", "cdb", "cosmoflow", "imagenet")


@pytest.fixture(scope="module", params=WORKLOADS)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    workload = find_workload(request.param)
    layout = workload.variants[workload.default_variant](True, RANDOM)
    files = -(-30 // layout.samples_per_file)
    return generate(layout, files, tmp_path_factory.mktemp(request.param), seed=3, workers=1)


def view(dataset: Dataset) -> tuple[str, ...]:
    return find_workload(dataset.manifest.workload).view


def form(dataset: Dataset) -> Form:
    return Form(dataset, view(dataset))


def open_files() -> set[str]:
    return {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}


class ReaderContract:
    """Subclasses name the policy; everything else is inherited."""

    policy: str

    def make(self, dataset: Dataset, *, staging: int = 64_000_000, batch_bytes: int | None = None) -> Reader:
        if batch_bytes is None:  # the largest batch of any plan below
            batch_bytes = largest(planned(form(dataset), [(0, every_sample_once(dataset.samples, 1, 0, 7))]))
            batch_bytes = max(batch_bytes, largest(self.epochs(dataset, 1, 0)))
        resources = Resources(threads=3, staging_bytes=staging, batch_bytes=batch_bytes)
        return open_reader(find(self.policy), form(dataset), resources)

    def epochs(self, dataset: Dataset, ranks: int, rank: int, epochs: int = 2) -> list[Planned]:
        shape = Shape(dataset.samples, ranks, 3)
        order = ORDERS[find(self.policy).order]
        return planned(form(dataset), [(e, order(shape, rank, e, 5)) for e in range(epochs)])

    @pytest.mark.parametrize("ranks", [1, 2, 4])
    def test_it_delivers_the_plan_in_order_with_the_generated_bytes(self, dataset: Dataset, ranks: int) -> None:
        seen: list[int] = []
        for rank in range(ranks):
            plan = self.epochs(dataset, ranks, rank)
            with self.make(dataset).session(plan, Tally()) as batches:
                for expected, batch in zip(plan, batches, strict=True):
                    assert batch.ids.tolist() == expected.ids.tolist()
                    assert batch.blocks[0].starts.tolist() == expected.starts.tolist()
                    assert damaged(batch, form(dataset)) == []
                    seen += batch.ids.tolist()
        steps = Shape(dataset.samples, ranks, 3).steps
        assert len(seen) == 2 * steps * ranks * 3
        assert max(np.bincount(seen)) == 2  # once in each of two epochs

    def test_the_last_partial_batch_is_delivered_when_the_plan_has_one(self, dataset: Dataset) -> None:
        plan = planned(form(dataset), [(0, every_sample_once(dataset.samples, 1, 0, 7))])
        with self.make(dataset).session(plan, Tally()) as batches:
            sizes = [len(batch.ids) for batch in batches]
        assert sum(sizes) == dataset.samples
        assert sizes[-1] == (dataset.samples % 7 or 7)

    def test_an_empty_plan_gives_nothing(self, dataset: Dataset) -> None:
        with self.make(dataset).session([], Tally()) as batches:
            assert list(batches) == []

    def test_requested_bytes_are_the_extents_of_the_plan(self, dataset: Dataset) -> None:
        tally = Tally()
        plan = self.epochs(dataset, 2, 1)
        with self.make(dataset).session(plan, tally) as batches:
            delivered = [sum(batch.blocks[0].data.nbytes for batch in batches)]
        for epoch in range(2):
            ids = np.concatenate([batch.ids for batch in plan if batch.epoch == epoch])
            assert tally.of(epoch).requested == dataset.locate(ids, view(dataset))[2].sum()
        assert delivered == [sum(batch.bytes for batch in plan)]

    def test_a_session_may_be_opened_again(self, dataset: Dataset) -> None:
        reader, plan = self.make(dataset), self.epochs(dataset, 2, 0, epochs=1)
        for _ in range(2):
            with reader.session(plan, Tally()) as batches:
                assert all(not damaged(batch, form(dataset)) for batch in batches)

    def test_leaving_early_leaves_no_thread_and_no_open_file(self, dataset: Dataset) -> None:
        threads, files = threading.active_count(), open_files()
        with self.make(dataset).session(self.epochs(dataset, 1, 0), Tally()) as batches:
            next(batches)
        assert threading.active_count() == threads
        assert open_files() == files

    def test_nothing_is_read_before_the_first_batch_is_asked_for(self, dataset: Dataset) -> None:
        tally = Tally()
        with self.make(dataset).session(self.epochs(dataset, 1, 0), tally):
            pass
        assert all(cost.requested == 0 for cost in tally.epochs.values())

    @pytest.mark.parametrize("harm", ["gone", "short"])
    def test_a_bad_file_is_named_in_the_step_that_needs_it(self, dataset: Dataset, harm: str) -> None:
        plan = self.epochs(dataset, 1, 0, epochs=1)
        victim = int(dataset.locate(plan[3].ids[:1], view(dataset))[0][0])
        with _harmed(dataset.path(victim), harm) as path:
            first = next(i for i, b in enumerate(plan) if victim in dataset.locate(b.ids, view(dataset))[0])
            with self.make(dataset).session(plan, Tally()) as batches:
                for _ in range(first):
                    next(batches)
                with pytest.raises(BenchError, match=path.name) as failure:
                    next(batches)
        assert isinstance(failure.value, DataError | EnvironmentFailure)


class _harmed:  # noqa: N801 - reads as the context it is
    """A file that is missing or cut to nothing for a while."""

    def __init__(self, path: Path, harm: str) -> None:
        self.path, self.harm = path, harm
        self.aside = path.with_suffix(".aside")

    def __enter__(self) -> Path:
        self.path.rename(self.aside)
        if self.harm == "short":
            self.path.write_bytes(b"")
        return self.path

    def __exit__(self, *_: object) -> None:
        self.aside.rename(self.path)


class TestNaive(ReaderContract):
    policy = "naive"


class TestShuffled(ReaderContract):
    policy = "shuffled"


class TestPrefetch(ReaderContract):
    policy = "prefetch"

    def test_the_ring_is_bounded_and_refuses_less_than_two_batches(self, dataset: Dataset) -> None:
        plan = self.epochs(dataset, 1, 0)
        most = largest(plan)
        reader = self.make(dataset, staging=2 * most, batch_bytes=most)
        with reader.session(plan, Tally()) as batches:
            assert len(list(batches)) == len(plan)
        assert reader.options["slots"] == 2
        assert reader.options["staging_bytes"] <= 2 * most
        with (
            pytest.raises(UsageError, match="cannot hold two batches"),
            self.make(dataset, staging=2 * most - 1, batch_bytes=most),
        ):
            pass

    def test_it_reads_ahead_no_further_than_its_slots(self, dataset: Dataset) -> None:
        plan = self.epochs(dataset, 1, 0)
        most = largest(plan)
        tally = Tally()
        with self.make(dataset, staging=3 * most, batch_bytes=most).session(plan, tally) as batches:
            next(batches)
            for thread in _readers():
                thread.join(0.3)  # they wait for a slot; a joined thread would have run to the end of the plan
            assert _readers()
        ahead = sum(dataset.locate(batch.ids, view(dataset))[2].sum() for batch in plan[:3])
        assert sum(cost.requested for cost in tally.epochs.values()) <= ahead


def _readers() -> Sequence[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("reader-")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not _readers()
