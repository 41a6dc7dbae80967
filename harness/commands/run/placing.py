"""Gives a job its place: the nodes' folders, and the mounts of an emulated file system while the job runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster import allocation
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.harness.storage.pfs import pace
from dlio_bench.harness.storage.pfs.process import emulation_of
from dlio_bench.harness.storage.tier import NODES


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
        with pace.links(job.nodes) as (nodes, shared):
            yield replace(job, mounts=nodes, board=shared)
        return
    with emulation_of(job.pfs, dataset, job.nodes) as emulation:
        yield replace(job, mounts=tuple(map(str, emulation.mounts)), board=str(emulation.board))


@contextmanager
def tier_folders(nodes: int, below: Path | None = None) -> Iterator[tuple[str, ...]]:
    """A local-tier folder for each node of this machine, in `below` or the temporary folder. They go with the run.

    UsageError if `below` is not a folder.
    """
    if below is not None and not below.is_dir():
        raise UsageError(f"--local-tier {below} is not a folder. Give one on node-local storage.")
    with temp_folder(NODES, below) as base:
        folders = [base / f"node{number:03d}" for number in range(nodes)]
        for folder in folders:
            folder.mkdir()
        yield tuple(map(str, folders))


@contextmanager
def local_tiers(options: Options) -> Iterator[tuple[str, ...]]:
    """The local-tier folder of every virtual node of a run. Real nodes make their own: see measured/node.py."""
    if allocation.nodes() is None:
        with tier_folders(max(options.nodes), options.local_tier) as folders:
            yield folders
    else:
        yield ()
