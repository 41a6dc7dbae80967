"""`dlio-bench trace`: its options, and where the time of a run or of a log went."""

import argparse
import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground.arguments import Commands

if TYPE_CHECKING:
    from dlio_bench.reports.meetings import Steps
    from dlio_bench.reports.types import Result

MOST_RANKS = 64  # in a trace, unless --ranks names them
EXAMPLES = """\
examples:
  dlio-bench trace dlio-results/20260102-030405-cdb
  dlio-bench trace dlio-results/20260102-030405-cdb/prefetch-8x1 --chrome trace.json
  dlio-bench trace time_logger_output/ --nodes 64 --csv records.csv
  dlio-bench trace dlio-results/20260102-030405-cdb/prefetch-8x1/spans-unfinished.npz

exit status:
  0  printed   2  usage, or nothing to read there   4  a file not readable   5  a damaged result
"""


def add_trace(commands: Commands) -> None:
    """`trace`."""
    parser = commands.add_parser(
        "trace",
        help="tell where the time of a run went, or of the NERSC study's logs",
        description="Results: what a rank's trainer did, phase by phase, and a trace of it to look at. Logs of the "
        "NERSC study's TimeLogger (what its programs printed, or its files of each rank): the study's accountings, "
        "HEPCNNB's seconds a node and CDB's merged intervals; beside them how long reading and training overlapped, "
        "and what each component took itself. Broken records are named, not dropped.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="RESULT|LOG",
        help="results or logs, or folders of them; or spans of a run that was stopped",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    of_results = parser.add_argument_group("of results")
    of_results.add_argument("--trial", type=int, metavar="N", help="this trial, from 1 (default: the median one)")
    of_results.add_argument(
        "--ranks", type=_ranks, metavar="R[,R...]", help=f"ranks of the trace (default: the first {MOST_RANKS})"
    )
    of_results.add_argument(
        "--chrome", type=Path, metavar="FILE", help="write a trace of one result, for ui.perfetto.dev or Chrome"
    )
    of_results.add_argument(
        "--timelogger", type=Path, metavar="FILE", help="write one result's steps as TimeLogger would have"
    )
    of_logs = parser.add_argument_group("of logs")
    of_logs.add_argument("--nodes", type=int, metavar="N", help="nodes of the run (default: as many as ranks)")
    of_logs.add_argument("--csv", type=Path, metavar="FILE", help="write all records as the study's CSV table")


def run_trace(options: argparse.Namespace) -> int:
    """Print the tables, and write what is asked for."""
    from dlio_bench.harness.ground.folders import require_file

    for flag in ("csv", "chrome", "timelogger"):
        if (file := getattr(options, flag)) is not None:
            require_file(file)
    if options.nodes is not None and options.nodes < 1:
        raise UsageError(f"--nodes {options.nodes} is too small: it must be at least 1.")
    if all(path.suffix == ".npz" for path in options.paths):
        return _trace_spans(options)
    are_results = [_is_result(path) for path in options.paths]
    if len(set(are_results)) > 1:
        raise UsageError("Name results or logs of TimeLogger, not both: their times have nothing in common.")
    wrong = ("nodes", "csv") if are_results[0] else ("trial", "ranks", "chrome", "timelogger")
    for flag in wrong:
        if getattr(options, flag) is not None:
            raise UsageError(f"--{flag} is for {'logs of TimeLogger' if are_results[0] else 'results'}. Leave it out.")
    return _trace_results(options) if are_results[0] else _trace_logs(options)


def _trace_results(options: argparse.Namespace) -> int:
    from dlio_bench.reports import timelogger, trainer_spans, trainer_text
    from dlio_bench.reports.collection import load_all
    from dlio_bench.reports.files import write_whole

    pairs = load_all(options.paths)
    if len(pairs) > 1 and (options.chrome or options.timelogger):
        raise UsageError(f"--chrome and --timelogger are of one result, but {len(pairs)} are here. Name one folder.")
    trials = [_trial(options.trial, result) for result, _ in pairs]
    [(result, steps), *_] = pairs
    if options.chrome is not None:
        document = trainer_spans.chrome(result, steps, trials[0], _known(options.ranks, result))
        write_whole(options.chrome, json.dumps(document).encode())
    if options.timelogger is not None:
        records = "".join(f"{timelogger.record(span)}\n" for span in trainer_spans.spans(steps, trials[0]))
        write_whole(options.timelogger, records.encode())
    if options.json:
        print(json.dumps([_document(*pair, trial) for pair, trial in zip(pairs, trials, strict=True)]))
    else:
        tables = (trainer_text.render(*pair, trial) for pair, trial in zip(pairs, trials, strict=True))
        print("\n".join(tables), end="")
        for line in _recorded(options.paths):
            print(line)
    return 0


def _recorded(paths: Sequence[Path]) -> Iterator[str]:
    """What spans are beside the results."""
    from dlio_bench.reports import timeline, timeline_text

    for path in paths:
        folder = path if path.is_dir() else path.parent
        for file in sorted(folder.rglob(timeline.SPANS_NAME) if path.is_dir() else folder.glob(timeline.SPANS_NAME)):
            yield from timeline_text.about(timeline.load(file), str(file))


def _trace_spans(options: argparse.Namespace) -> int:
    """Files of spans without a result beside them: what ranks did until their run was stopped."""
    from dlio_bench.reports import timeline, timeline_text

    for flag in ("nodes", "csv", "trial", "ranks", "chrome", "timelogger"):
        if getattr(options, flag) is not None:
            raise UsageError(f"--{flag} is not for a file of spans alone. Leave it out.")
    loaded = [timeline.load(path) for path in options.paths]
    if options.json:
        print(json.dumps([timeline_text.document(spans) for spans in loaded]))
    else:
        for path, spans in zip(options.paths, loaded, strict=True):
            print(timeline_text.render(spans, str(path)), end="")
    return 0


def _document(result: "Result", steps: "Steps", trial: int) -> dict[str, object]:
    from dlio_bench.reports import tables, trainer_spans

    rows = [asdict(row) for row in trainer_spans.breakdown(steps, trial)]
    return {"result": tables.labels([result])[0], "trial": result.trials[trial].trial, "phases": rows}


def _trial(asked: int | None, result: "Result") -> int:
    """The position of a trial. UsageError."""
    from dlio_bench.reports.statistics import median_trial

    if asked is None:
        return median_trial(result)
    if not 1 <= asked <= len(result.trials):
        raise UsageError(f"--trial {asked}: the result has trials 1 to {len(result.trials)}, warm-up included.")
    return asked - 1


def _known(asked: list[int] | None, result: "Result") -> list[int]:
    """The ranks of a trace. UsageError."""
    count = result.plan.ranks
    if wrong := [rank for rank in asked or [] if rank >= count]:
        raise UsageError(f"--ranks {wrong[0]}: the result has ranks 0 to {count - 1}.")
    return asked or list(range(min(count, MOST_RANKS)))


def _trace_logs(options: argparse.Namespace) -> int:
    from dlio_bench.reports import timelogger, trace_text
    from dlio_bench.reports.files import write_whole

    log = timelogger.load(options.paths)
    if options.csv is not None:
        table = io.StringIO()
        writer = csv.writer(table)
        writer.writerow(timelogger.HEADER)
        writer.writerows(astuple(span) for span in log.spans)
        write_whole(options.csv, table.getvalue().encode())
    shown = trace_text.account(log, options.nodes)
    print(json.dumps(trace_text.document(shown)) if options.json else trace_text.render(shown), end="")
    return 0


def _is_result(path: Path) -> bool:
    """Whether a path holds results: a result.json, or a folder with one below it."""
    return next(path.rglob("result.json"), None) is not None if path.is_dir() else path.suffix == ".json"


def _ranks(text: str) -> list[int]:
    numbers = text.split(",")
    if not all(number.isdigit() for number in numbers):
        raise UsageError(f"--ranks '{text}' is no list of ranks. Write numbers from 0: --ranks 0,1,5.")
    return [int(number) for number in numbers]
