"""Coupling through files: the solver writes one for each output, and the twins look for it until it is there.

`output-000001` holds a head of HEAD bytes (ABOUT int64 for each rank of the solver), then each rank's slab. The ranks
write it together under another name, and the first of them renames it. A twin that has read it leaves an empty file
`output-000001.taken-0`; the solver waits for all of them before it gets further ahead than the queue allows, and
removes what all have taken.
"""

import os
import time
from pathlib import Path

import numpy as np

from dlio_bench.atomic_files import part_of, read_at, write_at
from dlio_bench.benchmarks.grayscott.solver import Slab
from dlio_bench.errors import DataError, StreamTimeout
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.life import life
from dlio_bench.harness.commands.coupling.job import FILES
from dlio_bench.harness.commands.coupling.ways.way import ABOUT, Array, SideClock, require, slab_header

HEAD = 4096
MOST_RANKS = HEAD // (8 * ABOUT)  # of the solver, that a head describes
FIRST_LOOK, LONGEST_LOOK = 0.0005, 0.01  # seconds between two looks for a file


def output(folder: Path, number: int) -> Path:
    """The file of an output."""
    return folder / f"output-{number:06}"


def taken_marker(folder: Path, number: int, consumer: int) -> Path:
    """What a twin leaves when it has read an output."""
    return folder / f"output-{number:06}.taken-{consumer}"


def await_file(path: Path, seconds: float, what: str) -> float:
    """Seconds until a file was there. StreamTimeout."""
    began, pause = time.monotonic(), FIRST_LOOK
    with life.waits(seconds):
        while not path.exists():
            if time.monotonic() - began > seconds:
                raise StreamTimeout(f"Coupling through files: {what} within {seconds:g} s ({path.name} is missing).")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_LOOK)
    return time.monotonic() - began


class FileOutlet:
    """The end of one of the solver's ranks."""

    def __init__(self, folder: Path, comm: Comm, part: Slab, consumers: int, queue: int, seconds: float) -> None:
        """comm: of the solver's ranks. queue: outputs that no twin may have taken; 0: any number."""
        self.clock = SideClock()
        self._folder, self._comm, self._part = folder, comm, part
        self._consumers, self._queue, self._seconds = consumers, queue, seconds

    def put(self, number: int, fields: Array) -> None:
        """See Outlet. StreamTimeout while the queue stays full."""
        if self._queue and number > self._queue:
            if self._comm.rank == 0:
                self._make_room(number - self._queue)
            self._comm.barrier()
        began = time.monotonic()
        path = output(self._folder, number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        plane = fields[0, 0].nbytes
        heads = self._comm.allgather(slab_header(number, self._part, fields))
        handle = os.open(part_of(path), flags, 0o600)
        try:
            if self._comm.rank == 0:
                head = np.zeros(HEAD // 8, np.int64)
                head[: ABOUT * len(heads)] = np.concatenate(heads)
                write_at(handle, head, 0)
            write_at(handle, fields, HEAD + 2 * self._part.first * plane)
        finally:
            os.close(handle)
        self._comm.barrier()
        if self._comm.rank == 0:
            part_of(path).rename(path)
        self.clock.moved += time.monotonic() - began

    def close(self) -> None:
        """See Outlet. Files stay for twins that have not read them yet."""

    def _make_room(self, number: int) -> None:
        for consumer in range(self._consumers):
            path = taken_marker(self._folder, number, consumer)
            self.clock.waited += await_file(path, self._seconds, f"twin {consumer} did not take output {number}")
            path.unlink()
        output(self._folder, number).unlink()


class FileInlet:
    """The end of one twin."""

    def __init__(self, folder: Path, consumer: int, parts: list[Slab], size: int, seconds: float) -> None:
        """parts: of the solver's ranks."""
        self.clock = SideClock()
        self._folder, self._consumer, self._parts, self._seconds = folder, consumer, parts, seconds
        self._content = np.empty(HEAD // 8 + 2 * size**3, np.float64)
        self._last = 0

    def take(self, number: int, out: Array) -> None:
        """See Inlet."""
        path = output(self._folder, number)
        self.clock.waited += await_file(path, self._seconds, f"the solver did not write output {number}")
        began = time.monotonic()
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(handle).st_size
            if size != self._content.nbytes:
                raise DataError(f"Coupling through files: {path.name} has {size} bytes, not {self._content.nbytes}.")
            read_at(handle, memoryview(self._content).cast("B"), 0)
        finally:
            os.close(handle)
        told = self._content[: HEAD // 8].view(np.int64)[: ABOUT * len(self._parts)].reshape(-1, ABOUT)
        cells = self._content[HEAD // 8 :]
        for head, part in zip(told, self._parts, strict=True):
            first, last = (2 * plane * out[0, 0].size for plane in (part.first, part.first + part.planes))
            fields = cells[first:last].reshape(2, part.planes, *out.shape[2:])
            require(head, number, part, fields, FILES)
            out[:, part.first : part.first + part.planes] = fields
        taken_marker(self._folder, number, self._consumer).touch()
        self._last = number
        self.clock.moved += time.monotonic() - began

    def close(self) -> None:
        """See Inlet."""
        if (more := output(self._folder, self._last + 1)).exists():
            raise DataError(f"Coupling through files: {more.name} came behind the last output. Couple again.")
