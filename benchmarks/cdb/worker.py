"""What a reading process of CDB's pipeline does: one file, wholly read, four channels of it handed back."""

import threading
import time
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import NamedTuple

import h5py  # type: ignore[import-untyped]  # it has no stubs
import numpy as np

from dlio_bench import recorder
from dlio_bench.benchmarks.cdb.decode import Labels, Normal, Plane
from dlio_bench.benchmarks.cdb.layout import GROUP
from dlio_bench.components import CODE
from dlio_bench.processes import begin_worker

# image float32 [channels, rows, columns], labels int32, weights float32; bytes; seconds reading, seconds decoding
Image = tuple[Plane, Labels, Plane, int, float, float]
SINGLE_IMAGE, FILE_READ, DECODE = (CODE[name] for name in ("Time to Read Single Image", "image file read", "decode"))


class SamplePlace(NamedTuple):
    """Where a sample stands: its file, its epoch, its step in that."""

    file: int
    epoch: int
    step: int


def prepare(asked: Semaphore, spans: Path | None = None) -> None:
    """End with the rank, and leave Ctrl-C to it. It takes no call before it gets `asked`.

    spans: where to record them, None to record none. Not by the environment, which is that of the server that forks:
    it may have been started for another run.
    """
    begin_worker()
    if spans is not None:
        threading.current_thread().name = "worker"
        recorder.begin(spans)
        recorder.prepare(1)
    asked.acquire()


def read(path: str, normal: Normal, place: SamplePlace) -> Image:
    """One sample. The "core" driver reads the whole file into memory, whatever is used of it. OSError, DataError."""
    started, code = time.perf_counter(), normal.code
    driver = {"driver": "core", "backing_store": False, "libver": "latest"} if code.whole else {}
    with h5py.File(path, "r", locking=False, **driver) as file:
        group = file[GROUP]
        data = group["data"][()] if code.last else group["data"][list(code.channels)]
        stored = group[code.labels][()]
        size = file.id.get_filesize() if code.whole else data.nbytes + stored.nbytes
    opened = time.perf_counter()
    if code.last:
        data = np.ascontiguousarray(np.moveaxis(data, -1, 0)[list(code.channels)])
    for number, channel in enumerate(data):
        normal.channel(number, channel, channel)
    labels = np.empty(stored.shape, dtype=np.int32)
    weights = np.empty(stored.shape, dtype=np.float32)
    normal.classes(stored, labels, weights)
    ended = time.perf_counter()
    if track := recorder.current_track():
        track.epoch, track.step = place.epoch, place.step
        track.add(SINGLE_IMAGE, started, ended, file=place.file)
        track.add(FILE_READ, started, opened, size, file=place.file)
        track.add(DECODE, opened, ended, data.nbytes + labels.nbytes + weights.nbytes, file=place.file)
    return data, labels, weights, size, opened - started, ended - opened
