"""Datasets in object stores: made in a folder first and then uploaded, the manifest last; fetched to be looked at."""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from dlio_bench.datagen import objects
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.manifest import CHECKSUMS, EXTENTS, NAME, Manifest, from_json
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError
from dlio_bench.free_space import free_bytes
from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.harness.storage.object_store import FOLDER
from dlio_bench.signals import interruptible
from dlio_bench.units import format_bytes

AT_ONCE = 8  # files on their way

Moved = Callable[[int], None]  # told the bytes of each file that is through


def work_folder(url: str, spec: str, cache: Path) -> Path:
    """Where the dataset with this `spec` is made for `url`: a generation goes on there where it stopped."""
    store = objects.open_store(url)
    mark = hashlib.sha256("\n".join((store.endpoint, url, spec)).encode()).hexdigest()[:12]
    return cache.resolve() / FOLDER / f"making-{mark}"


def require_room(url: str, spec: str) -> bool:
    """Whether the dataset with this `spec` is at `url` already. UsageError where another one or other objects are.

    EnvironmentFailure where it is not, and nobody may write it there.
    """
    store = objects.open_store(url)
    sizes = store.sizes()
    sizes.pop(objects.PROBE, None)
    if NAME not in sizes:
        # of an upload that did not end there are tables and files; what else is there is somebody's
        if sizes and EXTENTS not in sizes:
            raise UsageError(
                f"{url} at {store.endpoint} holds {len(sizes)} objects that are no dataset, as {min(sizes)}. Choose an "
                "empty prefix, or remove them."
            )
        store.require_writable()
        return False
    manifest = from_json(store.get(NAME), Path(NAME))
    wanted = _sizes(manifest)
    if manifest.spec != spec or any(sizes.get(name) != size for name, size in wanted.items()):
        raise UsageError(
            f"{url} at {store.endpoint} holds another dataset, or one that lacks objects. Choose an empty prefix, or "
            "remove what is there."
        )
    if EXTENTS in sizes and CHECKSUMS in sizes:
        return True
    store.require_writable()  # all is made and uploaded again
    return False


def _sizes(manifest: Manifest) -> dict[str, int]:
    """Bytes of all files of a dataset by their names, but of its tables."""
    sizes = {entry.name: entry.bytes for entry in manifest.files}
    return sizes | {entry.name: entry.bytes for entry in manifest.auxiliary}


def upload(dataset: Dataset, url: str, moved: Moved) -> float:
    """Upload a dataset of a folder; returns seconds. Its manifest comes when all else is there in its size.

    EnvironmentFailure where the store fails, or has lost bytes of what it took.
    """
    started, store = time.perf_counter(), objects.open_store(url)
    sizes = _sizes(dataset.manifest)
    tables = {name: (dataset.folder / name).stat().st_size for name in (EXTENTS, CHECKSUMS)}

    def upload_file(name: str) -> int:
        store.put(name, dataset.folder / name)
        return sizes.get(name, 0)

    # tables first: by them, an upload that did not end is known as ours
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for size in interruptible(lambda: map(upload_file, tables)):
            moved(size)
        for size in interruptible(lambda: pool.map(upload_file, sizes)):
            moved(size)
    require_arrived(store, sizes | tables)
    store.put(NAME, dataset.folder / NAME)
    return time.perf_counter() - started


def upload_tables(dataset: Dataset, url: str) -> None:
    """Upload what makes objects that are there already a dataset, the manifest last. EnvironmentFailure."""
    store = objects.open_store(url)
    for name in (EXTENTS, CHECKSUMS, NAME):
        store.put(name, dataset.folder / name)


def require_arrived(store: objects.Store, sizes: dict[str, int]) -> None:
    """EnvironmentFailure where the store has less of an object than was uploaded."""
    there = store.sizes()
    if lost := [name for name, size in sizes.items() if there.get(name) != size]:
        raise EnvironmentFailure(
            f"{store.url}/{lost[0]} at {store.endpoint} has {there.get(lost[0], 0)} bytes after its upload instead of "
            f"{sizes[lost[0]]}, and {len(lost) - 1} more objects differ. The store lost them; repeat the command."
        )


@contextmanager
def download(url: str, moved: Moved) -> Iterator[Path]:
    """A temporary folder with all objects of `url` as files. EnvironmentFailure where there is no room for them."""
    store = objects.open_store(url)
    sizes = store.sizes()
    if odd := [name for name in sizes if ".." in PurePosixPath(name).parts or name.startswith("/")]:
        raise DataError(f"{url} holds an object named '{odd[0]}', which can be no file of a dataset. Remove it.")
    with temp_folder("dlio-bench-objects-") as folder:
        free = free_bytes(folder) or 0
        if sum(sizes.values()) > free:
            raise EnvironmentFailure(
                f"{url} has {format_bytes(sum(sizes.values()))}, which are fetched to be read, but "
                f"{format_bytes(free)} are free in {folder.parent}. Free space there, or name a larger folder in "
                "TMPDIR."
            )

        def fetch(name: str) -> int:
            store.fetch(name, folder / name)
            return sizes[name]

        with ThreadPoolExecutor(AT_ONCE) as pool:
            for size in interruptible(lambda: pool.map(fetch, sizes)):
                moved(size)
        yield folder


def local_copy(dataset: Dataset, names: Iterable[str], folder: Path) -> Dataset:
    """The dataset as one in `folder`, with these of its files, fetched. Errors as those of Store.fetch."""
    assert dataset.store is not None
    store = objects.open_store(dataset.store)
    for name in names:
        store.fetch(name, folder / name)
    return replace(dataset, folder=folder, store=None)
