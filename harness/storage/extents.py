"""Samples read straight from their extents: `preadv` into the caller's buffer, the GIL released, no copy."""

import os
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import crc32c

from dlio_bench.batches import Cost, Ids
from dlio_bench.benchmarks.pipeline import Decode
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.errors import DataError, EnvironmentFailure

# Files of many samples stay open while they are read from; a file of one sample is opened for each read, as its
# application does, so that the cost of opening stays in the measurement.
OPEN_FILES = 64

DAMAGED = (
    "The dataset is damaged: delete its folder and run again (a dataset made by this tool is made anew), "
    "or restore the file."
)


class ExtentReader:
    """Reads samples into buffers. Belongs to one thread; `close` it to give its file handles back.

    With `decode`, what it makes of the fields is delivered. `check` compares every field with its CRC32C of generation.
    `staged`: where copies of some files lie on node-local storage.
    """

    def __init__(
        self,
        dataset: Dataset,
        fields: Sequence[str],
        decode: Decode | None = None,
        *,
        check: bool = False,
        staged: Mapping[int, Path] | None = None,
    ) -> None:
        self._dataset = dataset
        self._fields = tuple(fields)
        self._application = decode
        self._check = check
        self._staged = staged or {}
        self._uncode = CONTAINERS[dataset.manifest.container].decode
        self._keep_open = 0 if dataset.samples == len(dataset.manifest.files) else OPEN_FILES
        self._handles: OrderedDict[int, int] = OrderedDict()
        self._code = bytearray()
        self._raw = bytearray()

    def read(self, ids: Ids, out: memoryview, cost: Cost) -> None:
        """Fill `out` with the samples `ids`, one behind the other, each as its fields in order or as decoded.

        `out` holds exactly what is delivered of them. Raises DataError when a file ends early, does not decode or (on
        request) has another CRC32C than was generated, EnvironmentFailure when it cannot be opened or read.
        """
        files, offsets, stored, delivered = self._dataset.locate(ids, self._fields)
        expected = self._dataset.checksums(ids, self._fields) if self._check else None
        at = 0
        for row, file in enumerate(files.tolist()):
            sizes = delivered[row].tolist()
            whole = sum(sizes)
            if self._application is None:
                raw, at = out[at : at + whole], at + whole
            else:
                raw = memoryview(self._raw_of(whole))[:whole]
            self._fields_into(file, offsets[row].tolist(), stored[row].tolist(), sizes, raw, cost)
            if expected is not None:
                self._compare(file, int(ids[row]), raw, sizes, expected[row].tolist())
            if self._application is not None:
                size = self._application.sample_bytes
                self._apply(file, int(ids[row]), raw, sizes, out[at : at + size], cost)
                at += size

    def _fields_into(
        self, file: int, offsets: list[int], stored: list[int], sizes: list[int], raw: memoryview, cost: Cost
    ) -> None:
        """Read all fields of one sample, decoded from their container, into `raw`."""
        started = time.perf_counter()
        handle = self._open(file)
        cost.read_seconds += time.perf_counter() - started
        at = 0
        try:
            if self._uncode is None:
                for offset, length in merged(offsets, stored):
                    self._pread(handle, file, offset, raw[at : at + length], cost)
                    at += length
            else:
                for offset, length, size in zip(offsets, stored, sizes, strict=True):
                    code = self._code_of(length)
                    self._pread(handle, file, offset, code, cost)
                    self._decode_into(code, file, raw[at : at + size], cost)
                    at += size
        finally:
            if file not in self._handles:
                os.close(handle)

    def _apply(self, file: int, sample: int, raw: memoryview, sizes: list[int], out: memoryview, cost: Cost) -> None:
        assert self._application is not None
        started = time.perf_counter()
        ends = list(accumulate(sizes))
        parts = [raw[end - size : end] for end, size in zip(ends, sizes, strict=True)]
        try:
            self._application.apply(sample, parts, out)
        except DataError as error:
            raise DataError(f"{self._path(file)}, sample {sample}: {error} {DAMAGED}") from error
        cost.decode_seconds += time.perf_counter() - started

    def _compare(self, file: int, sample: int, raw: memoryview, sizes: list[int], expected: list[int]) -> None:
        end = 0
        for name, size, wanted in zip(self._fields, sizes, expected, strict=True):
            start, end = end, end + size
            found = crc32c.crc32c(raw[start:end])
            if found != wanted:
                raise DataError(
                    f"{self._path(file)}: sample {sample}, field {name} has CRC32C {found:08x}, but was generated with "
                    f"{wanted:08x}. {DAMAGED}"
                )

    def close(self) -> None:
        """Give all file handles back."""
        while self._handles:
            os.close(self._handles.popitem()[1])

    def _path(self, file: int) -> Path:
        return self._staged.get(file) or self._dataset.path(file)

    def _code_of(self, length: int) -> memoryview:
        if len(self._code) < length:
            self._code = bytearray(length)
        return memoryview(self._code)[:length]

    def _raw_of(self, length: int) -> bytearray:
        if len(self._raw) < length:
            self._raw = bytearray(length)
        return self._raw

    def _decode_into(self, code: memoryview, file: int, out: memoryview, cost: Cost) -> None:
        assert self._uncode is not None
        started = time.perf_counter()
        try:
            self._uncode(code, out)
        except DataError as error:
            raise DataError(f"{self._path(file)}: {error} {DAMAGED}") from error
        cost.decode_seconds += time.perf_counter() - started

    def _open(self, file: int) -> int:
        handle = self._handles.get(file)
        if handle is not None:
            self._handles.move_to_end(file)
            return handle
        path = self._path(file)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise DataError(f"{path} is missing from its dataset. {DAMAGED}") from error
        except OSError as error:
            raise EnvironmentFailure(
                f"{path} cannot be opened: {error.strerror}. Make the file readable for this user on every node."
            ) from error
        if self._keep_open:
            self._handles[file] = handle
            if len(self._handles) > self._keep_open:
                os.close(self._handles.popitem(last=False)[1])
        return handle

    def _pread(self, handle: int, file: int, offset: int, into: memoryview, cost: Cost) -> None:
        started = time.perf_counter()
        done = 0
        while done < len(into):
            try:
                count = os.preadv(handle, [into[done:]], offset + done)
            except OSError as error:
                raise EnvironmentFailure(
                    f"{self._path(file)} cannot be read at byte {offset + done}: {error.strerror}. "
                    "Look at the file system and its logs; then run again."
                ) from error
            if count == 0:
                raise DataError(
                    f"{self._path(file)} ends at byte {offset + done}, before the end of a sample at "
                    f"{offset + len(into)}. {DAMAGED}"
                )
            done += count
        if file in self._staged:
            cost.local += done
        else:
            cost.requested += done
        cost.read_seconds += time.perf_counter() - started


def merged(offsets: list[int], lengths: list[int]) -> list[tuple[int, int]]:
    """Neighbouring extents as one read: offsets [0, 4, 16], lengths [4, 4, 2] -> [(0, 8), (16, 2)]."""
    reads: list[tuple[int, int]] = []
    for offset, length in zip(offsets, lengths, strict=True):
        if reads and sum(reads[-1]) == offset:
            reads[-1] = (reads[-1][0], reads[-1][1] + length)
        else:
            reads.append((offset, length))
    return reads
