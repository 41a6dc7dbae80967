"""The trainer's side of streams: producers read the dataset and publish batches, which a thread here takes in order.

The thread fills the slots of a bounded staging buffer while the trainer computes. Each batch comes with its place in
the plan and its ids, which are compared with the plan of this rank.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

import numpy as np

from dlio_bench import recorder
from dlio_bench.batches import Batch, Block, Bytes
from dlio_bench.components import CODE
from dlio_bench.errors import DataError, StreamLost, UsageError
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.life import life
from dlio_bench.harness.readers.ahead import FEWEST_SLOTS, slots_of
from dlio_bench.harness.readers.sample_view import SampleView, stored_by_epoch
from dlio_bench.harness.readers.session import Planned, Tally, touched
from dlio_bench.harness.streams import adios
from dlio_bench.harness.streams.crew import Closing, Crew, Opening
from dlio_bench.harness.streams.dealing import HEAD, Part, Taken, taken
from dlio_bench.units import format_bytes

RECEIVE = CODE["remote read"]


class Streamed:
    """A staging buffer that one thread fills from the streams of all producers."""

    def __init__(
        self, sample_view: SampleView, crew: Crew, comm: Comm, *, staging_bytes: int, batch_bytes: int
    ) -> None:
        """comm: of the ranks that train. UsageError where the staging buffer cannot hold two batches."""
        self.sample_view = sample_view
        self.processes: tuple[int, ...] = ()
        self._crew, self._comm = crew, comm
        slots = slots_of(staging_bytes, batch_bytes)
        if slots < FEWEST_SLOTS:
            raise UsageError(
                f"A staging buffer of {format_bytes(staging_bytes)} cannot hold two batches of "
                f"{format_bytes(batch_bytes)}. Ask for --staging {FEWEST_SLOTS * batch_bytes // 1_000_000 + 1}MB or a "
                "smaller --batch."
            )
        self._slots = [touched(batch_bytes) for _ in range(slots)]

    @property
    def options(self) -> dict[str, int]:
        """See Reader.options."""
        producers = self._crew.streaming.producers
        return {"threads": 1, "producers": producers, "slots": len(self._slots), "queue": self._crew.streaming.queue}

    def asks(self, plan: Sequence[Planned]) -> dict[int, int]:
        """See Reader.asks."""
        return stored_by_epoch(self.sample_view, [(batch.epoch, batch.ids) for batch in plan])

    @contextmanager
    def session(self, plan: Sequence[Planned], tally: Tally) -> Iterator[Iterator[Batch]]:
        """See Reader.session. All ranks that train enter and leave together."""
        crew, number = self._crew, next(self._crew.sessions)
        parts = [Part(batch.epoch, batch.ids) for batch in plan]
        openings = crew.openings(crew.meet(Opening(number, parts, str(self.sample_view.dataset.folder))))
        positions = max(len(opening.plan) for opening in openings)
        receiving = _Receiving(crew, self._joined(number), plan, positions, self._slots)
        try:
            yield receiving.batches(plan)
        except BaseException:
            receiving.stop()  # the job ends, and nobody closes a stream in peace
            raise
        receiving.stop()
        costs = [word.costs for word in crew.meet(Closing({})) if isinstance(word, Closing)]
        for epoch, stored in self.asks(plan).items():
            tally.of(epoch).bytes_spared += stored
        for batch in plan:
            tally.of(batch.epoch).bytes_remote += batch.bytes
        if self._comm.rank == 0:
            for epochs in costs:
                for epoch, cost in epochs.items():
                    tally.of(epoch).add(cost)

    def _joined(self, session: int) -> list[adios.Reader]:
        """The streams of all producers. ADIOS2 deals in the order in which trainers join."""
        crew, how = self._crew, self._crew.streaming.how

        def join(producer: int) -> adios.Reader:
            return adios.Reader(
                crew.stream(session, producer, None if how.shared else crew.trainer),
                engine=crew.streaming.engine,
                parameters=crew.parameters(shared=how.shared),
                join_seconds=crew.streaming.timeout,
            )

        producers = range(crew.streaming.producers)
        if not how.shared:
            return [join(producer) for producer in producers]
        joined: list[adios.Reader] = []
        # the same rank of all models, one after the other: each gets its copy of a step
        for trainer in sorted(range(crew.trainers), key=lambda trainer: crew.model(trainer)[::-1]):
            if trainer == crew.trainer:
                joined = [join(producer) for producer in producers]
            self._comm.barrier()
        return joined


class _Receiving:
    """One session: the thread, the slots it fills, and the batches that are ready."""

    def __init__(
        self,
        crew: Crew,
        streams: Sequence[adios.Reader],
        plan: Sequence[Planned],
        positions: int,
        slots: Sequence[Bytes],
    ) -> None:
        self._crew, self._streams, self._plan = crew, streams, plan
        assert crew.trainer is not None
        self._rank = crew.model(crew.trainer)[1]
        self._steps = taken(positions, crew.of_model, crew.streaming.mode, self._rank, crew.streaming.producers)
        self._ready: SimpleQueue[int | Exception] = SimpleQueue()  # slots in the order of the plan
        self._free: SimpleQueue[int | None] = SimpleQueue()  # None: end
        self._slots = slots
        for slot in reversed(range(len(slots))):
            self._free.put(slot)
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="receiver", daemon=True)

    def batches(self, plan: Sequence[Planned]) -> Iterator[Batch]:
        """The trainer's side. Producers begin to read when all trainers ask for their first batch."""
        self._crew.world.barrier()
        self._thread.start()
        for batch in plan:
            with life.waits():
                slot = self._ready.get()
            if isinstance(slot, Exception):
                raise slot
            yield Batch(batch.ids, (Block(self._slots[slot][: batch.bytes], batch.starts),))
            self._free.put(slot)

    def stop(self) -> None:
        """End the thread, in the middle of the plan too, and close the streams."""
        self._stopped = True
        self._free.put(None)
        if self._thread.ident is not None:
            self._thread.join()
        for stream in self._streams:
            stream.close()

    def _run(self) -> None:
        try:
            for step in self._steps:
                self._take(step)
                if self._stopped:
                    return
        except Exception as error:  # noqa: BLE001 - the trainer raises it
            self._ready.put(error)

    def _take(self, step: Taken) -> None:
        stream = self._streams[step.producer]
        position = step.position if step.position is not None and step.position < len(self._plan) else None
        slot = None
        if position is not None:
            slot = self._free.get()
            if slot is None:
                return
        if not stream.begin(self._crew.streaming.timeout, given_up=lambda: self._stopped):
            if self._stopped:
                return
            raise StreamLost(f"Producer {step.producer} has ended its stream before the plan did.")
        begun = time.perf_counter()
        if slot is not None and position is not None:
            self._require(stream, position, step.producer)
            batch = self._plan[position]
            if batch.bytes:
                stream.get("content", self._slots[slot])
        stream.end()
        if slot is not None and position is not None:
            if (track := recorder.here()) is not None:
                track.epoch = self._plan[position].epoch
                track.step = self._plan[position].step
                track.add(RECEIVE, begun, time.perf_counter(), self._plan[position].bytes)
            self._ready.put(slot)

    def _require(self, stream: adios.Reader, position: int, producer: int) -> None:
        """DataError where the present step is not the batch of this position of the plan."""
        head, batch = stream.get("head"), self._plan[position]
        expected = [position, self._rank, batch.epoch, len(batch.ids)]
        if head[:HEAD].tolist() != expected or not np.array_equal(head[HEAD:], batch.ids):
            came = dict(zip(("position", "rank", "epoch", "samples"), head[:HEAD].tolist(), strict=True))
            raise DataError(
                f"Producer {producer} sent another batch than the plan has: {came} instead of "
                f"{dict(zip(came, expected, strict=True))}, or other samples. A step was lost, repeated or dealt to "
                "another rank."
            )
