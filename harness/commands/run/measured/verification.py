"""The untimed pass: reads every sample of the job through the same reader, and compares its content with its CRC32C.

It also checks the marks taken in the timed loops: they must be the marks of content that passed.
"""

from collections.abc import Sequence
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from dlio_bench.batches import Ids, validation_after
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import VALIDATION
from dlio_bench.harness.cluster.comm import Comm, Solo
from dlio_bench.harness.commands.run.asked.job import Job, samples_of
from dlio_bench.harness.commands.run.measured.consumer import find_damage, marks, require_planned, require_same_set
from dlio_bench.harness.commands.run.measured.documents import Verified
from dlio_bench.harness.commands.run.measured.observer import Rank
from dlio_bench.harness.commands.run.measured.trial import Contender
from dlio_bench.harness.plan.orders import every_sample_once
from dlio_bench.harness.plan.shape import PIPELINE
from dlio_bench.harness.readers.session import Tally, plan_batches

SHOWN = 5  # damaged fields named in a result; the count is exact


def verify(one: Contender, rank: Rank) -> Verified:
    """Verify content on all ranks together, then compare every delivery of timed steps and passes with it.

    Each sample of an epoch goes to `job.deliveries` ranks of each model. The ranks of this rank's model share the
    samples: every model gets the whole dataset. Of a pipeline each stage verifies the fields that it reads.
    """
    job, comm, peers, reader = rank.job, rank.comm, rank.peers, one.reader
    dataset = reader.sample_view.dataset
    table = np.zeros(dataset.samples, dtype=np.uint64)
    lines: list[str] = []
    # a stage of a pipeline reads fields that no other one reads: it verifies all samples by itself
    sharing: Comm = Solo() if job.options.shard == PIPELINE else peers
    parts = whole_dataset(dataset, job, sharing.size, sharing.rank)
    share = [ids for _, batches in parts for ids in batches]
    delivered = []

    def ids_read(rank: int, epoch: int) -> Ids:
        batches = dict(whole_dataset(dataset, job, sharing.size, job.model_of(rank)[1] % sharing.size))[epoch]
        return np.concatenate([np.zeros(0, np.int64), *batches])

    with reader.session(plan_batches(reader.sample_view, parts, ids_read), Tally()) as batches:
        for ids, batch in zip(share, batches, strict=True):
            require_planned(batch, ids, ordered=one.row.order_known)
            lines += find_damage(batch, reader.sample_view)
            table[batch.ids] = marks(batch)
            delivered.append(batch.ids.copy())
    if share:
        require_same_set(np.concatenate(delivered), np.concatenate(share))
    table = sharing.total(table)
    fields_read = reader.sample_view.fields

    deliveries = altered = 0
    once: list[bool] = []  # of each epoch, for this model
    alike: list[bool] = []
    passes_once: list[bool] = []
    for times in one.times:
        ids = times.log.ids.reshape(len(times.plan), -1)
        filled = times.log.ids >= 0
        for epoch in ids:
            seen = _delivery_counts(epoch[epoch >= 0], dataset.samples, sharing)
            came = seen[seen > 0]
            # --last pad delivers some of them twice
            once.append(
                len(came) == one.trials[0].different and bool((came == job.deliveries).all() or job.last == "pad")
            )
            alike.append(len(set(peers.allgather(sha256(epoch.tobytes()).digest()))) == 1)
        deliveries += int(filled.sum()) if fields_read else 0
        altered += int((table[times.log.ids[filled]] != times.log.samples[filled]).sum())
        for pass_ in times.passes:
            seen = _delivery_counts(pass_.delivered_ids, dataset.samples, sharing)
            # every rank took as many samples as planned
            passes_once.append(bool((seen[seen > 0] == job.deliveries).all()))
            deliveries += pass_.delivered_ids.size if fields_read else 0
            altered += int((table[pass_.delivered_ids] != pass_.marks).sum())
    fields = int((table > 0).sum()) * len(fields_read) if sharing.rank == 0 else 0
    totals = comm.total(np.array([len(lines), deliveries, altered, fields], dtype=np.uint64)).tolist()
    shown = [line for lines_of_rank in comm.allgather(lines[:SHOWN]) for line in lines_of_rank][:SHOWN]
    return Verified(
        fields=totals[3],
        damaged_fields=totals[0],
        damaged=shown,
        deliveries=totals[1],
        altered_deliveries=totals[2],
        epochs=sum(len(times.plan) for times in one.times),
        epochs_once=_count_everywhere(once, comm),
        passes=sum(len(times.passes) for times in one.times),
        passes_once=_count_everywhere(passes_once, comm),
        epochs_alike=_count_everywhere(alike, comm),
    )


def whole_dataset(dataset: Dataset, job: Job, ranks: int, rank: int) -> list[tuple[int, list[Ids]]]:
    """A rank's share of the untimed pass, as (epoch, ids of each batch).

    It reads every training sample, and every validation sample if the job validates.
    """
    part = dataset.part(VALIDATION) if job.validation else None
    parts = [(0, every_sample_once(samples_of(job, dataset), ranks, rank, job.batch))]
    if part is not None:
        batches = every_sample_once(len(part.samples), ranks, rank, job.batch)
        parts.append((validation_after(0), [ids + part.samples.start for ids in batches]))
    return parts


def _count_everywhere(holds: Sequence[bool], comm: Comm) -> int:
    """How many of these hold on all ranks, that is for every model."""
    return int((comm.total(np.array(holds, dtype=np.uint64)) == comm.size).sum()) if holds else 0


def _delivery_counts(ids: Ids, samples: int, comm: Comm) -> npt.NDArray[np.uint64]:
    """How often each sample was delivered, over the ranks of `comm`, uint64 [samples]."""
    seen = np.zeros(samples, dtype=np.uint64)
    np.add.at(seen, ids, np.uint64(1))
    return comm.total(seen)
