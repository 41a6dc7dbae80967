"""The job of every rank that writes and reads checkpoints, and what these take: bytes in whole blocks, and files."""

from pathlib import Path

from dlio_bench.benchmarks.published_models.models import models_by_name
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.free_space import block_bytes, free_bytes, free_files
from dlio_bench.harness.cluster.job import SavedJob
from dlio_bench.harness.commands.checkpoints.parts import FilePart, parts, sizes, total
from dlio_bench.reports.view.formatting import plural
from dlio_bench.units import format_bytes

ROOM = 1 << 20  # bytes beside the checkpoints
ENTRY = 256  # bytes of a file's entries in its folder and in the manifest


class Job(SavedJob, frozen=True):
    """model: its name. checkpoints: written, then read, in each of `trials`. place: folder for the sets."""

    model: str
    nodes: int
    ranks_per_node: int
    virtual: bool
    shards: int
    layout: str
    fraction: float
    checkpoints: int
    trials: int
    fsync: bool
    seed: int
    place: str

    @property
    def ranks(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.ranks_per_node

    @property
    def parts(self) -> list[FilePart]:
        """What each rank writes into which file."""
        return parts(models_by_name()[self.model], self.ranks, self.shards, self.layout, self.fraction)

    @property
    def shift(self) -> int:
        """How far from its writer the reader of a part is: a node where there are several, else a rank.

        argonne-lcf/dlio_benchmark @e1919d7, checkpointing/base_checkpointing.py:421-427, recovery_rank_shift.
        """
        if self.nodes > 1:
            return self.ranks_per_node
        return 1 if self.ranks > 1 else 0


def required_bytes(job: Job, block: int) -> int:
    """Bytes of all checkpoints of a trial, which are removed before the next. Files take whole blocks of `block`."""
    files = sizes(job.parts)
    held = (*files.values(), ENTRY * len(files))
    return job.checkpoints * sum(-(-size // block) * block for size in held) + ROOM


def required_files(job: Job) -> int:
    """Files and folders of all checkpoints of a trial, with the manifests and the folder around them."""
    return job.checkpoints * (len(sizes(job.parts)) + 2) + 1


def require_space(folder: Path, job: Job) -> None:
    """EnvironmentFailure where the checkpoints of a trial do not fit into the folder."""
    needed, free = required_files(job), free_files(folder)
    if free is not None and free < needed:
        raise EnvironmentFailure(
            f"{plural(job.checkpoints, 'checkpoint')} of {plural(len(sizes(job.parts)), 'file')} in {folder}: "
            f"{free} more files and folders are available there (inodes, see df -i), {needed} are required, "
            f"{needed - free} are missing. Name another --folder, or ask for fewer --checkpoints or --shards, or for "
            "--layout file-per-rank."
        )
    needed, free = required_bytes(job, block_bytes(folder)), free_bytes(folder)
    if free is not None and free < needed:
        raise EnvironmentFailure(
            f"{plural(job.checkpoints, 'checkpoint')} of {format_bytes(total(job.parts))} in {folder}: {free} bytes "
            f"are available, {needed} are required in whole blocks, {needed - free} are missing "
            f"({format_bytes(needed - free)}). Free space there, name another --folder, or ask for fewer --checkpoints "
            "or a smaller --fraction."
        )
