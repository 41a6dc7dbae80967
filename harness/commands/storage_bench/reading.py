"""Plain reads by some threads, and nothing else: `preadv` into buffers that were touched before."""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from dlio_bench.errors import EnvironmentFailure, remedy
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.commands.storage_bench import in_objects
from dlio_bench.harness.commands.storage_bench.plan import Reads
from dlio_bench.harness.storage.direct import Alignment, aligned_memory

REQUEST = 8 << 20  # bytes of a request of a sequential reader
_OPEN_FILES = 512  # of a process: half of the usual limit


def buffers(threads: int, size: int) -> list[memoryview]:
    """A buffer of `size` bytes for each thread, every page touched: first touches are slower than most storage."""
    return [aligned_memory(size) for _ in range(threads)]


def rounded(reads: Reads, alignment: Alignment | None) -> Reads:
    """The whole blocks that hold each read, for direct reads; the reads themselves for buffered ones."""
    block = 1 if alignment is None else alignment.block
    start = reads[:, 1] // block * block
    end = -(-(reads[:, 1] + reads[:, 2]) // block) * block
    return np.stack([reads[:, 0], start, end - start], axis=1)


def timed(
    comm: Comm,
    work: Sequence[tuple[Reads, memoryview]],
    paths: Sequence[str],
    request: int,
    alignment: Alignment | None = None,
) -> float:
    """Seconds in which all ranks have read their `work`, one thread for each (reads, buffer).

    With `alignment` reads are direct, and bring whole blocks; `request` is a multiple of these. `paths` may be URLs of
    objects.

    t0 - barrier - reads - barrier - t3: the least t3 - t0 over the ranks is the job's time under any clock offset
    (McCalpin 2019). Opening and closing is inside the clock. EnvironmentFailure when a file cannot be read.
    """
    go, stop = threading.Event(), threading.Event()
    failures: list[BaseException] = []
    keep = max(1, _OPEN_FILES // len(work))
    tasks = []  # of Python integers, which are made before the clock runs
    for reads, buffer in work:
        blocks = rounded(reads, alignment)
        needed = reads[:, 1] + reads[:, 2] - blocks[:, 1]
        tasks.append((np.column_stack([blocks, needed]).tolist(), buffer))

    def task(reads: list[list[int]], buffer: memoryview) -> None:
        go.wait()
        try:
            if in_objects.are_objects(paths):
                in_objects.read(reads, buffer, paths, request, stop.is_set)
            else:
                _read(reads, buffer, paths, request, keep, stop.is_set, alignment)
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
    how: Alignment | None,
) -> None:
    """All `reads`, each in requests of at most `request` bytes, into the start of `buffer`; `keep` files stay open.

    A read is file, offset, bytes, and how many of these the file must have: the last block may be a part of one.
    """
    block, flags = (1, 0) if how is None else (how.block, os.O_DIRECT)
    handles: OrderedDict[int, int] = OrderedDict()
    try:
        for file, offset, length, needed in reads:
            if file not in handles:
                if len(handles) >= keep:
                    os.close(handles.popitem(last=False)[1])
                handles[file] = _open(paths[file], flags)
            else:
                handles.move_to_end(file)
            done = 0
            while done < needed:
                if stopped():
                    return
                count = _preadv(handles[file], buffer[: min(request, length - done)], offset + done, paths[file])
                if done + count < needed and count < block:
                    raise _shorter(paths[file], offset + done + count)
                done += count if done + count >= needed else count // block * block
    finally:
        for handle in handles.values():
            os.close(handle)


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    except OSError as error:
        raise EnvironmentFailure(f"{path} cannot be opened: {error.strerror}. {remedy(error)}.") from error


def _preadv(handle: int, into: memoryview, offset: int, path: str) -> int:
    try:
        return os.preadv(handle, [into], offset)
    except OSError as error:
        raise EnvironmentFailure(
            f"{path} cannot be read at byte {offset}: {error.strerror}. {remedy(error)}."
        ) from error


def _shorter(path: str, offset: int) -> EnvironmentFailure:
    return EnvironmentFailure(f"{path} ends at byte {offset}: it was changed during the measurement. Repeat it.")
