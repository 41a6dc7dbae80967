"""What the paths of `dlio-bench trace` are: results, files of spans alone, or logs of TimeLogger."""

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path

from dlio_bench.errors import UsageError

OF_RESULTS, OF_SPANS, OF_LOGS = "results", "a file of spans alone", "logs of TimeLogger"
NO_LOGS = {".json", ".npz", ".npy", ".gz", ".html", ".pb", ".h5", ".png"}  # by how their names end


def kind(paths: Sequence[Path]) -> str:
    """What the paths are, all of them. UsageError."""
    kinds = {OF_SPANS if path.suffix == ".npz" else OF_RESULTS if _is_result(path) else OF_LOGS for path in paths}
    if len(kinds) > 1:
        raise UsageError(f"Name one kind of files: {' and '.join(sorted(kinds))} do not go together.")
    if kinds == {OF_LOGS}:
        for path in paths:
            _require_log(path)
    return kinds.pop()


def left_out(folders: Sequence[Path]) -> list[str]:
    """What `trace` does not show of folders with results: logs, and spans of readers that were stopped."""
    files = [file for folder in folders if folder.is_dir() for file in sorted(folder.rglob("*")) if file.is_file()]
    logs = [file for file in files if _is_log(file)]
    told = [f"{file} is a log of TimeLogger, which is not shown here: name it alone." for file in logs]
    return told + [f"{_of_stopped(file)} Name it to see them." for file in _unfinished(files)]


def _require_log(path: Path) -> None:
    """UsageError for a path that is not there, and for a folder that can hold no log."""
    if not path.exists():
        raise UsageError(f"{path} does not exist. Name a result, a log of TimeLogger, or a folder of them.")
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    if any(file.suffix not in NO_LOGS for file in files):
        return
    spans = [_of_stopped(file) for file in _unfinished(files)]
    raise UsageError(
        " ".join([f"{path} holds no finished result and no log of TimeLogger.", *spans])
        + (" Name that file." if spans else " Name the folder of a run that came to its end.")
    )


def _unfinished(files: Sequence[Path]) -> Iterator[Path]:
    from dlio_bench.reports.timeline import UNFINISHED_NAME

    return (file for file in files if file.name == UNFINISHED_NAME)


def _of_stopped(file: Path) -> str:
    return f"{file} has the spans of a reader that was stopped."


def _is_result(path: Path) -> bool:
    """Whether a path holds results: a result.json, or a folder with one below it."""
    return next(path.rglob("result.json"), None) is not None if path.is_dir() else path.suffix == ".json"


def _is_log(file: Path) -> bool:
    """Whether a file beside results has records of TimeLogger."""
    from dlio_bench.reports.timelogger import OPENING

    if file.suffix in NO_LOGS or not file.stat().st_size:
        return False
    try:
        with file.open("rb") as content, mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as text:
            return text.find(OPENING.encode()) >= 0
    except OSError:  # not readable
        return False
