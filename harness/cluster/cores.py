"""The cores of a rank: those that it is bound to, and of cores that it shares with other ranks its part."""

import math
import os
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from dlio_bench.harness.cluster.environment import usable_cores

Cpus = frozenset[int]


class Cores(NamedTuple):
    """What a rank can compute with, in processors as the kernel counts them.

    rank: its part, fractions included. host: the processors that ranks of its host may run on. bound: how many
    processors the rank may run on; None if those are all that the machine has.
    """

    rank: float
    host: Cpus
    bound: int | None


def cores_of(cpus: Cpus, of_ranks: Sequence[Cpus], usable: int, machine: int) -> Cores:
    """The cores of the rank that may run on `cpus`.

    of_ranks: the processors of each rank of its host, itself included. A processor counts for a rank as 1 / ranks that
    may run there. usable: of all these processors; less than there are where a control group has a quota, which then
    cuts all parts alike. machine: how many processors the machine has.
    """
    ranks_on = Counter(cpu for each in of_ranks for cpu in each)
    whole = math.lcm(*ranks_on.values())  # in integers, so that two halves are a core
    part = sum(whole // ranks_on[cpu] for cpu in cpus)
    bound = len(cpus) if len(cpus) < machine else None
    return Cores(part * usable / (whole * len(ranks_on)), frozenset(ranks_on), bound)


def allowed() -> Cpus:
    """The processors that this process may run on (sched_getaffinity(2))."""
    return frozenset(os.sched_getaffinity(0))


def here(of_ranks: Sequence[Cpus]) -> Cores:
    """The cores of this process, which is a rank beside others of its host; of_ranks: as for cores_of."""
    usable = usable_cores(frozenset().union(*of_ranks))
    return cores_of(allowed(), of_ranks, usable, os.cpu_count() or 1)
