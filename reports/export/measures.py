"""What exports give of a result: its metrics, and the ratio of its time to that of the first reader."""

from collections.abc import Sequence

from dlio_bench.counters import Quantity
from dlio_bench.reports.comparing.comparison import rows_of
from dlio_bench.reports.document.types import Metric, Result
from dlio_bench.reports.numbers.intervals import LEVEL, coverage
from dlio_bench.reports.numbers.metrics import METRICS, RATIO, SHARES, TRIALS

OVER_FIRST = Quantity(
    "elapsed_over_first", RATIO, "× first",
    "elapsed time over that of the first reader at the same node count, paired by trial", TRIALS, optional=True,
)  # fmt: skip
MEASURES = METRICS | {OVER_FIRST.name: OVER_FIRST}


def measures(results: Sequence[Result]) -> list[dict[str, Metric]]:
    """The measures of each result; the ratio has no value where results are not compared."""
    rows = {key: Metric(row.ratio, RATIO, row.interval) for key, row in rows_of(results).items()}
    return [result.metrics | {OVER_FIRST.name: rows.get(id(result), Metric(None, RATIO, None))} for result in results]


def statistic(name: str) -> str:
    """What a value is of its trials."""
    return "mean" if name in SHARES else "ratio of medians" if name == OVER_FIRST.name else "median"


def covers(name: str, trials: int) -> float:
    """How much the interval of a measure covers; of the ratio, about."""
    return LEVEL if name == OVER_FIRST.name else coverage(trials, mean=name in SHARES)
