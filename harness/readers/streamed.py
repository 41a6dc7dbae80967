"""The trainer's side of streams: producers read the dataset and publish batches, which a thread here takes in order.

The thread fills the slots of a bounded staging buffer while the trainer computes. Each batch comes with its place in
the plan and its ids, which are compared with the plan of this rank; on demand, with the plan of all ranks, later.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Self, TypeVar

import numpy as np
from msgspec import Struct

from dlio_bench import recorder
from dlio_bench.batches import Batch, Block, Bytes, Ids
from dlio_bench.components import CODE
from dlio_bench.errors import DataError, StreamLost
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.life import life
from dlio_bench.harness.readers.ahead import staging_slots
from dlio_bench.harness.readers.resources import Resources
from dlio_bench.harness.readers.session import PlainReader, Planned, SampleView, Tally
from dlio_bench.harness.streams import adios
from dlio_bench.harness.streams.crew import DONE, Closing, Crew, Opening
from dlio_bench.harness.streams.dealing import NO_SAMPLES, Dealt, PlanBatch, Taken, steps_of_rank
from dlio_bench.harness.streams.settings import DISCARD, ON_DEMAND, PLANNED, Mode, find

RECEIVE = CODE["remote read"]
ASKED = 2  # batches that a trainer asks for at a time, on demand: one on its way while it computes with another
DROPS = "drops batches from a full queue: use --stream-full block."
T = TypeVar("T")


class Streamed(PlainReader):
    """A staging buffer that one thread fills from the streams of all producers."""

    def __init__(self, sample_view: SampleView, crew: Crew, comm: Comm, resources: Resources) -> None:
        """comm: of the ranks that train. UsageError where the staging buffer cannot hold two batches."""
        self.sample_view = sample_view
        self._crew, self._comm = crew, comm
        self.published: list[Closing] = []  # what producers told at the end of the last session, on rank 0
        self._slots = staging_slots(resources.staging_bytes, resources.batch_bytes)

    @property
    def options(self) -> dict[str, int]:
        """See Reader.options."""
        producers = self._crew.streaming.producers
        return {"threads": 1, "producers": producers, "slots": len(self._slots), "queue": self._crew.streaming.queue}

    @contextmanager
    def session(self, plan: Sequence[Planned], tally: Tally) -> Iterator[Iterator[Batch]]:
        """See Reader.session. All ranks that train enter and leave together."""
        # what nobody's plan gives to a rank is dealt by the plan where the order must be known
        mode = self._crew.streaming.how if self._crew.streaming.how.known else find(PLANNED)
        with self._open_streams(plan, mode, tally) as (streams, openings):
            assert self._crew.trainer is not None
            positions = max(len(opening.plan) for opening in openings)
            rank, producers = self._crew.model(self._crew.trainer)[1], self._crew.streaming.producers
            steps = steps_of_rank(positions, self._crew.of_model, mode.name, rank, producers)
            with _Planned(self._crew, streams, self._slots, plan, rank, steps) as receiving:
                yield receiving.batches()
            for epoch, stored in self.requested_bytes(plan).items():
                tally.of(epoch).bytes_spared += stored
            for batch in plan:
                tally.of(batch.epoch).bytes_remote += batch.bytes

    @contextmanager
    def session_on_demand(self, plan: Sequence[Planned], tally: Tally) -> Iterator[Iterator[Batch | None]]:
        """As `session`, but a rank gets batches as it asks for them.

        plan: of all ranks of the job, one after the other in a step. As many items come: where an epoch has no batch
        left, None takes the place of those that went to others.
        """
        with self._open_streams(plan, find(ON_DEMAND), tally) as (streams, _):
            with _Demanding(self._crew, streams, self._slots[:ASKED], plan, self.sample_view) as receiving:
                yield receiving.batches()
                receiving.end_requests()
            for epoch, ids in receiving.delivered.items():
                tally.of(epoch).bytes_spared += sum(map(self.sample_view.stored_size, ids))
                tally.of(epoch).bytes_remote += sum(int(self.sample_view.sizes(each).sum()) for each in ids)

    @contextmanager
    def _open_streams(
        self, plan: Sequence[Planned], mode: Mode, tally: Tally
    ) -> Iterator[tuple[list[adios.StreamReader], list[Opening]]]:
        """The streams of all producers, and what all trainers ask for. What producers have read is added on rank 0."""
        crew, number = self._crew, next(self._crew.sessions)
        assert crew.trainer is not None
        # producers need each plan once: models read alike, and on demand every rank has the plan of all
        tells = crew.model(crew.trainer)[0] == 0 if mode.known else crew.trainer == 0
        parts = [PlanBatch(batch.epoch, batch.ids) for batch in plan] if tells else []
        folder = str(self.sample_view.dataset.folder)
        openings = crew.openings(crew.meet(Opening(number, parts, folder, mode.name, crew.board)))
        streams = self._join_streams(number, mode)
        try:
            yield streams, openings
        finally:
            for stream in streams:
                stream.close()
        crew.world.barrier()  # until all producers have read, who then count
        closings = [word for word in crew.meet(Closing()) if isinstance(word, Closing)]
        self.published = closings if self._comm.rank == 0 else []
        for closing in self.published:
            for epoch, cost in closing.costs.items():
                tally.of(epoch).add(cost)

    def _join_streams(self, session: int, mode: Mode) -> list[adios.StreamReader]:
        """The streams of all producers. ADIOS2 deals in the order in which trainers join: that of their numbers."""
        crew = self._crew

        def join(producer: int) -> adios.StreamReader:
            return adios.StreamReader(
                crew.stream(session, producer, None if mode.shared else crew.trainer),
                engine=crew.streaming.engine,
                parameters=crew.parameters(mode),
                join_seconds=crew.streaming.timeout,
            )

        joined = []
        for producer in range(crew.streaming.producers):
            for trainer in range(crew.trainers):
                if trainer == crew.trainer:
                    joined.append(join(producer))
                if mode.shared:
                    self._comm.barrier()
            crew.world.barrier()  # see producing.opened_in_turn
        return joined


class _Receiving(ABC):
    """A thread that takes steps of streams into free slots. `run` is what it does; `stop` ends it, early too."""

    def __init__(self, crew: Crew, streams: Sequence[adios.StreamReader], slots: Sequence[Bytes]) -> None:
        self.crew, self.streams, self.slots = crew, streams, slots
        self.free: SimpleQueue[int | None] = SimpleQueue()  # None: end
        for slot in reversed(range(len(slots))):
            self.free.put(slot)
        self.stopped = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run_guarded, name="receiver", daemon=True)

    def __enter__(self) -> Self:
        """Ready to begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread."""
        self.stopped = True
        self.free.put(None)
        self.wake()
        if self._thread.ident is not None:
            self._thread.join()

    def begin(self) -> None:
        """Producers begin to read when all trainers ask for their first batch."""
        self.crew.world.barrier()
        self._thread.start()

    @abstractmethod
    def run(self) -> None:
        """What the thread does."""

    def wake(self) -> None:  # noqa: B027 - one that waits for `free` alone is woken by it
        """Have the thread look whether it is stopped."""

    @abstractmethod
    def fail(self) -> None:
        """Have the trainer look whether the thread has failed."""

    def ready(self, queue: "SimpleQueue[T | None]") -> T:
        """What the thread has made ready. What the thread failed with."""
        with life.waits():
            item = queue.get()
        if item is None:
            assert self._failure is not None
            raise self._failure
        return item

    def _run_guarded(self) -> None:
        try:
            self.run()
        except Exception as error:  # noqa: BLE001 - the trainer raises it
            self._failure = error
            self.fail()

    def step(self, producer: int) -> adios.StreamReader | None:
        """The stream of a producer, at its next step; None when stopped. StreamLost, StreamTimeout."""
        stream = self.streams[producer]
        if stream.begin(self.crew.streaming.timeout, given_up=lambda: self.stopped):
            return stream
        if self.stopped:
            return None
        reason = f" ADIOS2 {DROPS}" if self._drops else ""
        raise StreamLost(f"Producer {producer} has ended its stream before the plan did.{reason}")

    @property
    def _drops(self) -> bool:
        return self.crew.streaming.full == DISCARD


class _Planned(_Receiving):
    """Batches as the plan of this rank has them."""

    def __init__(
        self,
        crew: Crew,
        streams: Sequence[adios.StreamReader],
        slots: Sequence[Bytes],
        plan: Sequence[Planned],
        rank: int,
        steps: Iterator[Taken],
    ) -> None:
        super().__init__(crew, streams, slots)
        self._plan, self._rank, self._steps = plan, rank, steps
        self._filled: SimpleQueue[int | None] = SimpleQueue()  # slots in the order of the plan

    def batches(self) -> Iterator[Batch]:
        """The trainer's side."""
        self.begin()
        for batch in self._plan:
            slot = self.ready(self._filled)
            yield Batch(batch.ids, (Block(self.slots[slot][: batch.bytes], batch.starts),))
            self.free.put(slot)

    def fail(self) -> None:
        """See _Receiving."""
        self._filled.put(None)

    def run(self) -> None:
        """See _Receiving."""
        for step in self._steps:
            position = len(self._plan) if step.position is None else step.position
            planned = self._plan[position] if position < len(self._plan) else None
            slot = None if planned is None else self.free.get()
            stream = self.step(step.producer)
            if stream is None or self.stopped:
                return
            begun = time.perf_counter()
            if planned is not None and slot is not None:
                of_plan = Dealt(position, self._rank, PlanBatch(planned.epoch, planned.ids))
                require_label(stream, of_plan.label(), step.producer, drops=self._drops)
                if planned.bytes:
                    stream.get("content", self.slots[slot])
            stream.end()
            if planned is not None and slot is not None:
                _record(planned.epoch, planned.step, begun, planned.bytes)
                self._filled.put(slot)


class _Given(Struct, frozen=True):
    """The answer of a producer: a batch in a slot, or that it has no batch left of the epoch."""

    producer: int
    slot: int | None
    ids: Ids


class _Demanding(_Receiving):
    """Batches as this rank asks for them: of one producer after the other, until none has one left of an epoch."""

    def __init__(
        self,
        crew: Crew,
        streams: Sequence[adios.StreamReader],
        slots: Sequence[Bytes],
        plan: Sequence[Planned],
        sample_view: SampleView,
    ) -> None:
        super().__init__(crew, streams, slots)
        self._plan, self._view = plan, sample_view
        self._asked: SimpleQueue[int | None] = SimpleQueue()  # producers, in the order in which they were asked
        self._given: SimpleQueue[_Given | None] = SimpleQueue()
        self.delivered: dict[int, list[Ids]] = {}

    def batches(self) -> Iterator[Batch | None]:
        """The trainer's side."""
        self.begin()
        epochs = list(dict.fromkeys(batch.epoch for batch in self._plan))
        for epoch in epochs:
            taken = 0
            for batch in self._of_epoch(epoch):
                taken += 1
                yield batch
            yield from (None for _ in range(sum(batch.epoch == epoch for batch in self._plan) - taken))

    def end_requests(self) -> None:
        """Tell producers that this rank asks for nothing more."""
        for producer in range(len(self.streams)):
            self.crew.world.send_number(self.crew.layout.rank_of(producer), DONE)

    def _of_epoch(self, epoch: int) -> Iterator[Batch]:
        assert self.crew.trainer is not None
        producers = len(self.streams)
        left = [(self.crew.trainer + number) % producers for number in range(producers)]  # that may have batches
        pending = 0

        def request_batch() -> int:
            if not left:
                return 0
            left.append(left.pop(0))
            self.crew.world.send_number(self.crew.layout.rank_of(left[-1]), epoch)
            self._asked.put(left[-1])
            return 1

        for _ in self.slots:
            pending += request_batch()
        while pending:
            given = self.ready(self._given)
            pending -= 1
            if given.slot is None:
                if given.producer in left:
                    left.remove(given.producer)
                pending += request_batch()
                continue
            starts = np.concatenate(([0], np.cumsum(self._view.sizes(given.ids))))
            self.delivered.setdefault(epoch, []).append(given.ids)
            yield Batch(given.ids, (Block(self.slots[given.slot][: starts[-1]], starts),))
            self.free.put(given.slot)
            pending += request_batch()

    def _ids(self, stream: adios.StreamReader, producer: int) -> Ids:
        """The ids of the present step, which the plan of all ranks has. DataError where it does not."""
        position, rank = int(stream.get("position")), int(stream.get("rank"))
        batch = self._plan[position * self.crew.trainers + rank]
        require_label(
            stream, Dealt(position, rank, PlanBatch(batch.epoch, batch.ids)).label(), producer, drops=self._drops
        )
        return batch.ids

    def fail(self) -> None:
        """See _Receiving."""
        self._given.put(None)

    def wake(self) -> None:
        """See _Receiving."""
        self._asked.put(None)

    def run(self) -> None:
        """See _Receiving."""
        while (producer := self._asked.get()) is not None:
            stream = self.step(producer)
            if stream is None:
                return
            begun, slot, ids = time.perf_counter(), None, NO_SAMPLES
            epoch, samples = int(stream.get("epoch")), int(stream.get("samples"))
            if samples:
                slot = self.free.get()
                if slot is None:
                    return
                ids = self._ids(stream, producer)
                stream.get("content", self.slots[slot])
            stream.end()
            if slot is not None:
                _record(epoch, -1, begun, len(self.slots[slot]))
            self._given.put(_Given(producer, slot, ids))


def require_label(stream: adios.StreamReader, expected: Mapping[str, int], producer: int, *, drops: bool) -> None:
    """DataError where the present step of a stream is not the batch with this label; StreamLost if ADIOS2 `drops` steps
    of a full queue.
    """
    came = {name: int(stream.get(name)) for name in expected}
    if came != expected:
        another = f"Producer {producer} sent another batch than the plan has: {came} instead of {dict(expected)}."
        if drops:
            raise StreamLost(f"{another} ADIOS2 {DROPS}")
        raise DataError(f"{another} A step was lost, repeated or dealt to another rank.")


def _record(epoch: int, step: int, begun: float, size: int) -> None:
    """Where spans are recorded, that of a batch that has come."""
    if (track := recorder.current_track()) is not None:
        track.epoch, track.step = epoch, step
        track.add(RECEIVE, begun, time.perf_counter(), size)
