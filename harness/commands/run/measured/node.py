"""What a real node brings to a job: its folder, its sizes, and the mount of an emulated file system."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType

from msgspec.structs import replace

from dlio_bench.datagen import objects
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cluster.comm import Comm, run_on_all_ranks
from dlio_bench.harness.cluster.environment import host_name
from dlio_bench.harness.commands.run.asked.job import MEMORY, Job
from dlio_bench.harness.machine.memory import memory_bytes
from dlio_bench.harness.machine.mounts import memory_backed, network_filesystem
from dlio_bench.harness.machine.temp_folders import outliving_folder
from dlio_bench.harness.readers.placed.room import Room, no_tier, require_fitting
from dlio_bench.harness.readers.placed.tiers import DISK, RAM
from dlio_bench.harness.storage.pfs import process
from dlio_bench.harness.storage.pfs.process import emulation_of
from dlio_bench.harness.storage.pfs.spec import PfsSpec
from dlio_bench.harness.storage.tier import NODES, unusable
from dlio_bench.reports.document.environment import NodeRoom
from dlio_bench.units import format_bytes

# Where schedulers and users name a node's own storage: Slurm sites, burst buffers of LSF (Summit), PBS, POSIX.
VARIABLES = ("SLURM_TMPDIR", "BBPATH", "PBS_JOBFS", "TMPDIR")
FOLDERS = ("/tmp", "/var/tmp")


@contextmanager
def settle_node_sizes(job: Job, comm: Comm) -> Iterator[tuple[Job, dict[str, NodeRoom]]]:
    """The job with what its real nodes decide, and each host's room; the folders go when the block is left.

    All ranks call it together and get the same job: sizes that were left open are the least of all nodes.
    EnvironmentFailure, the same on all ranks, that names the node which has no folder or room.
    """
    if not job.real:
        yield job, {}
        return
    with ExitStack() as stack:
        shared: dict[str, str] = {}

        def inspect_node() -> tuple[str, NodeRoom] | None:
            if comm.rank % job.ranks_per_node:
                return None
            folder = _folder(job, stack, shared) if _needs_folder(job) else None
            room = _measure_room(job, folder)
            _require_tier(job, room)
            return host_name(), room

        while True:
            nodes = [node for node in run_on_all_ranks(comm, inspect_node) if node is not None]
            place = nodes[comm.rank // job.ranks_per_node]
            seen = run_on_all_ranks(comm, partial(_shared, job, place, nodes))
            if not any(seen):
                break
            for folders in seen:
                shared |= folders
            stack.close()  # the folders that were made there go; the next candidates are looked at
        for host, room in nodes:
            _require_room(job, host, room)
        yield _with_least(job, [room for _, room in nodes]), dict(nodes)


def _needs_folder(job: Job) -> bool:
    return bool(job.tiers.disk) or DISK in job.left_open or any(row.rule.files for row in job.readers.values())


def local_storage(asked: str, env: Mapping[str, str], shared: Mapping[str, str] = MappingProxyType({})) -> Path:
    """The folder on this node's own storage: the `asked` one, else the first that a variable or custom names.

    What lies in memory or on a network is passed by, and what turned out to be shared: folder -> the hosts that share
    it. EnvironmentFailure.
    """
    if asked:
        if not Path(asked).is_dir():
            raise EnvironmentFailure(
                f"--local-tier {asked} is not a folder on {host_name()}. Make it there, or name one that all have."
            )
        return Path(asked)
    passed_by = []
    for name in (*(env[variable] for variable in VARIABLES if env.get(variable)), *FOLDERS):
        folder = Path(name)
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            passed_by.append(f"{name} is no folder that this user can write")
        elif name in shared:
            passed_by.append(f"{name} is the same folder on {shared[name]}")
        elif memory_backed(folder):
            passed_by.append(f"{name} lies in memory")
        elif network := network_filesystem(folder):
            passed_by.append(f"{name} is on {network}")
        else:
            return folder
    raise EnvironmentFailure(
        f"No folder on the node's own storage is known on {host_name()}: {'; '.join(dict.fromkeys(passed_by))}. Name "
        "one with --local-tier."
    )


def _folder(job: Job, stack: ExitStack, shared: Mapping[str, str]) -> Path:
    """A folder of this node's own, which goes with `stack`. shared: see `local_storage`. EnvironmentFailure."""
    below = local_storage(job.local_tier, os.environ, shared)
    try:
        return stack.enter_context(outliving_folder(NODES, below))
    except OSError as error:
        raise unusable(below, error) from error


def _measure_room(job: Job, folder: Path | None) -> NodeRoom:
    """What this node offers; a tier whose size was given has what is free."""
    memory = memory_bytes() if MEMORY in job.left_open else job.node_memory
    room = Room(memory, job.staging_bytes * job.ranks_per_node, folder)
    offered = {name: (room.default if name in job.left_open else room.free)[name] for name in (RAM, DISK)}
    keeps = bool(job.tiers.names) or RAM in job.left_open
    return NodeRoom(
        memory_bytes=memory,
        ram_tier_bytes=offered[RAM] if keeps else None,
        disk_tier_bytes=None if folder is None else offered[DISK],
        local_tier=None if folder is None else str(folder),
    )


def _shared(job: Job, node: tuple[str, NodeRoom], nodes: Sequence[tuple[str, NodeRoom]]) -> dict[str, str]:
    """The folder in which this node sees that of another host, with the two hosts: then the storage is not its own.

    EnvironmentFailure if the user named the folder.
    """
    host, room = node
    if room.local_tier is None:
        return {}
    below = Path(room.local_tier).parent
    here = {entry.name for entry in below.iterdir()}
    for other, its_room in nodes:
        if other != host and its_room.local_tier is not None and Path(its_room.local_tier).name in here:
            if job.local_tier:
                raise EnvironmentFailure(
                    f"--local-tier {below} is no node-local storage: {host} and {other} see the same folder there. "
                    "Give a folder on the nodes' own disks."
                )
            return {str(below): " and ".join(sorted((host, other)))}
    return {}


def _require_room(job: Job, host: str, room: NodeRoom) -> None:
    """EnvironmentFailure if what was asked for does not fit on a node."""
    staging = job.staging_bytes * job.ranks_per_node
    if staging > room.memory_bytes:
        raise EnvironmentFailure(
            f"{host} has {format_bytes(room.memory_bytes)} of memory, but its staging buffers need "
            f"{format_bytes(staging)}. Ask for a smaller --staging, or fewer ranks."
        )
    given = {RAM: job.tiers.ram, DISK: job.tiers.disk}
    free = {RAM: room.ram_tier_bytes or 0, DISK: room.disk_tier_bytes or 0}
    below = Path(room.local_tier or "").parent
    sizes = {name: size for name, size in given.items() if name not in job.left_open}
    require_fitting(sizes, free, host, below, EnvironmentFailure)


def _require_tier(job: Job, room: NodeRoom) -> None:
    """EnvironmentFailure if a reader keeps samples, and this node has no room for any."""
    keeping = [name for name, row in job.readers.items() if row.rule.keeps_samples]
    if keeping and not any((room.ram_tier_bytes, room.disk_tier_bytes)):
        raise EnvironmentFailure(no_tier(keeping[0], host_name()))


def _with_least(job: Job, rooms: Sequence[NodeRoom]) -> Job:
    """The job, with the least that a node has where the size was left open."""
    tiers, memory = job.tiers, job.node_memory
    if MEMORY in job.left_open:
        memory = min(room.memory_bytes for room in rooms)
    if RAM in job.left_open:
        tiers = replace(tiers, ram=min(room.ram_tier_bytes or 0 for room in rooms))
    if DISK in job.left_open:
        tiers = replace(tiers, disk=min(room.disk_tier_bytes or 0 for room in rooms))
    folders = tuple(room.local_tier for room in rooms if room.local_tier is not None)
    return replace(job, node_memory=memory, tiers=tiers, tier_folders=folders)


@contextmanager
def mounts(job: Job, dataset: Dataset, comm: Comm) -> Iterator[Job]:
    """The job as this rank has it: with the mounts of all hosts, and the counters of its own.

    Of an object store nothing is mounted: its requests are held up. As given where nothing is emulated, or where the
    command has made the mounts of nodes that share its machine. All ranks call this together, and leave it together.
    EnvironmentFailure where nothing can be mounted.
    """
    if job.pfs is None or (job.mounts and not job.store):
        yield job
        return
    if job.store:
        store, node = objects.open_store(job.store), comm.rank // job.ranks_per_node
        with process.open_pace(job.pfs, job.mounts, node, job.board) as slow:
            store.pace = slow.request
            yield job
            store.pace = None
        return
    spec, first = share(job.pfs, job.nodes), comm.rank % job.ranks_per_node == 0
    with ExitStack() as stack:

        def mount() -> tuple[str, str]:
            if not first:
                return "", ""
            emulation = stack.enter_context(emulation_of(spec, dataset, 1))
            return str(emulation.mounts[0]), str(emulation.board)

        emulations = run_on_all_ranks(comm, mount)[:: job.ranks_per_node]
        board = emulations[comm.rank // job.ranks_per_node][1]
        yield replace(job, mounts=tuple(point for point, _ in emulations), board=board)
        comm.barrier()  # until all have closed their files


def share(spec: PfsSpec, hosts: int) -> PfsSpec:
    """What one of several hosts gets: an equal part of each shared rate, since no bucket is shared between hosts."""
    bandwidth, opens = (None if rate is None else rate / hosts for rate in (spec.bandwidth, spec.opens))
    return replace(spec, bandwidth=bandwidth, opens=opens)
