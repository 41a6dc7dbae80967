"""WebDataset, as its users set it up: tar shards dealt to workers, a buffer that shuffles, batches made by workers.

An epoch comes as a multiset of its plan, in WebDataset's own order. The plan says which shards a rank has: with
`buffered-shuffle` every n-th, as wds.split_by_node deals them. Its workers share these by wds.split_by_worker, and each
shuffles and batches its part by itself; what does not fill a batch there fills the last batches of the epoch.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import groupby
from typing import Any

import numpy as np
from crc32c import crc32c

from dlio_bench.batches import Batch, Block, Bytes, Ids, is_validation
from dlio_bench.errors import BenchError, DataError, EnvironmentFailure
from dlio_bench.harness.readers import web_shards
from dlio_bench.harness.readers.resources import Resources
from dlio_bench.harness.readers.session import Planned, SampleView, Tally
from dlio_bench.harness.readers.torch_loader import PREFETCH, explain_failures, ignore_warnings, pytorch, working
from dlio_bench.processes import fork_server

_WORKER = "dlio_bench.harness.readers.web_samples"
Delivered = Iterator[tuple[Ids, Bytes]]


def is_installed() -> bool:
    """Whether WebDataset and PyTorch are installed, without loading them."""
    return all(find_spec(package) is not None for package in ("webdataset", "torch"))


def require_webdataset(reader: str) -> None:
    """EnvironmentFailure where one of them is not installed."""
    if not is_installed():
        raise EnvironmentFailure(
            f"Reader '{reader}' needs WebDataset and PyTorch, which are not both installed. Install them with "
            "`pip install 'dlio-bench[webdataset]'`, or use another reader."
        )


class WebLoader:
    """WebDataset in a DataLoader with up to `threads` worker processes, as far as `staging_bytes` hold their batches.

    buffer: samples that all workers of a rank together shuffle, at most as many as fill half of `staging_bytes`.
    """

    def __init__(self, sample_view: SampleView, resources: Resources, *, buffer: int) -> None:
        """Load PyTorch. EnvironmentFailure where it is not installed."""
        self.sample_view = sample_view
        self._data = pytorch()
        require_webdataset("webdataset")
        self._check = resources.options.check_crc
        dataset = sample_view.dataset
        batches = max(1, resources.staging_bytes // max(1, resources.batch_bytes))
        self._workers = max(1, min(resources.threads, batches, len(dataset.manifest.files)))
        self._prefetch = max(1, min(PREFETCH, batches // self._workers))
        mean = sum(entry.bytes for entry in dataset.manifest.files) / dataset.samples
        self._buffer = max(1, min(buffer, int(resources.staging_bytes / 2 / mean)) // self._workers) if buffer else 0
        self.options = {
            "threads": 0,
            "processes": self._workers,
            "prefetch": self._prefetch,
            "shuffle_buffer": self._buffer * self._workers,
        }
        self.processes: tuple[int, ...] = ()
        self._context = fork_server(_WORKER)

    def requested_bytes(self, plan: Sequence[Planned]) -> dict[int, int]:
        """See Reader.requested_bytes: all of each shard that holds a sample of the plan."""
        view = self.sample_view
        return {
            epoch: sum(
                web_shards.stream_bytes(view.dataset, view.fields, file)
                for file in web_shards.shards_holding(view.dataset, ids)
            )
            for epoch, ids in _by_epoch(plan)
        }

    @contextmanager
    def session(self, plan: Sequence[Planned], tally: Tally) -> Iterator[Iterator[Batch]]:
        """See Reader.session."""
        from dlio_bench.harness.readers import web_samples

        view, batch = self.sample_view, max((len(each.ids) for each in plan), default=1)
        passes = [
            web_samples.ShardPass(
                web_shards.paths(view.dataset, view.fields, web_shards.shards_holding(view.dataset, ids)),
                ids,
                batch,
                0 if is_validation(epoch) else self._buffer,
                seed=crc32c(ids.tobytes()),  # as the plan: another in each epoch, the same when a run is repeated
            )
            for epoch, ids in _by_epoch(plan)
        ]
        samples = web_samples.WebSamples(
            view.dataset, view.fields, passes, decoded=view.decode is not None, check=self._check
        )
        from dlio_bench.harness.readers.torch_samples import as_it_is, begin

        with ignore_warnings():
            loader = self._data.DataLoader(
                samples,
                batch_size=None,
                num_workers=self._workers,
                prefetch_factor=self._prefetch,
                collate_fn=as_it_is,
                worker_init_fn=begin,
                multiprocessing_context=self._context,
                persistent_workers=True,
            )
        try:
            with working(loader) as self.processes:
                yield self._batches(plan, tally, loader)
        finally:
            self.processes = self.processes[:1]

    def _batches(self, plan: Sequence[Planned], tally: Tally, loader: Any) -> Iterator[Batch]:
        for epoch, group in groupby(plan, key=lambda batch: batch.epoch):
            with explain_failures():
                delivered = self._next_delivered(iter(loader), epoch, tally)
            sizes = [len(batch.ids) for batch in group]
            left: list[tuple[Ids, Bytes]] = []
            for number, size in enumerate(sizes):
                ids, content = self._next(delivered, size, left)
                if number == len(sizes) - 1:  # all of an epoch's reads belong to it
                    left += delivered
                    if any(len(more) for more, _ in left):
                        raise DataError("WebDataset delivered more samples than its shards hold.")
                starts = np.concatenate([[0], np.cumsum(self.sample_view.sizes(ids))])
                yield Batch(ids, (Block(content, starts),))

    def _next_delivered(self, parts: Iterator[Any], epoch: int, tally: Tally) -> Delivered:
        while True:
            with explain_failures():
                part = next(parts, None)
            if part is None:
                return
            if isinstance(part, BenchError):
                raise part
            ids, content, cost = part
            tally.of(epoch).add(cost)
            yield ids, content.numpy()

    def _next(self, delivered: Delivered, size: int, left: list[tuple[Ids, Bytes]]) -> tuple[Ids, Bytes]:
        """A batch of this size as a worker made it; when there is none any more, one of what is left of all."""
        for ids, content in delivered:
            if len(ids) == size:
                return ids, content
            left.append((ids, content))
        ids = np.concatenate([np.zeros(0, np.int64), *(part for part, _ in left)])
        content = np.concatenate([np.zeros(0, np.uint8), *(part for _, part in left)])
        if len(ids) < size:
            raise DataError(
                f"WebDataset delivered {size - len(ids)} samples less than its shards should hold. Remove the folder "
                f"{web_shards.folder_of(self.sample_view.dataset, self.sample_view.fields)}: the next run makes them "
                "again."
            )
        end = int(self.sample_view.sizes(ids[:size]).sum())
        left[:] = [(ids[size:], content[end:])]
        return ids[:size], content[:end]


def _by_epoch(plan: Sequence[Planned]) -> list[tuple[int, Ids]]:
    """(epoch, ids of all its batches), in the order of the plan."""
    return [
        (epoch, np.concatenate([batch.ids for batch in batches]))
        for epoch, batches in groupby(plan, key=lambda batch: batch.epoch)
    ]
