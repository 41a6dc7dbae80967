"""One trial of one reader on one rank: cache prepared, plan made, the loop timed, costs collected."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import asdict

from dlio_bench.batches import is_validation, validation_after
from dlio_bench.counters import EpochCost, PassCost, total
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.plan.orders import Ids, Shape, part_of_pass, steps_of
from dlio_bench.harness.plan.policies import Policy, order_of
from dlio_bench.harness.plan.validation import Passes
from dlio_bench.harness.readers.placed.drawn import Draw
from dlio_bench.harness.readers.session import Reader, Tally, planned
from dlio_bench.harness.run.asked.job import Job
from dlio_bench.harness.run.measured import loop
from dlio_bench.harness.run.measured.consumer import require_same_set
from dlio_bench.harness.run.measured.documents import RankTrial
from dlio_bench.harness.run.measured.site import Delivered, Site
from dlio_bench.harness.run.measured.validation import Pass, passes_seconds
from dlio_bench.harness.storage.cache import Residency
from dlio_bench.harness.storage.counters import HostCpu, cpu_shares, host_cpu
from dlio_bench.harness.timeline import MEETING, TRAINING, StepLog
from dlio_bench.harness.training.trainer import Left, Trainer
from dlio_bench.reports.trials import Inference, Reduced


@dataclass
class TrialTimes:
    """What one rank brings home from a trial."""

    number: int
    seed: int
    plan: list[Ids]  # by epoch, int64 [steps, batch]
    log: StepLog
    starts: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # [steps], since the loop's start
    loop_seconds: float = 0.0
    met: bool = False  # in a barrier behind each step
    enclosing_seconds: list[float] = field(default_factory=list)  # one a segment of the trial
    passes: list[Pass] = field(default_factory=list)  # over the validation split
    left: Left | None = None  # by the trainer
    tally: Tally = field(default_factory=Tally)
    # bytes by epoch, or by `validation_after` an epoch: delivered, and what the plan's reads must ask for
    useful: dict[int, int] = field(default_factory=dict)
    stored: dict[int, int] = field(default_factory=dict)
    delivered: list[Delivered] = field(default_factory=list)  # by epoch
    cpu_seconds: float = 0.0
    host_cpu: list[tuple[HostCpu | None, HostCpu | None]] = field(default_factory=list)  # on each host's first rank
    residency: list[Residency] = field(default_factory=list)  # this rank's share of the files, one a segment
    clock_drift: float = 0.0  # seconds by which wall clock and monotonic clock disagree

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The per-step times of `reports` (see its input contract), and those of `timeline.beyond_last`."""
        epoch = np.repeat(np.arange(len(self.plan)), [len(steps) for steps in self.plan])
        phases, left = self.log.phases(), self.left
        missing = set(TRAINING) - set(() if left is None else left.phases)
        return {
            **{name: seconds for name, seconds in phases.items() if name not in missing},
            **({} if left is None else left.arrays()),
            "start": self.starts,
            "loop": np.array(self.loop_seconds),
            "came": self.log.clock[:, MEETING],
            "left": self.log.clock[:, MEETING + self.met],
            "epoch": epoch,
            **(passes_seconds(self.passes) if self.passes else {}),
        }

    def told(self) -> RankTrial:
        """Everything else."""
        passes = {one.epoch: self._cost(validation_after(one.epoch)) for one in self.passes}
        epochs = []
        for epoch, delivered in enumerate(self.delivered):
            cost = total(PassCost, [self._cost(epoch), *([passes[epoch]] if epoch in passes else ())])
            device, client_cache = delivered.device, delivered.client_cache
            epochs.append(EpochCost(**asdict(cost), bytes_device=device, bytes_client_cache=client_cache))
        compute = [log.phases()["compute"].sum() for log in (self.log, *(one.log for one in self.passes))]
        told = None if self.left is None else self.left.summary
        return RankTrial(
            trial=self.number,
            seed=self.seed,
            enclosing_seconds=self.enclosing_seconds,
            epochs=epochs,
            passes=passes,
            scores=[one.scores for one in self.passes],
            training=told if isinstance(told, Reduced) else None,
            inference=told if isinstance(told, Inference) else None,
            compute_seconds=float(sum(compute)),
            cpu_seconds=self.cpu_seconds,
            host_cpu=cpu_shares(self.host_cpu),
            residency=self.residency,
            clock_drift=self.clock_drift,
        )

    def _cost(self, epoch: int) -> PassCost:
        """Bytes and seconds of an epoch without its pass, or of the pass that the number stands for."""
        read = asdict(self.tally.of(epoch))
        return PassCost(**read, bytes_useful=self.useful.get(epoch, 0), bytes_planned=self.stored.get(epoch, 0))


class Trial:
    """The plan of one trial, ready to run. Every trial has a seed of its own, so that no order is learnt."""

    def __init__(
        self,
        job: Job,
        site: Site,
        shape: Shape,
        policy: Policy,
        number: int,
        passes: Passes | None = None,
        draw: Draw | None = None,
    ) -> None:
        """`draw`: the order of a policy whose placement draws it."""
        self._draw = draw
        self._passes = passes
        self._job, self._site, self._shape, self._number = job, site, shape, number
        self.order = policy.order  # as it is executed
        # this process reads its copies from devices too
        self._copies = policy.rule.files is not None or bool(policy.rule.keeps_samples and job.tiers.disk)
        self._order, self._ordered = order_of(policy), policy.order_known
        self._fit = self._order.fit(shape)
        self.steps = self._fit.steps  # of an epoch; may be lowered
        self.parts = 1  # epochs that a pass over the order is cut into
        self.first_epoch = 0  # of the order: a training that goes on has had those before

    @property
    def different(self) -> int:
        """Samples that come in an epoch over all ranks, each counted once."""
        return min(self._fit.different, self.steps * self._shape.step)

    def ids(self, rank: int) -> list[Ids]:
        """The plan of a rank: for each epoch the sample ids, int64 [steps, batch], -1 where a batch is smaller."""
        return [self._epoch(rank, epoch) for epoch in range(self._job.epochs)]

    def _epoch(self, rank: int, epoch: int) -> Ids:
        seed = self._job.seed + self._number
        if self._draw is not None:
            return self._draw(rank, self.steps, seed)[epoch]
        return part_of_pass(
            self._order, self._shape, rank, self.first_epoch + epoch, seed, steps=self.steps, parts=self.parts
        )

    def of(self, rank: int, epoch: int) -> Ids:
        """What a rank reads in an epoch, or in the pass that the number stands for, in order."""
        if not is_validation(epoch):
            ids = self._epoch(rank, epoch)
            return ids[ids >= 0]
        assert self._passes is not None
        number = self._passes.epochs.index(validation_after(epoch))
        return np.concatenate(self._passes.batches(rank, number, self._job.seed + self._number))

    def passes(self, rank: int) -> list[Pass]:
        """The validation passes of a rank, with room for what they take."""
        found = self._passes
        if found is None:
            return []
        plans = [found.batches(rank, number, self._job.seed + self._number) for number in range(len(found.epochs))]
        return [
            Pass(epoch, batches, StepLog.empty(len(batches), self._job.batch))
            for epoch, batches in zip(found.epochs, plans, strict=True)
        ]

    def run(
        self, name: str, reader: Reader, comm: Comm, trainer: Trainer, at_epoch: Callable[[int], None]
    ) -> TrialTimes:
        """Prepare, time and count. `name`: the reader's. `at_epoch(epoch)` is called at the start of every epoch."""
        job, plan = self._job, self.ids(comm.rank)
        times = TrialTimes(self._number, job.seed + self._number, plan, StepLog.empty(sum(map(len, plan)), job.batch))
        times.passes = self.passes(comm.rank)
        times.useful = {epoch: reader.sample_view.useful(ids[ids >= 0]) for epoch, ids in enumerate(plan)}
        times.useful |= {validation_after(one.epoch): reader.sample_view.useful(one.ids) for one in times.passes}
        # readers are quiet between segments: dropping the cache between epochs makes each epoch one of its own
        segments = [[epoch] for epoch in range(job.epochs)] if job.cache == "cold-epochs" else [list(range(job.epochs))]
        starts = []
        trainer.begin(name, self._number, times.seed)
        for segment in segments:
            times.residency.append(self._site.prepare_cache(comm, job.cache))
            starts.append(self._run_segment(segment, reader, comm, trainer, times, at_epoch))
        times.left = trainer.end()
        if not self._ordered:
            for ids, delivered in zip(plan, times.log.ids.reshape(len(plan), -1), strict=True):
                require_same_set(delivered, ids)
            for one in times.passes:
                require_same_set(one.delivered, one.ids)
        times.starts = np.concatenate(starts)
        return times

    def _run_segment(
        self,
        epochs: list[int],
        reader: Reader,
        comm: Comm,
        trainer: Trainer,
        times: TrialTimes,
        at_epoch: Callable[[int], None],
    ) -> npt.NDArray[np.float64]:
        job, per_epoch = self._job, len(times.plan[0])
        first = epochs[0] * per_epoch
        log = times.log.part(slice(first, first + len(epochs) * per_epoch))
        remaining = iter(epochs)
        delivered: list[Delivered] = []

        def new_epoch() -> None:
            epoch = next(remaining)
            if epoch != epochs[0]:
                delivered.append(self._site.delivered(reader.processes))
            at_epoch(epoch)

        behind = {one.epoch: one for one in times.passes}
        parts: list[tuple[int, Sequence[Ids]]] = []
        for epoch in epochs:
            parts.append((epoch, steps_of(times.plan[epoch])))
            if epoch in behind:
                parts.append((validation_after(epoch), behind[epoch].batches))
        plan = planned(reader.sample_view, parts, self.of)
        steps = [batch for batch in plan if not is_validation(batch.epoch)]
        times.stored |= reader.asks(plan)
        with reader.session(plan, times.tally) as batches:
            delivered.append(self._site.delivered(reader.processes))  # no rank reads before all are in the loop
            before, wall, monotonic, cpu = host_cpu(), time.time(), time.monotonic(), time.process_time()
            elapsed = loop.run(
                comm,
                batches,
                [batch.ids for batch in steps],
                [step % per_epoch == 0 for step in range(len(steps))],
                log,
                trainer=trainer,
                sync=job.sync,
                ordered=self._ordered,
                at_epoch=new_epoch,
                starts=[batch.starts for batch in steps],
                passes={(n + 1) * per_epoch - 1: behind[epoch] for n, epoch in enumerate(epochs) if epoch in behind},
            )
            times.cpu_seconds += time.process_time() - cpu
            if comm.host_rank == 0:
                times.host_cpu.append((before, host_cpu()))
        delivered.append(self._site.delivered(reader.processes))
        comm.barrier()  # a rank that went on to read something else would be counted with its node
        times.clock_drift += (time.time() - wall) - (time.monotonic() - monotonic)
        found = [after - before for before, after in pairwise(delivered)]
        if self._copies and not self._site.emulated:
            found = [replace(one, device=None) for one in found]
        times.delivered += found
        times.enclosing_seconds.append(elapsed.enclosing)
        starts = log.clock[:, 0] - elapsed.started + times.loop_seconds
        times.loop_seconds += elapsed.loop
        times.met = elapsed.met
        return starts
