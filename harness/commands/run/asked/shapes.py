"""The files and samples that a job reads, and how it cuts them into steps of ranks."""

from collections.abc import Sequence

import numpy as np

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import VALIDATION
from dlio_bench.datagen.manifest import FileEntry
from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.plan.orders import Shape


def files_of(job: Job, dataset: Dataset) -> Sequence[FileEntry]:
    """The files of an epoch, which come first in the dataset: the training files; for an inference all files."""
    return dataset.training_files if job.infer is None else dataset.manifest.files


def samples_of(job: Job, dataset: Dataset) -> int:
    """How many samples an epoch reads. Their ids are those below this number."""
    return dataset.training_samples if job.infer is None else dataset.samples


def shape_of(job: Job, dataset: Dataset) -> Shape:
    """How the job cuts an epoch of the training split, or of all splits for an inference."""
    return _shape(job, samples_of(job, dataset), files_of(job, dataset), job.last)


def validation_shape(job: Job, dataset: Dataset) -> Shape | None:
    """How the job cuts the validation split; None without passes over it. UsageError if there is no such split."""
    if not job.validation:
        return None
    part = dataset.part(VALIDATION)
    if part is None:
        raise UsageError(
            f"--validation: the dataset in {dataset.folder} has no validation split. Generate one with a validation "
            "split, or use --validation none."
        )
    files = [dataset.manifest.files[number] for number in part.files]
    return _shape(job, len(part.samples), files, "drop", first=part.samples.start)


def _shape(job: Job, samples: int, files: Sequence[FileEntry], last: str, first: int = 0) -> Shape:
    bounds = np.cumsum([0, *(file.samples for file in files)])
    return Shape(samples, job.model_ranks, job.batch, bounds, job.model_per_node, job.options.shard, last, first)
