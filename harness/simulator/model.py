"""The performance model: seconds per MB of every step a sample takes.

Symbols and equation numbers: T = Boehringer's thesis (ETH, 2020), chapter 3; the same model is in Dryden et al., SC'21,
section 4. As in the simulations published there, a thread that reads a tier gets the tier's whole rate r_j(p_j), and
every thread gets the node's share of the PFS. So the rates of threads add up (eq. 3.3), without contention for tiers.
"""

from statistics import NormalDist

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.system import MB, System

Floats = npt.NDArray[np.float64]


class Costs(Struct, frozen=True):
    """Seconds per MB on one node of a system with `nodes` nodes; `staging` in MB.

    `sample`: seconds that every sample computes in addition, whatever its size: a workload's step time over its batch.
    pfs[gamma] is the cost of reading the PFS while gamma nodes do (index 0 repeats 1). `local` and `remote` are indexed
    by caching tier, RAM first. `write` is preprocessing and storing in the staging buffer, the same for any source.
    """

    nodes: int
    compute: float
    write: float
    pfs: tuple[float, ...]
    local: tuple[float, ...]
    remote: tuple[float, ...]
    staging: float
    staging_threads: int
    threads: tuple[int, ...]
    sample: float = 0.0

    @property
    def worst_pfs(self) -> float:
        """The PFS while all nodes read: gamma = N."""
        return self.pfs[self.nodes]

    def batch_seconds(self, megabytes: float, samples: int) -> float:
        """How long a node computes a batch."""
        return megabytes * self.compute + samples * self.sample


def costs(system: System, nodes: int, sample: float | None = None) -> Costs:
    """The costs of a system at a node count. UsageError when neither `sample` nor the system gives a compute time.

    `sample`: seconds that a sample computes, whatever its size. None: the system's rate in MB/s and the size decide.
    """
    if sample is None and system.compute is None:
        raise UsageError(f"System {system.name} has no compute rate. Add compute = MB/s a node, or name a workload.")
    staging, *tiers = system.tiers
    share = [min(system.pfs_link, system.pfs.at(gamma) / gamma) for gamma in range(1, nodes + 1)]  # eq. 3.5
    reads = [tier.read.at(tier.threads) for tier in tiers]
    return Costs(
        nodes=nodes,
        compute=0.0 if sample is not None or system.compute is None else 1 / system.compute,
        write=max(1 / system.preprocess, staging.threads / staging.write.at(staging.threads)),  # eq. 3.4
        pfs=(1 / share[0], *(1 / rate for rate in share)),
        local=tuple(1 / rate for rate in reads),  # eq. 3.7
        # eq. 3.6; without a known network nothing is read from other nodes
        remote=tuple(1 / min(system.network, rate) if system.network else float("inf") for rate in reads),
        staging=staging.capacity / MB,
        staging_threads=staging.threads,
        threads=tuple(tier.threads for tier in tiers),
        sample=sample or 0.0,
    )


class Outcome(Struct, frozen=True):
    """The result of an engine.

    seconds: the whole run, with fills before the first step. stalls [nodes]: seconds that each node waited for data in
    steps. read [nodes, tiers + 2]: MB read in steps from each local tier, from other nodes, and from the PFS. A sample
    that is both staged and read on demand counts twice.
    """

    seconds: float
    stalls: Floats
    read: Floats


class Crowd(Struct, frozen=True):
    """All `nodes` of a job of which only some are simulated. largest [steps]: MB of the largest batch on any node.

    A step then ends at mean + k * deviation of the ends on the simulated nodes. k is the place, in deviations, of the
    largest batch of all nodes among the batches of the simulated ones. That is exact if time is proportional to bytes,
    as in pure compute; otherwise it scales with the spread of the waits. If all samples have one size, k is that of the
    largest of `nodes` normal numbers.
    """

    largest: Floats
    nodes: int

    def end(self, step: int, start: float, ends: Floats, read: Floats, compute: float) -> float:
        """When a step that began at `start` ends for all nodes. ends, read [simulated nodes]: when each ends its batch,
        and the batch's MB; `compute`: seconds of the largest batch.
        """
        largest, spread = float(self.largest[step]), float(read.std())
        factor = (largest - float(read.mean())) / spread if spread > 1e-9 * largest else _largest(self.nodes)
        return max(float(ends.max()), start + compute, float(ends.mean() + factor * ends.std()))


def _largest(count: int) -> float:
    """The expected largest of `count` standard normal numbers (Blom, Statistical Estimates, 1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
