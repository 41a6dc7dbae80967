"""A dataset on disk: its manifest, and where each sample lies."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio_bench.datagen import extents
from dlio_bench.datagen.layout import TRAIN, Checksums, Extents
from dlio_bench.datagen.manifest import (
    CHECKSUMS,
    EXTENTS,
    NAME,
    PROGRESS,
    FileEntry,
    Manifest,
    file_sha256,
    from_json,
    sha256,
)
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError, remedy
from dlio_bench.whole_files import read_given

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """The files and the sample ids of one split: splits lie one behind the other."""

    files: range
    samples: range


@dataclass(frozen=True, eq=False)
class Dataset:
    """An opened dataset. Arrays are memory-mapped: what is not asked for is not read."""

    folder: Path
    manifest: Manifest
    digest: str  # "sha256:...", of manifest.json
    _firsts: Integers  # first sample of each file
    _extents: Extents
    _checksums: Checksums

    @property
    def samples(self) -> int:
        """Samples in all files."""
        return len(self._checksums)

    @property
    def training_files(self) -> Sequence[FileEntry]:
        """Files of the training split, which come first; all where there is none of it."""
        return [entry for entry in self.manifest.files if entry.split == TRAIN] or self.manifest.files

    @property
    def training_samples(self) -> int:
        """Samples of the training split: their ids are those below it."""
        return sum(entry.samples for entry in self.training_files)

    def part(self, split: str) -> Part | None:
        """Where the split of this name lies; None where the dataset has none of it."""
        numbers = [number for number, entry in enumerate(self.manifest.files) if entry.split == split]
        if not numbers:
            return None
        first, last = (self.manifest.files[number] for number in (numbers[0], numbers[-1]))
        return Part(range(numbers[0], numbers[-1] + 1), range(first.first, last.first + last.samples))

    def path(self, file: int) -> Path:
        """Where file number `file` is."""
        return self.folder / self.manifest.files[file].name

    def field_index(self, names: Sequence[str]) -> list[int]:
        """Numbers of these fields. UsageError for a name that the dataset does not have."""
        known = [field.name for field in self.manifest.fields]
        for name in names:
            if name not in known:
                raise UsageError(f"The dataset in {self.folder} has no field '{name}'. Its fields: {', '.join(known)}.")
        return [known.index(name) for name in names]

    def locate(self, ids: Integers, fields: Sequence[str]) -> tuple[Integers, Integers, Integers, Integers]:
        """(file int64 [n], offset, stored bytes, delivered bytes; each int64 [n, fields]) of the samples `ids`.

        IndexError for an id outside [0, samples).
        """
        ids = self._checked(ids)
        files = np.searchsorted(self._firsts, ids, side="right") - 1
        rows = ids - self._firsts[files]
        return files, *extents.locate(self.manifest.encoding, self._extents, ids, rows, self.field_index(fields))

    def checksums(self, ids: Integers, fields: Sequence[str]) -> Checksums:
        """CRC32C of the delivered bytes, uint32 [n, fields]. IndexError for an id outside [0, samples)."""
        found: Checksums = self._checksums[
            np.ix_(self._checked(ids), np.array(self.field_index(fields), dtype=np.int64))
        ]
        return found

    def _checked(self, ids: Integers) -> Integers:
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
    try:
        if not folder.is_dir():
            raise UsageError(
                f"There is no dataset folder {folder}. Give the folder of a dataset, or generate one there."
            )
        content = read_given(path, f"A dataset has a file there: {_ANEW.format(folder)}")
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
    shapes = {extents.AFFINE: (fields, 3), extents.TABLE: (manifest.samples, fields, 3)}
    if table.shape != shapes.get(manifest.encoding) or checksums.shape != (manifest.samples, fields):
        raise DataError(f"{path} does not fit its {EXTENTS} and {CHECKSUMS}. {_ANEW.format(folder)}")
    firsts = np.array([file.first for file in manifest.files], dtype=np.int64)
    return Dataset(folder, manifest, sha256(content), firsts, table, checksums)


def missing_or_resized(dataset: Dataset) -> list[str]:
    """One line for each file that is absent or has not the size it was written with; empty when all is in place.

    EnvironmentFailure when the file system fails, so that nobody knows.
    """
    problems = []
    sizes = {entry.name: entry.bytes for entry in dataset.manifest.files}
    sizes |= {entry.name: entry.bytes for entry in dataset.manifest.auxiliary}
    for name, expected in sizes.items():
        path = dataset.folder / name
        try:
            found = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError) as error:
            problems.append(f"{path} cannot be found: {error.strerror}")
            continue
        except OSError as error:
            raise _unreadable(path, error) from error
        if found != expected:
            problems.append(f"{path} has {found} bytes instead of {expected}")
    return problems


def _array(path: Path, digest: str, dtype: type[np.generic]) -> npt.NDArray[Any]:
    try:
        if file_sha256(path) != digest:
            raise DataError(f"{path} is not the file that its manifest describes. {_ANEW.format(path.parent)}")
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r")
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            raise _unreadable(path, error) from error
        raise DataError(f"{path} is missing. {_ANEW.format(path.parent)}") from error
    except ValueError as error:
        raise DataError(f"{path} cannot be read: {error}. {_ANEW.format(path.parent)}") from error
    if array.dtype != dtype:
        raise DataError(f"{path} holds {array.dtype} instead of {dtype}. {_ANEW.format(path.parent)}")
    return array


def _unreadable(path: Path, error: OSError) -> EnvironmentFailure:
    return EnvironmentFailure(f"{path} cannot be read: {error.strerror}. {remedy(error)}.")


_ANEW = "Delete the folder {} and generate the dataset anew."
