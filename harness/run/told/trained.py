"""The training and the inference of a result; pure functions."""

from collections.abc import Sequence

from msgspec.structs import asdict, replace

from dlio_bench.harness.plan.validation import epochs_of
from dlio_bench.harness.run.asked.job import Job
from dlio_bench.harness.run.measured.documents import RankTrial
from dlio_bench.reports.meetings import Steps
from dlio_bench.reports.trials import Inference, Training
from dlio_bench.reports.types import Compute, Mode, Network


def compute(job: Job, network: Network) -> Compute:
    """The network that a run trained, or that predicted."""
    mode: Mode = "train" if job.infer is None else "infer"
    return Compute(**asdict(network), mode=mode, asked_step_seconds=None, kind=None)


def training(job: Job, ranks: Sequence[RankTrial], steps: Steps, trial: int) -> Training | None:
    """The training of a trial; None without one.

    The loss of a step is the mean over the ranks' batches. Seconds of all-reduces are the mean over the ranks. Bytes
    are those of one rank.
    """
    reduced = [rank.training for rank in ranks if rank.training is not None]
    if not reduced:
        return None
    loss = steps["loss"][trial].mean(axis=0)  # [ranks, steps]
    epochs = epochs_of(job.epochs, job.validation.every) if job.validation else []
    return Training(
        loss=[float(value) for value in loss],
        final_loss=float(loss[-1]),
        scores=[{"epoch": epoch, **scores} for epoch, scores in zip(epochs, ranks[0].scores, strict=True)],
        allreduce_seconds=sum(rank.allreduce_seconds for rank in reduced) / len(reduced),
        allreduce_bytes=max(rank.allreduce_bytes for rank in reduced),
        checkpoints=reduced[0].checkpoints,
    )


def inference(ranks: Sequence[Inference]) -> Inference | None:
    """Samples that all ranks predicted, and the scores, which are the same on every rank; None without ranks."""
    return replace(ranks[0], samples=sum(rank.samples for rank in ranks)) if ranks else None
