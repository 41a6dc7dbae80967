"""`dlio-bench run` on the command line: its options, and the repetition of an earlier run's."""

import sys
from pathlib import Path
from typing import Annotated, Any

from dlio_bench.benchmarks.registry import NAMES
from dlio_bench.errors import UsageError, one_of
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.ground import options as opt
from dlio_bench.harness.ground import starting

EXIT_STATUSES = """\
exit status:
  0  pass           2  usage             4  launch or environment failure, interrupted
  1  limit missed   3  INVALID result    5  data verification failed
  6  undecided: too few trials, or a limit lies within an interval
"""

MAIN_EXAMPLE = """\
examples:
  dlio-bench run cdb --nodes 8 --reader naive,prefetch
  dlio-bench run cosmoflow --nodes 1,2,4 --reader naive,shuffled,prefetch --compute none
  dlio-bench run imagenet --nodes 2 --tiny
  dlio-bench run --from dlio-results/20260102-030405-cdb
"""


class Line(Options, frozen=True):
    """The options of a run, or the results of the one to repeat."""

    workload: Annotated[str | None, opt.argument("WORKLOAD", f"{one_of(NAMES)} (see `dlio-bench list`)", nargs="?")] = (
        None  # type: ignore[assignment]  # --from names the workload too
    )
    origin: Annotated[
        Path | None,
        opt.option(
            "repeat the run of this result.json, or of all results in a folder, on the same data, and say what differs "
            "now. Besides: only --out, --json, --dry-run, --data, --cache-dir, --local-tier, --storage, --launcher, "
            "--limits, --junit, --markdown, --require, --verbose",
            "--from",
            metavar="RESULT",
            type=Path,
        ),
        opt.Group(""),
    ] = None


def _run(given: opt.Given) -> int:
    from dlio_bench.harness.commands.run import command, repeat

    asked = {name: value for name, value in given.items() if name != "origin"}
    if (origin := given.get("origin")) is not None:
        repeated, earlier = repeat.load_repeat(origin, asked)
        if note := repeat.incomplete(origin, earlier):
            print(f"dlio-bench: {note}", file=sys.stderr)
        return command.run(repeated, earlier)
    if "workload" not in asked:
        raise UsageError("run needs a WORKLOAD, such as cdb (see `dlio-bench list`), or --from RESULT.")
    scale = starting.allocated_scale(nodes="nodes" in asked, ranks_per_node="ranks_per_node" in asked)
    by_scale: dict[str, Any] = {
        "nodes": (scale.nodes,),
        "ranks_per_node": scale.ranks_per_node,
        "scale_from": scale.origin,
    }
    return command.run(Options(**by_scale | asked))


RUN = opt.Command(
    "run",
    "measure one workload with one or more readers",
    "Make a small dataset if you give none, launch the ranks, measure, and write results and a report.",
    Line,
    _run,
    f"{MAIN_EXAMPLE}\n{EXIT_STATUSES}",
    process=starting.RANKS,
)
