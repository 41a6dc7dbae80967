"""One case to simulate: a dataset that some nodes of a machine read for some epochs.

The published simulations are scenarios: a dataset's sizes, its nodes and batch, and the machine they ran on.
"""

from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.system import MB, System
from dlio_bench.harness.plan.draws import Purpose, draw_words, permutation_of
from dlio_bench.harness.plan.placement.rule import Sizes
from dlio_bench.harness.simulator.model import Costs, Floats, costs

NODE = 0  # the node whose accesses are counted: all nodes have the same distribution


class Case(Struct, frozen=True, dict=True):
    """`sizes` int64 [samples] bytes; `batch` samples a node and step; every epoch a new global shuffle from `seed`.

    `step_seconds`: how long a step computes, whatever the sizes of its samples; `step_time` tells its source in words.
    None: the system's rate in MB/s and the bytes of each node's batch decide. UsageError when an epoch has no step.
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
        """Steps in an epoch. Samples that do not fill a step are dropped."""
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
        """int64 [steps, nodes, batch]: what every node reads in epoch `number`, as in orders.global_shuffle."""
        used = self.steps * self.nodes * self.batch
        order = permutation_of(draw_words(Purpose.SAMPLES_OF_ALL, 0, number, self.seed, len(self.sizes)))[:used]
        return order.reshape(self.steps, self.nodes, self.batch)

    @cached_property
    def sequences(self) -> list[npt.NDArray[np.int32]]:
        """The accesses of every node over all epochs, int32 [accesses] each."""
        sequences = np.empty((self.nodes, self.epochs, self.steps, self.batch), np.int32)
        for number in range(self.epochs):
            sequences[:, number] = self.epoch(number).swapaxes(0, 1)
        return list(sequences.reshape(self.nodes, -1))

    @cached_property
    def megabytes(self) -> Floats:
        """float64 [samples], MB."""
        return self.sizes / MB

    def access_histogram(self) -> npt.NDArray[np.int64]:
        """int64 [epochs + 1]: how many samples of the dataset NODE reads 0, 1, ... times in all epochs."""
        counts = np.zeros(len(self.sizes), np.int32)
        for epoch in range(self.epochs):
            counts[self.epoch(epoch)[:, NODE]] += 1  # no sample comes twice in an epoch
        return np.bincount(counts, minlength=self.epochs + 1)


_THESIS = "R. Boehringer, Master's thesis, ETH Zurich, 2020, section 5.2.1"


class Scenario(Struct, frozen=True):
    """`samples` of Normal(mean, deviation) MB, redrawn while negative, read in global batches of `nodes` * `batch`."""

    name: str
    title: str
    samples: int
    mean: float
    deviation: float
    nodes: int
    batch: int  # samples a node and step
    epochs: int
    system: str
    source: str

    @property
    def simulated(self) -> bool:
        """Whether its results on the performance model are published."""
        return self.source == _THESIS

    def sizes(self, seed: int) -> Sizes:
        """int64 [samples], bytes of each sample."""
        generator = np.random.Generator(np.random.Philox(seed))
        drawn = generator.normal(self.mean, self.deviation, self.samples)
        while len(negative := np.flatnonzero(drawn < 0)):
            drawn[negative] = generator.normal(self.mean, self.deviation, len(negative))
        rounded: Sizes = np.rint(drawn * MB).astype(np.int64)
        return rounded


# Epochs are not printed: they follow from the numbers of steps on the axes of the thesis' figures 5.4 to 5.7.
_ROWS = (
    Scenario("S1", "the dataset fits into a node's RAM", 10_000, 0.027, 0.01, 4, 25, 10, "deck", _THESIS),
    Scenario("S2", "the dataset fits into a node's tiers", 150_000, 1.0, 0.1, 4, 25, 10, "deck", _THESIS),
    Scenario("S3", "the dataset fits into the tiers of all nodes", 300_000, 2.0, 0.2, 4, 25, 5, "deck", _THESIS),
    Scenario("S4", "the dataset is larger than the tiers of all nodes", 400_000, 3.0, 0.2, 4, 25, 5, "deck", _THESIS),
    Scenario(
        "imagenet22k", "ImageNet-22k on 1024 nodes", 14_197_122, 0.1077, 0.2, 1024, 32, 100, "sc21",
        "Dryden et al., SC'21, section 6.1; nodes and epochs are this project's",
    ),
)  # fmt: skip

SCENARIOS: dict[str, Scenario] = {row.name: row for row in _ROWS}
