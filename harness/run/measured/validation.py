"""A validation pass inside the timed loop: get -> check -> forward compute for each batch, and a barrier at its end."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.batches import Batch, Ids
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.run.measured.consumer import marks, require_planned
from dlio_bench.harness.timeline import StepLog
from dlio_bench.harness.training.trainer import Trainer


@dataclass(frozen=True)
class Pass:
    """The validation pass behind an epoch: the ids of each batch, the rows of the log that it fills, and what the
    network scored, by name; nothing where none is trained.
    """

    epoch: int
    batches: Sequence[Ids]
    log: StepLog
    scores: dict[str, float] = field(default_factory=dict)

    @property
    def ids(self) -> Ids:
        """All ids of the plan, int64 [samples]."""
        return np.concatenate(self.batches)

    @property
    def delivered(self) -> Ids:
        """All ids that came, int64 [samples]."""
        return self.log.ids[self.log.ids >= 0]

    @property
    def marks(self) -> npt.NDArray[np.uint64]:
        """The marks of what came, uint64 [samples]."""
        return self.log.samples[self.log.ids >= 0]


def passes_seconds(passes: Sequence[Pass]) -> dict[str, npt.NDArray[Any]]:
    """Of each pass, [passes]: its seconds from its first batch to everybody's last, those in get, those at work.

    Of what is left most is the wait for the slowest rank at its end. And the epoch that it follows, int64.
    """
    spans = [(one.log.clock[0, 0], one.log.clock[-1, -1]) for one in passes]
    phases = [one.log.phases() for one in passes]
    return {
        "validation": np.array([end - start for start, end in spans]),
        "validation_stall": np.array([phase["stall"].sum() for phase in phases]),
        "validation_busy": np.array([phase["check"].sum() + phase["compute"].sum() for phase in phases]),
        "validation_epoch": np.array([one.epoch for one in passes], dtype=np.int64),
    }


def run_pass(comm: Comm, batches: Iterator[Batch], own: Pass, trainer: Trainer, *, ordered: bool) -> None:
    """Take the batches of a pass. No gradients are exchanged: the last row's exchange is the wait for all ranks."""
    clock, rows, samples, delivered = time.perf_counter, own.log.clock, own.log.samples, own.log.ids
    for step, ids in enumerate(own.batches):
        row, size = rows[step], len(ids)
        row[0] = clock()
        batch = next(batches)
        row[1] = clock()
        require_planned(batch, ids, ordered=ordered)
        delivered[step, :size] = batch.ids
        samples[step, :size] = marks(batch)
        row[2] = clock()
        row[3] = row[2]
        trainer.forward(batch)
        row[4] = row[5] = row[6] = clock()
    own.scores.update(trainer.score())
    comm.barrier()
    rows[-1][5] = rows[-1][6] = clock()
