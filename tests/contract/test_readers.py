"""One suite for every reader: what it delivers, how it ends, what it says when a file is bad.

Alone, it plays ranks one after the other; under mpirun with DLIO_TEST_WORLD=N (tests/mpi/test_worlds.py) its ranks are
real, and share the dataset that rank 0 makes.
"""

import errno
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlio_bench.batches import Batch, Ids, validation_after
from dlio_bench.benchmarks.pipeline import Pipeline
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.manifest import NAME
from dlio_bench.errors import BenchError, DataError, EnvironmentFailure
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.mpi import connect
from dlio_bench.harness.commands.run.measured.consumer import find_damage
from dlio_bench.harness.plan.orders import Shape, every_sample_once, find_order
from dlio_bench.harness.plan.policies import Policy, find
from dlio_bench.harness.readers.options import ReaderOptions
from dlio_bench.harness.readers.placed.tiers import Tiers
from dlio_bench.harness.readers.registry import open_reader
from dlio_bench.harness.readers.resources import RankContext, Resources
from dlio_bench.harness.readers.session import Planned, Reader, SampleView, Tally, largest, plan_batches
from dlio_bench.harness.storage.direct import require
from tests import processes
from tests.datasets import layout, made_by_first, view_of
from tests.ranks import WORLD

WORLDS = (1, 4) if WORLD == 1 else (WORLD,)  # played one after the other; real
BATCH, ODD_BATCH = 3, 7  # of the timed plans; of the pass over everything, whose last batch is smaller
ONE = ("imagenet",)  # records of varying length, several in a file
# Each way to deliver is tested on every format; what varies a way, and real ranks, on one.
EVERY = ("hepcnnb", "cdb", "cosmoflow", *ONE) if WORLD == 1 else ONE
HARMS = ("missing", "empty", "truncated", "flipped", "EIO") if WORLD == 1 else ("missing", "flipped")


@pytest.fixture(scope="module")
def world() -> Comm:
    return connect(WORLD)


@pytest.fixture(scope="module")
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, world: Comm) -> Dataset:
    """Of a workload, of some 30 samples."""
    files = -(-30 // layout(request.param).samples_per_file)
    return made_by_first(world, tmp_path_factory.mktemp(request.param), request.param, files)


def view(dataset: Dataset) -> tuple[str, ...]:
    return view_of(dataset).fields


def open_files(dataset: Dataset) -> set[str]:
    return {path for path in processes.open_files().values() if path.startswith(str(dataset.folder))}


def settled(dataset: Dataset, files: set[str]) -> bool:
    """Whether these files alone are open, a moment after a session: TensorFlow closes its files by and by."""
    deadline = time.monotonic() + processes.PATIENCE
    while open_files(dataset) != files and time.monotonic() < deadline:
        time.sleep(0.02)
    return open_files(dataset) == files


def children() -> set[str]:
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has ended since
            found |= set((task / "children").read_text().split())
    return found


def threads() -> set[threading.Thread]:
    """Those of this process, but for those of a store's server that it runs: one for each connection."""
    return {thread for thread in threading.enumerate() if "process_request" not in thread.name}


def readers() -> Sequence[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("reader-")]


@pytest.fixture(autouse=True)
def nothing_is_left(world: Comm) -> Iterator[None]:
    before = children()
    yield
    assert not readers()
    assert children() <= before  # what another test has left may end meanwhile
    world.barrier()


class ReaderContract:
    """Subclasses name the policy, and say where a reader differs; everything else is inherited.

    workloads: whose data are read; None where the module has a `dataset` of its own. harmed: those whose files are
    spoiled: what a bad file of each format does is up to the reader of extents, which `naive` hands on unchanged.
    harms: those that it has to notice; one whose bytes do not come through os.preadv of this process leaves out "EIO".
    """

    policy: str
    workloads: tuple[str, ...] | None = ONE
    harmed: tuple[str, ...] | None = ONE
    most_threads: int | None = None
    harms: tuple[str, ...] = HARMS
    checks_crc = True  # --check-crc has an effect
    tells_seconds = True  # of reading; TensorFlow does not
    direct = False  # whether files are read with O_DIRECT
    sessions = (1, 2)  # epochs of each, one after the other
    compared = 1  # every so-manieth batch is compared byte by byte: decoding pictures again takes its time

    @property
    def row(self) -> Policy:
        return find(self.policy)

    def form(self, dataset: Dataset) -> SampleView:
        return SampleView(dataset, view(dataset))

    def seat(self, world: Comm, folder: Path | None = None) -> RankContext:
        return RankContext(world)

    def tiers(self, dataset: Dataset) -> Tiers:
        return Tiers()

    def pipeline(self, dataset: Dataset) -> Pipeline | None:
        return None

    def make(
        self,
        dataset: Dataset,
        world: Comm,
        *,
        staging: int = 64_000_000,
        batch_bytes: int | None = None,
        step_seconds: float = 0.0,
        check_crc: bool = False,
    ) -> Reader:
        if batch_bytes is None:  # the largest batch of any plan below
            plans = [self.everything(dataset), *(self.epochs(dataset, ranks, 0) for ranks in WORLDS)]
            batch_bytes = max(world.allgather(max(map(largest, plans))))
        tiers, most = self.tiers(dataset), self.most_threads
        alignment = require(dataset.folder / NAME) if self.direct else None
        asked = ReaderOptions(check_crc=check_crc)
        resources = Resources(
            3, staging, batch_bytes, step_seconds, asked, tiers=tiers, most_threads=most, alignment=alignment
        )
        return open_reader(self.row, self.form(dataset), resources, self.seat(world), self.pipeline(dataset))

    def accounted(self, cost: Cost) -> int:
        """What a plan asks for, as the reader has counted it."""
        return cost.bytes_requested

    def epochs(self, dataset: Dataset, ranks: int, rank: int, epochs: int = 2) -> list[Planned]:
        bounds = np.append([entry.first for entry in dataset.manifest.files], dataset.samples)
        shape = Shape(dataset.samples, ranks, BATCH, bounds=bounds)
        order = find_order(self.row.order)
        return plan_batches(self.form(dataset), [(e, list(order(shape, rank, e, 5))) for e in range(epochs)])

    def everything(self, dataset: Dataset, ranks: int = 1, rank: int = 0) -> list[Planned]:
        return plan_batches(self.form(dataset), [(0, every_sample_once(dataset.samples, ranks, rank, ODD_BATCH))])

    def deliver(self, reader: Reader, plan: list[Planned], tally: Tally | None = None) -> list[Ids]:
        """Deliver the plan; every id, place and byte compared. Ids by batch."""
        delivered = []
        with reader.session(plan, Tally() if tally is None else tally) as batches:
            for expected, batch in zip(plan, batches, strict=True):
                self.compare(reader, expected, batch)
                delivered.append(batch.ids.copy())
        for epoch in {batch.epoch for batch in plan}:
            asked = [batch.ids for batch in plan if batch.epoch == epoch]
            got = [ids for batch, ids in zip(plan, delivered, strict=True) if batch.epoch == epoch]
            assert sorted(np.concatenate(got).tolist()) == sorted(np.concatenate(asked).tolist())
        return delivered

    def compare(self, reader: Reader, expected: Planned, batch: Batch) -> None:
        assert len(batch.ids) == len(expected.ids)
        if self.row.order_known:
            assert batch.ids.tolist() == expected.ids.tolist()
        sizes = sum(np.diff(block.starts) for block in batch.blocks)
        assert sizes.tolist() == reader.sample_view.sizes(batch.ids).tolist()
        if batch.ids[:1].sum() % self.compared == 0:
            assert find_damage(batch, reader.sample_view) == []

    @pytest.mark.parametrize("ranks", WORLDS)
    def test_it_delivers_the_plan_with_the_generated_bytes(self, dataset: Dataset, world: Comm, ranks: int) -> None:
        reader = self.make(dataset, world)
        own = [world.rank] if WORLD > 1 else range(ranks)
        seen = [ids for rank in own for ids in self.deliver(reader, self.epochs(dataset, ranks, rank))]
        every = np.concatenate([ids for rank in world.allgather(seen) for ids in rank])
        assert len(every) == 2 * Shape(dataset.samples, ranks, BATCH).steps * ranks * BATCH
        if self.row.exactly_once:
            assert max(np.bincount(every)) == 2  # once in each of two epochs

    def test_bytes_stay_right_when_the_smallest_buffer_goes_round_many_times(
        self, dataset: Dataset, world: Comm
    ) -> None:
        plan = self.epochs(dataset, world.size, world.rank, epochs=5)
        most = max(world.allgather(largest(plan)))
        self.deliver(self.make(dataset, world, staging=2 * most, batch_bytes=most), plan)

    def test_every_sample_comes_once_when_ranks_have_uneven_shares(self, dataset: Dataset, world: Comm) -> None:
        plan = self.everything(dataset, world.size, world.rank)
        sizes = [len(ids) for ids in self.deliver(self.make(dataset, world), plan)]
        assert sizes == [len(batch.ids) for batch in plan]
        assert sum(world.allgather(sum(sizes))) == dataset.samples

    def test_an_empty_plan_gives_nothing(self, dataset: Dataset, world: Comm) -> None:
        with self.make(dataset, world).session([], Tally()) as batches:
            assert list(batches) == []

    def test_a_batch_of_nothing_is_delivered_between_others(self, dataset: Dataset, world: Comm) -> None:
        none = np.zeros(0, dtype=np.int64)
        steps = [np.arange(3), none, np.arange(3, 6), none, none, np.arange(6, 9), np.arange(9, 12)]
        plan = plan_batches(self.form(dataset), [(0, steps)])
        most = max(world.allgather(largest(plan)))
        self.deliver(self.make(dataset, world, staging=2 * most, batch_bytes=most), plan)

    def test_the_bytes_recorded_are_the_bytes_asked(self, dataset: Dataset, world: Comm) -> None:
        tally, plan = Tally(), self.epochs(dataset, world.size, world.rank)
        reader = self.make(dataset, world)
        asked = reader.requested_bytes(plan)
        self.deliver(reader, plan, tally)
        assert {epoch: self.accounted(tally.of(epoch)) for epoch in asked} == asked
        if self.tells_seconds:
            assert all(tally.of(epoch).read_seconds > 0 for epoch in asked if asked[epoch])

    def test_validation_passes_between_epochs_are_delivered_and_counted_apart(
        self, dataset: Dataset, world: Comm
    ) -> None:
        """A pass has a smaller last batch; here the samples of a rank's first epoch play the validation split."""
        epochs = self.epochs(dataset, world.size, world.rank)
        held_out = np.sort(np.concatenate([batch.ids for batch in epochs if batch.epoch == 0]))[:-1]
        steps = [held_out[at : at + BATCH] for at in range(0, len(held_out), BATCH)]
        form, plan = self.form(dataset), list[Planned]()
        for epoch in (0, 1):
            plan += [batch for batch in epochs if batch.epoch == epoch]
            plan += plan_batches(form, [(validation_after(epoch), steps)])
        most = max(world.allgather(largest(plan)))
        reader, tally = self.make(dataset, world, batch_bytes=most), Tally()
        asked = reader.requested_bytes(plan)
        self.deliver(reader, plan, tally)
        assert {epoch: self.accounted(tally.of(epoch)) for epoch in asked} == asked
        assert {batch.epoch for batch in plan} >= {epoch for epoch in asked if asked[epoch]}

    def test_a_session_may_be_opened_again(self, dataset: Dataset, world: Comm) -> None:
        reader = self.make(dataset, world)
        for epochs in self.sessions:
            self.deliver(reader, self.epochs(dataset, world.size, world.rank, epochs))

    def test_nothing_is_read_in_a_pause_and_what_is_kept_stays(self, dataset: Dataset, world: Comm) -> None:
        plans: dict[tuple[int, int], list[Ids]] = {(rank, epoch): [] for rank in range(world.size) for epoch in (0, 1)}
        for rank in range(world.size):
            for batch in self.epochs(dataset, world.size, rank):
                plans[rank, batch.epoch].append(batch.ids)
        parts = [(epoch, plans[world.rank, epoch]) for epoch in (0, 1)]
        of = lambda rank, epoch: np.concatenate(plans[rank, epoch])  # noqa: E731
        reader, tally = self.make(dataset, world), Tally()
        plan = plan_batches(self.form(dataset), parts, of, pauses=True)
        with reader.session(plan, tally) as batches:
            for number, (expected, batch) in enumerate(zip(plan, batches, strict=True)):
                self.compare(reader, expected, batch)
                if number + 1 == len(parts[0][1]):
                    world.barrier()  # the others have all of the epoch, too
                    before = tally.so_far().bytes_requested
                    time.sleep(0.05)
                    assert tally.so_far().bytes_requested == before
                    world.barrier()
        assert sum(world.allgather(tally.of(0).bytes_requested)) > 0

    def test_leaving_early_leaves_no_thread_and_no_open_file(self, dataset: Dataset, world: Comm) -> None:
        before, files = threads(), open_files(dataset)
        with self.make(dataset, world).session(self.epochs(dataset, world.size, world.rank), Tally()) as batches:
            next(batches)
        assert threads() <= before  # what another test has left may end meanwhile
        assert settled(dataset, files)

    def test_nothing_is_read_before_the_first_batch_is_asked_for(self, dataset: Dataset, world: Comm) -> None:
        tally = Tally()
        with self.make(dataset, world).session(self.epochs(dataset, world.size, world.rank), tally):
            pass
        assert all(cost.bytes_requested == 0 for cost in tally.epochs.values())

    @pytest.mark.alone
    def test_the_kernel_may_give_less_than_was_asked_for(
        self, dataset: Dataset, world: Comm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.preadv

        def less(handle: int, buffers: Any, offset: int) -> int:
            """Two buffers at most, and of the last one the first half."""
            buffers = [memoryview(buffer) for buffer in buffers[:2]]
            return real(handle, [*buffers[:-1], buffers[-1][: -(-len(buffers[-1]) // 2)]], offset)

        monkeypatch.setattr(os, "preadv", less)
        self.deliver(self.make(dataset, world), self.epochs(dataset, world.size, world.rank, epochs=1))

    @pytest.mark.parametrize("harm", HARMS)
    def test_a_bad_file_is_named_in_the_step_that_needs_it(
        self, dataset: Dataset, world: Comm, harm: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if harm not in self.harms or (harm == "flipped" and not self.checks_crc):
            return
        plan = self.epochs(dataset, world.size, world.rank, epochs=1)
        victim = world.allgather(int(plan[1].ids[0]))[0]
        with harmed(dataset, victim, harm, world, monkeypatch) as (path, spoiled):
            reader = self.make(dataset, world, check_crc=harm == "flipped")
            files = open_files(dataset)
            steps = [i for i, batch in enumerate(plan) if np.isin(batch.ids, spoiled).any()]
            good = len(plan) if not steps else steps[0] if self.row.order_known else 0
            with reader.session(plan, Tally()) as batches:
                for _ in range(good):
                    next(batches)
                if steps:  # in this very step, or, where the order is the reader's own, in one of them
                    last = 1 if self.row.order_known else len(plan)
                    with pytest.raises(BenchError, match=path.name) as failure:
                        assert [next(batches) for _ in range(last)] == []
                    assert isinstance(failure.value, EnvironmentFailure if harm == "EIO" else DataError)
            assert settled(dataset, files)
        assert any(world.allgather(bool(steps)))

    @pytest.mark.alone
    def test_a_flipped_byte_is_seen_by_the_verification_of_content(
        self, dataset: Dataset, world: Comm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reader, plan = self.make(dataset, world), self.everything(dataset, world.size, world.rank)
        lines: list[str] = []
        with harmed(dataset, 0, "flipped", world, monkeypatch) as (path, _):
            try:
                with reader.session(plan, Tally()) as batches:
                    for batch in batches:
                        lines += find_damage(batch, reader.sample_view)
            except DataError as error:  # a compressed sample has a checksum of its own
                lines.append(str(error))
        assert [path.name in line for line in lines] == ([True] if world.rank == 0 else [])


@contextmanager
def harmed(
    dataset: Dataset, sample: int, harm: str, world: Comm, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, Ids]]:
    """The file of a sample is bad for a while, on all ranks: its path, and the samples that cannot be served."""
    ids = np.arange(dataset.samples)
    files, offsets, stored, _ = dataset.locate(ids, view(dataset))
    file = int(files[sample])
    path, aside = dataset.path(file), dataset.path(file).with_suffix(".aside")
    at = int(offsets[sample, 0]) + int(stored[sample, 0]) // 2
    spoiled = {
        "truncated": (files == file) & ((offsets + stored).max(axis=1) > at),
        "flipped": ids == sample,
    }.get(harm, files == file)
    world.barrier()
    if harm == "EIO":
        real = os.preadv

        def broken(handle: int, *rest: Any) -> int:
            if os.readlink(f"/proc/self/fd/{handle}") == str(path):  # noqa: PTH115 - a Path would cost more than the read
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(handle, *rest)

        monkeypatch.setattr(os, "preadv", broken)
    elif world.rank == 0:
        content = bytearray(path.read_bytes())
        path.rename(aside)
        content[at] ^= 1
        if harm != "missing":
            path.write_bytes({"empty": b"", "truncated": content[:at]}.get(harm, content))
    world.barrier()
    try:
        yield path, ids[spoiled]
    finally:
        world.barrier()
        if harm == "EIO":
            monkeypatch.undo()
        elif world.rank == 0:
            aside.rename(path)
        world.barrier()


class TestNaive(ReaderContract):
    policy = "naive"
    workloads = harmed = EVERY
