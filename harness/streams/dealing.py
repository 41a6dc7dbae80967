"""Which producer publishes which batch, in which order, and where a trainer takes its own from. Pure functions.

All ranks of a model ask for one batch at each position of their plans. Where a plan is shorter than another, batches
without samples fill it up, so that every position has a batch for every rank.
"""

import zlib
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from dlio_bench.batches import Ids
from dlio_bench.harness.streams.settings import ALL, PLANNED, ROUND_ROBIN, Mode

NO_SAMPLES = np.zeros(0, np.int64)


class PlanBatch(Struct, frozen=True):
    """A batch of a plan: its epoch (or `batches.validation_after`) and its ids."""

    epoch: int
    ids: Ids


class Dealt(Struct, frozen=True):
    """A batch that a producer publishes. position: in the plans; rank: of its model, which asks for it."""

    position: int
    rank: int
    part: PlanBatch

    def label(self) -> dict[str, int]:
        """What is sent with its bytes, by which a trainer tells whether it is the batch of its plan."""
        ids = np.ascontiguousarray(self.part.ids)
        return {
            "position": self.position,
            "rank": self.rank,
            "epoch": self.part.epoch,
            "samples": len(ids),
            "ids": zlib.crc32(ids.tobytes()),  # a checksum: the trainer has the ids in its plan
        }


def producer_of(mode: str, position: int, rank: int, producers: int) -> int:
    """Who publishes the batch at a position of a rank's plan.

    By the plan, the batches of one step come from several producers; else one producer has the whole step, so that a
    stream deals whole steps to its readers.
    """
    return (position + rank if mode == PLANNED else position) % producers


def batches_of_producer(
    plans: Sequence[Sequence[PlanBatch]], mode: str, producer: int, producers: int
) -> Iterator[Dealt]:
    """The batches of one producer, in its order. plans: of each rank of a model, by position."""
    for position in range(max(map(len, plans), default=0)):
        epoch = next(plan[position].epoch for plan in plans if position < len(plan))
        for rank, plan in enumerate(plans):
            if producer_of(mode, position, rank, producers) == producer:
                yield Dealt(position, rank, plan[position] if position < len(plan) else PlanBatch(epoch, NO_SAMPLES))


def batches_on_demand(plan: Sequence[PlanBatch], producer: int, producers: int, ranks: int) -> list[Dealt]:
    """The batches that one producer gives to whoever asks, in its order. plan: of all ranks, step after step."""
    parts = enumerate(plan)
    return [Dealt(at // ranks, at % ranks, part) for at, part in parts if (at // ranks) % producers == producer]


class Taken(Struct, frozen=True):
    """A step that a trainer takes from a stream. position: of its plan; None: the step is for another rank."""

    producer: int
    position: int | None


def steps_of_rank(positions: int, ranks: int, mode: str, rank: int, producers: int) -> Iterator[Taken]:
    """The steps of all streams that a rank of `ranks` takes, in its order. positions: of the longest plan."""
    for position in range(positions):
        producer = producer_of(mode, position, rank, producers)
        for other in range(ranks) if mode == ALL else (rank,):
            yield Taken(producer, position if other == rank else None)


def putting(mode: Mode, rank: int, models: Sequence[tuple[int, int]]) -> list[int]:
    """The streams of a producer that get a batch of a rank, in turn: that rank of each model takes it.

    models: of each trainer, the model and its number among the ranks of that model. ADIOS2 deals a step of a shared
    stream to one reader, so the stream gets the step once for each model.
    """
    if mode.shared:
        return [0] * (len({model for model, _ in models}) if mode.name == ROUND_ROBIN else 1)
    return [trainer for trainer, (_, number) in enumerate(models) if number == rank]
