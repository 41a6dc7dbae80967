"""Mounts of an emulated file system on real hosts: the first rank of each makes one, as no host sees another's."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec.structs import replace

from dlio_bench.datagen import objects
from dlio_bench.harness.cluster.comm import Comm, together
from dlio_bench.harness.run.asked.job import Job
from dlio_bench.harness.storage.pfs import pace
from dlio_bench.harness.storage.pfs.emulation import mounted
from dlio_bench.harness.storage.pfs.spec import PfsSpec


@contextmanager
def mounts(job: Job, comm: Comm) -> Iterator[Job]:
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
        with pace.opened(job.pfs, job.mounts[node], job.board) as slow:
            store.pace = slow.request
            yield job
            store.pace = None
        return
    spec, first = share(job.pfs, job.nodes), comm.rank % job.ranks_per_node == 0
    with ExitStack() as stack:

        def mount() -> tuple[str, str]:
            if not first:
                return "", ""
            emulation = stack.enter_context(mounted(spec, Path(job.dataset), 1))
            return str(emulation.mounts[0]), str(emulation.board)

        made = together(comm, mount)[:: job.ranks_per_node]
        board = made[comm.rank // job.ranks_per_node][1]
        yield replace(job, mounts=tuple(point for point, _ in made), board=board)
        comm.barrier()  # until all have closed their files


def share(spec: PfsSpec, hosts: int) -> PfsSpec:
    """What one of several hosts gets: an equal part of the bandwidth, since no bucket is shared between hosts."""
    return spec if spec.bandwidth is None else replace(spec, bandwidth=spec.bandwidth / hosts)
