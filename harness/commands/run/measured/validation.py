"""The validation passes of a trial, inside the timed loop: get -> check -> forward compute for each batch."""

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.batches import Batch, validation_after
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.commands.run.asked.job import Job, passes_of
from dlio_bench.harness.commands.run.measured.consumer import marks, require_planned, require_same_set
from dlio_bench.harness.commands.run.measured.observer import After, Behind, Observer, Rank, Running, Segment
from dlio_bench.harness.commands.run.measured.times import Pass
from dlio_bench.harness.plan.validation import Passes
from dlio_bench.harness.timeline import StepLog
from dlio_bench.harness.training.trainer import Trainer


def behind_epochs(job: Job, dataset: Dataset) -> dict[str, list[Behind]]:
    """The passes of a trial of each reader."""

    def pass_behind(passes: Passes, number: int, epoch: int) -> Behind:
        return Behind(epoch, validation_after(epoch), lambda rank, seed: passes.batches(rank, number, seed))

    return {
        name: [pass_behind(passes, number, epoch) for number, epoch in enumerate(passes.epochs)]
        for name, passes in passes_of(job, dataset).items()
    }


class Validating(Observer):
    """Runs the passes that the plan of a trial has."""

    def __init__(self, rank: Rank) -> None:
        self._peers, self._batch = rank.peers, rank.job.batch

    def before_trial(self, trial: Running) -> None:
        """See Observer."""
        view, times = trial.reader.sample_view, trial.times
        times.passes = [
            Pass(epoch, batches, StepLog.empty(len(batches), self._batch, passed=epoch))
            for epoch, batches in trial.behind.items()
        ]
        times.useful |= {validation_after(pass_.epoch): view.useful(pass_.ids) for pass_ in times.passes}

    def after_step(self, segment: Segment) -> Mapping[int, After]:
        """See Observer: a pass follows the last step of its epoch."""
        return {
            (pass_.epoch - segment.epochs[0] + 1) * segment.per_epoch - 1: partial(self._run_pass, segment, pass_)
            for pass_ in segment.trial.times.passes
            if pass_.epoch in segment.epochs
        }

    def _run_pass(self, segment: Segment, pass_: Pass, step: int, batches: Iterator[Batch | None]) -> None:  # noqa: ARG002 - an After
        run_pass(self._peers, batches, pass_, segment.trial.trainer, ordered=segment.trial.row.order_known)

    def after_trial(self, trial: Running) -> None:
        """See Observer. DataError where other samples came than planned."""
        if not trial.times.passes:
            return
        for pass_ in trial.times.passes if not trial.row.order_known else ():
            require_same_set(pass_.delivered_ids, pass_.ids)
        trial.times.arrays_beside |= passes_seconds(trial.times.passes)


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
