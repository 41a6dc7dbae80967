"""What a reading process of CDB's pipeline does: one file, wholly read, four channels of it handed back."""

import ctypes
import signal
import time

import h5py  # type: ignore[import-untyped]  # it has no stubs
import numpy as np

from dlio_bench.benchmarks.cdb.decode import USED, Labels, Normal, Plane
from dlio_bench.benchmarks.cdb.layout import GROUP

PR_SET_PDEATHSIG = 1  # prctl(2)
# image float32 [4, rows, columns], labels int32, weights float32; bytes of the file; seconds reading, seconds decoding
Image = tuple[Plane, Labels, Plane, int, float, float]


def prepare() -> None:
    """End with the process that this one was forked from, and leave Ctrl-C to the trainer."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def read(path: str, normal: Normal) -> Image:
    """One sample. The "core" driver reads the whole file into memory, whatever is used of it. OSError, DataError."""
    started = time.perf_counter()
    with h5py.File(path, "r", driver="core", backing_store=False, libver="latest", locking=False) as file:
        size = file.id.get_filesize()
        group = file[GROUP]
        data = group["data"][list(USED)]
        stored = group["labels"][()]
    opened = time.perf_counter()
    for number, channel in enumerate(data):
        normal.channel(number, channel, channel)
    labels = np.empty(stored.shape, dtype=np.int32)
    weights = np.empty(stored.shape, dtype=np.float32)
    normal.classes(stored, labels, weights)
    return data, labels, weights, size, opened - started, time.perf_counter() - opened
