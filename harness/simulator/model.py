"""The performance model: seconds per MB of every step a sample takes, and when each tier has its samples.

Symbols and equation numbers: T = Boehringer's thesis (ETH, 2020), chapter 3; the same model is in Dryden et al., SC'21,
section 4. As in the simulations published there, a thread that reads a tier gets the tier's whole rate r_j(p_j), and
every thread gets the node's share of the PFS. So the rates of threads add up (eq. 3.3), without contention for tiers.
The threads of a tier fill it from the start of the run.
"""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.system import MB, System
from dlio_bench.harness.plan.placement.rule import Integers, NodeContents

Floats = npt.NDArray[np.float64]
Tiers = npt.NDArray[np.int8]
NEVER = np.inf


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
    share = [min(system.pfs_link, system.pfs.rate_for(gamma) / gamma) for gamma in range(1, nodes + 1)]  # eq. 3.5
    reads = [tier.read.rate_for(tier.threads) for tier in tiers]
    return Costs(
        nodes=nodes,
        compute=0.0 if sample is not None or system.compute is None else 1 / system.compute,
        write=max(1 / system.preprocess, staging.threads / staging.write.rate_for(staging.threads)),  # eq. 3.4
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


class Fill(Struct, frozen=True):
    """How one node fills its tiers. starts[j], done[j]: when the fetch of each id of keeps.tiers[j] starts and ends."""

    keeps: NodeContents
    starts: tuple[Floats, ...]
    done: tuple[Floats, ...]
    read_pfs: float  # MB taken from the PFS
    read_remote: float  # MB taken from other nodes

    @property
    def end(self) -> float:
        """Seconds until the last tier is full."""
        return max((float(done.max()) for done in self.done if len(done)), default=0.0)

    def at_once(self) -> "Fill":
        """The same tiers, all full at time 0."""
        return replace(self, done=tuple(np.zeros_like(done) for done in self.done))


def round_robin(seconds: Floats, threads: int, clocks: Floats | None = None) -> tuple[Floats, Floats]:
    """Start and end of tasks that go to `threads` threads in turn; task n starts when task n - threads ends.

    `clocks` [threads]: when each thread is first free; None: at 0.
    """
    count = len(seconds)
    padded = np.zeros((-(-count // threads), threads))
    padded.reshape(-1)[:count] = seconds
    ends = np.cumsum(padded, axis=0) + (0.0 if clocks is None else clocks)
    ends = ends.reshape(-1)[:count]
    return ends - seconds, ends


def fill(keeps: NodeContents, sizes: Floats, costs: Costs) -> Fill:
    """Fill a node's tiers from time 0, each by its own threads, all nodes reading the PFS (gamma = N).

    `sizes` [samples] MB. A copy comes from the same tier of another node. All nodes fetch copies after everything that
    comes from the PFS, so that no node waits for the holder of a copy.
    """
    starts, done, pfs, remote = [], [], 0.0, 0.0
    for tier, (ids, copies) in enumerate(zip(keeps.tiers, keeps.copies, strict=True)):
        size = sizes[ids]
        cost = np.where(copies, costs.remote[tier], costs.worst_pfs) + costs.write
        begin, end = round_robin(size * cost, costs.threads[tier])
        starts.append(begin)
        done.append(end)
        remote += float(size[copies].sum())
        pfs += float(size[~copies].sum())
    return Fill(keeps, tuple(starts), tuple(done), pfs, remote)


class CopyTimes(Struct, frozen=True):
    """Where a node finds each sample, and from when on, [samples] each; inf: never.

    local_done: in this node's tier local_tier (0 if the node does not keep it). remote_done[j]: in tier j of any other.
    """

    local_done: Floats
    local_tier: Tiers
    remote_done: tuple[Floats, ...]


def local_copies(node_fill: Fill, samples: int) -> tuple[Floats, Tiers]:
    """`local_done` and `local_tier` of Copies."""
    done, place = np.full(samples, NEVER), np.zeros(samples, np.int8)
    for tier, ids in enumerate(node_fill.keeps.tiers):
        done[ids] = node_fill.done[tier]
        place[ids] = tier
    return done, place


def all_copies(fills: Sequence[Fill], samples: int) -> list[CopyTimes]:
    """Copies for each node."""
    tiers = len(fills[0].keeps.tiers)
    # The two earliest holders are enough: the earliest that is not this node is one of them.
    first = np.full((tiers, samples), NEVER)
    second = np.full((tiers, samples), NEVER)
    holder = np.full((tiers, samples), -1, np.int32)
    for node, node_fill in enumerate(fills):
        for tier, (ids, done) in enumerate(zip(node_fill.keeps.tiers, node_fill.done, strict=True)):
            _improve_earliest(first[tier], second[tier], holder[tier], node, ids, done)
    copies = []
    for node, node_fill in enumerate(fills):
        remote = tuple(np.where(holder[tier] == node, second[tier], first[tier]) for tier in range(tiers))
        copies.append(CopyTimes(*local_copies(node_fill, samples), remote))
    return copies


def _improve_earliest(
    first: Floats, second: Floats, holder: npt.NDArray[np.int32], node: int, ids: Integers, done: Floats
) -> None:
    earlier = done < first[ids]
    second[ids] = np.where(earlier, first[ids], np.minimum(second[ids], done))
    first[ids] = np.where(earlier, done, first[ids])
    holder[ids] = np.where(earlier, node, holder[ids])


class Trace(Struct, frozen=True):
    """One node's accesses, [accesses] each: `size` in MB, the rest as in Copies.

    room: MB that each takes in the staging buffer, if that is not its size.
    """

    size: Floats
    local_done: Floats
    local_tier: Tiers
    remote_done: tuple[Floats, ...]
    room: Floats | None = None


def trace(ids: Integers, sizes: Floats, copies: CopyTimes | None, tiers: int) -> Trace:
    """The trace of a node that reads `ids` in this order; copies None: every sample is only on the PFS."""
    if copies is None:
        never = np.full(len(ids), NEVER)
        return Trace(sizes[ids], never, np.zeros(len(ids), np.int8), (never,) * tiers)
    remote = tuple(done[ids] for done in copies.remote_done)
    return Trace(sizes[ids], copies.local_done[ids], copies.local_tier[ids], remote)
