"""A producer: a rank that reads the dataset and publishes batches to the ranks that train."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from dlio_bench.batches import Batch, validation_after
from dlio_bench.benchmarks.pipeline import Decode
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster import interfaces
from dlio_bench.harness.cluster.comm import Comm, Solo
from dlio_bench.harness.cluster.life import life
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.measured.observer import Observer, Rank, Segment
from dlio_bench.harness.commands.run.measured.site import Delivered, emulated_delivery, resources, total
from dlio_bench.harness.machine.mounts import cache_beyond
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.registry import READS_AS, open_planned
from dlio_bench.harness.readers.resources import Resources
from dlio_bench.harness.readers.session import Planned, Reader, SampleView, Tally, plan_batches
from dlio_bench.harness.readers.streamed import Streamed
from dlio_bench.harness.storage.cache import device_bytes
from dlio_bench.harness.storage.pfs.board import Board
from dlio_bench.harness.streams.adios import SST, Arrays, StreamWriter, contact_path, forget, require_transport
from dlio_bench.harness.streams.crew import DONE, Closing, Crew, Opening
from dlio_bench.harness.streams.dealing import (
    NO_SAMPLES,
    Dealt,
    PlanBatch,
    batches_of_producer,
    batches_on_demand,
    putting,
)
from dlio_bench.harness.streams.settings import Mode
from dlio_bench.harness.streams.settings import find as find_mode

FIRST_PAUSE, LONGEST_PAUSE = 20e-6, 500e-6  # seconds between two looks for a request
NOTHING = np.zeros(1, np.uint8)  # ADIOS2 has no arrays of no length


@contextmanager
def split_producers(job: Job, dataset: Dataset, folder: Path, comm: Comm) -> Iterator[tuple[Comm, Crew | None] | None]:
    """The ranks that train, with their place among all that were launched where some of those publish streams.

    None where this rank is one that publishes, when trainers ask for nothing more. folder: of the job; contact files of
    streams lie in it.
    """
    if job.streaming is None or job.streaming.inline:
        yield comm, None
        return
    contacts = folder / "streams"
    contacts.mkdir(exist_ok=True)
    place = interfaces.serving(comm)[comm.rank]
    crew = Crew(comm, job.layout, job.streaming, contacts, place.interface)
    trainers = comm.split(0 if crew.trainer is not None else None)
    if trainers is None:
        serve(crew, dataset, job.view, job.decoder(dataset), resources(job, dataset, Solo()))
        yield None
    else:
        yield trainers, crew
        crew.meet(None)  # the trainers ask for nothing more


def serve(crew: Crew, dataset: Dataset, view: tuple[str, ...], decoded: Decode | None, allowed: Resources) -> None:
    """Publish what the trainers ask for, session after session, until they ask for nothing more."""
    while True:
        openings = crew.openings(crew.meet(None))
        if not openings:
            return
        here = crew.layout.node(crew.world.rank) * crew.layout.trainers_per_node
        seen = SampleView(replace(dataset, folder=Path(openings[here].folder)), view, decoded)
        if crew.producer is None:  # it makes the nodes even
            opened_in_turn(crew, lambda: [])
            crew.world.barrier()  # trainers begin
            crew.world.barrier()  # all have read
            crew.meet(Closing())
            continue
        tally, delivered, began = Tally(), Deliveries(_counter(crew, openings[here], seen)), time.process_time()
        _publish(crew, openings, seen, allowed, tally, delivered)
        crew.world.barrier()
        delivered.finish()
        costs = {epoch: _spared_cost(cost) for epoch, cost in tally.epochs.items()}
        crew.meet(Closing(costs, delivered.epochs, time.process_time() - began))
        for path in crew.folder.glob(f"{openings[0].number}-{crew.producer}-*"):  # nobody reads them any more
            forget(path)


def _spared_cost(cost: Cost) -> Cost:
    """The cost of reads whose bytes go to other ranks, who count them as spared."""
    cost.bytes_kept = cost.bytes_requested
    return cost


def _publish(
    crew: Crew,
    openings: Sequence[Opening],
    sample_view: SampleView,
    allowed: Resources,
    tally: Tally,
    delivered: "Deliveries",
) -> None:
    """One session. The streams are open, and nothing is read yet, when the trainers begin."""
    assert crew.producer is not None
    mode, producers, models = find_mode(openings[0].mode), crew.streaming.producers, crew.models
    if mode.known:
        plans = [opening.plan for trainer, opening in enumerate(openings) if crew.model(trainer)[0] == 0]
        dealt = list(batches_of_producer(plans, mode.name, crew.producer, producers))
    else:
        # every trainer has told the plan of all
        dealt = batches_on_demand(openings[0].plan, crew.producer, producers, crew.trainers)
    plan = plan_batches(sample_view, [(batch.part.epoch, [batch.part.ids]) for batch in dealt if len(batch.part.ids)])
    reader = open_planned(find(READS_AS), sample_view, [(batch.epoch, [batch.ids]) for batch in plan], allowed)
    writers = opened_in_turn(crew, lambda: _writers(crew, openings[0].number, mode))
    try:
        crew.world.barrier()
        batches = delivered.read(reader, plan, tally)
        if mode.known:
            for batch in dealt:
                step = _step(batch, next(batches) if len(batch.part.ids) else None)
                _put_step(step, [writers[stream] for stream in putting(mode, batch.rank, models)])
        else:
            _serve_requests(crew, writers, dealt, batches)
        next(batches, None)  # the last session ends
        for writer in writers:
            with life.waits():
                writer.close()
    finally:
        for writer in writers:
            if crew.streaming.engine == SST:
                forget(contact_path(writer.path))


class Deliveries:
    """What storage has delivered to this producer, by epoch."""

    def __init__(self, count: Callable[[], Delivered]) -> None:
        self._count, self._before = count, count()
        self.epochs: dict[int, tuple[int | None, int | None]] = {}

    def read(self, reader: Reader, plan: Sequence[Planned], tally: Tally) -> Iterator[Batch]:
        """The batches of the plan. Nothing of an epoch is read before the last batch of the one before is published."""
        for epoch, group in groupby(plan, key=lambda batch: batch.epoch):
            with reader.session(list(group), tally) as batches:
                yield from batches
            self._add(epoch)

    def finish(self) -> None:
        """All producers have read: what others of the node read behind this one belongs to the last epoch."""
        if self.epochs:
            self._add(next(reversed(self.epochs)))

    def _add(self, epoch: int) -> None:
        before, self._before = self._before, self._count()
        self.epochs[epoch] = total([self.epochs.get(epoch, (0, 0)), self._before.since(before)])


def _counter(crew: Crew, opening: Opening, sample_view: SampleView) -> Callable[[], Delivered]:
    """Counts what storage has delivered to this process so far; under emulation to its node, for which the first
    producer there counts."""
    layout, rank = crew.layout, crew.world.rank
    if not opening.board:
        hidden = cache_beyond(sample_view.dataset.folder) is not None
        return lambda: Delivered(None if hidden else device_bytes(), None)
    board, counts = Board.open(Path(opening.board)), rank % layout.ranks_per_node == layout.trainers_per_node
    return lambda: emulated_delivery(board, layout.node(rank), counts=counts)


def _serve_requests(
    crew: Crew, writers: Sequence[StreamWriter], dealt: Sequence[Dealt], batches: Iterator[Batch]
) -> None:
    """Give the next batch of an epoch to whoever asks for one, or say that there is none, until nobody asks."""
    place, asking = 0, crew.trainers
    while asking:
        rank, epoch = _request(crew)
        trainer = crew.layout.trainer(rank)
        assert trainer is not None
        if epoch == DONE:
            asking -= 1
        elif place < len(dealt) and dealt[place].part.epoch == epoch:
            _put_step(_step(dealt[place], next(batches)), [writers[trainer]])
            place += 1
        else:
            _put_step(_step(Dealt(0, trainer, PlanBatch(epoch, NO_SAMPLES)), None), [writers[trainer]])


def _request(crew: Crew) -> tuple[int, int]:
    """The launched rank that asks next, and the epoch of which it wants a batch."""
    pause = FIRST_PAUSE
    with life.waits():
        while (request := crew.world.receive_number()) is None:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
    return request


def _put_step(step: Arrays, writers: Sequence[StreamWriter]) -> None:
    for writer in writers:
        with life.waits():
            writer.put(step)


def opened_in_turn(crew: Crew, open_streams: Callable[[], list[StreamWriter]]) -> list[StreamWriter]:
    """The streams of this producer. One producer after the other opens its own, and all ranks meet behind each.

    Trainers that find the streams of several producers at about the same time may send the greeting of one to another
    producer, which then dies by a segmentation fault (ADIOS2 2.12.1, CP_DPQueryHandler).
    """
    writers: list[StreamWriter] = []
    for producer in range(crew.streaming.producers):
        if producer == crew.producer:
            writers = open_streams()
        crew.world.barrier()
    return writers


def _writers(crew: Crew, session: int, mode: Mode) -> list[StreamWriter]:
    """The streams of this producer, which all trainers have joined."""
    assert crew.producer is not None
    require_transport(crew.streaming.transport)
    writers = []
    for trainer in [None] if mode.shared else range(crew.trainers):
        path = crew.stream(session, crew.producer, trainer)
        with life.waits():
            readers = crew.trainers if mode.shared else 1
            writers.append(
                StreamWriter(path, engine=crew.streaming.engine, readers=readers, parameters=crew.parameters(mode))
            )
    return writers


def _step(batch: Dealt, content: Batch | None) -> Arrays:
    label = {name: np.array(number) for name, number in batch.label().items()}
    if content is None:
        return {**label, "content": NOTHING}
    [block] = content.blocks
    return {**label, "content": block.data if len(block.data) else NOTHING}


class Publishing(Observer):
    """Counts what producers have read, in the place of what this rank has."""

    def __init__(self, _: Rank) -> None:
        pass

    def after_segment(self, segment: Segment) -> None:
        """See Observer."""
        times, reader = segment.trial.times, segment.trial.reader
        if isinstance(reader, Streamed):
            times.delivered[-len(segment.epochs) :] = [
                _producers_delivered(reader.published, epoch) for epoch in segment.epochs
            ]
            times.cpu_seconds += sum(closing.cpu_seconds for closing in reader.published)


def _producers_delivered(published: Sequence[Closing], epoch: int) -> Delivered:
    """What storage has delivered to producers in an epoch, its validation pass included; on rank 0."""
    numbers = (epoch, validation_after(epoch))
    return total(
        [(0, 0), *(closing.delivered[each] for closing in published for each in numbers if each in closing.delivered)]
    )
