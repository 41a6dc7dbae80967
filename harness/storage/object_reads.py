"""Reads of a dataset's files in an object store: one request for each stretch of neighbouring bytes."""

import time
from collections.abc import Sequence

from dlio_bench import recorder
from dlio_bench.components import CODE
from dlio_bench.counters import Cost
from dlio_bench.datagen import objects
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.errors import UsageError
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
        track, began = recorder.here(), time.perf_counter()
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
