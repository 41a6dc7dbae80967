"""How large the tiers are that keep a node's samples, and what is known beforehand of their rates."""

from pathlib import Path
from tempfile import gettempdir

from dlio_bench.errors import UsageError
from dlio_bench.free_space import SHARED_MEMORY, free_bytes
from dlio_bench.harness.cluster.system import System, named
from dlio_bench.harness.readers.placed.speeds import PFS, REMOTE
from dlio_bench.harness.readers.placed.tiers import DISK, RAM, Tiers
from dlio_bench.harness.run.asked.job import Job
from dlio_bench.harness.run.asked.options import Options
from dlio_bench.harness.storage.capacity import default_disk, default_ram
from dlio_bench.units import format_bytes

MB = 1e6


def tiers_of(options: Options, job: Job, memory: int) -> Tiers:
    """A node's tiers for a job, empty where no reader keeps samples in them. `memory`: a node's, in bytes.

    UsageError for tiers that are not known, or do not fit here.
    """
    system = None if options.system is None else named(options.system)
    asked = dict(options.tiers or {})
    if unknown := [name for name in asked if name not in (RAM, DISK)]:
        more = " The staging buffer's size is --staging." if unknown[0] == "staging" else ""
        raise UsageError(f"--tiers names '{unknown[0]}'. A node's tiers that keep samples are ram and disk.{more}")
    rows = job.readers.values()
    keeping = [row.name for row in rows if row.rule.keeps_samples]
    if not keeping:
        if asked:
            raise UsageError(
                f"--tiers is for readers that keep samples, and {', '.join(row.name for row in rows)} keeps none. "
                "Leave it out, or use another --reader, such as prefetch."
            )
        return Tiers()
    nodes = job.nodes if job.virtual else 1  # on this machine
    described = {} if system is None else {tier.name: tier.capacity for tier in system.tiers[1:]}
    spare = memory - job.staging_bytes * job.ranks_per_node
    ram = asked.get(RAM, described.get(RAM, max(0, min(spare, default_ram(memory, nodes)))))
    # only where somebody said where it is: the temporary folder may be memory, or small
    local = 0 if options.local_tier is None else default_disk(options.local_tier, nodes)
    disk = asked.get(DISK, described.get(DISK, local))
    if ram == disk == 0:
        free = format_bytes(free_bytes(SHARED_MEMORY) or 0)
        raise UsageError(
            f"{keeping[0]} keeps samples in a node's tiers, and none has a size here: {SHARED_MEMORY} has {free} free. "
            "Give one with --tiers ram=1GB or --local-tier DIR, or use --reader double-buffer, which keeps nothing."
        )
    _require_room(options, job, ram, disk, memory, nodes)
    return Tiers(ram, disk, None if system is None else _rates(system, job))


def _require_room(options: Options, job: Job, ram: int, disk: int, memory: int, nodes: int) -> None:
    staging = job.staging_bytes * job.ranks_per_node
    if staging + ram > memory:
        raise UsageError(
            f"A RAM tier of {format_bytes(ram)} beside {format_bytes(staging)} of staging buffers does not fit into a "
            f"node's memory of {format_bytes(memory)}. Ask for a smaller one with --tiers ram=SIZE."
        )
    free = free_bytes(SHARED_MEMORY) or 0
    if nodes * ram > free:
        raise UsageError(
            f"RAM tiers of {format_bytes(ram)} on {nodes} nodes of this machine need {format_bytes(nodes * ram)} in "
            f"{SHARED_MEMORY}, where {format_bytes(free)} are free. Ask for smaller ones with --tiers ram=SIZE."
        )
    place = options.local_tier or Path(gettempdir())
    if not place.is_dir():
        raise UsageError(f"--local-tier {place} is not a folder. Give one on node-local storage.")
    if disk and nodes * disk > (free := free_bytes(place) or 0):
        raise UsageError(
            f"Disk tiers of {format_bytes(disk)} on {nodes} nodes need {format_bytes(nodes * disk)} in {place}, where "
            f"{format_bytes(free)} are free. Ask for smaller ones with --tiers disk=SIZE, or give another --local-tier."
        )


def _rates(system: System, job: Job) -> dict[str, float]:
    """Bytes a second that a thread gets from each source when all threads of all nodes read the PFS.

    SC'21, section 4, compares a node's share of the PFS with a thread's share of a tier; here the readers of a node
    share both. What nobody has measured (a network of rate 0) is left out.
    """
    tiers = {tier.name: tier.read.at(tier.threads) / tier.threads for tier in system.tiers[1:]}
    threads = job.threads * job.ranks_per_node
    rates = {PFS: min(system.pfs.at(job.nodes) / job.nodes, system.pfs_link) / threads, **tiers}
    if system.network:
        rates[REMOTE] = min(system.network, max(tiers.values()))
    return {name: rate * MB for name, rate in rates.items()}
