"""Results from the files and folders that a user names."""

from collections.abc import Sequence
from pathlib import Path

from dlio_bench.errors import DataError, UsageError
from dlio_bench.reports.checkpoint import document as checkpoint
from dlio_bench.reports.checkpoint.types import Document
from dlio_bench.reports.document.result import RESULT_NAME, load
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.judging.judgement import Unreadable
from dlio_bench.reports.numbers.meetings import Steps
from dlio_bench.wrapping import printable


def load_all(paths: Sequence[Path]) -> list[tuple[Result, Steps]]:
    """The results with their steps, in the order of the paths; those of one folder in the order of their creation.

    A path is a result.json, the folder of a result, or a folder that has results anywhere below it, such as that of a
    run. A result that is named twice comes once; one whose files were altered is marked ALTERED.

    Raises UsageError for a path without a result, and what `load` raises.
    """
    return list(load_files(paths).values())


def load_files(paths: Sequence[Path]) -> dict[Path, tuple[Result, Steps]]:
    """As `load_all`, by the file of each result."""
    pairs: dict[Path, tuple[Result, Steps]] = {}
    for path in paths:
        files = [file for file in _files(path) if not checkpoint.is_checkpoint(file)]
        if not files:
            raise UsageError(f"'{path}' holds results of checkpoints alone, which `show`, `report` and `judge` take.")
        new = {file: load(file, mark_altered=True) for file in files if file not in pairs}
        pairs |= _by_creation(new)
    return pairs


def of_checkpoints(paths: Sequence[Path]) -> dict[Path, Document]:
    """The results of checkpoints at or below the paths, by their files. DataError where one is not whole."""
    files = [file for path in paths for file in _files(path) if checkpoint.is_checkpoint(file)]
    return {file: checkpoint.load(file) for file in files}


def has_runs(path: Path) -> bool:
    """Whether a path names, or has below it, a result of another kind than checkpoints."""
    return any(not checkpoint.is_checkpoint(file) for file in _files(path))


def load_each(paths: Sequence[Path]) -> tuple[list[tuple[Result, Steps]], list[Document], list[Unreadable]]:
    """The results as `load_all`, those of checkpoints, and the files that hold none; these by a name that does not
    depend on the place.
    """
    pairs: dict[Path, tuple[Result, Steps]] = {}
    documents: dict[Path, Document] = {}
    unreadable: dict[Path, Unreadable] = {}
    for path in paths:
        new: dict[Path, tuple[Result, Steps]] = {}
        for file in _files(path):
            try:
                if checkpoint.is_checkpoint(file):
                    documents[file] = checkpoint.load(file)
                else:
                    new[file] = load(file, mark_altered=True)
            except DataError as error:
                name = _shortest_name(file, path)
                reason = str(error).replace(f"{file.parent}/", f"{name.parent}/")
                unreadable[file] = Unreadable(printable(str(name)), printable(reason))
        pairs |= _by_creation(new)
    return list(pairs.values()), list(documents.values()), list(unreadable.values())


def _by_creation(pairs: dict[Path, tuple[Result, Steps]]) -> list[tuple[Path, tuple[Result, Steps]]]:
    return sorted(pairs.items(), key=lambda item: (item[1][0].created, item[0]))


def _shortest_name(file: Path, named: Path) -> Path:
    """A file below the folder that a user named; at least its own folder and its name."""
    inner = file.relative_to(named.resolve()) if named.is_dir() else Path(file.name)
    return inner if len(inner.parts) > 1 else Path(file.parent.name) / file.name


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path.resolve()]
    files = [file.resolve() for file in sorted(path.rglob(RESULT_NAME))]
    if not files:
        raise UsageError(f"'{path}' has no {RESULT_NAME} in it or below it. Name the folder that dlio-bench run wrote.")
    return files
