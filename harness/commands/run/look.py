"""A first look at readers whose step time is not known: two epochs of each, which count in no result."""

import math
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.asked.request import Request
from dlio_bench.harness.commands.run.asked.sizing import LONGER, Minimum, TrialSize
from dlio_bench.harness.commands.run.measurement import measure
from dlio_bench.harness.commands.run.placing import placed
from dlio_bench.harness.commands.run.told.building import Setting
from dlio_bench.harness.ground.progress import Progress

EpochSeconds = tuple[float, float]  # of the first and of a later epoch


def first_look(
    template: Job, request: Request, dataset: Dataset, tiers: tuple[str, ...], folder: Path, progress: Progress
) -> list[EpochSeconds]:
    """Seconds of the first and of a later epoch of each reader of a job."""
    options = replace(template.options, verify=False, trace=())
    short = replace(template, options=options, epochs=2, trials=1, warmup_trials=0, validation=None)
    with placed(short, dataset, tiers) as job:
        progress.begin(f"{job.heading}  first look", trials=job.all_trials, epochs=job.all_epochs)
        drafts = list(measure(job, Setting(request, dataset, ()), folder, request.options.launcher, progress))
    epochs = [drafted.trials[0].epochs for drafted, _ in drafts]
    return [(first.seconds, later.seconds) for first, later in epochs]


def sized(
    planned: Sequence[Job], size: TrialSize, minimum: Minimum, seconds: Sequence[EpochSeconds]
) -> tuple[list[Job], TrialSize]:
    """The jobs and their size, with as many epochs as the fastest reader needs for a long enough trial."""
    epochs = max(size.epochs, minimum.epochs(seconds))
    if epochs == size.epochs:
        return list(planned), size
    fastest = min(first + (epochs - 1) * later for first, later in seconds)
    note = f"a trial takes {epochs} epochs, which the fastest reader reads in {fastest:.1f} s by a first look"
    notes = (*(known for known in size.notes if not known.startswith(LONGER)), note)
    steps = math.ceil(size.trial_steps / size.epochs) * epochs
    longer = replace(size, epochs=epochs, notes=notes, trial_steps=steps)
    return [replace(job, epochs=epochs) for job in planned], longer
