"""One case to simulate: a dataset, read by so many nodes of a machine for so many epochs."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.system import System
from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.plan.placement.contents import Sizes
from dlio_bench.harness.simulator.fills import Floats
from dlio_bench.harness.simulator.model import MB, Costs, costs


def quick_permutation(samples: int, epoch: int, seed: int) -> Ids:
    """orders.permutation in a third of its time."""
    return sorting(np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(samples))


def sorting(words: npt.NDArray[np.uint64]) -> Ids:
    """np.argsort(words, kind="stable"), quickly: each word's position replaces its last bits, and numbers are sorted.

    What is equal but for those bits, some ten of 10 million random words, is put in order by the whole words.
    """
    bits = np.uint64((len(words) - 1).bit_length())
    last = (np.uint64(1) << bits) - np.uint64(1)
    packed = words & ~last
    packed |= np.arange(len(words), dtype=np.uint64)
    packed.sort()
    order: Ids = (packed & last).view(np.int64)
    packed >>= bits
    alike = np.flatnonzero(packed[1:] == packed[:-1])
    at = np.union1d(alike, alike + 1)
    order[at] = order[at][np.lexsort((order[at], words[order[at]]))]
    return order


@dataclass(frozen=True)
class Case:
    """`sizes` int64 [samples] bytes; `batch` samples a node and step; every epoch a new global shuffle from `seed`.

    `step_seconds`: what a step computes, whatever its samples weigh, and the `step_time` that it comes from, in words;
    None: the system's rate decides, by the bytes of each node's batch.
    UsageError when an epoch has no whole step.
    """

    title: str
    sizes: Sizes
    nodes: int
    batch: int
    epochs: int
    seed: int
    system: System
    step_seconds: float | None = None
    step_time: str = ""

    def __post_init__(self) -> None:
        if not self.steps:
            raise UsageError(
                f"{self.nodes} nodes of {self.batch} samples a step need {self.nodes * self.batch} samples; "
                f"{self.title} has {len(self.sizes)}. Use fewer nodes."
            )

    @property
    def steps(self) -> int:
        """Steps an epoch; what does not fill one is dropped."""
        return len(self.sizes) // (self.nodes * self.batch)

    @property
    def per_epoch(self) -> int:
        """Accesses of a node in an epoch."""
        return self.steps * self.batch

    @property
    def accesses(self) -> int:
        """Accesses of all nodes in all epochs."""
        return self.per_epoch * self.nodes * self.epochs

    @cached_property
    def costs(self) -> Costs:
        """The performance model's costs."""
        return costs(self.system, self.nodes, None if self.step_seconds is None else self.step_seconds / self.batch)

    @property
    def capacities(self) -> tuple[int, ...]:
        """Bytes of the tiers behind the staging buffer."""
        return tuple(tier.capacity for tier in self.system.tiers[1:])

    def epoch(self, number: int) -> npt.NDArray[np.int64]:
        """int64 [steps, nodes, batch]: what every node reads in epoch `number`, as orders.global_shuffle has it."""
        used = self.steps * self.nodes * self.batch
        order = quick_permutation(len(self.sizes), number, self.seed)[:used]
        return order.reshape(self.steps, self.nodes, self.batch)

    @cached_property
    def sequences(self) -> list[npt.NDArray[np.int32]]:
        """The accesses of every node over all epochs, int32 [accesses] each."""
        own = np.empty((self.nodes, self.epochs, self.steps, self.batch), np.int32)
        for number in range(self.epochs):
            own[:, number] = self.epoch(number).swapaxes(0, 1)
        return list(own.reshape(self.nodes, -1))

    @cached_property
    def megabytes(self) -> Floats:
        """float64 [samples], MB."""
        return self.sizes / MB
