"""A validation pass inside the timed loop: get -> check -> forward compute for each batch, and a barrier at its end."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from dlio_bench.batches import Batch, Ids
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.commands.run.measured.consumer import marks, require_planned
from dlio_bench.harness.timeline import StepLog
from dlio_bench.harness.training.trainer import Trainer


class Pass(Struct, frozen=True):
    """The validation pass after an epoch: the ids of each batch, and the log that the pass fills.

    scores: of the network by name, empty if none is trained.
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
    """Arrays [passes]: seconds from the first batch to the last of all ranks, seconds in get, seconds of work.

    The rest is mostly the wait for the slowest rank at the end. `validation_epoch`: the epoch before the pass, int64.
    """
    clocks = [pass_.log.clock for pass_ in passes]
    phases = [pass_.log.phases() for pass_ in passes]
    return {
        "validation": np.array([clock[-1, -1] - clock[0, 0] for clock in clocks]),
        "validation_stall": np.array([phase["stall"].sum() for phase in phases]),
        "validation_busy": np.array([phase["check"].sum() + phase["compute"].sum() for phase in phases]),
        "validation_epoch": np.array([pass_.epoch for pass_ in passes], dtype=np.int64),
    }


def run_pass(comm: Comm, batches: Iterator[Batch | None], pass_: Pass, trainer: Trainer, *, ordered: bool) -> None:
    """Take the batches of a pass. No gradients are exchanged: the last row's exchange is the wait for all ranks."""
    clock, log = time.perf_counter, pass_.log
    rows, samples, delivered = log.clock, log.samples, log.ids
    for step, ids in enumerate(pass_.batches):
        row, size = rows[step], len(ids)
        row[0] = clock()
        batch = next(batches)
        assert batch is not None  # the plan has one for each step
        row[1] = clock()
        require_planned(batch, ids, ordered=ordered)
        delivered[step, :size] = batch.ids
        samples[step, :size] = marks(batch)
        row[2] = clock()
        row[3] = row[2]
        trainer.forward(batch)
        row[4] = row[5] = row[6] = clock()
    pass_.scores.update(trainer.score())
    comm.barrier()
    rows[-1][5] = rows[-1][6] = clock()
