"""The untimed pass: every training sample through the same reader object, its whole content against its CRC32C.

It also turns the marks taken in the timed loops into evidence: they must be the marks of content that passed.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.plan.orders import every_sample_once
from dlio_bench.harness.readers.session import Reader, Tally, planned
from dlio_bench.harness.run.consumer import damaged, marks, require_planned, require_same_set
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
    reader: Reader, job: Job, trials: Sequence[TrialTimes], comm: Comm, *, ordered: bool, different: int
) -> Verified:
    """Verify content on all ranks together, then every delivery of every timed step against it."""
    dataset = reader.form.dataset
    table = np.zeros(dataset.training_samples, dtype=np.uint64)
    lines: list[str] = []
    share = every_sample_once(dataset.training_samples, comm.size, comm.rank, job.batch)
    delivered = []
    with reader.session(planned(reader.form, [(0, share)]), Tally()) as batches:
        for ids, batch in zip(share, batches, strict=True):
            require_planned(batch, ids, ordered=ordered)
            lines += damaged(batch, reader.form)
            table[batch.ids] = marks(batch)
            delivered.append(batch.ids.copy())
    if share:
        require_same_set(np.concatenate(delivered), np.concatenate(share))
    table = comm.total(table)

    deliveries = altered = once = 0
    for times in trials:
        ids = times.log.ids.reshape(len(times.plan), -1)
        for epoch in ids:
            seen = np.zeros(dataset.training_samples, dtype=np.uint64)
            np.add.at(seen, epoch, np.uint64(1))
            seen = comm.total(seen)
            once += int((seen > 0).sum()) == different  # under padding some of them come twice
        deliveries += ids.size
        altered += int((table[times.log.ids] != times.log.samples).sum())
    totals = comm.total(np.array([len(lines), deliveries, altered], dtype=np.uint64)).tolist()
    shown = [line for lines_of_rank in comm.allgather(lines[:SHOWN]) for line in lines_of_rank][:SHOWN]
    return Verified(
        fields=dataset.training_samples * len(reader.form.fields),
        damaged_fields=totals[0],
        damaged=shown,
        deliveries=totals[1],
        altered_deliveries=totals[2],
        epochs=sum(len(times.plan) for times in trials),
        epochs_once=once,
    )
