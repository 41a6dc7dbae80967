"""The sizes of the tiers that keep a node's samples, and the rates that a system description gives them."""

from msgspec.structs import replace

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.system import System, load_system
from dlio_bench.harness.commands.run.asked.job import MEMORY, Job
from dlio_bench.harness.readers.placed.room import Room, no_tier, require_asked
from dlio_bench.harness.readers.placed.tiers import DISK, PFS, RAM, REMOTE, Tiers

MB = 1e6


def tiers_of(job: Job) -> Tiers:
    """A node's tiers for a job, empty if no reader keeps samples. UsageError for unknown tiers, or too large ones.

    Real nodes decide for themselves what is `left_open`: then this is what they would have if they were this machine.
    """
    options = job.options
    system = None if options.system is None else load_system(options.system)
    asked, keeping = dict(options.tiers or {}), [name for name, row in job.readers.items() if row.rule.keeps_samples]
    require_asked(asked, ", ".join(job.readers), keep=bool(keeping))
    if not keeping:
        return Tiers()
    nodes = job.nodes if job.virtual else 1  # on this machine
    given = ({} if system is None else {tier.name: tier.capacity for tier in system.tiers[1:]}) | asked
    room = Room(job.node_memory, job.staging_bytes * job.ranks_per_node, options.local_tier, nodes)
    rates = None if system is None else _rates(system, job)
    if job.real:
        sizes = room.default | given
        return Tiers(sizes[RAM], sizes[DISK], rates)
    if not room.folder.is_dir():
        raise UsageError(f"--local-tier {room.folder} is not a folder. Give one on node-local storage.")
    tiers = room.tiers(given, "this machine" if nodes == 1 else f"each of {nodes} nodes of this machine")
    if not tiers.names:
        raise UsageError(no_tier(keeping[0], "this machine"))
    return replace(tiers, rates=rates)


def left_open(job: Job) -> tuple[str, ...]:
    """The sizes that real nodes find out for themselves, because neither the user nor a description gives them."""
    if not job.real:
        return ()
    options, given = job.options, set(job.options.tiers or {})
    if options.system is not None:
        given |= {tier.name for tier in load_system(options.system).tiers[1:]}
    sizes = [MEMORY] if options.memory_per_node is None else []
    if any(row.rule.keeps_samples for row in job.readers.values()):
        sizes += [RAM, *([DISK] if options.local_tier is not None else [])]
    return tuple(size for size in sizes if size not in given)


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
