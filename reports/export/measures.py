"""Results of any kind as exports take them: each with a name of its own, and its measures."""

from collections.abc import Sequence

from msgspec import Struct

from dlio_bench.counters import Quantity
from dlio_bench.reports import kinds
from dlio_bench.reports.checkpoint.types import Document
from dlio_bench.reports.comparing.comparison import rows_of
from dlio_bench.reports.document.measured import Measured
from dlio_bench.reports.document.types import Check, Metric, Result
from dlio_bench.reports.numbers.intervals import LEVEL, coverage
from dlio_bench.reports.numbers.metrics import METRICS, RATIO, SHARES, TRIALS
from dlio_bench.reports.run import tables

OVER_FIRST = Quantity(
    "elapsed_over_first", RATIO, "× first",
    "elapsed time over that of the first reader at the same node count, paired by trial", TRIALS, optional=True,
)  # fmt: skip
MEASURES = METRICS | {OVER_FIRST.name: OVER_FIRST}


class Exported(Struct, frozen=True):
    """A result. label: tells it from the others; metrics: those of the result, and of a run the ratio of its time to
    that of the first reader.
    """

    label: str
    result: Measured
    metrics: dict[str, Metric]

    @property
    def checks(self) -> list[Check]:
        """The result's own, and a failed one where its files were altered after they were written."""
        altered = [Check("files as written", False, "the digests in result.json", "others")]
        return [*self.result.checks, *(altered if self.result.altered else [])]


def of_runs(results: Sequence[Result]) -> list[Exported]:
    """Of runs; values of trials are left out."""
    named = zip(tables.labels(results), results, measures(results), strict=True)
    return [Exported(label, kinds.run(result), known) for label, result, known in named]


def of_checkpoints(documents: Sequence[Document]) -> list[Exported]:
    """Of checkpoints."""
    made = map(kinds.checkpoints, documents)
    return [Exported(f"{result.name} {result.scale}", result, {**result.metrics}) for result in made]


def measures(results: Sequence[Result]) -> list[dict[str, Metric]]:
    """The measures of each run; the ratio has no value where results are not compared."""
    rows = {key: Metric(row.ratio, RATIO, row.interval) for key, row in rows_of(results).items()}
    return [result.metrics | {OVER_FIRST.name: rows.get(id(result), Metric(None, RATIO, None))} for result in results]


def statistic(name: str) -> str:
    """What a value is of its trials."""
    return "mean" if name in SHARES else "ratio of medians" if name == OVER_FIRST.name else "median"


def covers(name: str, trials: int) -> float:
    """How much the interval of a measure covers; of the ratio, about."""
    return LEVEL if name == OVER_FIRST.name else coverage(trials, mean=name in SHARES)
