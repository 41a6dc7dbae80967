"""The training and the inference of a result; pure functions."""

from collections.abc import Sequence

from msgspec.structs import asdict, replace

from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.measured.documents import RankTrial
from dlio_bench.harness.plan.validation import epochs_of
from dlio_bench.reports.document.trials import Inference, Training
from dlio_bench.reports.document.types import Compute, Mode, ModelPlan, Network
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
