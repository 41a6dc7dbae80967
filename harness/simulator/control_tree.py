"""The hierarchical control plane of SC'18's climate run: a tree by which ranks agree on which gradients to add up.

Messages are counted on the tree; no time is modelled. Source: Kurth et al., Exascale Deep Learning for Climate
Analytics, SC'18, and the Horovod of its authors, horovod/common/operations.cc (HOROVOD_CONTROL_RADIX).
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from dlio_bench.harness.plan.orders import Ids
from dlio_bench.reports.simulation.control_tree import ControlTree, Tree

FLAT = 0  # the radix that stands for all other ranks as children of rank 0, as in Horovod before


def parents(ranks: int, radix: int) -> Ids:
    """int64 [ranks]: the parent of each rank; -1 of rank 0, the root.

    The first of a range of ranks is the root of its tree. The others are cut into `radix` ranges, as equal as can be
    and the longer ones first, whose first ranks are its children.
    """
    found = np.full(ranks, -1, np.int64)
    width = max(1, ranks - 1) if radix == FLAT else radix
    open_ranges = [(0, ranks)]
    while open_ranges:
        root, end = open_ranges.pop()
        size, longer = divmod(end - root - 1, width)
        begin = root + 1
        for number in range(min(width, end - begin)):
            child, begin = begin, begin + size + (number < longer)
            found[child] = root
            if begin - child > 1:
                open_ranges.append((child, begin))
    return found


def messages(parent: Ids) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """int64 [ranks] each: messages in and out of each rank until all have agreed on one tensor.

    A rank tells its parent once it and all its children are ready, and hands the parent's response to its children:
    1 + children in and out, without the 1 at the root. Tensors that are ready together share messages, so that these
    are the most that a tensor costs.
    """
    children = np.bincount(parent[1:], minlength=len(parent))
    inner = (parent >= 0).astype(np.int64)
    return children + inner, inner + children


def depth(parent: Ids) -> int:
    """Messages in a row from the farthest rank to the root. A parent's number is below its children's."""
    steps = np.zeros(len(parent), np.int64)
    for rank in range(1, len(parent)):
        steps[rank] = steps[parent[rank]] + 1
    return int(steps.max())


def count_messages(ranks: int, radices: Iterable[int]) -> ControlTree:
    """The document of `simulate --control-tree` for `ranks` ranks."""
    trees = []
    for radix in radices:
        parent = parents(ranks, radix)
        incoming, outgoing = messages(parent)
        trees.append(
            Tree(
                radix=radix,
                root_in=int(incoming[0]),
                root_out=int(outgoing[0]),
                most_in=int(incoming.max()),
                most_out=int(outgoing.max()),
                messages=int(outgoing.sum()),
                depth=depth(parent),
            )
        )
    return ControlTree(ranks=ranks, trees=trees)
