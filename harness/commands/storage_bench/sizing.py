"""How large the test files are: their samples, how many to a file, how many files. Pure arithmetic."""

import math
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from msgspec import Struct

from dlio_bench.benchmarks import registry
from dlio_bench.datagen.layout import RANDOM
from dlio_bench.errors import EnvironmentFailure, UsageError, require_at_least
from dlio_bench.units import format_bytes, format_percent

LEAST_BYTES, MOST_BYTES = 1_000_000_000, 2_000_000_000  # read in a trial without --size
SAMPLES_A_READER = 4  # with fewer, one slow sample decides a trial
SHARE_OF_FREE = 0.10  # of a file system that belongs to others too
FILE_BYTES = 64_000_000  # small samples of no workload in particular share files of this size
_MARGIN = 1.02  # of the space: a file system needs some for itself


class FileSetShape(Struct, frozen=True):
    """The test files: `files` of them, all alike, each of `samples_per_file` samples of `sample_bytes`."""

    sample_bytes: int
    samples_per_file: int
    files: int

    @property
    def file_bytes(self) -> int:
        """Bytes of a file."""
        return self.sample_bytes * self.samples_per_file

    @property
    def samples(self) -> int:
        """Samples in all files."""
        return self.samples_per_file * self.files

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return self.file_bytes * self.files


def of_workload(name: str) -> tuple[int, int]:
    """(mean stored bytes of a sample, samples a file) of a workload's default variant. UsageError."""
    workload = registry.find(name)
    layout = workload.variants[workload.default_variant](False, RANDOM)
    return round(layout.sample_bytes), layout.samples_per_file


def of_sample(sample_bytes: int) -> tuple[int, int]:
    """(bytes of a sample, samples a file) for samples of any size. UsageError for none."""
    require_at_least(1, sample_size=sample_bytes)
    return sample_bytes, max(1, FILE_BYTES // sample_bytes)


def steady_bytes(sample_bytes: int, most_readers: int) -> int:
    """Bytes that give a steady rate: 1 GB, or four samples for each of the most readers, but at most 2 GB."""
    return min(MOST_BYTES, max(LEAST_BYTES, SAMPLES_A_READER * most_readers * sample_bytes))


def first_files(files: Sequence[int], limit: int) -> int:
    """How many of the first files are read, of these sizes: as many as `limit` bytes allow, at least one."""
    return max(1, sum(total <= limit for total in accumulate(files)))


def require_samples(samples: int, readers: int, files: int, folder: Path) -> None:
    """UsageError where the files that are read have less than a sample for each reader."""
    if samples < readers:
        raise UsageError(
            f"{readers} readers need at least a sample each, and the {files} files of {folder} that are read have "
            f"{samples}. Use fewer --threads or --ranks, a larger --size or a larger dataset."
        )


def choose(
    sample_bytes: int, per_file: int, size: int | None, readers: Sequence[int], free: int | None
) -> FileSetShape:
    """The test files for these counts of readers (threads of all ranks), of `size` bytes or of as many as are enough.

    `free`: bytes free in the folder, None where the file system does not tell. Files of one sample are made in a number
    that all counts of readers divide, so that none has one more to read than another. UsageError, EnvironmentFailure.
    """
    most = max(readers)
    room = math.inf if free is None else free
    total = int(min(steady_bytes(sample_bytes, most), room * SHARE_OF_FREE)) if size is None else size
    if total < most * sample_bytes:
        needed = f"{most} readers need at least a sample of {format_bytes(sample_bytes)} each"
        if size is None and steady_bytes(sample_bytes, most) < most * sample_bytes:
            raise UsageError(
                f"{needed}, which is more than the {format_bytes(MOST_BYTES)} that are written without being asked. "
                f"Allow it with --size {format_bytes(1.1 * most * sample_bytes).replace(' ', '')}, or use fewer "
                "--threads or --ranks."
            )
        if size is None:
            raise EnvironmentFailure(
                f"{needed}, and {format_percent(SHARE_OF_FREE)} of the {format_bytes(room)} that are free there is "
                "less. Free space, choose another folder, allow more with --size, or use fewer --threads or --ranks."
            )
        raise UsageError(f"--size {format_bytes(size)} is too small: {needed}. Ask for more, or use fewer of them.")
    if room < total * _MARGIN:
        raise EnvironmentFailure(
            f"The test files need {format_bytes(total)}, and the folder has {format_bytes(room)} free. Free space "
            "there, choose another folder, or ask for less with --size."
        )
    per_file = min(per_file, total // sample_bytes)
    files = total // (per_file * sample_bytes)
    even = math.lcm(*readers)
    if per_file == 1 and files > even:
        files -= files % even
    return FileSetShape(sample_bytes, per_file, files)
