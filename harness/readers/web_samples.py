"""A pipeline of WebDataset over tar shards: what the worker processes of a DataLoader import and do."""

import tarfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from crc32c import crc32c
from msgspec import Struct
from webdataset import tariterators

from dlio_bench.batches import Ids
from dlio_bench.benchmarks.registry import find
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import BenchError, DataError, EnvironmentFailure, remedy
from dlio_bench.harness.readers.session import SampleView

# ids, the bytes of all samples, what reading them cost; or why they could not be read
Collated = tuple[Ids, Any, Cost] | BenchError


class ShardPass(Struct, frozen=True):
    """What one pass delivers: the shards of a rank, and the samples of its plan in them. batch: samples of a batch.

    buffer: samples that WebDataset shuffles; 0: nothing is shuffled, shards neither.
    """

    shards: Sequence[Path]
    ids: Ids
    batch: int
    buffer: int
    seed: int


class CountingStream:
    """A stream that counts its bytes and the time that they take."""

    def __init__(self, stream: Any, costs: list[Cost]) -> None:
        self._stream, self._costs = stream, costs  # it adds to the last of them

    def read(self, size: int) -> bytes:
        """At most `size` bytes."""
        started = time.perf_counter()
        content: bytes = self._stream.read(size)
        self._costs[-1].read_seconds += time.perf_counter() - started
        self._costs[-1].bytes_requested += len(content)
        return content


class WebSamples(torch.utils.data.IterableDataset):  # type: ignore[misc, unused-ignore]  # mypy may not see PyTorch
    """Batches of samples: their fields or, if `decoded`, what the workload's application makes of them.

    The first iteration in a worker gives nothing, each later one the worker's part of the next of `passes`: its shards
    as wds.split_by_worker deals them, and of each what the plan has, in batches of which the last may be smaller.
    """

    def __init__(
        self, dataset: Dataset, fields: tuple[str, ...], passes: Sequence[ShardPass], *, decoded: bool, check: bool
    ) -> None:
        self._dataset, self._fields, self._decoded, self._check = dataset, fields, decoded, check
        self._passes = passes
        self._begun = 0
        self._view: SampleView | None = None  # of one process

    def __iter__(self) -> Iterator[Collated]:
        """The batches; behind them what else was read; an error of ours as it is, not as the text of a stack."""
        self._begun += 1
        if self._begun == 1:
            return
        try:
            yield from self._pass_batches(self._passes[self._begun - 2])
        except BenchError as error:
            yield error

    def _pass_batches(self, chosen: ShardPass) -> Iterator[Collated]:
        planned = Counter(chosen.ids.tolist())
        costs, samples = [Cost()], list[tuple[int, list[bytes]]]()
        shuffled = [webdataset.shuffle(len(chosen.shards), seed=chosen.seed)] if chosen.buffer else []
        mixed = [webdataset.shuffle(chosen.buffer, seed=chosen.seed)] if chosen.buffer else []
        pipeline = webdataset.DataPipeline(
            webdataset.SimpleShardList([str(path) for path in chosen.shards]),
            webdataset.split_by_worker,
            *shuffled,
            lambda shards: _members(shards, costs),
            tariterators.group_by_keys,
            *mixed,
        )
        for sample in pipeline:
            number = int(sample["__key__"])
            for _ in range(planned[number]):  # one that the plan leaves out is read for nothing
                samples.append((number, [sample[str(place)] for place in range(len(self._fields))]))
                if len(samples) == chosen.batch:
                    yield self._collate(samples, costs.pop())
                    samples.clear()
                    costs.append(Cost())
        yield self._collate(samples, costs.pop())

    def _collate(self, samples: Sequence[tuple[int, list[bytes]]], cost: Cost) -> Collated:
        """A batch in shared memory, as PyTorch's default_collate makes it, and what was read since the last."""
        view = self._view = self._view or self._make_view()
        ids = np.array([number for number, _ in samples], dtype=np.int64)
        content = torch.empty(0, dtype=torch.uint8)
        if not samples:
            return ids, content, cost
        sizes = view.sizes(ids).tolist()
        content.set_(torch.UntypedStorage._new_shared(sum(sizes)))
        memory, start = content.numpy(), 0
        for (number, parts), size in zip(samples, sizes, strict=True):
            if self._check:
                self._compare(number, parts)
            out = memory[start : start + size]
            if view.decode is None:
                out[:] = np.frombuffer(b"".join(parts), dtype=np.uint8)
            else:
                started = time.perf_counter()
                view.decode.apply(number, [memoryview(part) for part in parts], memoryview(out))
                cost.decode_seconds += time.perf_counter() - started
            start += size
        return ids, content, cost

    def _make_view(self) -> SampleView:
        decode = find(self._dataset.manifest.workload).decode if self._decoded else None
        return SampleView(self._dataset, self._fields, None if decode is None else decode(self._dataset))

    def _compare(self, number: int, parts: Sequence[bytes]) -> None:
        expected = self._dataset.checksums(np.array([number]), self._fields)[0].tolist()
        if list(map(crc32c, parts)) != expected:
            raise DataError(f"Sample {number} has another CRC32C in its tar shard than was generated.{_cached_url('')}")


def _members(shards: Iterator[dict[str, Any]], costs: list[Cost]) -> Iterator[dict[str, Any]]:
    """What WebDataset makes of each shard, from a stream that is counted. DataError; EnvironmentFailure."""
    for shard in shards:
        url = shard["url"]
        try:
            with webdataset.gopen(url) as stream:
                yield from tariterators.tar_file_expander([{"url": url, "stream": CountingStream(stream, costs)}])
        except FileNotFoundError as error:
            raise DataError(f"{url} is missing from the tar shards.{_cached_url(url)}") from error
        except OSError as error:
            if isinstance(error, tarfile.TarError):
                raise
            raise EnvironmentFailure(f"{url} cannot be read: {error.strerror}. {remedy(error)}.") from error
        except tarfile.TarError as error:
            raise DataError(f"{url} is damaged: {error.args[0]}.{_cached_url(url)}") from error


def _cached_url(url: str) -> str:
    folder = f" {Path(url).parent}" if url else ""
    return f" Remove the folder of shards{folder}: the next run makes them again."
