"""The sizes of the tiers that keep a node's samples, and the rates that a system description gives them."""

from pathlib import Path
from tempfile import gettempdir

from dlio_bench.errors import UsageError
from dlio_bench.free_space import free_bytes
from dlio_bench.harness.cluster.system import System, load_system
from dlio_bench.harness.commands.run.asked.job import MEMORY, Job
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.machine.memory import available_bytes
from dlio_bench.harness.readers.placed.tiers import DISK, PFS, RAM, REMOTE, Tiers, default_sizes
from dlio_bench.units import format_bytes

MB = 1e6


def tiers_of(options: Options, job: Job) -> Tiers:
    """A node's tiers for a job, empty if no reader keeps samples. UsageError for unknown tiers, or too large ones.

    Real nodes decide for themselves what is `left_open`: then this is what they would have if they were this machine.
    """
    system = None if options.system is None else load_system(options.system)
    sizes = dict(options.tiers or {})
    if unknown := [name for name in sizes if name not in (RAM, DISK)]:
        more = " The staging buffer's size is --staging." if unknown[0] == "staging" else ""
        raise UsageError(f"--tiers names '{unknown[0]}'. A node's tiers that keep samples are ram and disk.{more}")
    keeping = [name for name, row in job.readers.items() if row.rule.keeps_samples]
    if not keeping:
        if sizes:
            raise UsageError(
                f"--tiers is for readers that keep samples, and {', '.join(job.readers)} keeps none. "
                "Leave it out, or use another --reader, such as prefetch."
            )
        return Tiers()
    nodes = job.nodes if job.virtual else 1  # on this machine
    described = {} if system is None else {tier.name: tier.capacity for tier in system.tiers[1:]}
    default = default_sizes(job.node_memory, job.staging_bytes * job.ranks_per_node, options.local_tier, nodes)
    sizes = default | described | sizes
    if not job.real:
        if sizes[RAM] == sizes[DISK] == 0:
            raise UsageError(no_tier(keeping[0], "this machine"))
        _require_room(options, job, sizes[RAM], sizes[DISK], nodes)
    return Tiers(sizes[RAM], sizes[DISK], None if system is None else _rates(system, job))


_ROOM = 2_000_000_000  # bytes in memory that suffice for the tier of an advice


def no_tier(reader: str, where: str) -> str:
    """What to say of a reader that keeps samples on a host, `where` this process runs, which has room for none."""
    free = available_bytes()
    room = "Give one with --tiers ram=1GB" if free > _ROOM else "Free some of it"
    return (
        f"{reader} keeps samples in a node's tiers, and none has a size on {where}: {format_bytes(free)} of "
        f"its memory are free. {room}, give a folder on its own disk with --local-tier DIR, or use --reader "
        "double-buffer, which keeps nothing."
    )


def left_open(options: Options, job: Job) -> tuple[str, ...]:
    """The sizes that real nodes find out for themselves, because neither the user nor a description gives them."""
    if not job.real:
        return ()
    given = set(options.tiers or {})
    if options.system is not None:
        given |= {tier.name for tier in load_system(options.system).tiers[1:]}
    sizes = [MEMORY] if options.memory_per_node is None else []
    if any(row.rule.keeps_samples for row in job.readers.values()):
        sizes += [RAM, *([DISK] if options.local_tier is not None else [])]
    return tuple(size for size in sizes if size not in given)


def _require_room(options: Options, job: Job, ram: int, disk: int, nodes: int) -> None:
    staging = job.staging_bytes * job.ranks_per_node
    if staging + ram > job.node_memory:
        raise UsageError(
            f"A RAM tier of {format_bytes(ram)} beside {format_bytes(staging)} of staging buffers does not fit into a "
            f"node's memory of {format_bytes(job.node_memory)}. Ask for a smaller one with --tiers ram=SIZE."
        )
    free = available_bytes()
    if nodes * ram > free:
        raise UsageError(
            f"RAM tiers of {format_bytes(ram)} on {nodes} nodes of this machine need {format_bytes(nodes * ram)} of "
            f"memory, and {format_bytes(free)} are free. Ask for smaller ones with --tiers ram=SIZE."
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

    SC'21, section 4, compares a node's share of the PFS with a thread's share of a tier; here the threads of a node
    share both. A network that nobody has measured (rate 0) is left out.
    """
    tiers = {tier.name: tier.read.at(tier.threads) / tier.threads for tier in system.tiers[1:]}
    threads = job.threads * job.ranks_per_node
    rates = {PFS: min(system.pfs.at(job.nodes) / job.nodes, system.pfs_link) / threads, **tiers}
    if system.network:
        rates[REMOTE] = min(system.network, max(tiers.values()))
    return {name: rate * MB for name, rate in rates.items()}
