"""`dlio-bench trace`: what its paths are, and what it prints of logs, and of spans without a result."""

import csv
import io
import json
import mmap
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import astuple

from dlio_bench.errors import DataError, UsageError
from dlio_bench.harness.commands.tracing import darshan_log, exports, results
from dlio_bench.harness.commands.tracing.options import Options
from dlio_bench.harness.ground.folders import require_file
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.result import RESULT_NAME, STEPS_NAME
from dlio_bench.reports.document.typed import to_json
from dlio_bench.reports.traces import access_pattern, components, darshan, log_account, timeline, timelogger
from dlio_bench.wrapping import cell, printable

OF_RESULTS, OF_SPANS, OF_LOGS = "results", "a file of spans alone", "logs of TimeLogger"
NO_LOGS = {".json", ".npz", ".npy", ".gz", ".html", ".pb", ".h5", ".png"}  # by how their names end
# Of which kind of path each option is.
MEANT_FOR = {
    "nodes": (OF_LOGS,),
    "csv": (OF_LOGS,),
    "trial": (OF_RESULTS, OF_SPANS),
    "ranks": (OF_RESULTS, OF_SPANS),
    "chrome": (OF_RESULTS, OF_SPANS),
    "steps": (OF_RESULTS,),
    "timelogger": (OF_RESULTS,),
    "html": (OF_RESULTS,),
}
OF_CHROME = ("ranks", "steps")  # which part of a result its trace has
EXAMPLES = {"csv": "records.csv", "chrome": "trace.json", "timelogger": "records.log", "html": "trace.html"}


def run(options: Options) -> int:
    """Print the tables, and write what is asked for."""
    if not options.paths:
        raise UsageError("Name results, or logs of TimeLogger. `dlio-bench trace --help` shows what there is.")
    if options.darshan:
        return _of_darshan_logs(options)
    if options.dry_run:
        raise UsageError("--dry-run is for --command, as nothing else here starts anything. Leave it out.")
    _require_writable(options)
    kind = _kind(options.paths)
    for flag, meant in MEANT_FOR.items():
        if getattr(options, flag) is not None and kind not in meant:
            raise UsageError(f"--{flag} is for {' and '.join(meant)}, not for {kind}. Leave it out.")
    for flag in OF_CHROME:
        if getattr(options, flag) is not None and options.chrome is None:
            raise UsageError(f"--{flag} chooses what --chrome writes. Add --chrome FILE, or leave --{flag} out.")
    if kind == OF_RESULTS:
        return results.run(options, _describe_omitted(options.paths))
    return _of_spans(options) if kind == OF_SPANS else _of_logs(options)


def _of_darshan_logs(options: Options) -> int:
    """How the files of each log were accessed. UsageError, EnvironmentFailure, DataError."""
    patterns = {str(log): darshan.pattern(darshan_log.load(log)) for log in options.paths}
    if options.json:
        print(json.dumps([{"log": log} | access_pattern.document(of) for log, of in patterns.items()]))
    else:
        texts = [f"{printable(log)}\n{access_pattern.render(of)}" for log, of in patterns.items()]
        print("\n".join(texts), end="")
    return 0


def _of_logs(options: Options) -> int:
    """The study's accountings, and the records as its table; DataError.status where records are damaged."""
    log = timelogger.load(options.paths)
    if options.csv is not None:
        table = io.StringIO()
        writer = csv.writer(table)
        writer.writerow(timelogger.HEADER)
        writer.writerows(
            [cell(value) if isinstance(value, str) else value for value in astuple(span)] for span in log.spans
        )
        write_whole(options.csv, table.getvalue().encode())
    shown = log_account.account(log, options.nodes)
    print(json.dumps(to_json(shown)) if options.json else log_account.render(shown), end="")
    return DataError.status if log.problems else 0


def _of_spans(options: Options) -> int:
    """How far ranks came and what they did until their run was stopped; DataError.status where spans are damaged."""
    if options.chrome is not None and len(options.paths) > 1:
        raise UsageError(f"--chrome is of one file of spans, but {len(options.paths)} are here. Name one.")
    loaded = [timeline.load(path) for path in options.paths]
    documents, texts = [], []
    for path, spans in zip(options.paths, loaded, strict=True):
        files = [] if options.chrome is None else [exports.write_chrome_of_spans(options.chrome, options, spans)]
        documents.append(components.file_document(spans) | {"files": files})
        texts.append(components.file_text(spans, str(path)) + exports.file_lines(files))
    print(json.dumps(documents) if options.json else "\n".join(texts), end="")
    return DataError.status if any(spans.damaged for spans in loaded) else 0


def _kind(paths: Sequence[Path]) -> str:
    """What the paths are, all of them. UsageError."""
    kinds = {OF_SPANS if path.suffix == ".npz" else OF_RESULTS if _has_results(path) else OF_LOGS for path in paths}
    if len(kinds) > 1:
        raise UsageError(f"Name one kind of files: {' and '.join(sorted(kinds))} do not go together.")
    if kinds == {OF_LOGS}:
        for path in paths:
            _require_log(path)
    return kinds.pop()


def _has_results(path: Path) -> bool:
    """Whether a path is of a result, or a folder with one below it."""
    return next(path.rglob(RESULT_NAME), None) is not None if path.is_dir() else path.suffix == ".json"


def _require_log(path: Path) -> None:
    """UsageError for a path that is not there, and for a folder that can hold no log."""
    if not path.exists():
        raise UsageError(f"{path} does not exist. Name a result, a log of TimeLogger, or a folder of them.")
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    if any(file.suffix not in NO_LOGS for file in files):
        return
    spans = _of_stopped_readers(files)
    raise UsageError(
        " ".join([f"{path} holds no finished result and no log of TimeLogger.", *spans])
        + (" Name that file." if spans else " Name the folder of a run that came to its end.")
    )


def _of_stopped_readers(files: Sequence[Path]) -> list[str]:
    return [
        f"{file} has the spans of a reader that was stopped." for file in files if file.name == timeline.UNFINISHED_NAME
    ]


def _describe_omitted(folders: Sequence[Path]) -> list[str]:
    """What `trace` does not show of folders with results: logs, and spans of readers that were stopped."""
    files = [file for folder in folders if folder.is_dir() for file in sorted(folder.rglob("*")) if file.is_file()]
    logs = (
        f"{file} is a log of TimeLogger, which is not shown here: name it alone." for file in filter(_is_log, files)
    )
    return [*logs, *(f"{sentence} Name it to see them." for sentence in _of_stopped_readers(files))]


def _is_log(file: Path) -> bool:
    """Whether a file beside results has records of TimeLogger."""
    if file.suffix in NO_LOGS or not file.stat().st_size:
        return False
    try:
        with file.open("rb") as content, mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as text:
            return text.find(timelogger.OPENING.encode()) >= 0
    except OSError:  # not readable
        return False


def _require_writable(options: Options) -> None:
    """UsageError for a file that cannot be written, that is read, or that two options name."""
    options_of: dict[Path, str] = {}
    for flag, example in EXAMPLES.items():
        file: Path | None = getattr(options, flag)
        if file is None:
            continue
        require_file(file, example, f"--{flag}")
        if (other := options_of.setdefault(file.resolve(), flag)) != flag:
            raise UsageError(f"--{other} and --{flag} name the same file, {file}. Give each a file of its own.")
        if _is_read(file.resolve(), options.paths):
            raise UsageError(f"--{flag} {file} would replace a file that is read. Choose another name.")


def _is_read(file: Path, paths: Sequence[Path]) -> bool:
    """Whether a file is one of the paths, a log below them, or of a result among them, there or not."""
    of_result = file.name in (RESULT_NAME, STEPS_NAME) or (file.name.startswith("spans") and file.suffix == ".npz")
    for path in map(Path.resolve, paths):
        is_folder = path.is_dir()
        below = (path if is_folder else path.parent) in file.parents
        if file == path or (below and (of_result if _has_results(path) else is_folder and file.exists())):
            return True
    return False
