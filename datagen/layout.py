"""What the bytes of one workload's dataset are: files, samples and the fields inside a sample."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

Extents = npt.NDArray[np.int64]
Checksums = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.int64]
Labels = Callable[[int, Integers], Integers]  # (seed, consecutive ids) -> the class of each

PHYSICAL, RANDOM = "physical", "random"  # fills: values as the application's are; incompressible words
FILLS = (PHYSICAL, RANDOM)
TRAIN, VALIDATION, TEST = "train", "validation", "test"  # names of splits


GENERATOR = 2  # of a layout that does not say otherwise


class Field(Struct, frozen=True):
    """One stored piece of a sample, contiguous in its file: the finest unit a view can pick.

    `shape` is the shape of one sample, in `dtype`; (-1,) where the length differs from sample to sample.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


class FileSpec(Struct, frozen=True):
    """One file to be: its path inside the dataset folder and the samples [first, first + samples) it holds.

    among: where samples are sorted, the first id of the split and its samples, as `ids_in` needs them.
    """

    name: str
    first: int
    samples: int
    split: str = TRAIN
    among: tuple[int, int] | None = None


def ids_in(spec: FileSpec, seed: int, labels: Labels) -> Integers:
    """The samples that a file holds, by their ids in a dataset that is not sorted: int64 [samples].

    Sorted, a split holds the same samples, in the order of their labels. labels: a function of a module, as its results
    are kept.
    """
    own = np.arange(spec.first, spec.first + spec.samples, dtype=np.int64)
    if spec.among is None:
        return own
    first, samples = spec.among
    ids: Integers = first + _by_label(labels, seed, first, samples)[own - first]
    return ids


@lru_cache(maxsize=2)
def _by_label(labels: Labels, seed: int, first: int, samples: int) -> Integers:
    ids = np.arange(first, first + samples, dtype=np.int64)
    order: Integers = np.argsort(labels(seed, ids), kind="stable")
    return order


class Split(Struct, frozen=True):
    """One part of a dataset that is read for one purpose, in its published size and at any other one.

    `file_bytes` is the stored size of a file, exact or (ImageNet, GZIP) the mean; `payload_bytes` is what a sample is
    to the application, without its container (a mean where sizes vary). `spec_files(n)` gives the split's first n
    files, sample ids from 0 up within the split: `Layout.files` moves them behind the splits before it.
    """

    name: str  # TRAIN, VALIDATION or TEST
    full_files: int
    full_samples: int
    samples_per_file: int  # of a typical file; spec_files gives each file's own count
    file_bytes: int
    payload_bytes: float
    spec_files: Callable[[int], tuple[FileSpec, ...]]

    @property
    def sample_bytes(self) -> float:
        """Mean stored bytes of a sample."""
        return self.file_bytes / self.samples_per_file


class WrittenFile(Struct, frozen=True):
    """Where the samples of one written file lie, and what they are.

    extents: int64 [samples, fields, 3] = offset, stored bytes, delivered bytes. The last two differ only where
    the container compresses: then the stored extent must be decoded to give the delivered bytes.
    checksums: uint32 [samples, fields], CRC32C of the delivered bytes.
    """

    extents: Extents
    checksums: Checksums


class Layout(Struct, frozen=True):
    """The published shape of a dataset; counts are free, the shape of a file is not.

    `write(path, spec, seed)` writes one whole file and says where its samples lie; every sample is a pure
    function of (layout, seed, sample id), and no two are equal, in whichever splits they are. `splits` has the
    training split first. `joint_files` is for a layout whose splits cannot be told apart one by one (CDB draws them
    from one flat folder): it gets a count for every split, in their order, and gives all files as `files` does.
    `split_counts`: a number of files -> those of each split, where the application's code says so; None: in proportion.
    `fault` says why a sample (of one field) cannot be decoded; None if it can. Others' files may hold anything.
    `optional`: fields that no reader needs, and others' files may lack.
    `auxiliary` names files without samples (CDB's stats.h5) and their writers `(path, seed)`.
    labels: what says the class of a sample; None where it has none, or where its file's place does. sorted_by: "label",
    or nothing.
    `generator` is raised whenever the same seed would give other bytes; `superseded` says why what a generator before
    it made must not be read; None where it may.
    All callables are picklable (module-level functions or partials of them): files are written by processes.
    """

    workload: str
    variant: str
    container: str  # a name of datagen.formats.CONTAINERS
    fields: tuple[Field, ...]
    splits: tuple[Split, ...]
    source: str  # where the layout is published
    tiny: bool  # sample shapes shrunk for smoke tests: never a measurement
    fill: str  # PHYSICAL or RANDOM, bound into `write` and `auxiliary`
    write: Callable[[Path, FileSpec, int], WrittenFile]
    auxiliary: Mapping[str, Callable[[Path, int], None]]
    joint_files: Callable[[tuple[int, ...]], tuple[FileSpec, ...]] | None = None
    split_counts: Callable[[int], tuple[int, ...]] | None = None
    fault: Callable[[bytes], str | None] | None = None
    optional: tuple[str, ...] = ()
    labels: Labels | None = None
    sorted_by: str = ""
    generator: int = GENERATOR
    superseded: str | None = None

    @property
    def full_files(self) -> int:
        """Files of the published training split."""
        return self.splits[0].full_files

    @property
    def samples_per_file(self) -> int:
        """Samples of a typical training file."""
        return self.splits[0].samples_per_file

    @property
    def file_bytes(self) -> int:
        """Stored bytes of a training file, exact or the mean."""
        return self.splits[0].file_bytes

    @property
    def spec_files(self) -> Callable[[int], tuple[FileSpec, ...]]:
        """Number of training files -> their specs, ids from 0 up."""
        return self.splits[0].spec_files

    @property
    def sample_bytes(self) -> float:
        """Mean stored bytes of a training sample."""
        return self.splits[0].sample_bytes

    def split(self, name: str) -> Split:
        """The split of that name. KeyError."""
        return {split.name: split for split in self.splits}[name]

    def files(self, counts: "Counts") -> tuple[FileSpec, ...]:
        """The files of a dataset with so many of each split, one split after the other, sample ids running through.

        A number alone counts training files. Beyond its published size a split repeats, with new samples.
        """
        file_counts = per_split(self, counts)
        if self.joint_files is not None:
            return self.joint_files(tuple(file_counts.values()))
        files: list[FileSpec] = []
        for split in self.splits:
            first = files[-1].first + files[-1].samples if files else 0
            specs = split.spec_files(file_counts[split.name]) if file_counts[split.name] else ()
            among = (first, sum(spec.samples for spec in specs)) if self.sorted_by else None
            files += [replace(spec, first=first + spec.first, split=split.name, among=among) for spec in specs]
        return tuple(files)


def as_declared(field: Field, declared: Field) -> bool:
    """Whether others' field serves as the declared one: records may have other lengths, integers other types."""
    integers = np.dtype(field.dtype).kind in "iu" and np.dtype(declared.dtype).kind == "i"
    return (
        field.name == declared.name
        and field.shape in (declared.shape, (-1,))
        and (field.dtype == declared.dtype or integers)
    )


Counts = Mapping[str, int] | int  # files of each split by its name; a number alone counts training files


def per_split(layout: Layout, counts: Counts) -> dict[str, int]:
    """The count of every split of `layout`, in their order; 0 where none is named. KeyError for an unknown split."""
    named = {layout.splits[0].name: counts} if isinstance(counts, int) else dict(counts)
    if unknown := named.keys() - {split.name for split in layout.splits}:
        raise KeyError(f"{layout.workload} {layout.variant} has no split {sorted(unknown)}")
    return {split.name: named.get(split.name, 0) for split in layout.splits}
