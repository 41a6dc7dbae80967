"""The timed loop: get -> check -> compute -> exchange -> checkpoint, step by step. It fits one screen."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.batches import Batch
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.life import life
from dlio_bench.harness.commands.run.measured.consumer import Consumer
from dlio_bench.harness.timeline import StepLog
from dlio_bench.harness.training.trainer import Trainer

Calls: TypeAlias = Sequence[Callable[[int, Iterator[Batch | None]], None]]
NO_CALLS: Mapping[int, Calls] = MappingProxyType({})
NO_EPOCHS: Mapping[int, int] = MappingProxyType({})


class Elapsed(Struct, frozen=True):
    """Seconds of this rank's loop, and of its interval around both barriers, which encloses the work of all ranks.

    started: when the loop started. met: whether ranks met in a barrier after each step.
    """

    loop: float
    enclosing: float
    started: float
    met: bool


def run_steps(
    comm: Comm,
    batches: Iterator[Batch | None],
    steps: Sequence[npt.NDArray[np.int64]],
    log: StepLog,
    *,
    trainer: Trainer,
    sync: str,
    ordered: bool,
    starts: Sequence[npt.NDArray[np.int64]] = (),
    epochs: Mapping[int, int] = NO_EPOCHS,
    at_epoch: Callable[[int], None] = lambda _: None,
    after_step: Mapping[int, Calls] = NO_CALLS,
    peers: Comm | None = None,
) -> Elapsed:
    """Take every batch of the plan (`steps`: ids of each), fill the log, and return the elapsed seconds.

    steps: empty where a rank gets batches as it asks for them; where none is left for a step (None), it takes no time.
    starts: where the samples of each batch will lie, by the reader's plan. epochs: step -> the epoch that begins with
    it, which `at_epoch` is told. after_step: step -> what is called after it. Both are inside the clock.
    All ranks (`comm`) begin and end together; those of a model (`peers`; None: all) meet in a barrier after each step,
    unless the `trainer`'s exchange makes them meet.

    t0 - barrier - work - barrier - t3: the least t3 - t0 over the ranks is the job's time under any clock offset
    (McCalpin 2019).
    """
    clock, rows = time.perf_counter, log.clock
    peers = peers or comm
    consumer = Consumer(steps, starts if ordered else (), log, ordered=ordered)
    meet = sync == "step" and not trainer.meets
    t0 = clock()
    comm.barrier()
    started = clock()
    last = 0  # step in which this rank got a batch
    for step in range(len(rows)):
        if step in epochs:
            at_epoch(epochs[step])
            if sync == "epoch":
                peers.barrier()
        row = rows[step]
        life.moves += 1
        row[0] = clock()
        batch = next(batches)
        if batch is None:
            row[1:] = row[0] = clock()
            continue
        row[1] = clock()
        consumer.take(step, batch)
        row[2] = clock()
        spent = trainer.step(batch)
        row[3] = row[2] + spent.convert
        row[4] = clock() - spent.exchange
        if meet:
            peers.barrier()
        row[5] = clock()
        trainer.save()
        row[6] = clock()
        last = step
        if step in after_step:
            for call in after_step[step]:
                call(step, batches)
    rows[last : last + 1, 4:] += trainer.finish()
    ended = clock()
    comm.barrier()
    elapsed = Elapsed(ended - started, clock() - t0, started, meet)
    consumer.finish()
    return elapsed
