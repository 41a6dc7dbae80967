"""The memory and time that a rank needs to lay out a large job: `python tests/perf/lay_out_memory.py --help`.

Every rank does this by itself, so the peak counts once for each rank of a node.
"""

import argparse
import resource
import time

import numpy as np

from dlio_bench.harness.plan.orders import find_order
from dlio_bench.harness.plan.policies import PLACEMENTS
from dlio_bench.harness.plan.shape import Shape
from dlio_bench.harness.readers.placed.layout import Sequences, lay_out

SIZE = 107_700  # bytes of a sample: the mean of ImageNet-22k (Dryden et al., SC'21, section 6.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policy", choices=[name for name, rule in PLACEMENTS.items() if rule.keeps_samples])
    parser.add_argument("--samples", type=int, default=14_197_122)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--ranks-per-node", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--keep", type=float, default=0.3, help="what a node's tier holds of the dataset")
    asked = parser.parse_args()
    shape = Shape(asked.samples, asked.ranks, asked.batch, ranks_per_node=asked.ranks_per_node)
    order, sizes = find_order("global-shuffle"), np.full(asked.samples, SIZE, np.int64)
    start = time.perf_counter()
    read = Sequences(
        lambda rank, epoch: order(shape, rank, epoch, 1).ravel(), asked.ranks, asked.ranks_per_node, range(asked.epochs)
    )
    capacity = int(asked.keep * asked.samples * SIZE)
    found = lay_out(PLACEMENTS[asked.policy], read, sizes, asked.samples, (capacity,), 0)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{asked.policy}: {asked.samples} samples, {asked.epochs} epochs, {asked.ranks} ranks: keeps {len(found.ids)}, "
        f"peak {peak / 1e9:.2f} GB, {time.perf_counter() - start:.1f} s"
    )


if __name__ == "__main__":
    main()
