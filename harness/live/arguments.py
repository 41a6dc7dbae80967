"""The options of `dlio-bench watch`."""

import argparse
from pathlib import Path

from dlio_bench.errors import UsageError
from dlio_bench.units import parse_seconds

EXAMPLES = """\
examples:
  dlio-bench watch dlio-results/20260102-030405-cdb
  dlio-bench watch /scratch/run1 --once
  dlio-bench watch /scratch/run1 --json --interval 5s

exit status:
  that of the run, once it has ended (see `dlio-bench --help`); 0 while it is at work: with --once, and after Ctrl-C;
  2 if the folder is not that of a run; 4 if the run vanished, or wrote nothing for --silence
"""


def add_watch(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`watch`."""
    parser = commands.add_parser(
        "watch",
        help="show what a run is doing, from another shell or another machine",
        description="Show what a run is doing, from the status.jsonl in its folder: on a terminal one view that "
        "changes, elsewhere a line for each new record. It waits for the run, and ends with it.",
        epilog=EXAMPLES,
    )
    parser.add_argument("folder", type=Path, metavar="OUT", help="the folder of the run: its --out")
    parser.add_argument("--once", action="store_true", help="show the state now, and end")
    parser.add_argument("--json", action="store_true", help="print the records as they are, one JSON object a line")
    parser.add_argument("--interval", type=_interval, default=1.0, metavar="TIME", help="look this often (default 1s)")
    parser.add_argument(
        "--silence",
        type=parse_seconds,
        metavar="TIME",
        help="give up when the run has written nothing for this long (default 10min once it has written; 0: never)",
    )


def _interval(text: str) -> float:
    seconds = parse_seconds(text)
    if seconds < 0.01:
        raise UsageError(f"--interval {text}: look every 10ms at most, as in --interval 1s.")
    return seconds


def run_watch(options: argparse.Namespace) -> int:
    """Watch."""
    from dlio_bench.harness.live.command import watch

    return watch(options.folder, once=options.once, as_json=options.json, every=options.interval, most=options.silence)
