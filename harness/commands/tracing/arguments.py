"""The options of `dlio-bench trace`."""

import argparse
from pathlib import Path

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground.options import Commands

MOST_RANKS = 64  # in a trace, unless --ranks names them

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
  5  damaged: a result; or its spans (or those of another run), or a log: the rest is printed
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
    of_results.add_argument(
        "--verbose", action="store_true", help="print the tables of each result too, where several are named"
    )
    of_results.add_argument(
        "--ranks", type=_ranks, metavar="R[,R...]", help=f"ranks of the trace (default: the first {MOST_RANKS})"
    )
    of_results.add_argument(
        "--steps",
        type=_steps,
        metavar="A-B",
        help="what was under way in these steps of the trace's ranks, from 0 on over all epochs (default: all)",
    )
    of_results.add_argument(
        "--chrome",
        type=Path,
        metavar="FILE",
        help="write a trace of one result, for ui.perfetto.dev or Chrome; compressed if FILE ends in .gz",
    )
    of_results.add_argument(
        "--timelogger",
        type=Path,
        metavar="FILE",
        help="write the spans of one result as TimeLogger would have: steps, waits, reads",
    )
    of_results.add_argument(
        "--html", type=Path, metavar="FILE", help="write the tables as a page with figures, over all results named"
    )
    of_logs = parser.add_argument_group("of logs")
    of_logs.add_argument("--nodes", type=int, metavar="N", help="nodes of the run (default: as many as ranks)")
    of_logs.add_argument("--csv", type=Path, metavar="FILE", help="write all records as the study's CSV table")


def _ranks(text: str) -> list[int]:
    numbers = text.split(",")
    if not all(number.isdecimal() for number in numbers):
        raise UsageError(f"--ranks '{text}' is no list of ranks. Write numbers from 0: --ranks 0,1,5.")
    return [int(number) for number in numbers]


def _steps(text: str) -> range:
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise UsageError(f"--steps '{text}' is no range of steps. Write the first and the last: --steps 0-99.")
    return range(int(first), int(last) + 1)


def run_trace(options: argparse.Namespace) -> int:
    """Print what the paths hold, and write what is asked for."""
    if options.counted:  # has no other threads, as NumPy starts them
        from dlio_bench.harness.commands.tracing import command_io

        refuse_others(options, "counted", "dry_run")
        return command_io.run(options)
    from dlio_bench.harness.commands.tracing import command

    return command.run(options)


def refuse_others(options: argparse.Namespace, mode: str, *with_it: str) -> None:
    """UsageError for options that do not go with --darshan or --command."""
    shown = {"counted": "command"}
    for name, value in vars(options).items():
        if value not in (None, False) and name not in ("command", "paths", "json", mode, *with_it):
            flags = (shown.get(each, each).replace("_", "-") for each in (name, mode))
            raise UsageError("--{} does not go with --{}. Leave one of them out.".format(*flags))
