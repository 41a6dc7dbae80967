"""The training, the inference and the validation passes of a result; pure functions."""

from collections.abc import Sequence

from msgspec.structs import asdict, replace

from dlio_bench.benchmarks.workload import Workload, validation_share
from dlio_bench.counters import PassCost, total
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import VALIDATION
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.measured.documents import RankTrial
from dlio_bench.harness.plan.validation import epochs_of
from dlio_bench.reports.document.trials import Inference, Pass, Training, Trial
from dlio_bench.reports.document.types import Compute, Mode, ModelPlan, Network, Passes, PlannedPasses, Split
from dlio_bench.reports.numbers.meetings import Steps


def compute(job: Job, network: Network) -> Compute:
    """The network that a run trained, or that predicted."""
    mode: Mode = "train" if job.infer is None else "infer"
    return Compute(**asdict(network), mode=mode, asked_step_seconds=None, kind=None)


def models(job: Job, networks: Sequence[Network | None]) -> list[ModelPlan]:
    """The models that a run trained side by side; empty where there is one. networks: of each."""
    if len(job.models) == 1:
        return []
    return [
        ModelPlan(learning_rate=model.rate)
        if network is None
        else ModelPlan(network=network.model, parameters=network.parameters, learning_rate=model.rate)
        for model, network in zip(job.models, networks, strict=True)
    ]


def training(job: Job, ranks: Sequence[RankTrial], steps: Steps, trial: int) -> Training | None:
    """The training of a trial; None without one.

    The loss of a step is the mean over the ranks' batches, of all models. Seconds of all-reduces are the mean over the
    ranks. Bytes are those of one rank. Scores say which model they are of, where there are several.
    """
    reduced = [rank.training for rank in ranks if rank.training is not None]
    if not reduced:
        return None
    loss = steps["loss"][trial].mean(axis=0)  # [ranks, steps]
    epochs = epochs_of(job.epochs, job.validation.every) if job.validation else []
    first = [(model, ranks[rank]) for rank in range(job.ranks) for model, number in [job.model_of(rank)] if number == 0]
    several = len(first) > 1
    return Training(
        loss=[float(value) for value in loss],
        final_loss=float(loss[-1]),
        scores=[
            {"epoch": epoch, **({"model": model} if several else {}), **scores}
            for model, rank in first
            for epoch, scores in zip(epochs, rank.scores, strict=True)
        ],
        allreduce_seconds=sum(rank.allreduce_seconds for rank in reduced) / len(reduced),
        allreduce_bytes=max(rank.allreduce_bytes for rank in reduced),
        checkpoints=[saved for rank in reduced for saved in rank.checkpoints],
        generated=[made for rank in reduced for made in rank.generated],
    )


def inference(ranks: Sequence[Inference]) -> Inference | None:
    """Samples that all ranks predicted, and the scores, which are the same on every rank; None without ranks."""
    return replace(ranks[0], samples=sum(rank.samples for rank in ranks)) if ranks else None


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
