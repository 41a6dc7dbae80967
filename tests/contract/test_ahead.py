"""The contract of readers for delivery ahead, and who reads: the trainer, or how many threads beside it."""

import os
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.cores import Cores
from dlio_bench.harness.readers import ahead
from dlio_bench.harness.readers.session import Tally, largest
from dlio_bench.harness.storage import extents
from tests import processes
from tests.contract import test_readers
from tests.contract.test_readers import EVERY, ReaderContract, readers, view

world, nothing_is_left, dataset = test_readers.world, test_readers.nothing_is_left, test_readers.dataset

PAUSE = 2e-3  # seconds that a read lasts, in which other threads come to theirs
TRAINER, THREADS = "MainThread", {"reader-0", "reader-1", "reader-2"}


class TestDoubleBuffer(ReaderContract):
    policy = "double-buffer"
    workloads = EVERY
    cores = 64

    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch: pytest.MonkeyPatch, world: Comm) -> None:
        monkeypatch.setattr(world, "cores", Cores(self.cores, frozenset(range(self.cores)), None))

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
        monkeypatch.setattr(os, "preadv", lambda *call: come.append(real(*call)) or come[-1])
        reader = self.make(dataset, world, staging=3 * most, batch_bytes=most, step_seconds=9.0)
        with reader.session(plan, tally) as batches:
            next(batches)
            time.sleep(0.01)  # as a trainer that computes: there is something to read behind
            next(batches)
            processes.until(lambda: sum(come) >= expected)
            for thread in readers():
                thread.join(0.3)  # they wait for a slot; a joined thread would have run to the end of the plan
            assert readers()
        assert sum(cost.bytes_requested for cost in tally.epochs.values()) == expected

    def test_the_first_batch_has_the_storage_to_itself(
        self, dataset: Dataset, world: Comm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = self.epochs(dataset, 1, 0, epochs=1)
        real, go, held_up, early = os.preadv, threading.Event(), threading.Event(), list[int]()
        files, offsets, stored, _ = dataset.locate(plan[0].ids, view(dataset))
        first = {
            (str(dataset.path(int(file))), offset)
            for file, row, sizes in zip(files, offsets, stored, strict=True)
            for at, size in zip(row.tolist(), sizes.tolist(), strict=True)
            for offset in range(at, at + size)
        }

        def held(handle: int, buffers: Any, offset: int) -> int:
            if (str(Path(f"/proc/self/fd/{handle}").readlink()), offset) in first:
                if threading.current_thread() is not threading.main_thread():
                    if not held_up.is_set():  # by one of them; the others could read on
                        held_up.set()
                        time.sleep(0.3)
                        go.set()
                elif readers():  # which have begun: one of them is to come
                    held_up.wait(60)
                else:
                    time.sleep(0.02)  # slow, so that threads are roused
            elif not go.is_set():
                early.append(offset)
            return real(handle, buffers, offset)

        monkeypatch.setattr(os, "preadv", held)
        monkeypatch.setattr(extents, "CHUNK_BYTES", max(1, plan[0].bytes // 4))
        with self.make(dataset, world, step_seconds=9.0).session(plan, Tally()) as batches:
            assert len(list(batches)) == len(plan)
        assert held_up.is_set()
        assert early == []


class Clock(threading.local):
    """What a thread's clocks say: no preemption shows in them."""

    now = computed = 0.0

    def spend(self, seconds: float, *, computing: bool) -> None:
        self.now += seconds
        self.computed += seconds * computing


class OnMachine(ReaderContract):
    """A reader on a machine of `cores`."""

    policy = "double-buffer"
    cores: int

    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch: pytest.MonkeyPatch, world: Comm) -> None:
        monkeypatch.setattr(world, "cores", Cores(self.cores, frozenset(range(self.cores * world.host_size)), None))

    def who_reads(
        self,
        dataset: Dataset,
        world: Comm,
        monkeypatch: pytest.MonkeyPatch,
        *,
        from_memory: Callable[[int], bool],
        step: float = 0.0,
        awaited: Collection[str] = (),
    ) -> list[str]:
        """The thread of each read of a plan. By its clock a read takes 1 ms, in computing where the read of that number
        comes `from_memory`, else in waiting. Once all `awaited` threads have begun, each waits until all have read.
        """
        real, found, clock, all_there = os.preadv, [], Clock(), threading.Event()

        def read(handle: int, buffers: Any, offset: int) -> int:
            name = threading.current_thread().name
            found.append(name)
            clock.spend(1e-3, computing=from_memory(len(found)))
            if set(awaited) <= set(found):
                all_there.set()
            time.sleep(PAUSE)
            if name != TRAINER and set(awaited) <= {thread.name for thread in readers()}:
                all_there.wait(60)
            return real(handle, buffers, offset)

        monkeypatch.setattr(os, "preadv", read)
        monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
        monkeypatch.setattr(time, "thread_time", lambda: clock.computed)
        monkeypatch.setattr(ahead, "queued_seconds", lambda: 0.0)
        plan = self.epochs(dataset, 1, 0, epochs=6)
        with self.make(dataset, world, step_seconds=step).session(plan, Tally()) as batches:
            for _ in batches:
                time.sleep(step)
                clock.spend(step, computing=True)
        return found

    def test_as_many_threads_as_cores_read_behind_what_the_trainer_computes(
        self, dataset: Dataset, world: Comm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = self.who_reads(dataset, world, monkeypatch, from_memory=lambda _: True, step=0.02)
        assert set(found) == {TRAINER, *sorted(THREADS)[: self.cores]}

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
        found = self.who_reads(dataset, world, monkeypatch, from_memory=lambda _: True)
        assert set(found) == {TRAINER, "reader-0"}
        last = found[len(found) // 2 :]
        assert 1 / 3 < last.count(TRAINER) / len(last) < 2 / 3
