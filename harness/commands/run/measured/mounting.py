"""Mounts of an emulated file system on real hosts: the first rank of each makes one, as no host sees another's."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from msgspec.structs import replace

from dlio_bench.datagen import objects
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster.comm import Comm, together
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.storage.pfs import process
from dlio_bench.harness.storage.pfs.process import emulation_of
from dlio_bench.harness.storage.pfs.spec import PfsSpec


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
        with process.opened(job.pfs, job.mounts, node, job.board) as slow:
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

        emulations = together(comm, mount)[:: job.ranks_per_node]
        board = emulations[comm.rank // job.ranks_per_node][1]
        yield replace(job, mounts=tuple(point for point, _ in emulations), board=board)
        comm.barrier()  # until all have closed their files


def share(spec: PfsSpec, hosts: int) -> PfsSpec:
    """What one of several hosts gets: an equal part of each shared rate, since no bucket is shared between hosts."""
    bandwidth, opens = (None if rate is None else rate / hosts for rate in (spec.bandwidth, spec.opens))
    return replace(spec, bandwidth=bandwidth, opens=opens)
