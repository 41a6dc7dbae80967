"""How much data a run needs, and the batch and epochs of its trials. Pure arithmetic."""

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground.defaults import STEPS, TIMED_STEPS
from dlio_bench.reports.view.formatting import plural
from dlio_bench.units import format_bytes

LONGER = "an epoch has"  # how the note on several epochs begins
MARGIN = 1.5  # a first look aims at so many times the shortest trial: a trial that ends up too short is wasted


class Minimum(Struct, frozen=True):
    """The shortest trial that may be compared. seconds: 0 for a smoke test of STEPS steps."""

    seconds: float

    @property
    def steps(self) -> int:
        """Fewest steps."""
        return TIMED_STEPS if self.seconds else STEPS

    def steps_needed(self, step_seconds: float) -> int:
        """Steps that make a trial, if each takes so many seconds (0: not known)."""
        return max(self.steps, math.ceil(self.seconds / step_seconds - 1e-9) if step_seconds else 0)

    def is_met(self, steps: int, seconds: Sequence[float]) -> bool:
        """Whether trials of so many steps are long enough. seconds: of each trial."""
        return steps >= self.steps and min(seconds) >= self.seconds

    def epochs(self, epoch_seconds: Sequence[Sequence[float]]) -> int:
        """Epochs of a trial that is long enough for every reader.

        epoch_seconds: (first, later) epoch of each reader in a first look.
        """
        target = MARGIN * self.seconds
        return max(1 + max(0, math.ceil((target - first) / later)) for first, later in epoch_seconds)


class TrialSize(Struct, frozen=True):
    """Batch of a rank and epochs of a trial. notes: how they differ from the published run, for the result."""

    batch: int
    epochs: int
    notes: tuple[str, ...]
    steps: int = 0  # most of an epoch; 0: all that fit
    trial_steps: int = 0  # of a whole trial; orders that deal whole files may have fewer
    parted: bool = False  # an epoch is a part of a pass over the samples


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

    needed: batch -> steps of a trial; if an epoch has fewer, a trial takes several epochs. batch, epochs: given by the
    user, and kept. UsageError if there is less than a batch (`whole`: than a sample) for every rank.
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


def shorten(whole: TrialSize, samples: int, *, ranks: int, steps: int, epochs: int | None = None) -> TrialSize:
    """Trials of at most `steps` steps, in epochs of equal length, over a dataset of `samples`.

    epochs: the most, given by the user.
    """
    per_epoch = samples // (ranks * whole.batch)
    needed = -(-steps // per_epoch)
    taken = min(epochs or needed, needed)
    each = min(per_epoch, max(1, steps // taken))  # steps of an epoch
    cut_to = (
        f"{plural(each * taken, 'step')} ({plural(taken, 'epoch')} of {each}; an epoch of the data has {per_epoch})"
    )
    left_out = [f"the last {plural(per_epoch - each, 'step')} of each epoch"] if each < per_epoch else []
    if epochs is not None and taken < epochs:
        left_out.append(
            f"{epochs - taken} of the {plural(epochs, 'epoch')}, with the passes after them (--steps-per-epoch "
            "shortens epochs and leaves out none)"
        )
    if left_out:
        cut_to += f"; --steps leaves out {' and '.join(left_out)}"
    notes = tuple(note for note in whole.notes if not note.startswith(LONGER))
    return TrialSize(whole.batch, taken, (*notes, f"a trial is cut to {cut_to}"), each, each * taken)


def split_passes(
    whole: TrialSize, samples: int, *, ranks: int, steps: int, needed: int, epochs: int | None = None
) -> TrialSize:
    """Trials in epochs of `steps` steps, each a part of a pass over a dataset of `samples`.

    Each epoch starts where the last ended, until the rest of the pass is too short for an epoch. epochs: given by the
    user; None: as many as make `needed` steps. UsageError if a pass has fewer steps than an epoch.
    """
    per_pass = samples // (ranks * whole.batch)
    if steps > per_pass:
        raise UsageError(
            f"--steps-per-epoch {steps}: {samples} samples give {plural(ranks, 'rank')} with a batch of {whole.batch} "
            f"only {plural(per_pass, 'step')}. Ask for at most {per_pass}, a smaller --batch, or a larger dataset "
            "(--data, or --max-data)."
        )
    note = f"an epoch is {steps} of the {per_pass} steps of a pass over the samples; the next epoch continues the pass"
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
    """Files that fit into `most_bytes`. UsageError if they are too few for the ranks.

    dealt: an order deals whole files to the ranks, so that each rank must get equally many.
    """
    files = most_bytes // file_bytes
    if files * samples_per_file < ranks * (batch or 1):
        least = -(-ranks * (batch or 1) // samples_per_file)
        raise UsageError(
            f"{plural(ranks, 'rank')} need at least {plural(ranks * (batch or 1), 'sample')}, but "
            f"{format_bytes(most_bytes)} hold only {files * samples_per_file} (a file of "
            f"{plural(samples_per_file, 'sample')} has {format_bytes(file_bytes)}). Ask for fewer ranks, or allow more "
            f"data with --max-data {least * file_bytes // 10**9 + 1}GB."
        )
    if dealt and files < ranks:
        raise UsageError(
            f"An order of files needs a file for each of {ranks} ranks, {format_bytes(ranks * file_bytes)}, but "
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
    """Files of the dataset that a run makes, at most `most`. chosen: trials over `most` files.

    As many as the `needed` steps of a trial read (None: not known, so `most`), and all `most` before an epoch repeats.
    held: samples that staging buffers and tiers hold, largest first: the dataset is larger than the first of these that
    `most` exceeds, so that storage is read. pass_steps: the least steps of a pass over the samples.
    """
    most_steps = most * samples_per_file // (ranks * chosen.batch)
    repeats = chosen.epochs > 1 and asked_epochs is None
    steps = most_steps if needed is None or repeats else max(-(-needed // chosen.epochs), pass_steps)
    beyond = next((files for samples in held if (files := samples // samples_per_file + 1) <= most), 0)
    files = max(-(-ranks * chosen.batch * steps // samples_per_file), beyond)
    return min(most, -(-files // ranks) * ranks if dealt else files)
