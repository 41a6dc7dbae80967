"""A map-style dataset of PyTorch over our extents: what its worker processes import and do."""

import signal
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from dlio_bench import recorder
from dlio_bench.batches import Ids
from dlio_bench.benchmarks.registry import find
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import BenchError
from dlio_bench.harness.cluster.process import die_with_parent
from dlio_bench.harness.readers.sample_view import SampleView
from dlio_bench.harness.storage.extents import ExtentReader

# ids, the bytes of all samples, what reading them cost; or why they could not be read
Collated = tuple[Ids, Any, Cost] | BenchError


def begin(number: int) -> None:
    """A worker's first act: it is to end with the process that forked it, and leaves Ctrl-C to the trainer."""
    del number
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    recorder.join()


class Samples:
    """`samples[id]` reads one sample: its fields or, if `decoded`, what the workload's application makes of them.

    What it keeps open belongs to one process: it is opened by the first sample that is asked for there.
    """

    def __init__(self, dataset: Dataset, fields: tuple[str, ...], *, decoded: bool, check: bool) -> None:
        self._dataset, self._fields, self._decoded, self._check = dataset, fields, decoded, check
        self._opened: tuple[SampleView, ExtentReader] | None = None
        self._cost = Cost()

    def __len__(self) -> int:
        """Samples of the dataset."""
        return self._dataset.samples

    def __getitem__(self, sample: int) -> tuple[int, Any]:
        """The id and the bytes of a sample, uint8 [bytes]; a BenchError instead of them if it cannot be read."""
        view, extents = self._opened = self._opened or self._open()
        ids = np.array([sample])
        content = np.empty(int(view.sizes(ids)[0]), dtype=np.uint8)
        try:
            extents.read(ids, memoryview(content), self._cost)
        except BenchError as error:  # raised, it would reach the trainer with the worker's stack as its text
            return sample, error
        return sample, torch.from_numpy(content)

    def collate(self, samples: list[tuple[int, Any]]) -> Collated:
        """One tensor of the samples' bytes: as PyTorch does it, in shared memory, where all have one length."""
        cost, self._cost = self._cost, Cost()
        parts = [content for _, content in samples]
        for part in parts:
            if isinstance(part, BenchError):
                return part
        even = len({len(part) for part in parts}) == 1
        content = default_collate(parts) if even else torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)
        return np.array([sample for sample, _ in samples], dtype=np.int64), content, cost

    def _open(self) -> tuple[SampleView, ExtentReader]:
        decode = find(self._dataset.manifest.workload).decode if self._decoded else None
        view = SampleView(self._dataset, self._fields, None if decode is None else decode(self._dataset))
        return view, ExtentReader(self._dataset, view.fields, view.decode, check=self._check)
