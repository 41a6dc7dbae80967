"""What the readers of a rank are given: memory and threads, decoding, and all that they will be asked for."""

import math
from collections.abc import Iterator, Mapping, Sequence

from dlio_bench.batches import Ids
from dlio_bench.benchmarks.pipeline import Decode
from dlio_bench.benchmarks.registry import find
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.cluster.comm import Comm, together
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.measured.trial import Trial
from dlio_bench.harness.commands.run.measured.verification import whole_dataset
from dlio_bench.harness.ground.options import DIRECT
from dlio_bench.harness.plan.orders import steps_of
from dlio_bench.harness.plan.policies import WEBDATASET
from dlio_bench.harness.readers.registry import Resources
from dlio_bench.harness.readers.sample_view import SampleView
from dlio_bench.harness.storage.direct import alignment_of


def sharded(job: Job, views: Mapping[str, SampleView]) -> tuple[str, ...]:
    """The fields in tar shards, where a reader has some."""
    return next((views[name].fields for name, row in job.readers.items() if row.delivery == WEBDATASET), ())


def parts(
    job: Job, dataset: Dataset, comm: Comm, peers: Comm, trials: Sequence[Trial]
) -> Iterator[tuple[int, Sequence[Ids]]]:
    """All that a reader is asked for on this rank: by the verification and by its trials."""
    yield from whole_dataset(dataset, job, peers.size, peers.rank)
    for trial in trials:
        yield from ((pass_.epoch, pass_.batches) for pass_ in trial.passes(comm.rank))
        yield from ((epoch, steps_of(ids)) for epoch, ids in enumerate(trial.ids(comm.rank)))


def resources(job: Job, dataset: Dataset, comm: Comm) -> Resources:
    """What a reader may use on this rank. EnvironmentFailure, the same on all, where one cannot read directly."""
    alignments = together(comm, lambda: alignment_of(dataset) if job.options.io == DIRECT else None)
    # the step time of a network is not known before the run
    computing = math.inf if job.has_network else job.step_seconds
    return Resources(
        job.threads,
        job.staging_bytes,
        step_seconds=computing,
        check_crc=job.options.check_crc,
        tiers=job.tiers,
        most_threads=job.most_threads,
        inline_queue=job.streaming.queue if job.streaming is not None and job.streaming.inline else 0,
        alignment=alignments[comm.rank],
    )


def decode(job: Job, dataset: Dataset) -> Decode | None:
    """What the application makes of a sample, with --decode."""
    decoding = find(job.workload).decode
    return decoding(dataset) if job.decode and decoding is not None else None
