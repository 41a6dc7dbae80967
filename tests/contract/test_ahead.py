"""The contract of readers for delivery ahead, and who reads: the trainer, or how many threads beside it."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.comm import Comm, Cores
from dlio_bench.harness.readers import ahead, threads
from dlio_bench.harness.readers.session import Tally, largest
from dlio_bench.harness.storage import extents
from tests.contract import test_readers
from tests.contract.test_readers import EVERY, ReaderContract, readers, view
from tests.processes import PATIENCE, until

pytestmark = pytest.mark.slow

world, nothing_is_left, dataset = test_readers.world, test_readers.nothing_is_left, test_readers.dataset

PAUSE = 2e-4  # seconds that a read lasts, in which a thread that should not read would
PAIRS = 20  # reads of the trainer, each at the same time as one of a thread
TRAINER, THREADS = "MainThread", {"reader-0", "reader-1", "reader-2"}


class TestDoubleBuffer(ReaderContract):
    policy = "double-buffer"
    workloads = EVERY
    cores = 64

    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch: pytest.MonkeyPatch, world: Comm) -> None:
        monkeypatch.setattr(world, "cores", Cores(self.cores, frozenset(range(self.cores)), None))


class Clock(threading.local):
    """What a thread's clocks say: no preemption shows in them."""

    now = computed = 0.0

    def spend(self, seconds: float, *, computing: bool) -> None:
        self.now += seconds
        self.computed += seconds * computing


def timed_by_hand(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that tells the reader what its reads take."""
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(time, "thread_time", lambda: clock.computed)
    monkeypatch.setattr(ahead, "queued_seconds", lambda: 0.0)
    return clock


class OnMachine(ReaderContract):
    """A reader on a machine of `cores`."""

    policy = "double-buffer"
    cores: int

    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch: pytest.MonkeyPatch, world: Comm) -> None:
        monkeypatch.setattr(world, "cores", Cores(self.cores, frozenset(range(self.cores * world.host_size)), None))
        monkeypatch.setattr(threads, "SMALL_CHUNK", 0)  # by the clock of who_reads even small reads are worth a thread

    def who_reads(
        self,
        dataset: Dataset,
        world: Comm,
        monkeypatch: pytest.MonkeyPatch,
        *,
        from_memory: Callable[[int], bool],
        step: float = 0.0,
        awaited: Collection[str] = (),
        pairs: int = 0,
    ) -> list[str]:
        """The thread of each read of a plan. By its clock a read takes 1 ms, in computing where the read of that number
        comes `from_memory`, else in waiting. Once all `awaited` threads have begun, each waits until all have read, and
        so does the trainer behind its batch. Of the trainer and a thread beside it, so many reads come in `pairs`.
        """
        real, found, clock = os.preadv, list[str](), timed_by_hand(monkeypatch)
        all_there, meeting, met = threading.Event(), threading.Barrier(2), Counter[str]()

        def all_begun() -> bool:
            return set(awaited) <= {thread.name for thread in readers()}

        def read(handle: int, buffers: Any, offset: int) -> int:
            name = threading.current_thread().name
            found.append(name)
            clock.spend(1e-3, computing=from_memory(len(found)))
            if set(awaited) <= set(found):
                all_there.set()
            time.sleep(PAUSE)
            if name != TRAINER and all_begun():
                all_there.wait(PATIENCE)
            if readers() and met[name] < pairs:
                met[name] += 1
                meeting.wait(PATIENCE)
            return real(handle, buffers, offset)

        monkeypatch.setattr(os, "preadv", read)
        plan = self.epochs(dataset, 1, 0, epochs=6)
        with self.make(dataset, world, step_seconds=step).session(plan, Tally()) as batches:
            for _ in batches:
                clock.spend(step, computing=True)
                if all_begun():
                    all_there.wait(PATIENCE)
        return found

    def test_as_many_threads_as_cores_read_behind_what_the_trainer_computes(
        self, dataset: Dataset, world: Comm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = sorted(THREADS)[: self.cores]
        found = self.who_reads(dataset, world, monkeypatch, from_memory=lambda _: True, step=0.02, awaited=expected)
        assert set(found) == {TRAINER, *expected}

    def test_threads_read_what_comes_slowly(
        self, dataset: Dataset, world: Comm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = self.who_reads(dataset, world, monkeypatch, from_memory=lambda _: False, awaited=THREADS)
        assert set(found) > THREADS

    def test_threads_read_what_comes_slowly_after_a_while(
        self, dataset: Dataset, world: Comm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = self.who_reads(dataset, world, monkeypatch, from_memory=lambda number: number < 60, awaited=THREADS)
        assert set(found[:60]) <= {TRAINER, "reader-0"}
        assert set(found[60:]) > THREADS


class TestDoubleBufferWithoutSpareCores(OnMachine):
    cores = 1

    def test_more_threads_than_pools_have_read_what_comes_slowly_as_far_as_they_may(
        self, dataset: Dataset, world: Comm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(self, "most_threads", 9)
        more = {f"reader-{i}" for i in range(5)}
        found = set(self.who_reads(dataset, world, monkeypatch, from_memory=lambda _: False, awaited=more))
        assert more < found <= {TRAINER, *(f"reader-{i}" for i in range(9))}

    def test_the_trainer_reads_for_itself_what_lies_in_memory(
        self, dataset: Dataset, world: Comm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert set(self.who_reads(dataset, world, monkeypatch, from_memory=lambda _: True)) == {TRAINER}


class TestDoubleBufferWithASpareCore(OnMachine):
    cores = 2

    def test_as_many_threads_as_spare_cores_read_what_lies_in_memory_and_the_trainer_with_them(
        self, dataset: Dataset, world: Comm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = self.who_reads(dataset, world, monkeypatch, from_memory=lambda _: True, pairs=PAIRS)
        assert set(found) == {TRAINER, "reader-0"}
        assert min(found.count(name) for name in set(found)) >= PAIRS

    def test_the_buffer_is_bounded_and_refuses_less_than_two_batches(self, dataset: Dataset, world: Comm) -> None:
        most = largest(self.epochs(dataset, 1, 0))
        reader = self.make(dataset, world, staging=2 * most, batch_bytes=most)
        assert reader.options["slots"] == 2
        assert reader.options["staging_bytes"] <= 2 * most
        with pytest.raises(UsageError, match="cannot hold two batches"):
            self.make(dataset, world, staging=2 * most - 1, batch_bytes=most)

    def test_it_reads_ahead_as_far_as_its_slots_and_no_further(
        self, dataset: Dataset, world: Comm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = self.epochs(dataset, 1, 0)
        most = largest(plan)
        expected = sum(dataset.locate(batch.ids, view(dataset))[2].sum() for batch in plan[:4])
        real, come, tally = os.preadv, list[int](), Tally()

        def counted(handle: int, buffers: Any, offset: int) -> int:
            come.append(size := real(handle, buffers, offset))
            return size

        monkeypatch.setattr(os, "preadv", counted)
        reader = self.make(dataset, world, staging=3 * most, batch_bytes=most, step_seconds=9.0)
        with reader.session(plan, tally) as batches:
            next(batches)
            time.sleep(0.01)  # as a trainer that computes: there is something to read behind
            next(batches)
            until(lambda: sum(come) >= expected)
            readers()[0].join(0.2)  # it waits for a slot; a joined thread would have run to the end of the plan
            assert readers()
        assert sum(cost.bytes_requested for cost in tally.epochs.values()) == expected

    def test_the_first_batch_has_the_storage_to_itself(
        self, dataset: Dataset, world: Comm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = self.epochs(dataset, 1, 0, epochs=1)
        real, go, held_up, early = os.preadv, threading.Event(), threading.Event(), list[int]()
        clock = timed_by_hand(monkeypatch)
        files, offsets, stored, _ = dataset.locate(plan[0].ids, view(dataset))
        first = [
            (str(dataset.path(int(file))), range(at, at + size))
            for file, row, sizes in zip(files, offsets.tolist(), stored.tolist(), strict=True)
            for at, size in zip(row, sizes, strict=True)
        ]

        def held(handle: int, buffers: Any, offset: int) -> int:
            clock.spend(1e-3, computing=False)  # slow, so that threads are roused
            path = str(Path(f"/proc/self/fd/{handle}").readlink())
            if any(path == name and offset in part for name, part in first):
                if threading.current_thread() is not threading.main_thread():
                    if not held_up.is_set():  # by one of them; the others could read on
                        held_up.set()
                        time.sleep(0.1)
                        go.set()
                elif readers():  # which have begun: one of them is to come
                    held_up.wait(PATIENCE)
            elif not go.is_set():
                early.append(offset)
            return real(handle, buffers, offset)

        monkeypatch.setattr(os, "preadv", held)
        monkeypatch.setattr(extents, "CHUNK_BYTES", max(1, plan[0].bytes // 4))
        with self.make(dataset, world, step_seconds=9.0).session(plan, Tally()) as batches:
            assert len(list(batches)) == len(plan)
        assert held_up.is_set()
        assert early == []
