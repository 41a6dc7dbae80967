"""What a draft of a result says of training and of inference; pure functions."""

from collections.abc import Mapping, Sequence
from typing import Any

from dlio_bench.harness.plan.validation import epochs_of
from dlio_bench.harness.run.asked.job import Job


def compute(job: Job, own: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a result that tells of the trainer, where a network was trained or predicted."""
    trained = own["trained"]
    return {"mode": "train" if job.infer is None else "infer", "asked_step_seconds": None, "kind": None, **trained}


def of_trial(job: Job, ranks: Sequence[Mapping[str, Any]], steps: Mapping[str, Any], trial: int) -> dict[str, Any]:
    """What a trial's training came to; nothing without one.

    loss: by step, the mean over the ranks' batches. scores: of each validation pass, over all ranks. allreduce: seconds
    are the mean over the ranks and overlap compute where gradients lag; bytes are what one rank had added up.
    Of an inference: samples that all ranks predicted, and the scores of the predictions.
    """
    if job.infer is not None:
        found = [rank["inference"] for rank in ranks]
        return {"inference": {**found[0], "samples": sum(one["samples"] for one in found)}}
    if "loss" not in steps:
        return {}
    loss = steps["loss"][trial].mean(axis=0)  # [ranks, steps]
    scores = ranks[0]["validation"]["scores"]
    epochs = epochs_of(job.epochs, job.validation.every) if job.validation else []
    reduced = [rank["training"] for rank in ranks]
    return {
        "training": {
            "loss": [float(value) for value in loss],
            "final_loss": float(loss[-1]),
            "scores": [{"epoch": epoch, **found} for epoch, found in zip(epochs, scores, strict=True)],
            "allreduce_seconds": sum(rank["allreduce_seconds"] for rank in reduced) / len(reduced),
            "allreduce_bytes": max(rank["allreduce_bytes"] for rank in reduced),
            "checkpoints": reduced[0]["checkpoints"],
        }
    }
