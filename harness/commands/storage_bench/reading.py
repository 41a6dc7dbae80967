"""Plain `preadv` by some threads into buffers that were touched before; and files opened, made, removed a second.

Opens find their directory entries in the kernel's cache from the second time on, and dropping that cache takes root:
the rate of opens is that of a path that is known already. Files are removed after the last trial only: ext4 passes
over inodes whose files were removed within minutes (Linux, fs/ext4/ialloc.c, recently_deleted), and creates that took
turns with removals were measured to be slower trial by trial.
"""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import count, cycle, islice
from pathlib import Path

import numpy as np

from dlio_bench.errors import EnvironmentFailure, remedy
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.commands.storage_bench import in_objects
from dlio_bench.harness.commands.storage_bench.plan import Reads
from dlio_bench.harness.storage.direct import Alignment, aligned_memory

REQUEST = 8 << 20  # bytes of a request of a sequential reader
OPEN, CREATE, UNLINK, HEAD = "open+fstat+close", "create", "unlink", "head"
OPERATIONS, SECONDS = 1000, 1.0  # of a rank and trial: whichever comes first
_OPEN_FILES = 512  # of a process: half of the usual limit


def buffers(threads: int, size: int) -> list[memoryview]:
    """A buffer of `size` bytes for each thread, every page touched: first touches are slower than most storage."""
    return [aligned_memory(size) for _ in range(threads)]


def round_to_blocks(reads: Reads, alignment: Alignment | None) -> Reads:
    """The whole blocks that hold each read, for direct reads; the reads themselves for buffered ones."""
    block = 1 if alignment is None else alignment.block
    start = reads[:, 1] // block * block
    end = -(-(reads[:, 1] + reads[:, 2]) // block) * block
    return np.stack([reads[:, 0], start, end - start], axis=1)


def time_reads(
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
        blocks = round_to_blocks(reads, alignment)
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
                got = _preadv(handles[file], buffer[: min(request, length - done)], offset + done, paths[file])
                if done + got < needed and got < block:
                    raise EnvironmentFailure(
                        f"{paths[file]} ends at byte {offset + done + got}: it was changed during the measurement. "
                        "Repeat it."
                    )
                done += got if done + got >= needed else got // block * block
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


def opens(comm: Comm, paths: tuple[str, ...]) -> float:
    """Existing files opened, looked at and closed a second, by all ranks together. OSError."""
    return _rate(comm, _look, islice(cycle(paths), comm.rank, None))


def heads(comm: Comm, paths: tuple[str, ...]) -> float:
    """Objects looked at a second, by all ranks together, one after the other on each. BenchError."""
    return _rate(comm, in_objects.look_at, islice(cycle(paths), comm.rank, None))


def creates(comm: Comm, folder: Path, trial: int) -> tuple[float, list[str]]:
    """Empty files made a second in one folder by all ranks together, and the names of this rank's. OSError."""
    made: list[str] = []

    def create(path: str) -> None:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        made.append(path)

    return _rate(comm, create, (str(folder / f"{comm.rank}-{trial}-{number}") for number in count())), made


def unlinks(comm: Comm, made: list[str]) -> float:
    """These files removed a second, however long it takes. OSError."""
    return _rate(comm, os.unlink, made, whole=True)


def _look(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.fstat(handle)
    os.close(handle)


def _rate(comm: Comm, operation: Callable[[str], None], paths: Iterable[str], *, whole: bool = False) -> float:
    """All ranks' operations over the slowest rank's seconds; `whole`: to the end of `paths`, however long it takes."""
    comm.barrier()
    done, started, seconds = 0, time.perf_counter(), 0.0
    for path in paths:
        operation(path)
        done += 1
        seconds = time.perf_counter() - started
        if not whole and (done >= OPERATIONS or seconds >= SECONDS):
            break
    ranks = comm.allgather((done, seconds))
    return float(sum(count for count, _ in ranks) / max(seconds for _, seconds in ranks))
