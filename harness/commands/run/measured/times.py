"""What one rank measures in a trial."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from dlio_bench.batches import validation_after
from dlio_bench.counters import EpochCost, PassCost, total
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.commands.run.measured.documents import RankTrial
from dlio_bench.harness.commands.run.measured.site import Delivered
from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.readers.session import Tally
from dlio_bench.harness.storage.cache import HostCpu, Residency, cpu_shares
from dlio_bench.harness.timeline import MEETING, StepLog, beyond_last
from dlio_bench.harness.training.tf_trace import Traced
from dlio_bench.harness.training.trainer import TrainerRecord
from dlio_bench.reports.document.trials import Inference, RankLoad, Reduced
from dlio_bench.reports.numbers.metrics import TRAINING


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
    def delivered_ids(self) -> Ids:
        """All ids that came, int64 [samples]."""
        return self.log.ids[self.log.ids >= 0]

    @property
    def marks(self) -> npt.NDArray[np.uint64]:
        """The marks of what came, uint64 [samples]."""
        return self.log.samples[self.log.ids >= 0]


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
    left: TrainerRecord | None = None  # by the trainer
    phases: set[str] = field(default_factory=set)  # of a step, that not every run has and this one had
    arrays_beside: dict[str, npt.NDArray[Any]] = field(default_factory=dict)  # more arrays for the result, by name
    passes: list[Pass] = field(default_factory=list)  # over the validation split
    load: RankLoad | None = None  # checkpoints that were written beside the input
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

    def first_steps(self, steps: int) -> "TrialTimes":
        """With so many steps of each epoch; those behind them delivered nothing."""
        rows = np.arange(len(self.log.ids)).reshape(len(self.plan), -1)[:, :steps].ravel()
        log = StepLog(self.log.clock[rows], self.log.samples[rows], self.log.ids[rows])
        return replace(self, log=log, starts=self.starts[rows], plan=[ids[:steps] for ids in self.plan])

    @property
    def missing_phases(self) -> set[str]:
        """Phases of a step that nothing fills in this trial; its clock runs through them."""
        return set(TRAINING) - self.phases

    def arrays(self, peers: Comm) -> dict[str, npt.NDArray[Any]]:
        """The per-step times of `reports` (see its input contract) on this rank. All ranks of a model (`peers`) call it
        together."""
        epoch = np.repeat(np.arange(len(self.plan)), [len(steps) for steps in self.plan])
        phases = self.log.phases()
        return {
            **{name: seconds for name, seconds in phases.items() if name not in self.missing_phases},
            **({} if self.left is None else self.left.arrays()),
            "start": self.starts,
            "loop": np.array(self.loop_seconds),
            **self._barrier(peers),
            "epoch": epoch,
            **self.arrays_beside,
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
            load=self.load,
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


def most_steps(trials: Sequence[TrialTimes], comm: Comm) -> int:
    """The most batches that a rank has taken in an epoch of any of these trials, over all ranks."""
    most = max(max(trial.batches or [0]) for trial in trials)
    return int(comm.greatest(np.array([most], np.float64))[0])
