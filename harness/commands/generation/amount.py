"""How much of a dataset: from a number of files, a size or a share to the files of every split. Pure arithmetic."""

import itertools
from collections.abc import Callable, Mapping

from msgspec import Struct

from dlio_bench.datagen.layout import Layout
from dlio_bench.errors import UsageError
from dlio_bench.units import format_bytes

MOST_FILES = 20_000_000  # of a dataset: their names and places are held in memory


class Amount(Struct, frozen=True):
    """The requested amount, one of these; the published size where all are None.

    Beyond the published size the layout repeats, with new samples: memories have outgrown what was published.
    """

    files: int | None = None  # of all splits together
    bytes: int | None = None  # stored, at most
    fraction: float | None = None  # of every split


class SplitSize(Struct, frozen=True):
    """Files of one split and what they hold; bytes are means where sizes vary."""

    name: str
    files: int
    samples: int
    stored_bytes: int
    payload_bytes: int


def counts(layout: Layout, amount: Amount) -> dict[str, int]:
    """Files of each split: by the application's own rule where it has one, else in the published proportion and at
    least one of each. UsageError for less, or for more than MOST_FILES.
    """
    full = {split.name: split.full_files for split in layout.splits}
    if amount.files is not None:
        return _proportional(layout, amount.files, full)
    if amount.bytes is not None:
        return _largest_within(layout, amount.bytes)
    share = 1.0 if amount.fraction is None else amount.fraction
    if layout.split_counts is not None:
        return _proportional(layout, max(round(sum(full.values()) * share), len(full)), full)
    return {name: max(1, round(files * share)) for name, files in full.items()}


def sizes(layout: Layout, files: Mapping[str, int]) -> list[SplitSize]:
    """What so many files of each split hold, without naming the files where the split is asked for whole."""
    split_sizes = []
    for split in layout.splits:
        count = files.get(split.name, 0)
        samples = split.full_samples if count == split.full_files else count * split.samples_per_file
        stored, payload = round(samples * split.sample_bytes), round(samples * split.payload_bytes)
        split_sizes.append(SplitSize(split.name, count, samples, stored, payload))
    return split_sizes


def stored_bytes(layout: Layout, files: Mapping[str, int]) -> int:
    """Stored bytes of so many files of each split."""
    return sum(size.stored_bytes for size in sizes(layout, files))


def _proportional(layout: Layout, files: int, full: Mapping[str, int]) -> dict[str, int]:
    """Shares by largest remainder; what a split lacks for its first file is taken from the largest."""
    total, least = sum(full.values()), len(full)
    by_rule = None if layout.split_counts is None else dict(zip(full, layout.split_counts(files), strict=True))
    if layout.split_counts is not None and by_rule is not None and by_rule[layout.splits[0].name] == 0:
        enough = next(more for more in itertools.count(files) if layout.split_counts(more)[0])
        raise UsageError(f"--files {files}: none of them would be for training. Ask for at least {enough}.")
    if by_rule is None and files < least:
        raise UsageError(
            f"--files {files}: {layout.workload} {layout.variant} has {least} splits ({', '.join(full)}), and each "
            f"needs a file. Ask for at least {least}."
        )
    if files > MOST_FILES:
        raise UsageError(f"{files} files are too many: a dataset has at most {MOST_FILES}. Ask for less.")
    if by_rule is not None:
        return by_rule
    files_of = {name: files * count // total for name, count in full.items()}
    by_remainder = sorted(full, key=lambda name: -(files * full[name] % total))
    for name in by_remainder[: files - sum(files_of.values())]:
        files_of[name] += 1
    for name in [name for name, count in files_of.items() if count == 0]:
        files_of[max(files_of, key=lambda largest: files_of[largest])] -= 1
        files_of[name] = 1
    return files_of


def _largest_within(layout: Layout, limit: int) -> dict[str, int]:
    """The largest proportional dataset of at most `limit` stored bytes."""
    full = {split.name: split.full_files for split in layout.splits}
    least = dict.fromkeys(full, 1)
    if (smallest := stored_bytes(layout, least)) > limit:
        raise UsageError(
            f"--bytes {format_bytes(limit)} is less than one file of each split of {layout.workload} {layout.variant}, "
            f"which weigh {format_bytes(smallest)}. Ask for at least that."
        )
    more = _first_reaching(
        len(full), lambda files: stored_bytes(layout, _proportional(layout, files, full)) > limit, sum(full.values())
    )
    return _proportional(layout, max(len(full), more - 1), full)


def smallest_with(layout: Layout, needed: int) -> dict[str, int]:
    """The smallest proportional dataset whose training split weighs `needed`. UsageError for more than MOST_FILES."""
    full = {split.name: split.full_files for split in layout.splits}
    files = _first_reaching(
        len(full),
        lambda files: sizes(layout, counts(layout, Amount(files=files)))[0].stored_bytes >= needed,
        sum(full.values()),
    )
    return counts(layout, Amount(files=files))


def _first_reaching(low: int, reached: Callable[[int], bool], guess: int) -> int:
    """The smallest number of files from `low` on for which `reached` holds, as it does for all larger ones."""
    high = max(low, guess)
    while not reached(high):  # UsageError beyond MOST_FILES
        low, high = high + 1, min(2 * high, MOST_FILES) if high < MOST_FILES else high + 1
    while low < high:
        middle = (low + high) // 2
        if reached(middle):
            high = middle
        else:
            low = middle + 1
    return low
