"""The validation passes of a result; pure functions."""

from collections.abc import Sequence

from msgspec.structs import asdict

from dlio_bench.benchmarks.workload import Workload, validation_share
from dlio_bench.counters import PassCost, total
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import VALIDATION
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.measured.documents import RankTrial
from dlio_bench.harness.plan.validation import epochs_of
from dlio_bench.reports.document.trials import Pass, Trial
from dlio_bench.reports.document.types import Passes, PlannedPasses, Split
from dlio_bench.reports.numbers.meetings import Steps


def pass_seconds(steps: Steps, trial: int) -> dict[int, float]:
    """Epoch -> seconds of its validation pass: from the first batch to the last of all ranks, on the slowest rank."""
    if "validation" not in steps:
        return {}
    seconds = steps["validation"][trial].max(axis=0)  # [ranks, passes]
    return dict(zip(steps["validation_epoch"].tolist(), seconds.tolist(), strict=True))


def one_pass(ranks: Sequence[RankTrial], epoch: int, seconds: float) -> Pass:
    """An epoch's validation pass: its share of the epoch's counters."""
    return Pass(**asdict(total(PassCost, [rank.passes[epoch] for rank in ranks])), seconds=seconds)


def sample_bytes(job: Job, trial: Trial) -> float:
    """Delivered bytes of a training sample, the mean."""
    delivered = trial.samples * job.deliveries
    return sum(epoch.in_training("bytes_useful") for epoch in trial.epochs) / delivered


def split(job: Job, dataset: Dataset) -> Split | None:
    """The validation split, if the job reads it."""
    part = dataset.part(VALIDATION) if job.validation else None
    if part is None:
        return None
    stored = sum(dataset.manifest.files[number].bytes for number in part.files)
    return Split(len(part.files), len(part.samples), stored)


def planned(job: Job, passes: Passes | None, workload: Workload) -> PlannedPasses | None:
    """The validation passes of a trial, for the plan."""
    if passes is None or job.validation is None:
        return None
    published = workload.validation
    return PlannedPasses(
        **asdict(passes),
        every_epochs=job.validation.every,
        passes=len(epochs_of(job.epochs, job.validation.every)),
        compute_share=validation_share(workload),
        source=None if published is None else published.source,
    )
