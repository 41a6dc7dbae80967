"""A producer: a rank that reads the dataset and publishes batches to the ranks that train."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from dlio_bench.batches import Batch
from dlio_bench.benchmarks.pipeline import Decode
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster import interfaces
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.life import life
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.registry import Resources, opened
from dlio_bench.harness.readers.sample_view import SampleView
from dlio_bench.harness.readers.session import Planned, Tally, planned
from dlio_bench.harness.run.asked.job import Job
from dlio_bench.harness.streams.adios import Arrays, Writer, contact
from dlio_bench.harness.streams.crew import Closing, Crew, Opening
from dlio_bench.harness.streams.dealing import Dealt, published
from dlio_bench.harness.streams.modes import ROUND_ROBIN

READS_AS = "double-buffer"  # the policy by which a producer reads what it publishes
NOTHING = np.zeros(1, np.uint8)  # ADIOS2 has no arrays of no length


def crew_of(job: Job, comm: Comm, folder: Path) -> Crew:
    """This rank among all that were launched. folder: of the job; contact files of streams lie in it."""
    assert job.streaming is not None
    contacts = folder / "streams"
    contacts.mkdir(exist_ok=True)
    place = interfaces.serving(comm)[comm.rank]
    return Crew(comm, job.layout, job.streaming, contacts, place.interface)


def serve(crew: Crew, dataset: Dataset, view: tuple[str, ...], decode: Decode | None, resources: Resources) -> None:
    """Publish what the trainers ask for, session after session, until they ask for nothing more."""
    while True:
        openings = crew.openings(crew.meet(None))
        if not openings:
            return
        here = crew.layout.node(crew.world.rank) * crew.layout.trainers_per_node
        seen = SampleView(replace(dataset, folder=Path(openings[here].folder)), view, decode)
        tally = Tally()
        _publish(crew, openings, seen, resources, tally)
        crew.meet(Closing({epoch: _published(cost) for epoch, cost in tally.epochs.items()}))


def dismiss(crew: Crew) -> None:
    """The trainers ask for nothing more."""
    crew.meet(None)


def _published(cost: Cost) -> Cost:
    """The cost of reads whose bytes go to other ranks, who count them as spared."""
    cost.bytes_kept = cost.bytes_requested
    return cost


def _publish(
    crew: Crew, openings: Sequence[Opening], sample_view: SampleView, resources: Resources, tally: Tally
) -> None:
    """One session. The streams are open, and nothing is read yet, when the trainers begin."""
    assert crew.producer is not None
    streaming, number = crew.streaming, openings[0].number
    plans = [opening.plan for trainer, opening in enumerate(openings) if crew.model(trainer)[0] == 0]
    dealt = list(published(plans, streaming.mode, crew.producer, streaming.producers))
    parts = [(batch.part.epoch, [batch.part.ids]) for batch in dealt if len(batch.part.ids)]
    reader = opened(find(READS_AS), sample_view, parts, resources)
    writers = _writers(crew, number)
    try:
        crew.world.barrier()
        with reader.session(_plan(sample_view, dealt), tally) as batches:
            for batch in dealt:
                content = next(batches) if len(batch.part.ids) else None
                step = _step(batch, content)
                for writer in _takers(crew, writers, batch.rank):
                    with life.waits():
                        writer.put(step)
        for writer in writers:
            with life.waits():
                writer.close()
    finally:
        for writer in writers:
            with suppress(OSError):
                contact(writer.path, streaming.engine).unlink()


def _plan(sample_view: SampleView, dealt: Sequence[Dealt]) -> list[Planned]:
    return planned(sample_view, [(batch.part.epoch, [batch.part.ids]) for batch in dealt if len(batch.part.ids)])


def _writers(crew: Crew, session: int) -> list[Writer]:
    """The streams of this producer, which all trainers have joined; their contact files are gone."""
    assert crew.producer is not None
    streaming, shared = crew.streaming, crew.streaming.how.shared
    writers = []
    for trainer in [None] if shared else range(crew.trainers):
        path = crew.stream(session, crew.producer, trainer)
        with life.waits():
            readers = crew.trainers if shared else 1
            parameters = crew.parameters(shared=shared)
            writers.append(Writer(path, engine=streaming.engine, readers=readers, parameters=parameters))
    return writers


def _takers(crew: Crew, writers: Sequence[Writer], rank: int) -> list[Writer]:
    """The streams that get a batch of a rank: that rank of each model takes it. ADIOS2 deals a step to one reader, so
    it gets the step once for each model."""
    how = crew.streaming.how
    if how.shared:
        return [*writers] * (crew.layout.models if how.name == ROUND_ROBIN else 1)
    return [writer for trainer, writer in enumerate(writers) if crew.model(trainer)[1] == rank]


def _step(batch: Dealt, content: Batch | None) -> Arrays:
    if content is None:
        return {"head": batch.head(), "content": NOTHING}
    [block] = content.blocks
    return {"head": batch.head(), "content": block.data if len(block.data) else NOTHING}
