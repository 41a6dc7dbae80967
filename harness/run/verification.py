"""The untimed pass: every training sample through the same reader object, its whole content against its CRC32C.

It also turns the marks taken in the timed loops into evidence: they must be the marks of content that passed.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.plan.orders import Shape, every_sample_once
from dlio_bench.harness.readers.session import Reader, Tally, planned
from dlio_bench.harness.run.consumer import damaged, marks, require_planned
from dlio_bench.harness.run.job import Job
from dlio_bench.harness.run.trial import TrialTimes

SHOWN = 5  # damaged fields named in a result; the count is exact


@dataclass(frozen=True)
class Verified:
    """Counts over all ranks. `epochs_once` of `epochs`: those in which every planned sample came exactly once."""

    fields: int
    damaged_fields: int
    damaged: list[str]
    deliveries: int
    altered_deliveries: int
    epochs: int
    epochs_once: int

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def verify(
    reader: Reader, job: Job, dataset: Dataset, shape: Shape, trials: Sequence[TrialTimes], comm: Comm
) -> Verified:
    """Verify content on all ranks together, then every delivery of every timed step against it."""
    table = np.zeros(dataset.training_samples, dtype=np.uint64)
    lines: list[str] = []
    share = every_sample_once(dataset.training_samples, comm.size, comm.rank, job.batch)
    plan = planned(dataset, job.view, [(0, share)])
    with reader.session(plan, Tally()) as batches:
        for ids, batch in zip(share, batches, strict=True):
            require_planned(batch, ids)
            lines += damaged(batch, dataset, job.view)
            table[ids] = marks(batch)
    table = comm.total(table)

    deliveries = altered = once = 0
    for times in trials:
        for epoch, ids in enumerate(times.plan):
            seen = np.zeros(dataset.training_samples, dtype=np.uint64)
            np.add.at(seen, ids.ravel(), np.uint64(1))
            seen = comm.total(seen)
            once += bool(seen.max(initial=0) == 1 and seen.sum() == dataset.training_samples - shape.dropped)
            found = times.log.samples[epoch * shape.steps : (epoch + 1) * shape.steps]
            deliveries += ids.size
            altered += int((table[ids] != found).sum())
    totals = comm.total(np.array([len(lines), deliveries, altered], dtype=np.uint64)).tolist()
    shown = [line for lines_of_rank in comm.allgather(lines[:SHOWN]) for line in lines_of_rank][:SHOWN]
    return Verified(
        fields=dataset.training_samples * len(job.view),
        damaged_fields=totals[0],
        damaged=shown,
        deliveries=totals[1],
        altered_deliveries=totals[2],
        epochs=sum(len(times.plan) for times in trials),
        epochs_once=once,
    )
