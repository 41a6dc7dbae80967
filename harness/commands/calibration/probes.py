"""Rates: timed random reads of test files by threads on nodes, files of a node's own tiers, samples decoded.

Tiers are files in its memory or on its disk, written and read, by number of threads.
"""

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from msgspec import Struct

from dlio_bench.atomic_files import write_at
from dlio_bench.benchmarks import registry
from dlio_bench.counters import Cost
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import PHYSICAL
from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.free_space import free_bytes
from dlio_bench.harness.cluster.comm import Comm, Solo
from dlio_bench.harness.commands.storage_bench import reading
from dlio_bench.harness.commands.storage_bench.plan import Reads
from dlio_bench.harness.machine.memory import available_bytes
from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.harness.plan.orders import permutation
from dlio_bench.harness.readers.session import SampleView
from dlio_bench.harness.storage import cache
from dlio_bench.harness.storage.extents import ExtentReader
from dlio_bench.harness.storage.pfs.board import Board
from dlio_bench.signals import interruptible
from dlio_bench.units import format_bytes

SECONDS = 0.5  # of a trial, as far as the test files have bytes for it, and of decoding
TRIALS = 3
LEAST_READS = 2  # of a thread in a trial
MOST_BYTES, SHARE_OF_FREE = 256_000_000, 0.25
MOST_FILE_BYTES = 100_000_000  # larger files are made of shrunken samples
MOST_SAMPLES = 256  # that are decoded
_BLOCK = 8 << 20  # of a write: as copies to a tier are made
_PREFIX = "dlio-bench-calibrate-"


class TestFiles(Struct, frozen=True):
    """Test files as this rank sees them, and what makes reads of them cold.

    origin: the same files below an emulated file system, which are kept in memory; board: its counters. cold False:
    they lie in memory or are to stay there.
    """

    paths: tuple[str, ...]
    file_bytes: int
    node: int
    origin: tuple[str, ...] | None = None
    board: Path | None = None
    cold: bool = True

    def chill(self, comm: Comm) -> None:
        """Take what earlier reads left out of the caches, on all ranks together."""
        comm.barrier()
        mine = [Path(path) for path in (self.origin or self.paths)[comm.host_rank :: comm.host_size]]
        if self.board is not None:
            if cache.residency(mine).share < 1:
                cache.fill(mine)
            with Board.open(self.board) as board:
                board.drop_cache(self.node)
        elif self.cold:
            cache.drop(mine)
        comm.barrier()


def rate(
    comm: Comm, place: TestFiles, size: int, readers: Sequence[int], seed: int, open_seconds: float = 0.0
) -> float:
    """Bytes a second of random reads of `size`; readers: threads on each rank, of which some may be 0.

    The median of some trials; none reads a byte twice. `open_seconds`: what an open takes, to be left out of account.
    EnvironmentFailure.
    """
    samples = pieces(place, size)
    buffers = reading.buffers(max(readers[comm.rank], 1), size)
    most = len(samples) // sum(readers)
    count = min(LEAST_READS, most)
    rates: list[float] = []
    for trial in range(TRIALS + 1):
        order = permutation(len(samples), trial, seed)
        first = sum(readers[: comm.rank])
        work = [
            (samples[order[reader * count : (reader + 1) * count]], buffer)
            for reader, buffer in zip(range(first, first + readers[comm.rank]), buffers, strict=False)
        ]
        place.chill(comm)
        # a rank without readers still takes part in the barriers
        seconds = reading.time_reads(comm, work or [(samples[:0], buffers[0])], place.paths, size)
        opened = max((len(np.unique(reads[:, 0])) for reads, _ in work), default=0)
        seconds -= open_seconds * max(comm.allgather(opened))
        rates.append(sum(readers) * count * size / max(seconds, 1e-9))
        if trial == 0:  # the first trial tells how many reads fill the next ones
            wanted = SECONDS * rates.pop() / (sum(readers) * size)
            count = max(1, min(most, max(LEAST_READS, int(wanted))))
    return statistics.median(rates)


def pieces(place: TestFiles, size: int) -> Reads:
    """int64 [n, 3] = file, offset, bytes: the files cut into pieces of `size`."""
    each = place.file_bytes // size
    number = np.arange(each * len(place.paths), dtype=np.int64)
    file, row = np.divmod(number, each)
    return np.stack([file, row * size, np.full_like(number, size)], axis=1)


def tier_rates(
    folder: Path | None, threads: Sequence[int], size: int, seed: int, *, cold: bool
) -> dict[str, dict[int, float]]:
    """{"read", "write": {threads: bytes a second}} of `folder` (None: memory), reads of `size` bytes.

    cold: files are written to the device and read from it, not from memory.
    EnvironmentFailure where there is no room, or the folder cannot be written.
    """
    free = available_bytes() if folder is None else free_bytes(folder)
    share = MOST_BYTES if free is None else min(MOST_BYTES, int(SHARE_OF_FREE * free))
    total = share // max(threads) // max(size, _BLOCK) * max(size, _BLOCK)  # of a thread's file
    if total == 0:
        raise EnvironmentFailure(
            f"{_place_name(folder)} has {format_bytes(free or 0)} free, too little to measure it with {max(threads)} "
            "threads. Free some there, or use fewer --threads."
        )
    rates: dict[str, dict[int, float]] = {"read": {}, "write": {}}
    with _files(folder, max(threads)) as paths:
        for count in (1, *threads):  # the first time makes the pages, which other files of the node have long had
            rates["write"][count] = count * total / _write_seconds(paths[:count], total, folder, synced=cold)
        for count in threads:
            place = TestFiles(tuple(map(str, paths)), total, 0, cold=cold)
            rates["read"][count] = rate(Solo(), place, size, (count,), seed)
    rates["write"] = {count: rates["write"][count] for count in threads}
    return rates


@contextmanager
def _files(folder: Path | None, count: int) -> Iterator[list[Path]]:
    with ExitStack() as stack:
        try:
            if folder is None:
                paths = [_in_memory(stack) for _ in range(count)]
            else:
                place = stack.enter_context(temp_folder(_PREFIX, folder))
                paths = [place / str(number) for number in range(count)]
        except OSError as error:
            raise EnvironmentFailure(
                f"No test files can be made in {_place_name(folder)}: {error.strerror}. Give permission there, or name "
                "another folder."
            ) from error
        yield paths


def _in_memory(stack: ExitStack) -> Path:
    """A file without a name, which goes with `stack`, as this process sees it."""
    handle = os.memfd_create("dlio-bench-calibrate")
    stack.callback(os.close, handle)
    return Path(f"/proc/self/fd/{handle}")


def _place_name(folder: Path | None) -> str:
    return "memory" if folder is None else str(folder)


def _write_seconds(paths: Sequence[Path], total: int, folder: Path | None, *, synced: bool) -> float:
    """Seconds in which as many threads write these files, to the device if `synced`."""
    block = memoryview(np.random.default_rng(0).integers(0, 256, _BLOCK, dtype=np.uint8))

    def write(path: Path) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            for at in range(0, total, _BLOCK):
                write_at(handle, block[: min(_BLOCK, total - at)], at)
            if synced:
                os.fsync(handle)
        finally:
            os.close(handle)

    for path in paths:
        if folder is None:
            os.truncate(path, 0)
        else:
            path.unlink(missing_ok=True)
    started = time.perf_counter()
    try:
        with ThreadPoolExecutor(len(paths)) as pool:
            list(interruptible(lambda: pool.map(write, paths)))
    except OSError as error:
        raise EnvironmentFailure(
            f"Test files of {format_bytes(total)} each could not be written to {_place_name(folder)}: "
            f"{error.strerror}. Free some there, or name another folder."
        ) from error
    return time.perf_counter() - started


def require_decode(name: str) -> None:
    """UsageError for a workload that there is not, or that decodes nothing."""
    if registry.find(name).decode is None:
        raise UsageError(f"--workload {name}: it has no decoding stage. Leave it out.")


def decode_rate(name: str) -> float:
    """Stored bytes a second that one thread decodes of samples made for it. UsageError as of `require_decode`."""
    require_decode(name)
    workload = registry.find(name)
    decode = workload.decode
    assert decode is not None
    variant = workload.variants[workload.default_variant]
    layout = variant(False, PHYSICAL)
    if layout.file_bytes > MOST_FILE_BYTES:
        layout = variant(True, PHYSICAL)
    with temp_folder(_PREFIX) as folder:
        dataset = generate(layout, 1, folder / "data", 1, workers=1)
        return rate_of(SampleView(dataset, workload.view, decode(dataset)))


def rate_of(form: SampleView) -> float:
    """Stored bytes a second that one thread unpacks and decodes of a dataset's samples. DataError."""
    cost, stored, sample = Cost(), 0, 0
    reader = ExtentReader(form.dataset, form.fields, form.decode)
    try:
        while cost.decode_seconds < SECONDS and sample < MOST_SAMPLES:
            ids = np.array([sample % form.dataset.training_samples], np.int64)
            reader.read(ids, memoryview(np.empty(int(form.sizes(ids)[0]), np.uint8)), cost)
            stored, sample = stored + form.stored_size(ids), sample + 1
    finally:
        reader.close()
    return stored / max(cost.decode_seconds, 1e-9)
