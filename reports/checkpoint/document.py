"""What `dlio-bench checkpoint` measured, as a document: sets written, read back and compared. Pure functions."""

from pathlib import Path

from msgspec.structs import replace

from dlio_bench.errors import DataError
from dlio_bench.reports.checkpoint import marks as checkpoint_marks
from dlio_bench.reports.checkpoint import metrics as checkpoint_metrics
from dlio_bench.reports.checkpoint.types import SCHEMA, Document, checks
from dlio_bench.reports.document import result_file
from dlio_bench.reports.document.result import digest
from dlio_bench.reports.document.typed import convert, to_json
from dlio_bench.reports.view.formatting import plural


def complete(document: Document) -> Document:
    """The document with its checks, metrics, class and digest. ValueError where its trials do not fit together."""
    _require(document)
    content = to_json(document)
    held = checks(document)
    content |= {
        "checks": [to_json(check) for check in held],
        "metrics": {name: to_json(metric) for name, metric in checkpoint_metrics.metrics(document.trials).items()},
        "class": "EXPLORE" if all(check.ok for check in held) else "INVALID",
        "marks": [*dict.fromkeys([*document.marks, *checkpoint_marks.of_document(document)])],
    }
    return convert(content | {"digest": digest(content)}, Document)


def is_checkpoint(path: Path) -> bool:
    """Whether a file, or the result file of a folder, is the result of checkpoints."""
    return result_file.schema(path) == SCHEMA


def load(path: Path) -> Document:
    """The document of a folder or file. UsageError, EnvironmentFailure; DataError where it is not whole or altered."""
    content = result_file.content(SCHEMA, path)
    try:
        document = convert(content, Document)
        _require(document)
        again = checkpoint_metrics.metrics(document.trials)
    except ValueError as error:
        raise DataError(
            f"'{result_file.result_path(path)}' does not follow {SCHEMA}: {error}. Measure again."
        ) from error
    # the intervals of earlier versions were bootstraps
    metrics = {name: replace(metric, ci=again[name].ci) for name, metric in document.metrics.items()}
    return replace(document, metrics=metrics)


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
    if document.digest and {*document.metrics} != {*checkpoint_metrics.CHECKPOINT_METRICS}:
        raise ValueError("a metric is missing, or not known")
