"""`dlio-bench trace`: its options, and where the time of a log went."""

import argparse
import csv
import io
import json
from dataclasses import astuple
from pathlib import Path

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground.arguments import Commands
from dlio_bench.harness.ground.folders import require_file

EXAMPLES = """\
examples:
  dlio-bench trace time_logger_output/
  dlio-bench trace slurm-1234.out --nodes 64 --csv spans.csv

exit status:
  0  printed   2  no log there   4  a file not readable
"""


def add_trace(commands: Commands) -> None:
    """`trace`."""
    parser = commands.add_parser(
        "trace",
        help="tell where the time went, from logs of the NERSC study's TimeLogger",
        description="Read logs of TimeLogger (standard output of its runs, or its files of each rank), and print the "
        "study's accountings: HEPCNNB's seconds a node and CDB's merged intervals; beside them how long reading and "
        "training overlapped, and what each component took itself. Broken records are named, not dropped.",
        epilog=EXAMPLES,
    )
    parser.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="a log, or a folder of them")
    parser.add_argument("--nodes", type=int, metavar="N", help="nodes of the run (default: as many as ranks)")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write all records as the study's CSV table")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_trace(options: argparse.Namespace) -> int:
    """Print the tables."""
    from dlio_bench.reports import timelogger, trace_text
    from dlio_bench.reports.files import write_whole

    if options.nodes is not None and options.nodes < 1:
        raise UsageError(f"--nodes {options.nodes} is too small: it must be at least 1.")
    if options.csv is not None:
        require_file(options.csv)
    log = timelogger.load(options.logs)
    if options.csv is not None:
        table = io.StringIO()
        writer = csv.writer(table)
        writer.writerow(timelogger.HEADER)
        writer.writerows(astuple(span) for span in log.spans)
        write_whole(options.csv, table.getvalue().encode())
    shown = trace_text.account(log, options.nodes)
    print(json.dumps(trace_text.document(shown)) if options.json else trace_text.render(shown), end="")
    return 0
