"""`dlio-bench trace`: its options, and where the time of a run or of a log went."""

import argparse
import csv
import io
import json
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING

from dlio_bench.errors import DataError, UsageError
from dlio_bench.harness.ground.arguments import Commands
from dlio_bench.harness.results import (
    trace_command,
    trace_darshan,
    trace_input,
    trace_pattern,
    trace_spans,
    trace_study,
)

if TYPE_CHECKING:
    from dlio_bench.reports.meetings import Steps
    from dlio_bench.reports.types import Result

EXAMPLES = """\
examples:
  dlio-bench trace dlio-results/20260102-030405-cdb
  dlio-bench trace dlio-results/20260102-030405-cdb/prefetch-8x1 --chrome trace.json
  dlio-bench trace dlio-results/20260102-030405-cdb/prefetch-8x1 --chrome trace.json.gz --ranks 0,1 --steps 0-99
  dlio-bench trace nodes-1 nodes-4 --html trace.html
  dlio-bench trace time_logger_output/ --nodes 64 --csv records.csv
  dlio-bench trace dlio-results/20260102-030405-cdb/prefetch-8x1/spans-unfinished.npz
  dlio-bench trace --darshan job_1234.darshan
  dlio-bench trace --command -- python train.py --epochs 1

exit status:
  0  printed   2  usage, or nothing to read there
  4  a file not readable, a package missing; the traced command failed
  5  a damaged result or log; or its spans are damaged, or those of another run: the rest is printed
"""


def add_trace(commands: Commands) -> None:
    """`trace`."""
    parser = commands.add_parser(
        "trace",
        help="tell where the time of a run went, or of the NERSC study's logs",
        description="Results: what a rank's trainer did, phase by phase; with `run --trace spans` what all its threads "
        "did, component by component; and a trace of it to look at. Over several node counts the share of I/O and the "
        "read bandwidth, with the NERSC study's published values beside them, and the critical path. Logs of the "
        "NERSC study's TimeLogger (what its programs printed, or its files of each rank): the study's accountings, "
        "HEPCNNB's seconds a node and CDB's merged intervals; beside them how long reading and training overlapped, "
        "and what each component took itself. Broken records are named, not dropped. Logs of Darshan, and any command: "
        "how they access files.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="RESULT|LOG",
        help="results or logs, or folders of them; or spans of a run that was stopped",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    of_accesses = parser.add_argument_group("how files were accessed")
    of_accesses.add_argument("--darshan", action="store_true", help="the paths are logs of Darshan")
    of_accesses.add_argument(
        "--command",
        action="store_true",
        dest="counted",
        help="the words behind -- are a command: run it, and count what it and its descendants read and write",
    )
    of_accesses.add_argument("--dry-run", action="store_true", help="with --command: print the command, do not run it")
    of_results = parser.add_argument_group("of results")
    of_results.add_argument("--trial", type=int, metavar="N", help="this trial, from 1 (default: the median one)")
    trace_spans.add_options(of_results)
    of_results.add_argument(
        "--html", type=Path, metavar="FILE", help="write the tables as a page with figures, over all results named"
    )
    of_logs = parser.add_argument_group("of logs")
    of_logs.add_argument("--nodes", type=int, metavar="N", help="nodes of the run (default: as many as ranks)")
    of_logs.add_argument("--csv", type=Path, metavar="FILE", help="write all records as the study's CSV table")


def run_trace(options: argparse.Namespace) -> int:
    """Print the tables, and write what is asked for."""
    if options.counted:
        _refuse_others(options, "counted", "dry_run")
        return trace_command.run(options)
    if not options.paths:
        raise UsageError("Name results, or logs of TimeLogger. `dlio-bench trace --help` shows what there is.")
    options.paths = [Path(path) for path in options.paths]
    if options.darshan:
        _refuse_others(options, "darshan")
        return trace_darshan.run(options.paths, as_json=options.json)
    if options.dry_run:
        raise UsageError("--dry-run is for --command, as nothing else here starts anything. Leave it out.")
    from dlio_bench.harness.ground.folders import require_file

    for flag in ("csv", "chrome", "timelogger", "html"):
        if (file := getattr(options, flag)) is not None:
            require_file(file)
    if options.nodes is not None and options.nodes < 1:
        raise UsageError(f"--nodes {options.nodes} is too small: it must be at least 1.")
    if all(path.suffix == ".npz" for path in options.paths):
        return _trace_spans(options)
    are_results = [_is_result(path) for path in options.paths]
    if len(set(are_results)) > 1:
        raise UsageError("Name results or logs of TimeLogger, not both: their times have nothing in common.")
    wrong = ("nodes", "csv") if are_results[0] else ("trial", "ranks", "steps", "chrome", "timelogger", "html")
    for flag in wrong:
        if getattr(options, flag) is not None:
            raise UsageError(f"--{flag} is for {'logs of TimeLogger' if are_results[0] else 'results'}. Leave it out.")
    return _trace_results(options) if are_results[0] else _trace_logs(options)


def _trace_results(options: argparse.Namespace) -> int:
    from dlio_bench.reports import recorded, tables, traced_text, trainer_text
    from dlio_bench.reports.collection import load_files

    loaded = load_files(options.paths)
    if len(loaded) > 1 and (options.chrome or options.timelogger):
        raise UsageError(f"--chrome and --timelogger are of one result, but {len(loaded)} are here. Name one folder.")
    labels = tables.labels([result for result, _ in loaded.values()])
    documents, texts, cases, status = [], [], [], 0
    for label, (path, (result, steps)) in zip(labels, loaded.items(), strict=True):
        trial = _trial(options.trial, result)
        spans = recorded.beside(path.parent, result, steps)
        cases.append((label, result, steps, trial, spans.spans))
        files = trace_spans.write(options, result, steps, trial, spans)
        if options.json:
            document = _document(label, result, steps, trial) | trace_spans.document(result, trial, spans, files)
            of_input = trace_input.document(result, spans.spans)
            documents.append(document | trace_pattern.document(result, trial, spans.spans) | of_input)
        else:
            text = trainer_text.render(result, steps, trial) + trace_pattern.text(result, trial, spans.spans)
            text += trace_input.text(result, spans.spans)
            texts.append(text + trace_spans.render(result, trial, spans, files))
        status = DataError.status if spans.damaged else status
    told = trace_study.scalings(cases)
    if options.html is not None:
        trace_study.write(told, options.html)
    if options.json:
        more = trace_study.documents(told, labels)
        print(json.dumps([document | other for document, other in zip(documents, more, strict=True)]))
    else:
        print("\n".join([traced_text.answer(told), *texts, traced_text.render(told)]), end="")
    return status


def _trace_spans(options: argparse.Namespace) -> int:
    """Files of spans without a result beside them: what ranks did until their run was stopped."""
    from dlio_bench.reports import timeline, timeline_text

    for flag in ("nodes", "csv", "trial", "ranks", "steps", "chrome", "timelogger", "html"):
        if getattr(options, flag) is not None:
            raise UsageError(f"--{flag} is not for a file of spans alone. Leave it out.")
    loaded = [timeline.load(path) for path in options.paths]
    if options.json:
        print(json.dumps([timeline_text.document(spans) for spans in loaded]))
    else:
        for path, spans in zip(options.paths, loaded, strict=True):
            print(timeline_text.render(spans, str(path)), end="")
    return DataError.status if any(spans.damaged for spans in loaded) else 0


def _document(label: str, result: "Result", steps: "Steps", trial: int) -> dict[str, object]:
    from dlio_bench.reports import trainer_spans

    rows = [asdict(row) for row in trainer_spans.breakdown(steps, trial)]
    return {"result": label, "trial": result.trials[trial].trial, "phases": rows}


def _trial(asked: int | None, result: "Result") -> int:
    """The position of a trial. UsageError."""
    from dlio_bench.reports.statistics import median_trial

    if asked is None:
        return median_trial(result)
    if not 1 <= asked <= len(result.trials):
        raise UsageError(f"--trial {asked}: the result has trials 1 to {len(result.trials)}, warm-up included.")
    return asked - 1


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


def _refuse_others(options: argparse.Namespace, mode: str, *with_it: str) -> None:
    """UsageError for options that do not go with --darshan or --command."""
    shown = {"counted": "command"}
    for name, value in vars(options).items():
        if value not in (None, False) and name not in ("command", "paths", "json", mode, *with_it):
            flags = (shown.get(each, each).replace("_", "-") for each in (name, mode))
            raise UsageError("--{} does not go with --{}. Leave one of them out.".format(*flags))


def _is_result(path: Path) -> bool:
    """Whether a path holds results: a result.json, or a folder with one below it."""
    return next(path.rglob("result.json"), None) is not None if path.is_dir() else path.suffix == ".json"
