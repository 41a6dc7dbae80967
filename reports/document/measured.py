"""A result of any kind as `judge`, `compare` and `export` take it: whatever they ask of a result, and nothing else."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from dlio_bench.counters import Quantity
from dlio_bench.reports.document.environment import Host
from dlio_bench.reports.document.marks import ALTERED
from dlio_bench.reports.document.types import Check, Class, Metric
from dlio_bench.reports.judging.judgement import Reason
from dlio_bench.reports.judging.limits import Settings
from dlio_bench.reports.numbers.meetings import Floats


class Measured(Struct, frozen=True, kw_only=True):
    """A result. What makes one of a document is in `reports.kinds`, a function for each kind.

    what: `names` are those of a reader, or of a layout; limits may use any of them, and the first one is shown.
    seconds: of the trials that count; warmup_seconds: of the others. values: each metric's values of the trials that
    count, float64 [trials], or None; empty if the step times were not loaded, or give no values.
    derived: what limits may name beside the metrics. headline: the metrics that `compare` shows.
    reasons: why the result may not be used, by what limits ask of every result. fault: why it may not be compared.
    work: what must be equal in results that are compared; described: what else may differ; copies: how often it was
    named. turn: the same of results that took turns in one run, so that trial k of both is one pair. facts: columns
    that exports add.
    """

    what: str
    workload: str
    names: Sequence[str]
    nodes: int
    ranks_per_node: int
    created: str
    version: str
    code_digest: str | None
    digest: str
    class_: Class
    verdict: str = "none"
    marks: Sequence[str]
    checks: Sequence[Check]
    hosts: Mapping[str, Host]
    rank_hosts: Sequence[str]
    seconds: Sequence[float]
    warmup_seconds: float = 0.0
    quantities: Mapping[str, Quantity]
    metrics: Mapping[str, Metric]
    derived: Mapping[str, Metric]
    values: Mapping[str, Floats | None]
    headline: Sequence[str]
    reasons: Callable[[Settings], list[Reason]]
    fault: str | None
    work: Mapping[str, object]
    described: Mapping[str, str]
    turn: tuple[object, ...] | None = None
    facts: Mapping[str, str] = {}
    copies: int = 1

    @property
    def name(self) -> str:
        """Of its reader, or layout."""
        return self.names[0]

    @property
    def scale(self) -> str:
        """Nodes x ranks of a node, as limits call it."""
        return f"{self.nodes}x{self.ranks_per_node}"

    @property
    def altered(self) -> bool:
        """Whether its files are not as they were written."""
        return ALTERED in self.marks
