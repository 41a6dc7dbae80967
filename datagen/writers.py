"""Who writes the files of a dataset: this process, or local worker processes; timed, beside the disk's own rate."""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
from msgspec import Struct

from dlio_bench.atomic_files import part_of, publish
from dlio_bench.datagen.claim import FinishedFiles
from dlio_bench.datagen.layout import FileSpec, Layout
from dlio_bench.datagen.manifest import PROGRESS
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.processes import spawn
from dlio_bench.signals import interruptible

LEAST_SECONDS, LEAST_BYTES = 2.0, 2_000_000_000  # of both halves together, whichever comes first
MOST_BYTES = 8_000_000_000  # a larger dataset is not written twice for the sake of its own rate
_BLOCK = 4 << 20


class RawWrites(Struct, frozen=True):
    """Bytes that were written raw, and the seconds it took; files being removed is not in them."""

    bytes: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float | None:
        """Bytes a second; None when nothing was written."""
        return self.bytes / self.seconds if self.seconds else None

    def plus(self, more: "RawWrites") -> "RawWrites":
        """Both, one after the other."""
        return RawWrites(self.bytes + more.bytes, self.seconds + more.seconds)


class Goal(Struct, frozen=True):
    """When raw writing may stop: `bytes` are written, and `least_bytes` are or `least_seconds` have passed."""

    bytes: int
    least_bytes: int
    least_seconds: float


def raw_goal(total: int, processes: int) -> Goal:
    """The share of one of `processes` in one half of writing `total` bytes raw."""
    return Goal(min(total, MOST_BYTES) // (2 * processes), LEAST_BYTES // (2 * processes), LEAST_SECONDS / 2)


def write_raw(folder: Path, file_bytes: int, goal: Goal) -> RawWrites:
    """Write whole files of `file_bytes` until `goal` is met, each synced as a dataset's file is; then remove them.

    The bytes come from memory and are random, so that no file system can spare them. Files stay until the last one is
    written: pages and blocks that were just freed would be taken faster than new ones. OSError.
    """
    block = memoryview(np.random.default_rng(0).bytes(_BLOCK))
    paths: list[Path] = []
    started, done, seconds = time.monotonic(), 0, 0.0
    try:
        while done < goal.bytes or (done < goal.least_bytes and seconds < goal.least_seconds):
            paths.append(folder / f"raw-{os.uname().nodename}-{os.getpid()}-{len(paths)}")
            _write(paths[-1], block, file_bytes)
            done += file_bytes
            seconds = time.monotonic() - started
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
    return RawWrites(done, seconds)


def raw_room(total: int) -> int:
    """Bytes that the raw files of one half of writing `total` bytes may take at a time, about."""
    return max(min(total, MOST_BYTES), LEAST_BYTES) // 2


def _write(path: Path, block: memoryview, size: int) -> None:
    with path.open("wb", buffering=0) as file:
        left = size
        while left:
            left -= file.write(block[: min(left, len(block))]) or 0
        os.fsync(file.fileno())


_RAW_PATIENCE = 60.0  # seconds for all workers to start
_FIXES = {
    errno.ENOSPC: "Free space there or choose another folder",
    errno.EDQUOT: "Free space within your quota or choose another folder",
    errno.EACCES: "Make the folder writable for this user or choose another",
    errno.EPERM: "Make the folder writable for this user or choose another",
    errno.EROFS: "Choose a folder on a file system that can be written",
    errno.ENOTDIR: "Choose a path that leads through folders only",
}


class FilesToWrite(Struct, frozen=True):
    """The files `todo`, numbers in `specs`, that are to be written; `bytes` is what they will weigh, about.

    `raw` asks for the disk's own rate with files of `file_bytes`, half of it before the files and half after them.
    """

    layout: Layout
    specs: tuple[FileSpec, ...]
    todo: tuple[int, ...]
    folder: Path
    seed: int
    bytes: int
    file_bytes: int
    raw: bool = False


class Timing(Struct, frozen=True):
    """Seconds from the start of the first file to the end of the last one, and the raw writes around them."""

    processes: int
    seconds: float
    raw: RawWrites


Finished = Callable[[int], None]  # is told the number of each file as it becomes whole
Writer = Callable[[FilesToWrite, Finished], Timing]


def by_this_process(work: FilesToWrite, finished: Finished) -> Timing:
    """One file after the other."""
    raw = RawWrites()
    if work.raw:
        raw = raw.plus(raw_share(work, 1))
    started = time.monotonic()
    for number in work.todo:
        write_file(work.layout, work.specs[number], number, work.folder, work.seed)
        finished(number)
    seconds = time.monotonic() - started
    if work.raw:
        raw = raw.plus(raw_share(work, 1))
    return Timing(1, seconds, raw)


def by_processes(count: int, work: FilesToWrite, finished: Finished) -> Timing:
    """`count` spawned processes, each taking the next file. Whatever ends this early ends them too, at once."""
    context = spawn()
    theirs, ours = context.Pipe(duplex=False)
    barrier = context.Barrier(count)
    spans: list[tuple[float, float]] = []
    raw: list[RawWrites] = []

    def write_all(pool: ProcessPoolExecutor) -> Iterator[tuple[int, float, float]]:
        raw.append(_raw_together(pool, work, count))
        waiting = iter(work.todo)
        running: set[Future[tuple[int, float, float]]] = set()
        while True:
            for number in waiting:
                job = (work.layout, work.specs[number], number, work.folder, work.seed)
                running.add(pool.submit(_time_file, *job))
                if len(running) >= 2 * count:
                    break
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
        raw.append(_raw_together(pool, work, count))

    with theirs, ours, ProcessPoolExecutor(count, context, _start_worker, (theirs, barrier)) as pool:
        try:
            for number, start, end in interruptible(lambda: write_all(pool)):
                spans.append((start, end))
                finished(number)
        except BrokenProcessPool as error:
            raise EnvironmentFailure(
                f"A process that was writing to {work.folder} was killed, perhaps for want of memory. The finished "
                "files are kept: repeat the same command to go on."
            ) from error
        except BaseException:
            ours.close()  # workers watch the other end
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    starts, ends = zip(*spans, strict=True)
    return Timing(count, max(ends) - min(starts), raw[0].plus(raw[1]))


def write_file(layout: Layout, spec: FileSpec, number: int, folder: Path, seed: int) -> None:
    """Write one file whole, then record it. EnvironmentFailure."""
    path = folder / spec.name
    part = part_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = layout.write(part, spec, seed)
        size = part.stat().st_size
        publish(part, path)
        FinishedFiles(folder).record_file(number, size, written)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)  # on a full disk this makes the room in which others can say what happened
        raise failure(folder, error) from error


def failure(folder: Path, error: OSError) -> EnvironmentFailure:
    """What the operating system refused, with a way out."""
    fix = _FIXES.get(error.errno or 0, "Look at the file system and its logs")
    reason = os.strerror(error.errno) if error.errno else error  # the error number alone: HDF5's own text is a page
    where = f" ({error.filename})" if error.filename else ""
    return EnvironmentFailure(
        f"The dataset folder {folder} cannot be written: {reason}{where}. {fix}; the files already "
        "finished are kept, and the same command goes on with them."
    )


def _time_file(layout: Layout, spec: FileSpec, number: int, folder: Path, seed: int) -> tuple[int, float, float]:
    start = time.monotonic()  # one clock for all processes of a machine
    write_file(layout, spec, number, folder, seed)
    return number, start, time.monotonic()


_meeting: Barrier  # of a worker: all raw writers start together


def _start_worker(life: Connection, barrier: Barrier) -> None:
    """Leave Ctrl-C to the parent, and end as soon as the parent closes its end of the pipe or dies."""
    global _meeting  # noqa: PLW0603 - a barrier reaches a pool's workers through their start only
    _meeting = barrier
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        life.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _raw_together(pool: ProcessPoolExecutor, work: FilesToWrite, count: int) -> RawWrites:
    """Half of the raw writes, by all workers at the same time: each waits at the barrier, so each takes one share."""
    if not work.raw:
        return RawWrites()
    shares = [pool.submit(_raw_at_once, work, count) for _ in range(count)]
    return combine_raw([share.result() for share in shares])


def combine_raw(shares: Sequence[RawWrites]) -> RawWrites:
    """Raw writes that ran side by side: all bytes, in the time of the slowest."""
    return RawWrites(sum(share.bytes for share in shares), max(share.seconds for share in shares))


def _raw_at_once(work: FilesToWrite, count: int) -> RawWrites:
    _meeting.wait(_RAW_PATIENCE)
    return raw_share(work, count)


def raw_share(work: FilesToWrite, processes: int) -> RawWrites:
    """This process's share of half of the raw writes. EnvironmentFailure."""
    try:
        return write_raw(work.folder / PROGRESS, work.file_bytes, raw_goal(work.bytes, processes))
    except OSError as error:
        raise failure(work.folder, error) from error
