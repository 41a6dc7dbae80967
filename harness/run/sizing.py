"""How much data a run needs, and how the batch shrinks where the published one would need more. Pure arithmetic."""

from dataclasses import dataclass

from dlio_bench.errors import UsageError
from dlio_bench.units import format_bytes

STEPS = 16  # a rank and trial; with fewer, readers are not compared
LONGER = "an epoch has"  # how the note on several epochs begins
MOST_BYTES = 5_000_000_000  # of a dataset made without being asked for


@dataclass(frozen=True)
class Cut:
    """Local batch and epochs of a trial; `notes` say what was changed from the published run, for the result."""

    batch: int
    epochs: int
    notes: tuple[str, ...]
    steps: int = 0  # most of an epoch; 0: all that fit
    parted: bool = False  # epochs are parts of a pass over the samples


def cut(
    samples: int,
    *,
    ranks: int,
    published_batch: int,
    batch: int | None = None,
    epochs: int | None = None,
    whole: bool = False,
) -> Cut:
    """Choose batch and epochs for a dataset of `samples`: the published batch, halved until STEPS steps fit.

    Where even a batch of one leaves fewer, a trial takes several epochs. What was asked for by hand stays as it is.
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
                f"give {ranks} ranks at least {STEPS} steps"
            )
    steps = -(-samples // (ranks * chosen)) if whole and samples >= ranks else samples // (ranks * chosen)
    if steps == 0:
        raise UsageError(
            f"{ranks} ranks with a batch of {chosen} need {ranks * chosen} samples a step, but the dataset has "
            f"{samples}. Use fewer nodes or ranks, a smaller --batch, or a larger dataset (--data, or --max-data)."
        )
    if epochs is None:
        epochs = -(-STEPS // steps)
        if epochs > 1:
            notes.append(f"{LONGER} {steps} steps, so a trial takes {epochs} epochs to have at least {STEPS}")
    return Cut(chosen, epochs, tuple(notes))


def shortened(whole: Cut, samples: int, *, ranks: int, steps: int, epochs: int | None = None) -> Cut:
    """A cut of a dataset of `samples` whose trials have at most `steps` steps, in epochs of one length.

    `epochs`: asked for by hand, none more are taken.
    """
    per_epoch = samples // (ranks * whole.batch)
    needed = -(-steps // per_epoch)
    taken = needed if epochs is None else min(epochs, needed)
    # as many in each epoch; an epoch that is not cut has all its steps
    each = min(per_epoch, max(1, steps // taken))
    note = f"a trial is cut to {each * taken} steps ({taken} epochs of {each}; an epoch of the data has {per_epoch})"
    left_out = [f"the last {per_epoch - each} steps of each epoch"] if each < per_epoch else []
    if epochs is not None and taken < epochs:
        left_out.append(
            f"{epochs - taken} of the {epochs} epochs, with what stands behind them (--steps-per-epoch cuts epochs and "
            "leaves out none)"
        )
    if left_out:
        note += f"; --steps leaves out {' and '.join(left_out)}"
    notes = tuple(note for note in whole.notes if not note.startswith(LONGER))
    return Cut(whole.batch, taken, (*notes, note), each)


def parted(whole: Cut, samples: int, *, ranks: int, steps: int, epochs: int | None = None) -> Cut:
    """A cut of a dataset of `samples` into epochs of `steps` steps, each a part of a pass over the samples.

    The next epoch goes on where one ends, until what is left of the pass makes no epoch. `epochs`: asked for by hand;
    None: those that make STEPS steps. UsageError when a pass has fewer steps than an epoch.
    """
    per_pass = samples // (ranks * whole.batch)
    if steps > per_pass:
        raise UsageError(
            f"--steps-per-epoch {steps}: {samples} samples give {ranks} ranks with a batch of {whole.batch} only "
            f"{per_pass} steps. Ask for at most {per_pass}, a smaller --batch, or a larger dataset (--data, or "
            "--max-data)."
        )
    note = f"an epoch is {steps} of the {per_pass} steps that a pass over the samples has, and the next goes on there"
    notes = tuple(note for note in whole.notes if not note.startswith(LONGER))
    return Cut(whole.batch, epochs or -(-STEPS // steps), (*notes, note), steps, parted=True)


def files_needed(
    *,
    file_bytes: int,
    samples_per_file: int,
    most_bytes: int,
    ranks: int,
    published_batch: int,
    batch: int | None = None,
    epochs: int | None = None,
    dealt: bool = False,
    pass_steps: int = 0,
) -> int:
    """Files of a dataset to be made, so that `cut` finds STEPS steps a trial in it: at most `most_bytes` stored.

    `dealt`: an order deals whole files to the ranks, so that each must get as many as the others. `pass_steps`: steps
    that a pass over the samples is to have.
    """
    most_files = most_bytes // file_bytes
    most_samples = most_files * samples_per_file
    if most_samples < ranks * (batch or 1):
        files = -(-ranks * (batch or 1) // samples_per_file)
        raise UsageError(
            f"{ranks} ranks need at least {ranks * (batch or 1)} samples, but {format_bytes(most_bytes)} hold only "
            f"{most_samples} (a file of {samples_per_file} weighs {format_bytes(file_bytes)}). Ask for fewer ranks, or "
            f"allow more data with --max-data {files * file_bytes // 10**9 + 1}GB."
        )
    if dealt:
        most_files = most_files // ranks * ranks
        if most_files == 0:
            raise UsageError(
                f"An order of files needs one for each of {ranks} ranks, {format_bytes(ranks * file_bytes)}, but "
                f"{format_bytes(most_bytes)} are allowed. Ask for fewer ranks, or for more data with --max-data "
                f"{ranks * file_bytes // 10**9 + 1}GB."
            )
        most_samples = most_files * samples_per_file
    chosen = cut(most_samples, ranks=ranks, published_batch=published_batch, batch=batch, epochs=epochs)
    steps = max(-(-STEPS // chosen.epochs), pass_steps)
    files = -(-ranks * chosen.batch * steps // samples_per_file)
    return min(most_files, -(-files // ranks) * ranks if dealt else files)


def validation_files_needed(
    training: int, *, published: tuple[int, int], samples_per_file: int, ranks: int, dealt: bool
) -> int:
    """Validation files beside so many training files, in the published proportion (training, validation).

    At least a sample for each rank; `dealt`: a file for each, and as many for one as for another.
    """
    files = max(-(-training * published[1] // published[0]), -(-ranks // samples_per_file))
    return -(-files // ranks) * ranks if dealt else files
