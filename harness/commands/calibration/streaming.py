"""How fast the steps of a stream come from one process to another: the first two ranks, or a rank and its child."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dlio_bench.harness.cluster import interfaces
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.streams import adios
from dlio_bench.harness.streams.settings import QUEUE

BYTES, LEAST, MOST = 64 << 20, 16, 500  # of all steps of a size, and how many steps these are
WARM = 4  # steps that are not timed
WAIT = 60.0  # seconds for the other process


def measure(comm: Comm, folder: Path, sizes: Sequence[int]) -> dict[int, float]:
    """Bytes a second by bytes of a step; nothing where a rank has no ADIOS2. All ranks call this together.

    A step has what one of a run has: a head and a content. folder: which the first two ranks see. StreamLost,
    StreamTimeout.
    """
    if not all(comm.allgather(adios.version() is not None)):
        return {}
    interface = interfaces.serving(comm)[comm.rank].interface
    rates: dict[int, float] = {}
    if comm.size == 1:
        argv = [sys.executable, "-P", "-m", __name__, str(folder), interface, *map(str, sizes)]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as writer:
            try:
                rates = {size: _stream_rate(folder, interface, size) for size in sizes}
            finally:
                writer.kill()  # it has written all, or nobody reads it
    elif comm.rank == 0:
        rates = {size: _stream_rate(folder, interface, size) for size in sizes}
    elif comm.rank == 1:
        _write(folder, interface, sizes)
    measured: dict[int, float] = comm.allgather(rates)[0]
    return measured


def _steps(size: int) -> int:
    return WARM + max(LEAST, min(MOST, BYTES // size))


def _parameters(interface: str) -> dict[str, object]:
    named: dict[str, object] = {"NetworkInterface": interface} if interface else {}
    return named | {"QueueLimit": QUEUE, "QueueFullPolicy": "Block"}


def _write(folder: Path, interface: str, sizes: Sequence[int]) -> None:
    for size in sizes:
        step: adios.Arrays = {"head": np.zeros(8, np.int64), "content": np.ones(size, np.uint8)}
        writer = adios.StreamWriter(folder / f"stream-{size}", parameters=_parameters(interface))
        for _ in range(_steps(size)):
            writer.put(step)
        writer.close()


def _stream_rate(folder: Path, interface: str, size: int) -> float:
    """Bytes a second."""
    out = np.ones(size, np.uint8)
    reader = adios.StreamReader(folder / f"stream-{size}", parameters=_parameters(interface), join_seconds=WAIT)
    begun, steps = 0.0, 0
    while reader.begin(WAIT):
        reader.get("head")
        reader.get("content", out)
        reader.end()
        steps += 1
        if steps == WARM:
            begun = time.perf_counter()
    seconds = time.perf_counter() - begun
    reader.close()
    return (steps - WARM) * size / seconds


if __name__ == "__main__":
    _write(Path(sys.argv[1]), sys.argv[2], list(map(int, sys.argv[3:])))
