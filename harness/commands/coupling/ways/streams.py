"""Coupling through ADIOS2: BP files that twins read while they grow, or SST streams, which pass the file system by.

PyPI's ADIOS2 is serial: each rank of the solver has a stream of its own, and each twin reads all of them.
"""

import time
from pathlib import Path

import numpy as np

from dlio_bench.benchmarks.grayscott.solver import Slab
from dlio_bench.errors import DataError
from dlio_bench.harness.cluster.life import life
from dlio_bench.harness.commands.coupling.job import BP, SST
from dlio_bench.harness.commands.coupling.ways.files import LONGEST_LOOK
from dlio_bench.harness.commands.coupling.ways.way import ABOUT, Array, SideClock, require, slab_header
from dlio_bench.harness.streams.adios import StreamReader, StreamWriter

FIELDS, TOLD = "fields", "about"
LOOK = LONGEST_LOOK  # seconds between two looks for a step of BP files; ADIOS2 would let a second pass


def stream(folder: Path, producer: int) -> Path:
    """The stream of one of the solver's ranks."""
    return folder / f"outputs-{producer}"


class StreamOutlet:
    """The end of one of the solver's ranks."""

    def __init__(self, folder: Path, engine: str, producer: int, part: Slab, consumers: int, queue: int) -> None:
        """Returns when all twins have opened the stream (SST)."""
        self.clock = SideClock()
        self._part = part
        limits = {"QueueLimit": queue, "QueueFullPolicy": "Block"} if engine == SST else {}
        with life.waits():
            self._writer = StreamWriter(stream(folder, producer), engine=engine, readers=consumers, parameters=limits)

    def put(self, number: int, fields: Array) -> None:
        """See Outlet. A wait for room in the queue is part of what it takes to move."""
        began = time.monotonic()
        with life.waits():
            self._writer.put({FIELDS: fields, TOLD: slab_header(number, self._part, fields)})
        self.clock.moved += time.monotonic() - began

    def close(self) -> None:
        """See Outlet. Waits until the twins have what is in the queue."""
        with life.waits():
            self._writer.close()


class StreamInlet:
    """The end of one twin."""

    def __init__(self, folder: Path, engine: str, parts: list[Slab], seconds: float) -> None:
        """Open the streams of all the solver's ranks, whose slabs are `parts`. StreamTimeout."""
        self.clock = SideClock()
        self._engine, self._parts, self._seconds = engine, parts, seconds
        self._told = np.empty(ABOUT, np.int64)
        looks = {"BeginStepPollingFrequencySecs": LOOK} if engine == BP else {}
        with life.waits(seconds):
            self._readers = [
                StreamReader(stream(folder, producer), engine=engine, parameters=looks, join_seconds=seconds)
                for producer in range(len(parts))
            ]

    def take(self, number: int, out: Array) -> None:
        """See Inlet."""
        for reader, part in zip(self._readers, self._parts, strict=True):
            began = time.monotonic()
            with life.waits(self._seconds):
                more = reader.begin(self._seconds)
            came = time.monotonic()
            self.clock.waited += came - began
            if not more:
                raise DataError(
                    f"Coupling through {self._engine}: the stream ended before output {number}. Couple again."
                )
            fields = reader.get(FIELDS)
            told = reader.get(TOLD)
            reader.end()
            require(told, number, part, fields, self._engine)
            out[:, part.first : part.first + part.planes] = fields
            self.clock.moved += time.monotonic() - came

    def close(self) -> None:
        """See Inlet. Waits until the solver has ended the streams."""
        began = time.monotonic()
        for reader in self._readers:
            with life.waits(self._seconds):
                more = reader.begin(self._seconds)
            if more:
                raise DataError(f"Coupling through {self._engine}: more outputs came than were asked for.")
            reader.close()
        self.clock.waited += time.monotonic() - began
