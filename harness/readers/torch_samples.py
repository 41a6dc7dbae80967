"""A map-style dataset of PyTorch over our extents: what its worker processes import and do."""

from typing import Any

import numpy as np
import torch

from dlio_bench import recorder
from dlio_bench.batches import Ids
from dlio_bench.benchmarks.registry import find
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import BenchError
from dlio_bench.harness.readers.session import SampleView
from dlio_bench.harness.storage.extents import ExtentReader
from dlio_bench.processes import begin_worker

# ids, the bytes of all samples, what reading them cost; or why they could not be read
Collated = tuple[Ids, Any, Cost] | BenchError


def begin(number: int) -> None:
    """A worker's first act: it is to end with its rank, and records what it does if the rank records."""
    del number
    begin_worker()
    recorder.join()


def as_it_is(collated: Collated) -> Collated:
    """The function that collates: `TorchSamples` does it while it reads."""
    return collated


class TorchSamples:
    """Batches of samples: their fields or, if `decoded`, what the workload's application makes of them.

    What it keeps open belongs to one process: it is opened by the first batch that is asked for there.
    """

    def __init__(self, dataset: Dataset, fields: tuple[str, ...], *, decoded: bool, check: bool) -> None:
        self._dataset, self._fields, self._decoded, self._check = dataset, fields, decoded, check
        self._opened: tuple[SampleView, ExtentReader] | None = None

    def __getitems__(self, samples: list[int]) -> Collated:
        """A batch, in shared memory as PyTorch's default_collate makes it, but read into it without a copy."""
        view, extents = self._opened = self._opened or self._open()
        ids, cost = np.array(samples, dtype=np.int64), Cost()
        content = torch.empty(0, dtype=torch.uint8)
        if len(ids):
            content.set_(torch.UntypedStorage._new_shared(int(view.sizes(ids).sum())))
            try:
                extents.read(ids, memoryview(content.numpy()), cost)
            except BenchError as error:  # raised, it would reach the trainer with the worker's stack as its text
                return error
        return ids, content, cost

    def _open(self) -> tuple[SampleView, ExtentReader]:
        decode = find(self._dataset.manifest.workload).decode if self._decoded else None
        view = SampleView(self._dataset, self._fields, None if decode is None else decode(self._dataset))
        return view, ExtentReader(self._dataset, view.fields, view.decode, check=self._check)
