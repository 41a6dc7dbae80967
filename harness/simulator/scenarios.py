"""The scenarios of the published simulations: a dataset's sizes, its nodes and batch, and the machine they ran on."""

import numpy as np
from msgspec import Struct

from dlio_bench.harness.cluster.system import MB
from dlio_bench.harness.plan.placement.rule import Sizes

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
