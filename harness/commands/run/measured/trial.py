"""One trial of one reader on one rank: makes the plan, and runs the timed loop over it, with observers beside it."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from dlio_bench import recorder
from dlio_bench.batches import Batch
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.measured import loop
from dlio_bench.harness.commands.run.measured.consumer import require_everything, require_same_set
from dlio_bench.harness.commands.run.measured.observer import After, Behind, Observer, Rank, Running, Segment
from dlio_bench.harness.commands.run.measured.times import TrialTimes
from dlio_bench.harness.plan.orders import Ids, Shape, part_of_pass, steps_of
from dlio_bench.harness.plan.policies import AHEAD, ON_DEMAND, Policy, order_of
from dlio_bench.harness.readers.placed.rules import Draw
from dlio_bench.harness.readers.registry import session_of
from dlio_bench.harness.readers.session import Planned, Reader, plan_batches
from dlio_bench.harness.timeline import StepLog
from dlio_bench.harness.training.trainer import Trainer
from dlio_bench.reports.document.marks import COLD_EPOCHS


class Trial:
    """The plan of one trial, ready to run. Each trial has its own seed, so that nothing learns an order."""

    def __init__(
        self,
        job: Job,
        shape: Shape,
        policy: Policy,
        number: int,
        behind: Sequence[Behind] = (),
        draw: Draw | None = None,
    ) -> None:
        """behind: what follows epochs. draw: the order, if the placement of the policy draws it."""
        self._draw = draw
        self._behind = {each.epoch: each for each in behind}
        self._job, self._shape, self._number = job, shape, number
        self._seed = job.seed + number
        self.order = policy.order  # as it is executed
        # whether this process also reads copies from a device
        self._copies = policy.rule.files is not None or bool(policy.rule.keeps_samples and job.tiers.disk)
        self._order, self._ordered = order_of(policy), policy.order_known
        self._policy = policy
        self._fit = self._order.fit(shape)
        self.steps = self._fit.steps  # of an epoch; the rank may lower it
        self.parts = 1  # epochs that make one pass over the order
        self.first_epoch = 0  # of the order: a training that continues has read the epochs before it

    @property
    def different(self) -> int:
        """Samples of an epoch over all ranks, each counted once."""
        return min(self._fit.different, self.steps * self._shape.step)

    def ids(self, rank: int) -> list[Ids]:
        """The plan of a rank: for each epoch the sample ids, int64 [steps, batch], -1 where a batch is smaller.

        Every model has the same plan, which its ranks share.
        """
        return [self._epoch(rank, epoch) for epoch in range(self._job.epochs)]

    def _epoch(self, rank: int, epoch: int) -> Ids:
        if self._policy.demanded:  # whoever asks gets the next batch: a rank has to know the plans of all
            of_ranks = [self._epoch_of(other, epoch) for other in range(self._shape.ranks)]
            return np.stack(of_ranks, axis=1).reshape(-1, self._job.batch)
        return self._epoch_of(rank, epoch)

    def _epoch_of(self, rank: int, epoch: int) -> Ids:
        if self._draw is not None:
            return self._draw(rank, self.steps, self._seed)[epoch]
        epoch += self.first_epoch
        rank = self._job.model_of(rank)[1]
        return part_of_pass(self._order, self._shape, rank, epoch, self._seed, steps=self.steps, parts=self.parts)

    def ids_read(self, rank: int, epoch: int) -> Ids:
        """The ids that a rank reads, in order, in an epoch or in what has this number behind one."""
        for each in self._behind.values():
            if each.number == epoch:
                return np.concatenate(each.batches(self._job.model_of(rank)[1], self._seed))
        ids = self._epoch(rank, epoch)
        return ids[ids >= 0]

    def batches_behind(self, rank: int) -> dict[int, Sequence[Ids]]:
        """The batches that a rank gets behind epochs."""
        place = self._job.model_of(rank)[1]
        return {epoch: each.batches(place, self._seed) for epoch, each in self._behind.items()}

    def run(self, name: str, reader: Reader, trainer: Trainer, rank: Rank, observers: Sequence[Observer]) -> TrialTimes:
        """Run the trial of a reader of this name."""
        job, plan = self._job, self.ids(rank.comm.rank)
        recorder.forget_arrays()  # a rank that dies leaves the logs of this trial alone
        log = StepLog.empty(sum(map(len, plan)), job.batch, epochs=len(plan))
        times = TrialTimes(self._number, self._seed, plan, log)
        times.useful = {epoch: reader.sample_view.useful(ids[ids >= 0]) for epoch, ids in enumerate(plan)}
        trial = Running(name, self._policy, reader, trainer, times, self._copies, self.batches_behind(rank.comm.rank))
        # The cache can only be prepared while readers rest: between sessions, and in the pauses of a session of ours.
        everything, apart = [list(range(job.epochs))], [[epoch] for epoch in range(job.epochs)]
        segments = apart if job.cache == COLD_EPOCHS else everything
        sessions = everything if self._policy.delivery in (ON_DEMAND, AHEAD) else segments
        trainer.begin(name, self._number, times.seed)
        for each in observers:
            each.before_trial(trial)
        for session in sessions:
            self._run_session(trial, [part for part in segments if part[0] in session], rank, observers)
        times.left = trainer.end()
        times.phases = {*(() if times.left is None else times.left.phases)}.union(*(each.phases for each in observers))
        if self._policy.demanded:
            self._settle(times, reader, rank.comm)
        elif not self._ordered:
            for ids, delivered in zip(plan, times.log.ids.reshape(len(plan), -1), strict=True):
                require_same_set(delivered, ids)
        for each in reversed(observers):
            each.after_trial(trial)
        return times

    def _run_session(
        self, trial: Running, segments: Sequence[list[int]], rank: Rank, observers: Sequence[Observer]
    ) -> None:
        """Run segments of epochs, with pauses between them, in one session of the reader."""
        times, reader, per_epoch = trial.times, trial.reader, len(trial.times.plan[0])
        read = self._plan_read(list(chain(*segments)), trial, pauses=len(segments) > 1)
        times.stored |= reader.requested_bytes(read)
        with ExitStack() as stack:
            for number, epochs in enumerate(segments):
                steps = slice(epochs[0] * per_epoch, (epochs[-1] + 1) * per_epoch)
                segment = Segment(trial, epochs, per_epoch, times.log.part(steps))
                for each in observers:
                    each.before_segment(segment)
                if number == 0:
                    batches = stack.enter_context(session_of(self._policy, reader, read, times.tally))
                for each in observers:
                    each.before_loop(segment)
                self._run_loop(segment, read, batches, rank, observers)
                for each in reversed(observers):
                    each.after_loop(segment)
                if number == len(segments) - 1:
                    stack.close()
                for each in reversed(observers):
                    each.after_segment(segment)

    def _run_loop(
        self,
        segment: Segment,
        read: Sequence[Planned],
        batches: Iterator[Batch | None],
        rank: Rank,
        observers: Sequence[Observer],
    ) -> None:
        """Run epochs with no pause in between. read: the batches of the session."""
        times, log = segment.trial.times, segment.log
        after_step: dict[int, list[After]] = defaultdict(list)
        for each in observers:
            for step, call in each.after_step(segment).items():
                after_step[step].append(call)

        def at_epoch(epoch: int) -> None:
            for each in observers:
                each.at_epoch(segment, epoch)

        steps = [] if self._policy.demanded else [batch for batch in read if batch.epoch in segment.epochs]
        elapsed = loop.run_steps(
            rank.comm,
            batches,
            [batch.ids for batch in steps],
            log,
            trainer=segment.trial.trainer,
            sync=self._job.sync,
            ordered=self._ordered,
            starts=[batch.starts for batch in steps],
            epochs={number * segment.per_epoch: epoch for number, epoch in enumerate(segment.epochs)},
            at_epoch=at_epoch,
            after_step=dict(after_step),
            peers=rank.peers,
        )
        times.enclosing_seconds.append(elapsed.enclosing)
        times.starts = np.concatenate([times.starts, log.clock[:, 0] - elapsed.started + times.loop_seconds])
        times.loop_seconds += elapsed.loop
        times.loops.append((elapsed.started, elapsed.started + elapsed.loop))
        times.met = elapsed.met

    def _settle(self, times: TrialTimes, reader: Reader, comm: Comm) -> None:
        """What this rank got is its plan. DataError where all ranks together did not get the plan of all, once."""
        taken = times.log.ids.reshape(len(times.plan), -1, self._job.batch)
        for epoch, (of_all, of_rank) in enumerate(zip(times.plan, taken, strict=True)):
            require_everything(comm, of_rank, of_all)
            ids, view = of_rank[of_rank >= 0], reader.sample_view
            times.useful[epoch], times.stored[epoch] = view.useful(ids), view.stored_size(ids)
        times.plan = list(taken)
        times.batches = (taken >= 0).any(axis=2).sum(axis=1).tolist()

    def _plan_read(self, epochs: list[int], trial: Running, *, pauses: bool) -> list[Planned]:
        """All that a session reads: of each of its epochs the training batches, and those behind it."""
        parts: list[tuple[int, Sequence[Ids]]] = []
        for epoch in epochs:
            parts.append((epoch, steps_of(trial.times.plan[epoch])))
            if epoch in trial.behind:
                parts.append((self._behind[epoch].number, trial.behind[epoch]))
        return plan_batches(trial.reader.sample_view, parts, self.ids_read, pauses=pauses)


@dataclass
class Contender:
    """A reader of the job on this rank, its trials, and what each of them took."""

    name: str
    row: Policy
    reader: Reader
    trials: list[Trial]
    times: list[TrialTimes] = field(default_factory=list)
