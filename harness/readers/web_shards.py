"""WebDataset's tar shards of a dataset: made once beside its files, one for each of them, of the fields that are read.

A sample is a member for each field, NUMBER.PLACE: its number in the dataset, the field's place among those read. A
shard holds the samples of a file in their order, so that an order that deals files deals shards alike.
"""

import fcntl
import os
import tarfile
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np

from dlio_bench.atomic_files import part_of, publish, sync
from dlio_bench.batches import Ids
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.manifest import sha256
from dlio_bench.errors import EnvironmentFailure, remedy
from dlio_bench.harness.storage.extents import ExtentReader

BLOCK, RECORD = tarfile.BLOCKSIZE, tarfile.RECORDSIZE  # a header and contents take whole blocks, a shard whole records


def folder_of(dataset: Dataset, fields: Sequence[str]) -> Path:
    """Where the shards of these fields are, whether there are any or not."""
    digest = sha256("\n".join([dataset.digest, *fields]).encode()).removeprefix("sha256:")
    return dataset.folder / f".webdataset-{digest[:12]}"


def paths(dataset: Dataset, fields: Sequence[str], files: Sequence[int]) -> list[Path]:
    """The shards of these files."""
    folder = folder_of(dataset, fields)
    return [folder / f"{file:06d}.tar" for file in files]


def _end(dataset: Dataset, fields: Sequence[str], file: int) -> int:
    """Bytes of a shard's members."""
    entry = dataset.manifest.files[file]
    lengths = dataset.locate(np.arange(entry.first, entry.first + entry.samples), fields)[3]
    return int((BLOCK + -(-lengths // BLOCK) * BLOCK).sum())


def shard_bytes(dataset: Dataset, fields: Sequence[str], file: int) -> int:
    """Bytes of a shard: its members, two empty blocks, and what fills its last record."""
    return -(-(_end(dataset, fields, file) + 2 * BLOCK) // RECORD) * RECORD


def stream_bytes(dataset: Dataset, fields: Sequence[str], file: int) -> int:
    """Bytes that reading a shard as a stream takes: Python's tarfile reads a block, then records up to the first empty
    block.
    """
    records = -(-_end(dataset, fields, file) // RECORD)
    return min(shard_bytes(dataset, fields, file), BLOCK + records * RECORD)


def shards_holding(dataset: Dataset, ids: Ids) -> list[int]:
    """The files of these samples, ascending."""
    files: list[int] = np.unique(dataset.locate(ids, ())[0]).tolist()
    return files


def make(dataset: Dataset, fields: Sequence[str], progress: Callable[[int, int], None]) -> int:
    """Make the shards that are missing; bytes of all of them. `progress(done, total)` gets bytes.

    A shard is whole or absent, and another process that makes the same ones is waited for. DataError where a sample's
    checksum is wrong, EnvironmentFailure.
    """
    files = range(len(dataset.manifest.files))
    shards = list(zip(files, paths(dataset, fields, files), strict=True))
    sizes = {path: shard_bytes(dataset, fields, file) for file, path in shards}
    total, done = sum(sizes.values()), 0
    folder = folder_of(dataset, fields)
    try:
        if _are_whole(sizes):
            return total
        folder.mkdir(exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            extents = ExtentReader(dataset, fields, None, check=dataset.manifest.checksums_sha256 != "")
            try:
                for file, path in shards:
                    if not _are_whole({path: sizes[path]}):
                        _write(dataset, fields, file, path, extents)
                    done += sizes[path]
                    progress(done, total)
            finally:
                extents.close()
            sync(folder)
        finally:
            os.close(lock)
    except OSError as error:
        raise EnvironmentFailure(
            f"Reader webdataset reads tar shards, which are made once beside the dataset's files, in {folder} "
            f"({total} bytes). That failed: {error.strerror or error}. {remedy(error)}."
        ) from error
    return total


def _are_whole(sizes: dict[Path, int]) -> bool:
    return all(path.is_file() and path.stat().st_size == size for path, size in sizes.items())


def _write(dataset: Dataset, fields: Sequence[str], file: int, path: Path, extents: ExtentReader) -> None:
    entry = dataset.manifest.files[file]
    ids = np.arange(entry.first, entry.first + entry.samples)
    lengths = dataset.locate(ids, fields)[3]
    part = part_of(path)
    with tarfile.open(part, "w", format=tarfile.USTAR_FORMAT) as shard:
        for sample, sizes in zip(ids, lengths.tolist(), strict=True):
            content = bytearray(sum(sizes))
            extents.read(np.array([sample]), memoryview(content), Cost())
            start = 0
            for place, size in enumerate(sizes):
                member = tarfile.TarInfo(f"{sample:09d}.{place}")
                member.size = size
                shard.addfile(member, BytesIO(memoryview(content)[start : start + size]))
                start += size
    publish(part, path)
