"""How much data a run needs, and how the batch shrinks where the published one would need more. Pure arithmetic."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground.defaults import STEPS, TIMED_STEPS
from dlio_bench.reports.formatting import plural
from dlio_bench.units import format_bytes

LONGER = "an epoch has"  # how the note on several epochs begins
MARGIN = 1.5  # of a trial's seconds over the least: one that comes out shorter than its first look would be in vain


@dataclass(frozen=True)
class Minimum:
    """What a trial must have to be compared; no seconds: a smoke test, of STEPS steps."""

    seconds: float

    @property
    def steps(self) -> int:
        """Fewest steps."""
        return TIMED_STEPS if self.seconds else STEPS

    def needed(self, step_seconds: float) -> int:
        """Steps of so many seconds each (0: nobody knows) that make a trial."""
        return max(self.steps, math.ceil(self.seconds / step_seconds - 1e-9) if step_seconds else 0)

    def is_met(self, steps: int, seconds: Sequence[float]) -> bool:
        """Whether trials of so many steps, which took so many `seconds`, are long enough."""
        return steps >= self.steps and min(seconds) >= self.seconds

    def epochs(self, epoch_seconds: Sequence[Sequence[float]]) -> int:
        """Epochs of a trial long enough for all readers, of each of which a first look took (first, later) seconds."""
        wanted = MARGIN * self.seconds
        return max(1 + max(0, math.ceil((wanted - first) / later)) for first, later in epoch_seconds)


@dataclass(frozen=True)
class TrialSize:
    """Local batch and epochs of a trial; `notes` say what was changed from the published run, for the result."""

    batch: int
    epochs: int
    notes: tuple[str, ...]
    steps: int = 0  # most of an epoch; 0: all that fit
    trial_steps: int = 0  # of a whole trial; orders that keep files together may have fewer
    parted: bool = False  # epochs are parts of a pass over the samples


def trial_size(
    samples: int,
    *,
    ranks: int,
    published_batch: int,
    batch: int | None = None,
    epochs: int | None = None,
    whole: bool = False,
    needed: Callable[[int], int] = lambda _: STEPS,
) -> TrialSize:
    """Choose batch and epochs for a dataset of `samples`: the published batch, halved until STEPS steps fit.

    `needed`: batch -> steps of a trial. Where an epoch has fewer, a trial takes several. What was asked for by hand
    stays as it is.
    UsageError when there is less than one batch for every rank; `whole`: than one sample, as last batches may be small.
    """
    notes = []
    chosen = batch or published_batch
    if batch is None:
        while chosen > 1 and samples // (ranks * chosen) * (epochs or 1) < STEPS:
            chosen //= 2
        if chosen != published_batch:
            notes.append(
                f"the batch is {chosen} a rank instead of the published {published_batch}, so that {samples} samples "
                f"give {plural(ranks, 'rank')} at least {STEPS} steps"
            )
    steps = -(-samples // (ranks * chosen)) if whole and samples >= ranks else samples // (ranks * chosen)
    if steps == 0:
        raise UsageError(
            f"{plural(ranks, 'rank')} with a batch of {chosen} need {ranks * chosen} samples a step, but the dataset "
            f"has {samples}. Use fewer nodes or ranks, a smaller --batch, or a larger dataset (--data, or --max-data)."
        )
    if epochs is None:
        epochs = -(-needed(chosen) // steps)
        if epochs > 1:
            notes.append(
                f"{LONGER} {plural(steps, 'step')}, so a trial takes {epochs} epochs to have at least {needed(chosen)}"
            )
    return TrialSize(chosen, epochs, tuple(notes), trial_steps=steps * epochs)


def shortened(whole: TrialSize, samples: int, *, ranks: int, steps: int, epochs: int | None = None) -> TrialSize:
    """Trials of at most `steps` steps, in epochs of one length, over a dataset of `samples`.

    `epochs`: asked for by hand, none more are taken.
    """
    per_epoch = samples // (ranks * whole.batch)
    needed = -(-steps // per_epoch)
    taken = needed if epochs is None else min(epochs, needed)
    # as many in each epoch; an epoch that is not cut has all its steps
    each = min(per_epoch, max(1, steps // taken))
    cut_to = (
        f"{plural(each * taken, 'step')} ({plural(taken, 'epoch')} of {each}; an epoch of the data has {per_epoch})"
    )
    left_out = [f"the last {plural(per_epoch - each, 'step')} of each epoch"] if each < per_epoch else []
    if epochs is not None and taken < epochs:
        left_out.append(
            f"{epochs - taken} of the {plural(epochs, 'epoch')}, with what stands behind them (--steps-per-epoch cuts "
            "epochs and leaves out none)"
        )
    if left_out:
        cut_to += f"; --steps leaves out {' and '.join(left_out)}"
    notes = tuple(note for note in whole.notes if not note.startswith(LONGER))
    return TrialSize(whole.batch, taken, (*notes, f"a trial is cut to {cut_to}"), each, each * taken)


def parted(
    whole: TrialSize, samples: int, *, ranks: int, steps: int, needed: int, epochs: int | None = None
) -> TrialSize:
    """Trials in epochs of `steps` steps, each a part of a pass over a dataset of `samples`.

    The next epoch goes on where one ends, until what is left of the pass makes no epoch. `epochs`: asked for by hand;
    None: those that make `needed` steps. UsageError when a pass has fewer steps than an epoch.
    """
    per_pass = samples // (ranks * whole.batch)
    if steps > per_pass:
        raise UsageError(
            f"--steps-per-epoch {steps}: {samples} samples give {plural(ranks, 'rank')} with a batch of {whole.batch} "
            f"only {plural(per_pass, 'step')}. Ask for at most {per_pass}, a smaller --batch, or a larger dataset "
            "(--data, or --max-data)."
        )
    note = f"an epoch is {steps} of the {per_pass} steps that a pass over the samples has, and the next goes on there"
    notes = tuple(note for note in whole.notes if not note.startswith(LONGER))
    taken = epochs or -(-needed // steps)
    return TrialSize(whole.batch, taken, (*notes, note), steps, steps * taken, parted=True)


def most_files(
    *,
    file_bytes: int,
    samples_per_file: int,
    most_bytes: int,
    ranks: int,
    batch: int | None = None,
    dealt: bool = False,
) -> int:
    """Files that `most_bytes` hold. UsageError where they are too few for the ranks.

    `dealt`: an order deals whole files to the ranks, so that each must get as many as the others.
    """
    files = most_bytes // file_bytes
    if files * samples_per_file < ranks * (batch or 1):
        least = -(-ranks * (batch or 1) // samples_per_file)
        raise UsageError(
            f"{plural(ranks, 'rank')} need at least {plural(ranks * (batch or 1), 'sample')}, but "
            f"{format_bytes(most_bytes)} hold only {files * samples_per_file} (a file of {samples_per_file} weighs "
            f"{format_bytes(file_bytes)}). Ask for fewer ranks, or allow more data with --max-data "
            f"{least * file_bytes // 10**9 + 1}GB."
        )
    if dealt and files < ranks:
        raise UsageError(
            f"An order of files needs one for each of {ranks} ranks, {format_bytes(ranks * file_bytes)}, but "
            f"{format_bytes(most_bytes)} are allowed. Ask for fewer ranks, or for more data with --max-data "
            f"{ranks * file_bytes // 10**9 + 1}GB."
        )
    return files // ranks * ranks if dealt else files


def files_needed(
    most: int,
    chosen: TrialSize,
    *,
    samples_per_file: int,
    ranks: int,
    needed: int | None,
    asked_epochs: int | None = None,
    held: Sequence[int] = (),
    dealt: bool = False,
    pass_steps: int = 0,
) -> int:
    """Files of a dataset to be made, of `most` that may be, over which trials would be `chosen`.

    As many as `needed` steps of a trial take (None: nobody knows, so all that may be), and no epoch is repeated before
    all are made. `held`: samples that staging buffers and tiers hold, largest first; more than the first of them that
    fits are made, so that storage is read beyond them. `pass_steps`: steps that a pass over the samples is to have.
    """
    most_steps = most * samples_per_file // (ranks * chosen.batch)
    repeats = chosen.epochs > 1 and asked_epochs is None
    steps = most_steps if needed is None or repeats else max(-(-needed // chosen.epochs), pass_steps)
    beyond = next((files for samples in held if (files := samples // samples_per_file + 1) <= most), 0)
    files = max(-(-ranks * chosen.batch * steps // samples_per_file), beyond)
    return min(most, -(-files // ranks) * ranks if dealt else files)


def validation_files_needed(
    training: int, *, published: tuple[int, int], samples_per_file: int, ranks: int, dealt: bool
) -> int:
    """Validation files beside so many training files, in the published proportion (training, validation).

    At least a sample for each rank; `dealt`: a file for each, and as many for one as for another.
    """
    files = max(-(-training * published[1] // published[0]), -(-ranks // samples_per_file))
    return -(-files // ranks) * ranks if dealt else files
