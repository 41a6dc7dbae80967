"""What an engine needs to know of a node, and what it returns."""

import numpy as np
from msgspec import Struct

from dlio_bench.harness.plan.placement.rule import Integers
from dlio_bench.harness.simulator.fills import Copies, Floats, Tiers


class Trace(Struct, frozen=True):
    """One node's accesses, [accesses] each: `size` in MB, the rest as in Copies.

    room: MB that each takes in the staging buffer, if that is not its size.
    """

    size: Floats
    local_done: Floats
    local_tier: Tiers
    remote_done: tuple[Floats, ...]
    room: Floats | None = None


class Outcome(Struct, frozen=True):
    """The result of an engine.

    seconds: the whole run, with fills before the first step. stalls [nodes]: seconds that each node waited for data in
    steps. read [nodes, tiers + 2]: MB read in steps from each local tier, from other nodes, and from the PFS. A sample
    that is both staged and read on demand counts twice.
    """

    seconds: float
    stalls: Floats
    read: Floats


def trace(ids: Integers, sizes: Floats, copies: Copies | None, tiers: int) -> Trace:
    """The trace of a node that reads `ids` in this order; copies None: every sample is only on the PFS."""
    if copies is None:
        never = np.full(len(ids), np.inf)
        return Trace(sizes[ids], never, np.zeros(len(ids), np.int8), (never,) * tiers)
    remote = tuple(done[ids] for done in copies.remote_done)
    return Trace(sizes[ids], copies.local_done[ids], copies.local_tier[ids], remote)
