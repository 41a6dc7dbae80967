"""HDF5 files whose bytes lie where a plain read finds them: contiguous datasets, or one chunk without filters.

HDF5 lays out the file and tells the offsets. h5py is imported on first use, so that naming a layout costs nothing.
"""

import errno
import functools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from dlio_bench.atomic_files import write_at
from dlio_bench.datagen.layout import Extents, Field
from dlio_bench.errors import DataError, UsageError
from dlio_bench.free_space import SHARED_MEMORY, free_bytes

# What h5py makes of damaged files: it has no error of its own, and turns HDF5's by their kinds.
_FAILURES = (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError)
_ROOM = 1 << 20  # bytes, more than HDF5 writes beside the contents of a file


def _h5py() -> Any:
    import h5py  # type: ignore[import-untyped]  # it has no stubs; late, for its 0.1 s

    return h5py


def allocate(path: Path, datasets: Sequence[tuple[str, str, tuple[int, ...]]]) -> dict[str, int]:
    """Create a file of contiguous root datasets (name, dtype, shape), in this order; name -> offset of its bytes.

    The contents are left for plain writes at these offsets. All properties stay HDF5's defaults (allocation late,
    no fill): writing one element is what allocates a contiguous dataset. OSError.
    """
    plan = _plan_file(tuple(datasets))
    with path.open("wb", buffering=0) as file:
        for start, content in plan.parts:
            write_at(file.fileno(), content, start)
        file.truncate(plan.bytes)
    return dict(plan.offsets)


class _Plan(Struct, frozen=True):
    """A file before its contents: the parts that HDF5 wrote, by their place; all else is a hole."""

    offsets: Mapping[str, int]
    parts: tuple[tuple[int, bytes], ...]
    bytes: int


@functools.lru_cache(maxsize=16)
def _plan_file(datasets: tuple[tuple[str, str, tuple[int, ...]], ...]) -> _Plan:
    """What HDF5 makes of `datasets`, in a file aside that takes a few pages of memory.

    Aside, since HDF5 (2.0) cannot close a file of several datasets on a disk that fills up, and crashes at its next
    use or at the end of the process. Once for all files of a layout: equal datasets are laid out alike.
    """
    contents = sum(math.prod(shape) * np.dtype(dtype).itemsize for _, dtype, shape in datasets)
    with NamedTemporaryFile(dir=_scratch_folder()) as aside:
        aside.truncate(contents + _ROOM)  # a limit on the size of files is met here, before HDF5 meets it
        with _h5py().File(aside.name, "w", locking=False) as file:
            for number, (name, dtype, shape) in enumerate(datasets):
                dataset = file.create_dataset(name, shape, dtype)
                dataset[(0,) * len(shape)] = 0
                if number == 0:
                    file.flush()  # leaves bytes in the file that datasets made before this had a plan have too
            file.flush()  # before it, the offset of a small dataset is not settled
            offsets = {name: file[name].id.get_offset() for name, _, _ in datasets}
        return _Plan(offsets, tuple(_parts(aside.fileno())), os.fstat(aside.fileno()).st_size)


def _scratch_folder() -> Path | None:
    """The folder of a small file: in memory where that has room, else wherever this machine keeps temporary files."""
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) and (free_bytes(SHARED_MEMORY) or 0) > _ROOM else None


def _parts(handle: int) -> Iterator[tuple[int, bytes]]:
    """Start and content of each part of a file that is not a hole."""
    end = 0
    while True:
        try:
            start = os.lseek(handle, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # there is none from here on
                return
            raise
        end = os.lseek(handle, start, os.SEEK_HOLE)
        yield start, os.pread(handle, end - start, start)


def write_chunks(
    path: Path,
    group: str,
    datasets: Mapping[str, npt.NDArray[Any]],
    libver: tuple[str, str],
) -> dict[str, int]:
    """Create a file of datasets, each one unfiltered chunk, in this order, in `group`; name -> offset of its bytes.

    OSError.
    """
    offsets = {}
    with _create_file(path, libver) as file:
        folder = file.create_group(group)
        for name, values in datasets.items():
            dataset = folder.create_dataset(name, values.shape, values.dtype, chunks=values.shape)
            dataset.id.write_direct_chunk((0,) * values.ndim, np.ascontiguousarray(values))
            offsets[name] = dataset.id.get_chunk_info(0).byte_offset
    return offsets


@contextmanager
def _create_file(path: Path, libver: tuple[str, str]) -> Iterator[Any]:
    """A new file, not locked: it is nobody else's yet, and some file systems cannot lock."""
    try:
        with _h5py().File(path, "w", locking=False, libver=libver) as file:
            yield file
    except RuntimeError as error:  # what h5py makes of a full disk when it is met in closing
        number = _errno(error)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def _errno(error: BaseException | None) -> int | None:
    """The error number in the text of an error, or of the one it was met in handling (closing fails once more)."""
    while error is not None:
        if found := re.search(r"errno = (\d+)", str(error)):
            return int(found[1])
        error = error.__context__
    return None


def read_field(path: Path, dataset: str, index: int | None = None) -> bytes:
    """The bytes of `dataset`, or of its part at `index` of the first axis, read through HDF5 itself.

    The slow way, which needs no extents. Raises DataError when the file or the dataset cannot be read so.
    """
    try:
        with _h5py().File(path, "r", locking=False) as file:
            values = file[dataset][()] if index is None else file[dataset][index]
    except _FAILURES as error:
        part = dataset if index is None else f"{dataset}[{index}]"
        raise DataError(f"{path}: '{part}' cannot be read through HDF5: {error} Restore the file.") from error
    return bytes(np.asarray(values).tobytes())


def locate(path: Path, fields: Sequence[Field]) -> Extents:
    """Where HDF5 says that the fields lie: int64 [samples, fields, 2] = offset, bytes.

    A field "name" is the dataset of that path, or the only one of that name in any group, with the samples along its
    first axis or, when it has the field's own shape, of one sample; "name[k]" is part k of a dataset that is one
    sample. DataError, naming file and dataset, when one is absent, ambiguous, of another shape or dtype, or stored so
    that a plain read cannot find it.
    """
    return _locate_fields(path, fields, _contiguous_extents)


def locate_rows(path: Path, fields: Sequence[Field]) -> Extents:
    """As `locate`, for files that only HDF5 can read: int64 [samples, fields, 2] = place, share of the stored bytes.

    The place is the index along the dataset's first axis, or WHOLE.
    """
    return _locate_fields(path, fields, _by_row)


def _locate_fields(path: Path, fields: Sequence[Field], lay: "Lay") -> Extents:
    try:
        with _h5py().File(path, "r", locking=False) as file:
            datasets = datasets_of(file)
            columns = [_column(path, datasets, field, lay) for field in fields]
    except _FAILURES as error:
        raise DataError(f"{path} cannot be read as HDF5: {error}.") from error
    counts = {len(column) for column in columns}
    if len(counts) != 1:
        raise DataError(f"{path}: its datasets hold different numbers of samples: {sorted(counts)}.")
    return np.stack(columns, axis=1)


def fields_of(path: Path, names: Sequence[str]) -> tuple[Field, ...]:
    """What a file's datasets of these paths, or bare names, hold, with the samples along their first axis.

    DataError for a file that cannot be read, UsageError for a name that means no dataset, several, or none of numbers.
    """
    fields = []
    try:
        with _h5py().File(path, "r", locking=False) as file:
            datasets = datasets_of(file)
            for name in names:
                dataset = meant(path, datasets, name)
                dtype, shape = dataset.dtype, dataset.shape
                if not shape or dtype.kind not in "fiub":
                    raise UsageError(
                        f"{path}: '{name}' holds {dtype} of the shape {shape}. Name datasets of numbers or booleans "
                        "with the samples along their first axis."
                    )
                fields.append(Field(name, dtype.str, shape[1:]))
    except DataError as error:  # that of `meant`
        raise UsageError(f"{error} Give the path of each dataset that you want.") from error
    except _FAILURES as error:
        raise DataError(f"{path} cannot be read as HDF5: {error}.") from error
    return tuple(fields)


def types_of(path: Path, names: Sequence[str]) -> dict[str, str] | None:
    """The types of those of these datasets that a file has, as NumPy writes them; None if it cannot be read as HDF5."""
    types = {}
    try:
        with _h5py().File(path, "r", locking=False) as file:
            known = datasets_of(file)
            for name in names:
                with suppress(DataError):  # absent, or ambiguous
                    types[name] = meant(path, known, name).dtype.str
    except _FAILURES:
        return None
    return types


def datasets_of(file: Any) -> dict[str, Any]:
    """The datasets of a file by their paths, which begin without a slash."""
    datasets: dict[str, Any] = {}
    file.visititems(lambda path, item: datasets.update({path: item} if hasattr(item, "shape") else {}))
    return datasets


def meant(path: Path, datasets: Mapping[str, Any], name: str) -> Any:
    """The dataset at the path `name`, or the only one of that bare name. DataError if there is none, or several."""
    exact = name.strip("/")
    found = [exact] if exact in datasets else [key for key in datasets if key.rpartition("/")[2] == name]
    if not found:
        raise DataError(f"{path} has no dataset '{name}'. Its datasets: {', '.join(datasets) or '(none)'}.")
    if len(found) > 1:
        raise DataError(f"{path} has several datasets '{name}': {', '.join(found)}.")
    return datasets[found[0]]


WHOLE = -1  # a dataset that is one sample
MOST_ROWS = 1 << 24  # of a dataset: published files have 709 samples

# (file, name and dataset, first row or WHOLE, rows, bytes of a row) -> int64 [rows, 2]
Lay = Callable[[Path, str, Any, int, int, int], Extents]


def _contiguous_extents(path: Path, name: str, dataset: Any, first: int, rows: int, length: int) -> Extents:
    """Bytes of the file."""
    offsets = _start(path, name, dataset) + (max(first, 0) + np.arange(rows, dtype=np.int64)) * length
    return np.stack([offsets, np.full_like(offsets, length)], axis=1)


def _by_row(path: Path, name: str, dataset: Any, first: int, rows: int, length: int) -> Extents:
    """Rows of the dataset, each with its share of what the file takes."""
    del path, name
    share = dataset.id.get_storage_size() * length // max(dataset.nbytes, 1)
    places = first + np.arange(rows, dtype=np.int64)
    return np.stack([places, np.full_like(places, share)], axis=1)


class Filtered:
    """A file whose samples HDF5 itself has to read, one field at a time; it lets one thread in at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._checked: dict[str, Any] = {}  # dataset by name
        try:
            self._file = _h5py().File(path, "r", locking=False)
            self._datasets = datasets_of(self._file)
        except _FAILURES as error:
            raise DataError(f"{path} cannot be read as HDF5: {error}.") from error

    def fetch(self, field: str, place: int, out: memoryview) -> None:
        """See Opened."""
        name = field.partition("[")[0]
        try:
            if name not in self._checked:
                dataset = meant(self._path, self._datasets, name)
                _require_in_file(self._path, name, dataset)
                self._checked[name] = dataset
            dataset = self._checked[name]
            into = np.frombuffer(out, dtype=dataset.dtype)
            if place == WHOLE:
                dataset.read_direct(into.reshape(dataset.shape))
            elif dataset.ndim == 1:
                into[0] = dataset[place]
            else:
                dataset.read_direct(into.reshape(dataset.shape[1:]), np.s_[place])
        except _FAILURES as error:
            raise DataError(f"{self._path}: '{field}' cannot be read through HDF5: {error}.") from error

    def close(self) -> None:
        """See Opened."""
        self._file.close()


def _column(path: Path, datasets: Mapping[str, Any], field: Field, lay: Lay) -> Extents:
    """Place and bytes of one field in every sample: int64 [samples, 2]."""
    name, _, part = field.name.removesuffix("]").partition("[")
    dataset = meant(path, datasets, name)
    if dataset.dtype != np.dtype(field.dtype):
        raise DataError(f"{path}: '{name}' holds {dataset.dtype.str} instead of {field.dtype}.")
    _require_in_file(path, name, dataset)
    if len(dataset.shape) and dataset.shape[0] > MOST_ROWS:
        raise DataError(f"{path}: '{name}' has {dataset.shape[0]} rows, and at most {MOST_ROWS} are served.")
    length = int(np.prod(field.shape, dtype=np.int64)) * dataset.dtype.itemsize
    inner = dataset.shape[1:]
    if part and inner == field.shape and int(part) < dataset.shape[0]:
        return lay(path, name, dataset, int(part), 1, length)
    if not part and dataset.shape == field.shape:
        return lay(path, name, dataset, WHOLE, 1, length)
    if not part and dataset.ndim and inner == field.shape:
        return lay(path, name, dataset, 0, dataset.shape[0], length)
    raise DataError(f"{path}: '{name}' has the shape {dataset.shape}, and a sample of '{field.name}' is {field.shape}.")


def _require_in_file(path: Path, name: str, dataset: Any) -> None:
    """DataError for values that lie in other files: nobody would drop those from the page cache, or look for them."""
    if dataset.is_virtual or dataset.external:
        kind = "a virtual dataset" if dataset.is_virtual else "stored externally"
        raise DataError(
            f"{path}: '{name}' is {kind}: its bytes lie in other files, of which a measurement could not say whether "
            "they were cached. Copy the data into one file (`h5repack` does), and index that."
        )
    if dataset.chunks is not None and dataset.id.get_num_chunks() < _chunks(dataset):
        raise DataError(f"{path}: '{name}' was never written in full.")


def _chunks(dataset: Any) -> int:
    return math.prod(-(-length // chunk) for length, chunk in zip(dataset.shape, dataset.chunks, strict=True))


def _start(path: Path, name: str, dataset: Any) -> int:
    """Where the bytes of a dataset begin, if they lie in one piece and as they are. DataError."""
    if dataset.chunks is None:
        offset = dataset.id.get_offset()
        if offset is None:
            raise DataError(f"{path}: '{name}' has no bytes of its own in the file (compact or never written).")
        return int(offset)
    properties = dataset.id.get_create_plist()
    if properties.get_nfilters():
        filters = ", ".join(properties.get_filter(n)[3].decode() for n in range(properties.get_nfilters()))
        raise DataError(
            f"{path}: '{name}' is compressed or filtered ({filters}), so that a plain read cannot serve it."
        )
    if dataset.chunks != dataset.shape or dataset.id.get_num_chunks() != 1:
        raise DataError(
            f"{path}: '{name}' lies in {dataset.id.get_num_chunks()} chunks of {dataset.chunks}, so that a plain read "
            "cannot serve it."
        )
    return int(dataset.id.get_chunk_info(0).byte_offset)
