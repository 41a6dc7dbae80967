"""What `dlio-bench checkpoint` measured, as a document: sets written, read back and compared. Pure functions."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from dlio_bench.errors import DataError
from dlio_bench.reports import checkpoint_metrics
from dlio_bench.reports.checkpoint_metrics import Trial
from dlio_bench.reports.environment import Host
from dlio_bench.reports.files import write_whole
from dlio_bench.reports.formatting import format_share, plural
from dlio_bench.reports.result import FIX, RESULT_NAME, digest
from dlio_bench.reports.typed import Count, Some, convert, load_json, require_schema, to_json
from dlio_bench.reports.types import Check, Class, Metric
from dlio_bench.units import format_bytes

SCHEMA = "dlio-bench/checkpoint/1"
MOST_RESIDENT = 0.01  # of the files in the page cache, for reads that count as cold; as of runs
MOST_WAITED = 0.10  # of the write time: beyond it the making of bytes is measured too
FRACTION, NO_FSYNC, AWAITED, FEW_TRIALS = "FRACTION", "NO FSYNC", "BYTES AWAITED", "FEW TRIALS"


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


def complete(document: Document) -> Document:
    """The document with its checks, metrics, class and digest. ValueError where its trials do not fit together."""
    _require(document)
    content = to_json(document)
    held = checks(document)
    content |= {
        "checks": [to_json(check) for check in held],
        "metrics": {name: to_json(metric) for name, metric in checkpoint_metrics.metrics(document.trials).items()},
        "class": "EXPLORE" if all(check.ok for check in held) else "INVALID",
        "marks": [*document.marks, *_marks(document)],
    }
    return convert(content | {"digest": digest(content)}, Document)


def _marks(document: Document) -> list[str]:
    """What the trials say."""
    waited = checkpoint_metrics.per_trial(document.trials, "checkpoint_waited_share")
    hidden = any(not trial.attestable for trial in document.trials)
    return [*(["CACHE NOT ATTESTED"] if hidden else []), *([AWAITED] if waited.max() > MOST_WAITED else [])]


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


def save(document: Document, folder: Path) -> Path:
    """Write it as RESULT_NAME into the folder, whole or not at all; its path. EnvironmentFailure."""
    path = folder / RESULT_NAME
    write_whole(path, (json.dumps(to_json(document), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return path


def is_checkpoint(path: Path) -> bool:
    """Whether a file, or the result file of a folder, is the result of checkpoints."""
    file = path / RESULT_NAME if path.is_dir() else path
    try:
        head = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False  # whoever loads it as another result says why
    return isinstance(head, dict) and head.get("schema") == SCHEMA


def apart(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The paths of results of checkpoints, and those of other results."""
    ours = [path for path in paths if is_checkpoint(path)]
    return ours, [path for path in paths if path not in ours]


def load(path: Path) -> Document:
    """The document of a folder or file. UsageError, EnvironmentFailure; DataError where it is not whole or altered."""
    file = path / RESULT_NAME if path.is_dir() else path
    content: Any = load_json(file, FIX)
    require_schema(content, [SCHEMA], str(file), FIX)
    if content.get("digest") != digest(content):
        raise DataError(f"'{file}' was altered after it was written: its digest does not match. Use the original file.")
    try:
        document = convert(content, Document)
        _require(document)
    except ValueError as error:
        raise DataError(f"'{file}' does not follow {SCHEMA}: {error}. Measure again.") from error
    return document


def _require(document: Document) -> None:
    """ValueError where trials, ranks or numbers do not fit together."""
    if [trial.trial for trial in document.trials] != list(range(len(document.trials))):
        raise ValueError("a trial is missing, or told twice")
    for trial in document.trials:
        if not len(trial.writes) == len(trial.reads) == document.checkpoints:
            raise ValueError(f"a trial has other than {plural(document.checkpoints, 'checkpoint')}")
        for write, read in zip(trial.writes, trial.reads, strict=True):
            by_rank = (write.rank_seconds, write.rank_waited, write.rank_made, write.rank_synced, read.rank_seconds)
            if {len(row) for row in by_rank} != {document.ranks}:
                raise ValueError(f"a checkpoint tells of other than {plural(document.ranks, 'rank')}")
            if write.bytes != document.bytes:
                raise ValueError(f"a checkpoint has {write.bytes} bytes, and the others {document.bytes}")
    if len(document.rank_hosts) != document.ranks:
        raise ValueError(f"the hosts of {plural(len(document.rank_hosts), 'rank')} are told")
    if document.metrics and {*document.metrics} != {*checkpoint_metrics.CHECKPOINT_METRICS}:
        raise ValueError("a metric is missing, or not known")
