"""Results from the files and folders that a user names."""

from collections.abc import Sequence
from pathlib import Path

from dlio_bench.errors import UsageError
from dlio_bench.reports.meetings import Steps
from dlio_bench.reports.result import RESULT_NAME, load
from dlio_bench.reports.types import Result


def load_all(paths: Sequence[Path]) -> list[tuple[Result, Steps]]:
    """The results with their steps, in the order of the paths; those of one folder in the order of their creation.

    A path is a result.json, the folder of a result, or a folder that has results anywhere below it, such as that of a
    run. A result that is named twice comes once. One that does not match its digest is marked ALTERED. Raises
    UsageError for a path without a result, and what `load` raises.
    """
    pairs: dict[Path, tuple[Result, Steps]] = {}
    for path in paths:
        new = {file: load(file, mark_altered=True) for file in _files(path) if file not in pairs}
        pairs |= sorted(new.items(), key=lambda item: (item[1][0].created, item[0]))
    return list(pairs.values())


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path.resolve()]
    files = [file.resolve() for file in sorted(path.rglob(RESULT_NAME))]
    if not files:
        raise UsageError(f"'{path}' has no {RESULT_NAME} in it or below it. Name the folder that dlio-bench run wrote.")
    return files
