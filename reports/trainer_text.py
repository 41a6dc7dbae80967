"""Where the time of a run's trainers went, for a terminal."""

from collections.abc import Iterator

from dlio_bench.reports.formatting import format_share, format_time, plural
from dlio_bench.reports.meetings import Steps
from dlio_bench.reports.trainer_spans import OTHER, Row, breakdown
from dlio_bench.reports.types import Result
from dlio_bench.wrapping import printable, wrapped


def render(result: Result, steps: Steps, trial: int) -> str:
    """One result's table, at most 80 columns; trial: position in the arrays."""
    return "\n".join(_lines(result, steps, trial)) + "\n"


def _lines(result: Result, steps: Steps, trial: int) -> Iterator[str]:
    plan = result.plan
    scale = f"{plural(plan.nodes, 'node')} × {plural(plan.ranks_per_node, 'rank')}"
    yield printable(f"{result.workload.name} · {result.policy.alias or result.policy.name} · {scale}")
    loop = float(steps["loop"][trial].mean())
    number = result.trials[trial].trial
    yield f"  trial {number + 1} of {len(result.trials)}: its loop took {format_time(loop)}, mean of ranks"
    yield ""
    yield f"  {'phase':<11} {'first epoch':>12} {'later epoch':>13} {'loop':>10} {'share':>7}   worst rank"
    for row in breakdown(steps, trial):
        yield _line(row)
    yield ""
    yield from wrapped("Mean of ranks. A later epoch: the mean of all after the first.", "  ")


def _line(row: Row) -> str:
    first = "" if row.phase == OTHER else format_time(row.first_epoch)
    later = "" if row.later_epoch is None else format_time(row.later_epoch)
    worst = f"{format_time(row.worst)} (rank {row.worst_rank})"
    return (
        f"  {row.phase:<11} {first:>12} {later:>13} {format_time(row.loop):>10} {format_share(row.share):>7}   {worst}"
    )
