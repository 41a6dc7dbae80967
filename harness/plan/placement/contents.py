"""What one node keeps: sample ids per tier, in the order in which they are fetched.

Every rank computes the placement of every node from the plan alone, so it knows the holder of a sample without a
message. (Dryden et al., SC'21, section 5, compute it once and share it.)
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.orders import Ids
from dlio_bench.units import format_bytes

Integers = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Sizes = npt.NDArray[np.int64]  # [samples], stored bytes
Mask = npt.NDArray[np.bool_]


class DoesNotApplyError(UsageError):
    """The policy cannot work here: its tiers are too small for what it must keep. The message says how."""


class NodeContents(Struct, frozen=True):
    """One node's share of a placement.

    tiers: for each tier behind the staging buffer (RAM first) int64 ids in fetch order, each id in one tier only.
    copies: bool of the same lengths, true where the sample is taken from another node that keeps it, not from the PFS.
    """

    tiers: tuple[Ids, ...]
    copies: tuple[Mask, ...]

    @property
    def ids(self) -> Ids:
        """All that the node keeps, tier by tier."""
        return np.concatenate(self.tiers) if self.tiers else np.empty(0, np.int64)


def from_file_system(tiers: Sequence[Ids]) -> NodeContents:
    """A node that takes all it keeps from the parallel file system."""
    return NodeContents(tuple(tiers), tuple(np.zeros(len(ids), bool) for ids in tiers))


def cut(ids: Integers, sizes: Sizes, capacities: Sequence[int]) -> list[Ids]:
    """Cut `ids`, in their order, into tiers. A tier takes ids until the next one would overflow it.

    Returns one int64 array for each capacity (bytes), without the ids that fit into no tier. A sample that is too large
    for the rest of a tier closes that tier, as published (SC'21, section 5.1).
    """
    ends = np.cumsum(sizes[ids])
    tiers, first = [], 0
    for capacity in capacities:
        before = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, before + capacity, side="right"))
        tiers.append(ids[first:last].astype(np.int64, copy=False))
        first = last
    return tiers


def must_fit_in_ram(who: str, nodes: int, sizes: Sizes, capacities: Sequence[int]) -> None:
    """DoesNotApplyError unless the RAM of all nodes holds the dataset (S <= N d_1, the published condition)."""
    if int(sizes.sum()) > nodes * capacities[0]:
        raise DoesNotApplyError(
            f"{who} keeps the whole dataset in RAM: {format_bytes(int(sizes.sum()))} on {nodes} nodes of "
            f"{format_bytes(capacities[0])} each. Use more nodes or a larger RAM tier."
        )
