"""What a draft of a result says of validation passes; pure functions."""

from collections.abc import Mapping, Sequence
from typing import Any

from dlio_bench.benchmarks.workload import Workload, validation_share
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import VALIDATION
from dlio_bench.harness.plan.validation import epochs_of
from dlio_bench.harness.run.asked.job import Job


def pass_seconds(steps: Mapping[str, Any], trial: int) -> dict[int, float]:
    """Epoch -> seconds of the validation pass behind it: its first batch to everybody's last, on the slowest rank."""
    if "validation" not in steps:
        return {}
    seconds = steps["validation"][trial].max(axis=0)  # [ranks, passes]
    return dict(zip(steps["validation_epoch"].tolist(), seconds.tolist(), strict=True))


def one_pass(ranks: Sequence[Mapping[str, Any]], epoch: int, seconds: float) -> dict[str, Any]:
    """The part of an epoch's bytes and seconds that its validation pass has."""
    parts = {
        "bytes_useful": "useful",
        "bytes_requested": "requested",
        "bytes_local": "local",
        "bytes_remote": "remote",
        "bytes_ram": "ram",
        "bytes_spared": "spared",
        "bytes_kept": "kept",
        "remote_misses": "remote_misses",
        "read_seconds": "read_seconds",
        "decode_seconds": "decode_seconds",
    }
    totals = {name: sum(rank["validation"][own][epoch] for rank in ranks) for name, own in parts.items()}
    return {"seconds": seconds, **totals}


def in_training(part: Mapping[str, Any], name: str) -> Any:
    """What an epoch has of this without its validation pass."""
    return part[name] - (part["validation"][name] if part["validation"] else 0)


def sample_bytes(job: Job, trial: Mapping[str, Any]) -> float:
    """Delivered bytes of a training sample, the mean."""
    delivered = trial["samples"] * job.copies
    return float(sum(in_training(epoch, "bytes_useful") for epoch in trial["epochs"]) / delivered)


def split(job: Job, dataset: Dataset) -> dict[str, Any] | None:
    """The validation split that the job reads; None where it reads none."""
    part = dataset.part(VALIDATION) if job.validation else None
    if part is None:
        return None
    stored = sum(dataset.manifest.files[number].bytes for number in part.files)
    return {"files": len(part.files), "samples": len(part.samples), "stored_bytes": stored}


def planned(job: Job, own: Mapping[str, Any], workload: Workload) -> dict[str, Any] | None:
    """The validation passes of a trial, for the plan."""
    if job.validation is None:
        return None
    published = workload.validation
    return {
        "every_epochs": job.validation.every,
        "passes": len(epochs_of(job.epochs, job.validation.every)),
        **own["validation"],
        "compute_share": validation_share(workload),
        "source": None if published is None else published.source,
    }
