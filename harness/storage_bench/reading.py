"""Plain reads by some threads, and nothing else: `preadv` into buffers that were touched before."""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from dlio_bench.errors import EnvironmentFailure, remedy
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.storage_bench.plan import Reads

REQUEST = 8 << 20  # bytes of a request of a sequential reader
_OPEN_FILES = 512  # of a process: half of the usual limit


def buffers(threads: int, size: int) -> list[memoryview]:
    """A buffer of `size` bytes for each thread, every page touched: first touches are slower than most storage."""
    return [memoryview(np.full(size, 1, dtype=np.uint8)) for _ in range(threads)]


def timed(comm: Comm, work: Sequence[tuple[Reads, memoryview]], paths: Sequence[str], request: int) -> float:
    """Seconds in which all ranks have read their `work`, one thread for each (reads, buffer).

    t0 - barrier - reads - barrier - t3: the least t3 - t0 over the ranks is the job's time under any clock offset
    (McCalpin 2019). Opening and closing is inside the clock. EnvironmentFailure when a file cannot be read.
    """
    go, stop = threading.Event(), threading.Event()
    failures: list[BaseException] = []
    keep = max(1, _OPEN_FILES // len(work))
    tasks = [(reads.tolist(), buffer) for reads, buffer in work]  # Python integers are made before the clock runs

    def task(reads: list[list[int]], buffer: memoryview) -> None:
        go.wait()
        try:
            _read(reads, buffer, paths, request, keep, stop.is_set)
        except BaseException as error:  # noqa: BLE001 - raised again where the threads are joined
            failures.append(error)
            stop.set()

    threads = [threading.Thread(target=task, args=each, daemon=True) for each in tasks]
    for thread in threads:
        thread.start()
    try:
        comm.barrier()
        t0 = time.perf_counter()
        comm.barrier()
        go.set()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        comm.barrier()
        seconds = time.perf_counter() - t0
    finally:  # Ctrl-C: no thread may still read when the files are removed
        stop.set()
        go.set()
        for thread in threads:
            thread.join()
    return float(min(comm.allgather(seconds)))


def _read(
    reads: list[list[int]],
    buffer: memoryview,
    paths: Sequence[str],
    request: int,
    keep: int,
    stopped: Callable[[], bool],
) -> None:
    """All `reads`, each in requests of at most `request` bytes, into the start of `buffer`; `keep` files stay open."""
    handles: OrderedDict[int, int] = OrderedDict()
    try:
        for file, offset, length in reads:
            if file not in handles:
                if len(handles) >= keep:
                    os.close(handles.popitem(last=False)[1])
                handles[file] = _open(paths[file])
            else:
                handles.move_to_end(file)
            done = 0
            while done < length:
                if stopped():
                    return
                count = _preadv(handles[file], buffer[: min(request, length - done)], offset + done, paths[file])
                done += count
    finally:
        for handle in handles.values():
            os.close(handle)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise EnvironmentFailure(f"{path} cannot be opened: {error.strerror}. {remedy(error)}.") from error


def _preadv(handle: int, into: memoryview, offset: int, path: str) -> int:
    try:
        count = os.preadv(handle, [into], offset)
    except OSError as error:
        raise EnvironmentFailure(
            f"{path} cannot be read at byte {offset}: {error.strerror}. {remedy(error)}."
        ) from error
    if count == 0:
        raise EnvironmentFailure(f"{path} ends at byte {offset}: it was changed during the measurement. Repeat it.")
    return count
