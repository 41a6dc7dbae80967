"""How often each sample is read by one node over all epochs of a case, counted on its plan."""

import numpy as np
import numpy.typing as npt

from dlio_bench.harness.simulator.cases import Case

NODE = 0  # all nodes have the same distribution


def histogram(case: Case, node: int = NODE) -> npt.NDArray[np.int64]:
    """int64 [epochs + 1]: how many samples of the dataset the node reads 0, 1, ... times."""
    counts = np.zeros(len(case.sizes), np.int32)
    for epoch in range(case.epochs):
        counts[case.epoch(epoch)[:, node]] += 1  # no sample comes twice in an epoch
    return np.bincount(counts, minlength=case.epochs + 1)
