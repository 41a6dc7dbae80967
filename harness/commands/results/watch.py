"""The options of `dlio-bench watch`."""

from pathlib import Path
from typing import Annotated

from msgspec import Struct

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground import options as opt
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


def _interval(text: str) -> float:
    seconds = parse_seconds(text)
    if seconds < 0.01:
        raise UsageError(f"--interval {text}: look every 10ms at most, as in --interval 1s.")
    return seconds


class Options(Struct, frozen=True, kw_only=True):
    """None: not given."""

    folder: Annotated[Path, opt.argument("OUT", "the folder of the run: its --out", type=Path)]
    once: Annotated[bool, opt.flag("show the state now, and end")] = False
    json: Annotated[bool, opt.flag("print the records as they are, one JSON object a line")] = False
    interval: Annotated[float, opt.option("look this often (default 1s)", metavar="TIME", type=_interval)] = 1.0
    silence: Annotated[
        float | None,
        opt.seconds(
            "give up when the run has written nothing for this long (default 10min once it has written; 0: never)"
        ),
    ] = None


def _run(given: opt.Given) -> int:
    from dlio_bench.harness.live.command import watch

    options = Options(**given)
    return watch(options.folder, once=options.once, as_json=options.json, every=options.interval, most=options.silence)


WATCH = opt.Command(
    "watch",
    "show what a run is doing, from another shell or another machine",
    "Show what a run is doing, from the status.jsonl in its folder: on a terminal one view that changes, elsewhere a "
    "line for each new record. It waits for the run, and ends with it.",
    Options,
    _run,
    EXAMPLES,
)
