"""Objects in the place of files: test objects made and removed, ranges of them read, objects looked at."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from dlio_bench.counters import Cost
from dlio_bench.datagen import objects
from dlio_bench.errors import BenchError
from dlio_bench.harness.commands.storage_bench.plan import Files, Reads
from dlio_bench.harness.plan.orders import permutation
from dlio_bench.signals import interruptible

NAME = "dlio-bench-storage"  # begins the names of test objects
RANGES = (64 << 10, 1 << 20, 8 << 20)  # bytes of requests at random places, as far as objects are so large
MOST_RANGES = 128  # of a reader in a trial: small requests to a far store take their time
AT_ONCE = 8


def are_objects(paths: Sequence[str]) -> bool:
    """Whether these are URLs of objects."""
    return objects.url_of(paths[0]) is not None


@contextmanager
def upload_files(url: str, files: Files) -> Iterator[Files]:
    """The files as objects below `url`, removed afterwards; the files themselves go. EnvironmentFailure."""
    store = objects.open_store(f"{url}/{NAME}-{secrets.token_hex(4)}")
    names = [Path(path).name for path in files.paths]

    def upload_file(path: str) -> None:
        store.put(Path(path).name, Path(path))
        Path(path).unlink()

    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in interruptible(lambda: pool.map(upload_file, files.paths)):
                pass
        yield replace(files, paths=tuple(f"{store.url}/{name}" for name in names))
    except BaseException:
        with suppress(BenchError):  # what is raised already says more
            store.delete(names)
        raise
    store.delete(names)


def range_sizes(files: Files) -> tuple[int, ...]:
    """Sizes of requests that fit into every object."""
    return tuple(size for size in RANGES if size <= min(files.sizes))


def ranges(files: Files, size: int, readers: int, reader: int, seed: int, trial: int) -> Reads:
    """A reader's share of the ranges of `size` bytes that the objects have, in a random order; MOST_RANGES at most."""
    counts = np.array(files.sizes, dtype=np.int64) // size
    file = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    within = np.arange(len(file), dtype=np.int64) - np.repeat(counts.cumsum() - counts, counts)
    every = np.stack([file, within * size, np.full_like(file, size)], axis=1)
    return np.asarray(every[permutation(len(every), trial, seed)[reader::readers]][:MOST_RANGES])


def read(
    reads: Sequence[Sequence[int]],
    buffer: memoryview,
    paths: Sequence[str],
    request: int,
    stopped: Callable[[], bool],
) -> None:
    """All `reads` (object, offset, bytes, ...), in requests of at most `request` bytes, into the start of `buffer`."""
    cost = Cost()
    for file, offset, length, *_ in reads:
        store, name = _store_and_name(paths[file])
        for at in range(0, length, request):
            if stopped():
                return
            store.read(name, offset + at, [buffer[: min(request, length - at)]], cost)


def look_at(path: str) -> None:
    """Ask for what the store knows of an object (HEAD)."""
    store, name = _store_and_name(path)
    store.etag(name)


def _store_and_name(path: str) -> tuple[objects.Store, str]:
    url, _, name = path.rpartition("/")
    return objects.open_store(url), name


def describe_store(url: str) -> dict[str, Any]:
    """What stands in the place of a file system's mount."""
    return {"point": url, "type": "object store", "source": objects.endpoint(), "options": []}
