"""What a workload says of its own input: how its application decodes samples, and how its published code reads them."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import numpy as np
from msgspec import Struct

from dlio_bench.batches import Batch, Bytes, Ids
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import DAMAGED, Dataset
from dlio_bench.datagen.formats import CONTAINERS, tfrecord
from dlio_bench.errors import BenchError, DataError, EnvironmentFailure, remedy


class Decode(Struct, frozen=True):
    """What an application makes of a sample before its network sees it: a pure function of the id and the fields.

    fields: of the dataset, in the order `apply` gets them. sample_bytes: what it delivers, alike for every sample.
    apply(id, fields, out): fills `out`, sample_bytes long, from the delivered bytes of each field; DataError when they
    are damaged. what: one line for people, with the source. many(ids, fields of each): the same of several samples, one
    by one, for a library that takes long to begin; None: `apply` is called for each. remedy: what to do about a sample
    that it cannot decode.
    """

    fields: tuple[str, ...]
    sample_bytes: int
    apply: Callable[[int, Sequence[memoryview], memoryview], None]
    what: str
    many: Callable[[Sequence[int], Sequence[Sequence[memoryview]]], Iterator[bytes]] | None = None
    remedy: str = DAMAGED

    def each(self, ids: Sequence[int], samples: Sequence[Sequence[memoryview]]) -> Iterator[Bytes]:
        """What it makes of several samples, one by one, uint8 [sample_bytes]; valid until the next is asked for."""
        if self.many is not None:
            yield from (np.frombuffer(content, dtype=np.uint8) for content in self.many(ids, samples))
            return
        out = np.empty(self.sample_bytes, dtype=np.uint8)
        for sample, parts in zip(ids, samples, strict=True):
            self.apply(sample, parts, memoryview(out))
            yield out


# (epoch, ids) of each batch; a validation pass stands between epochs under the number of `batches.validation_after`
Plan = Sequence[tuple[int, Ids]]
CostOf = Callable[[int], Cost]  # the cost of an epoch, to be added to


class Pipeline(Protocol):
    """An application's own input pipeline at work in one process. It is started before MPI is."""

    @property
    def options(self) -> dict[str, int]:
        """Its settings (threads, processes, batches ahead), for the result."""
        ...

    @property
    def processes(self) -> tuple[int, ...]:
        """Its child processes, whose reads count as this rank's."""
        ...

    def decode(self, dataset: Dataset) -> Decode:
        """What it delivers of a sample, to be compared with: recomputed from the stored fields, byte for byte."""
        ...

    def requested_bytes(self, dataset: Dataset, plan: Plan) -> dict[int, int]:
        """Epoch -> bytes that it will ask of the file system to deliver the plan."""
        ...

    def batches(self, dataset: Dataset, plan: Plan, cost: CostOf) -> AbstractContextManager[Iterator[Batch]]:
        """Deliver the plan; entering reads nothing. Where its order is not known, an epoch comes as a multiset."""
        ...

    def close(self) -> None:
        """End its processes."""
        ...


class Upstream(Struct, frozen=True):
    """The published input pipeline of a workload.

    order: its own, by name; orders: all that fit it. exactly_once, order_known: as in the table of policies.
    with_one_file: the order that any other comes to where a rank has a single file; None: it makes no difference.
    tensorflow: whether it is made with TensorFlow, which must be installed then.
    defects: what shapes its input and is reproduced here, one sentence each; every report tells them.
    departures: where the pipeline here does not do as published, one line each; `dlio-bench list` tells them.
    """

    order: str
    orders: tuple[str, ...]
    exactly_once: bool
    order_known: bool
    source: str
    defects: tuple[str, ...]
    departures: tuple[str, ...]
    start: Callable[[], Pipeline]
    tensorflow: bool = False
    with_one_file: str | None = None


ANEW = DAMAGED


def read_failure(path: Path, error: Exception) -> BenchError:
    """DataError for a file that is absent or not what it should be, EnvironmentFailure where the system failed."""
    if isinstance(error, BenchError):
        return type(error)(f"{path}: {error} {ANEW if isinstance(error, DataError) else ''}".rstrip())
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path} is missing from its dataset. {ANEW}")
    # HDF5 puts the error number of a failed read into its text, and not always elsewhere
    number = re.search(r"errno = (\d+)", str(error))
    code = getattr(error, "errno", None) or (int(number[1]) if number else None)
    if code is not None:
        failed = OSError(code, os.strerror(code))
        return EnvironmentFailure(f"{path} cannot be read: {failed.strerror}. {remedy(failed)}.")
    return DataError(f"{path} cannot be read: {error}. {ANEW}")


def failure_of_files(dataset: Dataset, files: Iterable[int], message: str) -> BenchError:
    """The failure of the first of these files that is absent, of another size, or holds a damaged record.

    For libraries whose errors do not name the file. EnvironmentFailure with the library's `message` where no file
    is at fault. Reads the files.
    """
    for file in files:
        path, expected = dataset.path(file), dataset.manifest.files[file].bytes
        try:
            size = path.stat().st_size
            if size != expected:
                return DataError(f"{path} has {size} bytes instead of {expected}. {ANEW}")
            compression = CONTAINERS[dataset.manifest.container].tfrecords
            if compression is not None:
                for _ in tfrecord.records(path, compressed=bool(compression)):
                    pass
        except (OSError, DataError) as error:
            return error if isinstance(error, DataError) else read_failure(path, error)
    return EnvironmentFailure(
        f"TensorFlow could not deliver the samples of {dataset.folder}, whose files can be read: {message} "
        "Look at the file system; then run again."
    )
