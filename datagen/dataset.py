"""A dataset on disk: its manifest, and where each sample lies."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench import documents
from dlio_bench.batches import Bytes
from dlio_bench.datagen import objects
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.datagen.layout import TRAIN, Checksums, Extents, WrittenFile
from dlio_bench.datagen.manifest import (
    AFFINE,
    ANEW,
    CHECKSUMS,
    EXTENTS,
    NAME,
    PROGRESS,
    STORE,
    TABLE,
    FileEntry,
    Manifest,
    field_bytes,
    file_sha256,
    from_json,
    locate_samples,
    sha256,
)
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError, remedy


class Access(Protocol):
    """Calls that take the place of open(2), preadv(2) and close(2), with their results and errors.

    emulated: whether they take the time of another file system.
    """

    @property
    def emulated(self) -> bool:
        """Whether a slower file system is imitated."""

    def open(self, path: str | Path, flags: int, /) -> int:
        """A descriptor, which is closed with `close` alone."""

    def read(self, handle: int, into: Sequence[memoryview | Bytes], offset: int, /) -> int:
        """Fill buffers with the bytes from `offset` on; how many there were."""

    def close(self, handle: int, /) -> None:
        """Give the descriptor back."""


class Kernel:
    """The kernel's calls themselves, so that a read costs no call of Python's more."""

    emulated = False
    open = property(lambda _: os.open)
    read = property(lambda _: os.preadv)
    close = property(lambda _: os.close)


KERNEL: Access = Kernel()


Integers = npt.NDArray[np.int64]

MOST_SAMPLE_BYTES = 1 << 30  # delivered, of a field: the largest published one has 17 MB
DAMAGED = (
    "The dataset is damaged: `dlio-bench verify` names every bad file. Restore them, or make the dataset again "
    "(`dlio-bench generate`) in a new folder."
)


class SplitRange(Struct, frozen=True):
    """The files and the sample ids of one split: splits lie one behind the other."""

    files: range
    samples: range


class Dataset(Struct, frozen=True, eq=False):
    """An opened dataset. Arrays are memory-mapped: what is not asked for is not read.

    store: the URL of the object store that holds its files; `folder` then has copies of its tables alone. access: how
    the files are read.
    """

    folder: Path
    manifest: Manifest
    digest: str  # "sha256:...", of manifest.json
    _firsts: Integers  # first sample of each file
    _extents: Extents
    _checksums: Checksums
    store: str | None = None
    access: Access = KERNEL

    @property
    def samples(self) -> int:
        """Samples in all files."""
        return len(self._checksums)

    @property
    def file_per_sample(self) -> bool:
        """Whether each sample is a file of its own."""
        return self.samples == len(self.manifest.files)

    @property
    def training_files(self) -> Sequence[FileEntry]:
        """Files of the training split, which come first; all where there is none of it."""
        return [entry for entry in self.manifest.files if entry.split == TRAIN] or self.manifest.files

    @property
    def training_samples(self) -> int:
        """Samples of the training split: their ids are those below it."""
        return sum(entry.samples for entry in self.training_files)

    def part(self, split: str) -> SplitRange | None:
        """Where the split of this name lies; None where the dataset has none of it."""
        numbers = [number for number, entry in enumerate(self.manifest.files) if entry.split == split]
        if not numbers:
            return None
        first, last = (self.manifest.files[number] for number in (numbers[0], numbers[-1]))
        return SplitRange(range(numbers[0], numbers[-1] + 1), range(first.first, last.first + last.samples))

    def path(self, file: int) -> Path:
        """Where file number `file` is, of a dataset in a folder."""
        return self.folder / self.manifest.files[file].name

    @property
    def home(self) -> str:
        """Where its files are, for people: a folder, or the URL of an object store."""
        return self.store or str(self.folder)

    def name(self, file: int) -> str:
        """File number `file` for people: its path, or its URL."""
        return f"{self.home}/{self.manifest.files[file].name}"

    @property
    def field_names(self) -> list[str]:
        """The stored fields, in their order."""
        return [field.name for field in self.manifest.fields]

    def field_index(self, names: Sequence[str]) -> list[int]:
        """Numbers of these fields. UsageError for a name that the dataset does not have."""
        known = self.field_names
        for name in names:
            if name not in known:
                raise UsageError(f"The dataset in {self.folder} has no field '{name}'. Its fields: {', '.join(known)}.")
        return [known.index(name) for name in names]

    def locate(self, ids: Integers, fields: Sequence[str]) -> tuple[Integers, Integers, Integers, Integers]:
        """(file int64 [n], offset, stored bytes, delivered bytes; each int64 [n, fields]) of the samples `ids`.

        IndexError for an id outside [0, samples).
        """
        ids = self._check_ids(ids)
        files = np.searchsorted(self._firsts, ids, side="right") - 1
        rows = ids - self._firsts[files]
        return files, *locate_samples(self.manifest.encoding, self._extents, ids, rows, self.field_index(fields))

    def checksums(self, ids: Integers, fields: Sequence[str]) -> Checksums:
        """CRC32C of the delivered bytes, uint32 [n, fields]. IndexError for an id outside [0, samples)."""
        columns = np.array(self.field_index(fields), dtype=np.int64)
        return np.asarray(self._checksums[np.ix_(self._check_ids(ids), columns)])

    def describe_file(self, file: int) -> WrittenFile:
        """Extents and checksums of all samples of file number `file`, every field."""
        entry, names = self.manifest.files[file], self.field_names
        ids = np.arange(entry.first, entry.first + entry.samples)
        return WrittenFile(np.stack(self.locate(ids, names)[1:], axis=2), self.checksums(ids, names))

    def _check_ids(self, ids: Integers) -> Integers:
        ids = np.asarray(ids, dtype=np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < self.samples:
            raise IndexError(f"sample ids {ids.min()}..{ids.max()} of a dataset of {self.samples} samples")
        return ids


def open_dataset(folder: Path) -> Dataset:
    """Open the dataset in `folder`, its tables checked against the manifest's digests (its samples are not read).

    UsageError when there is no such folder or nothing of a dataset in it, DataError when it holds no whole one,
    EnvironmentFailure when the file system fails: the content is not known to be at fault then.
    """
    path = folder / NAME
    if url := objects.url_of(folder):
        raise UsageError(
            f"{url} is in an object store, and this command reads datasets in folders. Copy the dataset to a folder, "
            "or use run, generate, index, verify or storage, which know object stores."
        )
    try:
        if not folder.is_dir():
            raise UsageError(
                f"There is no dataset folder {folder}. Give the folder of a dataset, or generate one there."
            )
        content = documents.read_document(path, f"A dataset has a file there. {ANEW}")
    except FileNotFoundError as error:
        if not any((folder / name).exists() for name in (EXTENTS, CHECKSUMS, PROGRESS)):
            raise UsageError(
                f"{folder} holds no {NAME} and is no dataset. Give the folder of a dataset, or make one of the files "
                "there with dlio-bench index."
            ) from error
        raise DataError(
            f"{folder} holds no {NAME}: its generation did not end, or the file was removed. Repeat the generation "
            "(one that was interrupted goes on where it stopped), or give the folder of a whole dataset."
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    manifest = from_json(content, path)
    fields = len(manifest.fields)
    table = _array(folder / EXTENTS, manifest.extents_sha256, np.int64)
    checksums = _array(folder / CHECKSUMS, manifest.checksums_sha256, np.uint32)
    shapes = {AFFINE: (fields, 3), TABLE: (manifest.samples, fields, 3)}
    if table.shape != shapes.get(manifest.encoding) or checksums.shape != (manifest.samples, fields):
        raise DataError(f"{path} does not fit its {EXTENTS} and {CHECKSUMS}. {ANEW}")
    if manifest.container not in CONTAINERS:
        raise DataError(
            f"{path} names the container '{manifest.container}', and this version knows {', '.join(CONTAINERS)}. {ANEW}"
        )
    if wrong := _table_fault(manifest, table):
        raise DataError(f"{path}: {wrong}. {ANEW}")
    firsts = np.array([file.first for file in manifest.files], dtype=np.int64)
    return Dataset(folder, manifest, sha256(content), firsts, table, checksums, store_of(folder))


def store_of(folder: Path) -> str | None:
    """The URL of the object store that has the files of a dataset, by its tables in `folder`; None: they lie there."""
    try:
        return objects.url_of((folder / STORE).read_text().strip())
    except (OSError, UnicodeDecodeError):
        return None


def changed_files(dataset: Dataset) -> list[str]:
    """One line for each file that is missing or has another size than when it was written; empty if there is none.

    EnvironmentFailure when the file system or the object store fails, so that nobody knows.
    """
    problems = []
    sizes = {entry.name: entry.bytes for entry in dataset.manifest.files}
    sizes |= {entry.name: entry.bytes for entry in dataset.manifest.auxiliary}
    stored = None if dataset.store is None else objects.open_store(dataset.store).sizes()
    for name, expected in sizes.items():
        path = dataset.folder / name
        if stored is not None:
            if name not in stored:
                problems.append(f"{dataset.home}/{name} is not in the store")
            elif stored[name] != expected:
                problems.append(f"{dataset.home}/{name} has {stored[name]} bytes instead of {expected}")
            continue
        try:
            size = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError) as error:
            problems.append(f"{path} cannot be found: {error.strerror}")
            continue
        except OSError as error:
            raise _unreadable(path, error) from error
        if size != expected:
            problems.append(f"{path} has {size} bytes instead of {expected}")
    return problems


def _table_fault(manifest: Manifest, table: Extents) -> str | None:
    """What is wrong with the table: a place outside its file, a length other than its field's; None if nothing is."""
    stored = np.array([entry.bytes for entry in manifest.files], dtype=np.float64)
    counts = np.array([entry.samples for entry in manifest.files], dtype=np.int64)
    container = CONTAINERS[manifest.container]
    plain = container.library is None
    for column, field in enumerate(manifest.fields):
        if manifest.encoding == AFFINE:
            offset, step, length = (float(value) for value in table[column])
            least, ends, lengths = min(offset, step), offset + (counts - 1) * step + length, table[column, 2:]
            limits = stored
        else:
            least, ends = table[:, column, 0].min(), table[:, column, :2].sum(axis=1, dtype=np.float64)
            lengths, limits = table[:, column, 2], np.repeat(stored, counts)
            if plain and container.decode is None and (table[:, column, 1] != lengths).any():
                return f"samples of '{field.name}' are delivered longer or shorter than they are stored"
        if (ends > limits).any() if plain else least < -1:
            return f"samples of '{field.name}' lie outside of their files"
        if table[..., column, 1:].min() < 0 or (plain and least < 0):
            return f"samples of '{field.name}' have places or lengths below 0"
        if -1 not in field.shape and (lengths != field_bytes(field)).any():
            return f"samples of '{field.name}' have other lengths than {field_bytes(field)} bytes"
        if lengths.max() > MOST_SAMPLE_BYTES:
            return f"a sample of '{field.name}' has {lengths.max()} bytes, and at most {MOST_SAMPLE_BYTES} are served"
    return None


def _array(path: Path, digest: str, dtype: type[np.generic]) -> npt.NDArray[Any]:
    try:
        if file_sha256(path) != digest:
            raise DataError(f"{path} is not the file that its manifest describes. {ANEW}")
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r")
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            raise _unreadable(path, error) from error
        raise DataError(f"{path} is missing. {ANEW}") from error
    except (ValueError, OverflowError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}. {ANEW}") from error
    if array.dtype != dtype:
        raise DataError(f"{path} holds {array.dtype} instead of {dtype}. {ANEW}")
    return array


def _unreadable(path: Path, error: OSError) -> EnvironmentFailure:
    return EnvironmentFailure(f"{path} cannot be read: {error.strerror}. {remedy(error)}.")
