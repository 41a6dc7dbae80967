"""One trial of one reader on one rank: prepares the cache, makes the plan, times the loop, collects the costs."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from dlio_bench.batches import Batch, is_validation, validation_after
from dlio_bench.counters import EpochCost, PassCost, total
from dlio_bench.harness.cluster.clocks import drift, wall_ahead
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.commands.checkpoints.beside import Beside
from dlio_bench.harness.commands.run.asked.choice import uses_tensorflow
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.asked.tracing import TENSORFLOW, XPLANE
from dlio_bench.harness.commands.run.measured import loop
from dlio_bench.harness.commands.run.measured.consumer import require_everything, require_same_set
from dlio_bench.harness.commands.run.measured.documents import RankTrial
from dlio_bench.harness.commands.run.measured.site import Delivered, Site
from dlio_bench.harness.commands.run.measured.validation import Pass, passes_seconds
from dlio_bench.harness.plan.orders import Ids, Shape, part_of_pass, steps_of
from dlio_bench.harness.plan.policies import AHEAD, ON_DEMAND, Policy, order_of
from dlio_bench.harness.plan.validation import Passes
from dlio_bench.harness.readers.placed.drawn import Draw
from dlio_bench.harness.readers.session import Planned, Reader, Tally, planned
from dlio_bench.harness.readers.streamed import Streamed
from dlio_bench.harness.storage.cache import Residency
from dlio_bench.harness.storage.counters import HostCpu, cpu_shares, host_cpu
from dlio_bench.harness.timeline import MEETING, StepLog, beyond_last
from dlio_bench.harness.training import tf_trace
from dlio_bench.harness.training.tf_trace import Traced
from dlio_bench.harness.training.trainer import Left, Trainer
from dlio_bench.reports.document.marks import COLD_EPOCHS
from dlio_bench.reports.document.trials import Inference, Reduced
from dlio_bench.reports.numbers.metrics import TRAINING


class TrialTimes(Struct):
    """What one rank measures in a trial."""

    number: int
    seed: int
    plan: list[Ids]  # by epoch, int64 [steps, batch]
    log: StepLog
    starts: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # [steps], since the loop's start
    loop_seconds: float = 0.0
    loops: list[tuple[float, float]] = field(default_factory=list)  # when that of each segment started and ended
    met: bool = False  # in a barrier after each step
    enclosing_seconds: list[float] = field(default_factory=list)  # of each segment of the trial
    passes: list[Pass] = field(default_factory=list)  # over the validation split
    left: Left | None = None  # by the trainer
    tally: Tally = field(default_factory=Tally)
    # bytes by epoch, or by `validation_after` an epoch: delivered, and requested by the plan's reads
    useful: dict[int, int] = field(default_factory=dict)
    stored: dict[int, int] = field(default_factory=dict)
    delivered: list[Delivered] = field(default_factory=list)  # by epoch
    cpu_seconds: float = 0.0
    host_cpu: list[tuple[HostCpu | None, HostCpu | None]] = field(default_factory=list)  # on each host's first rank
    residency: list[Residency] = field(default_factory=list)  # of this rank's share of the files, for each segment
    clock_drift: float = 0.0  # wall clock less monotonic clock, seconds
    traced: Traced | None = None  # what TensorFlow's threads did
    batches: list[int] | None = None  # that this rank took in each epoch, if ranks get them as they ask for them

    def cut(self, steps: int) -> "TrialTimes":
        """With so many steps of each epoch; those behind them delivered nothing."""
        rows = np.arange(len(self.log.ids)).reshape(len(self.plan), -1)[:, :steps].ravel()
        log = StepLog(self.log.clock[rows], self.log.samples[rows], self.log.ids[rows])
        return replace(self, log=log, starts=self.starts[rows], plan=[ids[:steps] for ids in self.plan])

    @property
    def missing_phases(self) -> set[str]:
        """Phases of a step that this trial's trainer does not have; its clock runs through them."""
        return set(TRAINING) - set(() if self.left is None else self.left.phases)

    def arrays(self, peers: Comm) -> dict[str, npt.NDArray[Any]]:
        """The per-step times of `reports` (see its input contract) on this rank. All ranks of a model (`peers`) call it
        together."""
        epoch = np.repeat(np.arange(len(self.plan)), [len(steps) for steps in self.plan])
        phases, left = self.log.phases(), self.left
        return {
            **{name: seconds for name, seconds in phases.items() if name not in self.missing_phases},
            **({} if left is None else left.arrays()),
            "start": self.starts,
            "loop": np.array(self.loop_seconds),
            **self._barrier(peers),
            "epoch": epoch,
            **(passes_seconds(self.passes) if self.passes else {}),
        }

    def _barrier(self, peers: Comm) -> dict[str, npt.NDArray[Any]]:
        """Seconds in barriers after the last rank had come. Nothing if there are several hosts: they share no clock."""
        if peers.host_size < peers.size:
            return {}
        last = peers.greatest(np.ascontiguousarray(self.log.clock[:, MEETING]))
        return {"barrier": beyond_last(self.log.clock[:, MEETING + self.met], last)}

    def summary(self) -> RankTrial:
        """Everything but the arrays."""
        passes = {pass_.epoch: self._cost(validation_after(pass_.epoch)) for pass_ in self.passes}
        epochs = []
        for epoch, delivered in enumerate(self.delivered):
            cost = total(PassCost, [self._cost(epoch), *([passes[epoch]] if epoch in passes else ())])
            device, client_cache = delivered.device, delivered.client_cache
            epochs.append(EpochCost(**asdict(cost), bytes_device=device, bytes_client_cache=client_cache))
        compute = [log.phases()["compute"].sum() for log in (self.log, *(pass_.log for pass_ in self.passes))]
        outcome = None if self.left is None else self.left.summary
        return RankTrial(
            trial=self.number,
            seed=self.seed,
            enclosing_seconds=self.enclosing_seconds,
            epochs=epochs,
            passes=passes,
            scores=[pass_.scores for pass_ in self.passes],
            training=outcome if isinstance(outcome, Reduced) else None,
            inference=outcome if isinstance(outcome, Inference) else None,
            load=self.left.load if isinstance(self.left, Beside) else None,
            compute_seconds=float(sum(compute)),
            cpu_seconds=self.cpu_seconds,
            host_cpu=cpu_shares(self.host_cpu),
            residency=self.residency,
            clock_drift=self.clock_drift,
            batches=None if self.batches is None else sum(self.batches),
        )

    def _cost(self, epoch: int) -> PassCost:
        """Bytes and seconds of an epoch without its validation pass, or of the pass that the number means."""
        read = asdict(self.tally.of(epoch))
        return PassCost(**read, bytes_useful=self.useful.get(epoch, 0), bytes_planned=self.stored.get(epoch, 0))


def _published(reader: Streamed, epoch: int) -> Delivered:
    """What storage has delivered to producers in an epoch, its validation pass included; on rank 0."""
    counts = [
        closing.delivered[number]
        for closing in reader.published
        for number in (epoch, validation_after(epoch))
        if number in closing.delivered
    ]
    device, cache = [each for each, _ in counts], [each for _, each in counts]
    return Delivered(_sum_known(device), _sum_known(cache))


def _sum_known(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def most_steps(trials: Sequence[TrialTimes], comm: Comm) -> int:
    """The most batches that a rank has taken in an epoch of any of these trials, over all ranks."""
    most = max(max(trial.batches or [0]) for trial in trials)
    return int(comm.greatest(np.array([most], np.float64))[0])


class Trial:
    """The plan of one trial, ready to run. Each trial has its own seed, so that nothing learns an order."""

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
        """`draw`: the order, if the placement of the policy draws it."""
        self._draw = draw
        self._passes = passes
        self._job, self._site, self._shape, self._number = job, site, shape, number
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
        """The ids that a rank reads, in order, in an epoch or in the validation pass that the number means."""
        if not is_validation(epoch):
            ids = self._epoch(rank, epoch)
            return ids[ids >= 0]
        assert self._passes is not None
        number = self._passes.epochs.index(validation_after(epoch))
        return np.concatenate(self._passes.batches(self._job.model_of(rank)[1], number, self._seed))

    def passes(self, rank: int) -> list[Pass]:
        """The validation passes of a rank, with empty logs."""
        passes = self._passes
        if passes is None:
            return []
        number_of = self._job.model_of(rank)[1]
        plans = ((epoch, passes.batches(number_of, number, self._seed)) for number, epoch in enumerate(passes.epochs))
        return [
            Pass(epoch, batches, StepLog.empty(len(batches), self._job.batch, passed=epoch)) for epoch, batches in plans
        ]

    def run(
        self,
        name: str,
        reader: Reader,
        comm: Comm,
        peers: Comm,
        trainer: Trainer,
        at_epoch: Callable[[int], None],
        begun: Callable[[TrialTimes], None],
    ) -> TrialTimes:
        """Run the trial of a reader of this name. `at_epoch(epoch)` is called at the start of every epoch.

        peers: the ranks of this rank's model. begun: gets what is measured, before the clock starts.
        """
        job, plan = self._job, self.ids(comm.rank)
        log = StepLog.empty(sum(map(len, plan)), job.batch, epochs=len(plan))
        times = TrialTimes(self._number, self._seed, plan, log)
        times.passes = self.passes(comm.rank)
        times.useful = {epoch: reader.sample_view.useful(ids[ids >= 0]) for epoch, ids in enumerate(plan)}
        times.useful |= {validation_after(pass_.epoch): reader.sample_view.useful(pass_.ids) for pass_ in times.passes}
        # The cache can only be prepared while readers rest: between sessions, and in the pauses of a session of ours.
        everything, apart = [list(range(job.epochs))], [[epoch] for epoch in range(job.epochs)]
        segments = apart if job.cache == COLD_EPOCHS else everything
        sessions = everything if self._policy.delivery in (ON_DEMAND, AHEAD) else segments
        starts = []
        run = partial(
            self._run_segment,
            reader=reader, comm=comm, peers=peers, trainer=trainer, times=times, at_epoch=at_epoch,
        )  # fmt: skip
        trainer.begin(name, self._number, times.seed)
        begun(times)
        with self._recording() as trace:
            for session in sessions:
                own = [segment for segment in segments if segment[0] in session]
                read = self._plan_read(session, reader, times, pauses=len(own) > 1)
                times.stored |= reader.asks(read)
                of_epoch: dict[int, list[Planned]] = defaultdict(list)
                for batch in read:
                    of_epoch[batch.epoch].append(batch)
                with ExitStack() as stack:
                    for segment in own:
                        times.residency.append(self._site.prepare_cache(comm, job.cache))
                        if segment is own[0]:
                            batches = stack.enter_context(self._session(reader, read, times.tally))
                        end = stack.close if segment is own[-1] else _nothing
                        steps = [batch for epoch in segment for batch in of_epoch[epoch]]
                        starts.append(run(segment, steps, batches, end, trace if segment[0] == 0 else None))
            if trace is not None:
                delivered = times.log.ids[: trace.steps]
                times.traced = trace.read(int(reader.sample_view.sizes(delivered[delivered >= 0]).sum()))
        times.left = trainer.end()
        if not self._ordered and not self._policy.demanded:
            for ids, delivered in zip(plan, times.log.ids.reshape(len(plan), -1), strict=True):
                require_same_set(delivered, ids)
            for pass_ in times.passes:
                require_same_set(pass_.delivered, pass_.ids)
        times.starts = np.concatenate(starts)
        if self._policy.demanded:
            self._settle(times, reader, comm)
        return times

    def _settle(self, times: TrialTimes, reader: Reader, comm: Comm) -> None:
        """What this rank got is its plan. DataError where all ranks together did not get the plan of all, once."""
        taken = times.log.ids.reshape(len(times.plan), -1, self._job.batch)
        for epoch, (of_all, of_rank) in enumerate(zip(times.plan, taken, strict=True)):
            require_everything(comm, of_rank, of_all)
            ids, view = of_rank[of_rank >= 0], reader.sample_view
            times.useful[epoch], times.stored[epoch] = view.useful(ids), view.stored(ids)
        times.plan = list(taken)
        times.batches = (taken >= 0).any(axis=2).sum(axis=1).tolist()

    def _session(
        self, reader: Reader, plan: Sequence[Planned], tally: Tally
    ) -> AbstractContextManager[Iterator[Batch | None]]:
        if not self._policy.demanded:
            return reader.session(plan, tally)
        assert isinstance(reader, Streamed)
        return reader.demanded(plan, tally)

    def _recording(self) -> AbstractContextManager[tf_trace.Recording | None]:
        """The trace of TensorFlow, if this trial is to have one: the last of a reader or network of TensorFlow's."""
        job = self._job
        last = self._number == job.all_trials - 1
        if TENSORFLOW not in job.options.trace or not last or not uses_tensorflow(job, self._policy):
            return nullcontext()
        return tf_trace.recording(job.options.trace_steps, keep=XPLANE in job.options.trace)

    def _plan_read(self, epochs: list[int], reader: Reader, times: TrialTimes, *, pauses: bool) -> list[Planned]:
        """All that a session reads: of each of its epochs the training batches, and those of a validation pass."""
        pass_after = {pass_.epoch: pass_ for pass_ in times.passes}
        parts: list[tuple[int, Sequence[Ids]]] = []
        for epoch in epochs:
            parts.append((epoch, steps_of(times.plan[epoch])))
            if epoch in pass_after:
                parts.append((validation_after(epoch), pass_after[epoch].batches))
        return planned(reader.sample_view, parts, self.ids_read, pauses=pauses)

    def _run_segment(
        self,
        epochs: list[int],
        steps: Sequence[Planned],
        batches: Iterator[Batch | None],
        end: Callable[[], None],
        trace: tf_trace.Recording | None,
        *,
        reader: Reader,
        comm: Comm,
        peers: Comm,
        trainer: Trainer,
        times: TrialTimes,
        at_epoch: Callable[[int], None],
    ) -> npt.NDArray[np.float64]:
        """Run epochs with no pause in between. steps: their batches; end: called when its loop is over."""
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

        pass_after = {pass_.epoch: pass_ for pass_ in times.passes}
        delivered.append(self._site.delivered(reader.processes))  # no rank reads before all are in the loop
        if trace is not None:
            trace.begin()
        before, wall, cpu = host_cpu(), wall_ahead(), time.process_time()
        elapsed = loop.run(
            comm,
            batches,
            [] if self._policy.demanded else [batch.ids for batch in steps],
            [step % per_epoch == 0 for step in range(len(steps))],
            log,
            trainer=trainer,
            sync=job.sync,
            ordered=self._ordered,
            at_epoch=new_epoch,
            starts=[batch.starts for batch in steps],
            passes={
                number * per_epoch - 1: pass_after[epoch]
                for number, epoch in enumerate(epochs, start=1)
                if epoch in pass_after
            },
            behind={} if trace is None else trace.behind(len(steps)),
            peers=peers,
        )
        times.cpu_seconds += time.process_time() - cpu
        if comm.host_rank == 0:
            times.host_cpu.append((before, host_cpu()))
        if trace is not None:
            trace.end()
        end()
        delivered.append(self._site.delivered(reader.processes))
        comm.barrier()  # until all have counted: the next reads of a rank must not count here with its node
        times.clock_drift += drift(wall, wall_ahead())
        by_epoch = [after - before for before, after in pairwise(delivered)]
        if isinstance(reader, Streamed):  # other processes have read
            by_epoch = [_published(reader, epoch) for epoch in epochs]
            times.cpu_seconds += sum(closing.cpu_seconds for closing in reader.published)
        if self._copies and not self._site.emulated and self._site.dataset.store is None:
            by_epoch = [replace(delivery, device=None) for delivery in by_epoch]
        times.delivered += by_epoch
        times.enclosing_seconds.append(elapsed.enclosing)
        starts = log.clock[:, 0] - elapsed.started + times.loop_seconds
        times.loop_seconds += elapsed.loop
        times.loops.append((elapsed.started, elapsed.started + elapsed.loop))
        times.met = elapsed.met
        return starts


def _nothing() -> None:
    """The end of a segment whose session goes on."""
