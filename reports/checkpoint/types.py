"""What `dlio-bench checkpoint` measured, as types, and what must hold of it."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from dlio_bench.reports.checkpoint.metrics import Trial
from dlio_bench.reports.document.environment import Host
from dlio_bench.reports.document.typed import Count, Some
from dlio_bench.reports.document.types import Check, Class, Metric
from dlio_bench.reports.view.formatting import format_share, plural
from dlio_bench.units import format_bytes

SCHEMA = "dlio-bench/checkpoint/1"
MOST_RESIDENT = 0.01  # of the files in the page cache, for reads that count as cold; as of runs
MOST_WAITED = 0.10  # of the write time: beyond it the making of bytes is measured too
FRACTION, NO_FSYNC, AWAITED = "FRACTION", "NO FSYNC", "BYTES AWAITED"


class Model(Struct, frozen=True, kw_only=True):
    """Whose checkpoints these are. published_bytes: of a whole one, derived from the published configuration."""

    name: str
    title: str
    parameters: Some
    whole_bytes: Some
    source: str
    note: str


class Document(Struct, frozen=True, kw_only=True):
    """What was measured. workload: the model's name, or that of the published subset. shards: ranks of the real job.

    bytes, files: of one checkpoint. shift: how far from its writer the reader of a part is. generator: bytes a second
    that each rank made before the clock, all at once.
    """

    schema: Literal["dlio-bench/checkpoint/1"] = "dlio-bench/checkpoint/1"
    kind: Literal["checkpoint"] = "checkpoint"
    workload: str
    model: Model
    created: str
    version: str
    command: list[str]
    code_digest: str
    layout: str
    shards: Some
    fraction: Annotated[float, Meta(gt=0, le=1)]
    nodes: Some
    ranks_per_node: Some
    files: Some
    bytes: Some
    checkpoints: Some
    fsync: bool
    fsyncs_expected: Count
    seed: Count
    shift: Count
    generator: Annotated[list[float], Meta(min_length=1)]
    trials: Annotated[list[Trial], Meta(min_length=1)]
    folder: str
    hosts: dict[str, Host]
    rank_hosts: Annotated[list[str], Meta(min_length=1)]
    marks: list[str]
    checks: list[Check] = []
    metrics: dict[str, Metric] = {}
    class_: Class = field(name="class", default="EXPLORE")
    digest: str = ""

    @property
    def scale(self) -> str:
        """Nodes x ranks of a node, as limits call it."""
        return f"{self.nodes}x{self.ranks_per_node}"

    @property
    def ranks(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.ranks_per_node


def checks(document: Document) -> list[Check]:
    """What must hold for a result to be used. Content that differs ends the command instead."""
    trials = document.trials
    expected = document.bytes * document.checkpoints
    compared = [trial.compared_bytes for trial in trials]
    calls = sorted({write.fsyncs for trial in trials for write in trial.writes})
    resident = max(trial.resident_share for trial in trials)
    seen = [trial.resident_share <= MOST_RESIDENT or not trial.attestable for trial in trials]
    reader = "another rank" if document.shift else "the only rank"
    return [
        Check(
            "content",
            all(count == expected for count in compared),
            f"every byte as written, read by {reader}: {format_bytes(expected)} in each trial",
            f"{format_bytes(min(compared))} compared and equal in each of {plural(len(trials), 'trial')}",
        ),
        Check(
            "fsync",
            calls == [document.fsyncs_expected],
            f"{document.fsyncs_expected} calls of fsync for each checkpoint{'' if document.fsync else ' (--no-fsync)'}",
            f"{' or '.join(map(str, calls))} counted",
        ),
        Check(
            "cold cache",
            all(seen),
            f"at most {format_share(MOST_RESIDENT)} of the files in the page cache before they are read",
            f"at most {format_share(resident)} (mincore)"
            + next((f"; not attestable: {trial.note}" for trial in trials if not trial.attestable), ""),
        ),
    ]
