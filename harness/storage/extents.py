"""Samples read straight from their extents: `preadv` into the caller's buffer, the GIL released, no copy."""

import os
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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


@dataclass
class Cost:
    """What reads have cost so far: bytes asked of the file system, seconds inside open and read, seconds decoding."""

    requested: int = 0
    read_seconds: float = 0.0
    decode_seconds: float = 0.0


class ExtentReader:
    """Reads the view of samples into buffers. Belongs to one thread; `close` it to give its file handles back."""

    def __init__(self, dataset: Dataset, view: Sequence[str]) -> None:
        self._dataset = dataset
        self._view = tuple(view)
        self._decode = CONTAINERS[dataset.manifest.container].decode
        self._keep_open = 0 if dataset.samples == len(dataset.manifest.files) else OPEN_FILES
        self._handles: OrderedDict[int, int] = OrderedDict()
        self._scratch = bytearray()

    def read(self, ids: npt.NDArray[np.int64], out: memoryview, cost: Cost) -> None:
        """Fill `out` with the samples `ids`, one behind the other, each as its fields in view order.

        `out` holds exactly their delivered bytes. Raises DataError when a file ends early or does not decode,
        EnvironmentFailure when it cannot be opened or read.
        """
        files, offsets, stored, delivered = self._dataset.locate(ids, self._view)
        at = 0
        for row, file in enumerate(files.tolist()):
            started = time.perf_counter()
            handle = self._open(file)
            cost.read_seconds += time.perf_counter() - started
            try:
                if self._decode is None:
                    for offset, length in merged(offsets[row].tolist(), stored[row].tolist()):
                        self._pread(handle, file, offset, out[at : at + length], cost)
                        at += length
                else:
                    for offset, length, size in np.stack((offsets[row], stored[row], delivered[row]), 1).tolist():
                        code = self._scratch_of(length)
                        self._pread(handle, file, offset, code, cost)
                        self._decode_into(code, file, out[at : at + size], cost)
                        at += size
            finally:
                if file not in self._handles:
                    os.close(handle)

    def close(self) -> None:
        """Give all file handles back."""
        while self._handles:
            os.close(self._handles.popitem()[1])

    def _scratch_of(self, length: int) -> memoryview:
        if len(self._scratch) < length:
            self._scratch = bytearray(length)
        return memoryview(self._scratch)[:length]

    def _decode_into(self, code: memoryview, file: int, out: memoryview, cost: Cost) -> None:
        assert self._decode is not None
        started = time.perf_counter()
        try:
            self._decode(code, out)
        except DataError as error:
            raise DataError(f"{self._dataset.path(file)}: {error} {DAMAGED}") from error
        cost.decode_seconds += time.perf_counter() - started

    def _open(self, file: int) -> int:
        handle = self._handles.get(file)
        if handle is not None:
            self._handles.move_to_end(file)
            return handle
        path = self._dataset.path(file)
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
                    f"{self._dataset.path(file)} cannot be read at byte {offset + done}: {error.strerror}. "
                    "Look at the file system and its logs; then run again."
                ) from error
            if count == 0:
                raise DataError(
                    f"{self._dataset.path(file)} ends at byte {offset + done}, before the end of a sample at "
                    f"{offset + len(into)}. {DAMAGED}"
                )
            done += count
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
