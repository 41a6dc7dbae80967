"""Gives a job its place: the nodes' folders, and the mounts of an emulated file system while the job runs."""

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster import allocation
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.storage.pfs import process
from dlio_bench.harness.storage.pfs.process import emulation_of


@contextmanager
def placed(template: Job, dataset: Dataset, tiers: tuple[str, ...]) -> Iterator[Job]:
    """The job with its dataset, the folders of its nodes, and the mounts of the emulated file system if it has one.

    On real hosts the ranks make the mounts.
    """
    job = replace(template, dataset_digest=dataset.digest, tier_folders=tiers[: template.nodes])
    if job.pfs is None or allocation.nodes() is not None:
        yield job
        return
    if job.store:
        with process.links(job.nodes) as (nodes, shared):
            yield replace(job, mounts=nodes, board=shared)
        return
    with emulation_of(job.pfs, dataset, job.nodes) as emulation:
        yield replace(job, mounts=tuple(map(str, emulation.mounts)), board=str(emulation.board))
