"""A dataset in an object store: its tables are copied to a folder, its samples are read by ranges."""

import hashlib
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dlio_bench import recorder
from dlio_bench.components import CODE
from dlio_bench.counters import Cost
from dlio_bench.datagen import objects
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.datagen.manifest import CHECKSUMS, EXTENTS, NAME, STORE, from_json
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError, remedy
from dlio_bench.harness.storage.direct import Piece

PREAD = CODE["pread"]
COLD_SAYS = "cold (object store)"  # no page cache of this machine has any of it


class ObjectReads:
    """Several threads may share one."""

    def __init__(self, dataset: Dataset) -> None:
        """UsageError for samples that only a library can read; EnvironmentFailure without obstore."""
        assert dataset.store is not None
        require_ranges(dataset)
        self._store = objects.open_store(dataset.store)
        self._names = [entry.name for entry in dataset.manifest.files]

    def read(self, wanted: Sequence[Piece], out: memoryview, cost: Cost) -> None:
        """Bring pieces of files, those of a file in order of their offsets, into `out`. Errors as those of a reader."""
        into: list[memoryview] = []
        file = start = end = -1
        for piece in wanted:
            if into and (piece.file, piece.offset) != (file, end):
                self._request(file, start, end, into, cost)
                into = []
            if not into:
                file, start = piece.file, piece.offset
            into.append(out[piece.at : piece.at + piece.length])
            end = piece.offset + piece.length
        if into:
            self._request(file, start, end, into, cost)

    def _request(self, file: int, start: int, end: int, into: Sequence[memoryview], cost: Cost) -> None:
        track, began = recorder.current_track(), time.perf_counter()
        self._store.read(self._names[file], start, into, cost)
        cost.bytes_requested += end - start
        if track is not None:
            track.add(PREAD, began, time.perf_counter(), end - start, start, file)


def require_ranges(dataset: Dataset) -> None:
    """UsageError for a dataset in an object store whose samples only a library can read: it needs files."""
    container = dataset.manifest.container
    if dataset.store is not None and CONTAINERS[container].library is not None:
        raise UsageError(
            f"The samples in {dataset.store} are {container}, which its library reads from files alone. Copy the "
            "dataset to a folder, or make one without filters."
        )


# Tables of a dataset in an object store, copied to a folder, where `open_dataset` finds them as those of any other.
#
# A copy is named after the store, the place and the state (ETag) of its manifest: one that is there is right. The
# manifest is uploaded last, so that objects without one are no dataset.

FOLDER = "object-store"  # in the folder that keeps datasets


def mirror_tables(url: str, cache: Path) -> Path:
    """The folder in `cache` with the tables of the dataset at `url`, fetched if they are not there yet.

    UsageError where no dataset is there, DataError where it is not whole, EnvironmentFailure for a store that fails.
    """
    store = objects.open_store(url)
    state = store.etag(NAME)
    if state is None:
        raise _no_manifest_error(store)
    name = url.rsplit("/", 1)[-1]
    mark = hashlib.sha256("\n".join((store.endpoint, url, state)).encode()).hexdigest()[:12]
    place = cache.resolve() / FOLDER / f"{name}-{mark}"
    if (place / NAME).is_file():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f"{place.name}.part-", dir=place.parent))
        try:
            _fetch(store, part)
            if store.etag(NAME) != state:
                raise EnvironmentFailure(f"{url} changed while its tables were copied. Run again when it is whole.")
            part.chmod(0o755)  # ranks may be another user's processes than the one that made it
            if not place.exists():
                part.rename(place)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        if not (place / NAME).is_file():  # else another process was first
            raise EnvironmentFailure(
                f"The tables of {url} cannot be kept in {place.parent}: {error.strerror or error}. {remedy(error)}; or "
                "name another folder with --cache-dir or DLIO_BENCH_CACHE."
            ) from error
    return place


def _fetch(store: objects.Store, folder: Path) -> None:
    """The tables, and the files without samples."""
    content = store.get(NAME)
    auxiliary = [entry.name for entry in from_json(content, Path(NAME)).auxiliary]
    for name in (EXTENTS, CHECKSUMS, *auxiliary):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(name))
    (folder / STORE).write_text(f"{store.url}\n")
    (folder / NAME).write_bytes(content)


def _no_manifest_error(store: objects.Store) -> UsageError | DataError:
    """The error where there is no manifest."""
    if store.etag(EXTENTS) is None:
        return UsageError(
            f"{store.url} at {store.endpoint} holds no {NAME} and is no dataset. Give the prefix of one, make one "
            "there with dlio-bench generate --out, or index the files there with dlio-bench index."
        )
    return DataError(
        f"{store.url} at {store.endpoint} holds no {NAME}: its upload did not end. Repeat the generation or the index."
    )
