"""The split of each file that others wrote: by its folders and name, by the layout's draw, else a guess."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from msgspec import Struct

from dlio_bench.datagen.layout import TEST, TRAIN, VALIDATION, Layout
from dlio_bench.errors import UsageError, unknown
from dlio_bench.harness.commands.generation.amount import Amount, counts

_WORDS = {
    TRAIN: ("train", "training", "trainset"),
    VALIDATION: ("val", "valid", "validation", "validate", "valset"),
    TEST: ("test", "testing", "testset"),
}
_SPLIT_OF = {word: split for split, words in _WORDS.items() for word in words}
_WORD = re.compile(r"[a-z]+")


class Sorted(Struct, frozen=True):
    """Files by split: names that the dataset takes with the split of each, names that it leaves out, and remarks."""

    names: tuple[str, ...]
    splits: tuple[str, ...]
    left_out: tuple[str, ...]  # of a split that the workload does not have
    notes: tuple[str, ...]  # what was guessed, or decided against a name


def split_from_path(name: str) -> str | None:
    """The split that a path names: the outermost of its folders that has a word for one, else the file's name."""
    for part in PurePosixPath(name).parts:
        if split := _of_part(part):
            return split
    return None


def sort(layout: Layout, names: Sequence[str], fallback: str | None = None) -> Sorted:
    """Sort files into splits; `fallback` is for files whose folders and names tell none. UsageError for an unknown one.

    If no file's path tells its split and the layout draws its splits (CDB), the published draw decides.
    """
    known = tuple(split.name for split in layout.splits)
    if fallback is not None and fallback not in known:
        raise unknown("--split", fallback, known)
    named = {name: split_from_path(name) for name in names}
    silent = [name for name, split in named.items() if split is None]
    notes: list[str] = []
    drawn = _published_draw(layout, names) if fallback is None and len(silent) == len(names) else None
    if drawn is not None:
        notes.append("no folder or name says which split a file is of: the published draw over the sorted names does")
    elif silent:
        rest = fallback or TRAIN
        if fallback is None:
            notes.append(
                f"guessed: {len(silent)} files whose folders and names say nothing of a split, as {silent[0]}, are "
                f"taken for {rest} (--split says otherwise)"
            )
        drawn = dict.fromkeys(silent, rest)
    splits = {name: split or (drawn or {})[name] for name, split in named.items()}
    against = [name for name in names if (of_name := _of_part(PurePosixPath(name).name)) and of_name != splits[name]]
    if against:
        notes.append(
            f"{len(against)} files lie in the folder of another split than they are named after: the folder "
            f"decides, as for {against[0]}"
        )
    left_out = tuple(name for name in names if splits[name] not in known)
    if left_out:
        notes.append(
            f"left out: {len(left_out)} files of the split '{splits[left_out[0]]}', which {layout.workload} "
            f"{layout.variant} does not have, as {left_out[0]}"
        )
    taken = tuple(name for name in names if splits[name] in known)
    return Sorted(taken, tuple(splits[name] for name in taken), left_out, tuple(notes))


def _of_part(part: str) -> str | None:
    """The split that a folder or a file name has a word for; None where it has none, or several."""
    splits = {_SPLIT_OF[word] for word in _WORD.findall(part.lower()) if word in _SPLIT_OF}
    return splits.pop() if len(splits) == 1 else None


def _published_draw(layout: Layout, names: Sequence[str]) -> dict[str, str] | None:
    """The published draw of splits over sorted names; None where the layout's own names tell its splits apart."""
    if layout.joint_files is None:
        return None
    try:
        specs = layout.files(counts(layout, Amount(files=len(names))))
    except UsageError:  # fewer files than splits, or more than published: no draw
        return None
    if all(split_from_path(spec.name) for spec in specs if spec.split != TRAIN):
        return None
    return dict(zip(sorted(names), (spec.split for spec in sorted(specs, key=lambda spec: spec.name)), strict=True))
