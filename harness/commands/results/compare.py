"""The options of `compare`, and the call they lead to. Heavy imports wait until the command runs."""

import glob
import json
import sys
from itertools import chain
from pathlib import Path
from typing import Annotated

from msgspec import Struct

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground import options as opt

EXAMPLES = """\
examples:
  dlio-bench compare before after
  dlio-bench compare before after --fail-if 'delivered_bandwidth<-5%' --fail-if 'stall_share>+2%'
  dlio-bench compare run/naive-4x1 run/prefetch-4x1 --metric read_seconds
  dlio-bench compare 'nightly/*' --fail-if 'elapsed_seconds>+10%'
exit status: 0 no limit missed, 1 a limit missed, 2 usage, unequal work, too few trials or runs for a limit,
             4 a file cannot be read, 5 a file is damaged
"""


class Options(Struct, frozen=True, kw_only=True):
    """The options of `compare`."""

    results: Annotated[
        tuple[str, ...],
        opt.argument(
            "RESULT",
            "a result.json, a folder with results below it, or a pattern of these in quotes, such as 'nightly/*'",
            nargs="+",
        ),
    ]
    metric: Annotated[
        tuple[str, ...],
        opt.option(
            "show this metric, by its name in the results (repeatable; default: the main ones)",
            metavar="NAME",
            action="append",
        ),
    ] = ()
    verbose: Annotated[bool, opt.flag("show all metrics, and all that differs")] = False
    fail_if: Annotated[
        tuple[str, ...],
        opt.option(
            "METRIC<-N%% or METRIC>+N%%: end with 1 if the whole 95 %% interval of the metric's change lies beyond it "
            "(repeatable). Of shares, such as stall_share, %% are percentage points. In a history the change is that "
            "of the last run against the median one of the earlier runs",
            metavar="LIMIT",
            action="append",
        ),
    ] = ()
    unequal: Annotated[
        bool,
        opt.flag("compare results that did different work, or that may not be compared, and say so (default: refuse)"),
    ] = False
    json: opt.Json = False


def _run(given: opt.Given) -> int:
    from dlio_bench.reports.comparing import change_limits, changes_text
    from dlio_bench.reports.comparing.changes import Changes, changes, load
    from dlio_bench.reports.comparing.trend import Trend, trend
    from dlio_bench.reports.document.typed import to_json

    options = Options(**given)
    limits = [change_limits.parse(text) for text in options.fail_if]
    asked = [change_limits.known_metric(name, f"--metric {name}") for name in options.metric]
    paths = [_paths(text) for text in options.results]
    sides = [*map(load, paths)] if len(paths) == 2 else [load([*chain.from_iterable(paths)])]
    if len({result.what for side in sides for result in side}) > 1:
        raise UsageError("Results of runs and of checkpoints are named. Compare results of one kind.")
    first = sides[0][0]
    names = [*first.quantities] if options.verbose else asked or [*first.headline]
    document: Changes | Trend
    if len(sides) == 2:
        before, after = sides
        document = changes(before, after, names, limits, label_unequal=options.unequal)
    else:
        document = trend(sides[0], names, limits, label_unequal=options.unequal)
    if options.json:
        print(json.dumps(to_json(document) | {"status": document.status}))
    elif isinstance(document, Changes):
        sys.stdout.write(changes_text.render_changes(document, asked, verbose=options.verbose))
    else:
        tables = asked or [first.headline[0]]
        sys.stdout.write(changes_text.render_trend(document, tables, verbose=options.verbose))
    return document.status


def _paths(text: str) -> list[Path]:
    """The paths that a pattern names, sorted; a path that is there is no pattern."""
    if Path(text).exists() or not glob.has_magic(text):
        return [Path(text)]
    if not (names := sorted(glob.glob(text, recursive=True))):  # noqa: PTH207 - a pattern may be absolute
        raise UsageError(f"'{text}' names no file or folder here. Name results that dlio-bench run wrote.")
    return [Path(name) for name in names]


COMPARE = opt.Command(
    "compare",
    "show what changed between two results, or over a history of runs",
    "Compare two results or two folders of results, A before and B after: each metric's change with its 95 % interval, "
    "and what else differs. Three or more runs, or one pattern of them, are a history: its trend, its steps, and the "
    "last run against the earlier ones.",
    Options,
    _run,
    EXAMPLES,
)
