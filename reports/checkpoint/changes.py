"""Two results of checkpoints, before and after: whether their work was equal, and what changed."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from dlio_bench.errors import UsageError
from dlio_bench.reports.checkpoint.metrics import CHECKPOINT_METRICS, per_trial
from dlio_bench.reports.checkpoint.types import Document
from dlio_bench.reports.comparing.change_limits import ChangeLimit
from dlio_bench.reports.comparing.changes import Changes, MetricChange, PairChanges, Side, change_of, outcome, title
from dlio_bench.reports.comparing.differing import Differing
from dlio_bench.reports.document.collection import has_runs, of_checkpoints
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import printable

HEADLINE = (
    "checkpoint_write_seconds", "checkpoint_write_bandwidth", "checkpoint_write_mean_rate", "checkpoint_read_seconds",
    "checkpoint_read_bandwidth", "checkpoint_read_mean_rate", "checkpoint_fsync_share",
)  # fmt: skip


def load(paths: Sequence[Path]) -> list[Document]:
    """The results of checkpoints at or below the paths; none where there are results of runs. Errors as `load_all`."""
    return [] if any(map(has_runs, paths)) else [*of_checkpoints(paths).values()]


def changes(
    before: Sequence[Document],
    after: Sequence[Document],
    names: Sequence[str],
    limits: Sequence[ChangeLimit],
    *,
    label_unequal: bool,
) -> Changes:
    """What changed between one result on each side. UsageError for several, for unequal work unless `label_unequal`,
    and for a limit that cannot be judged.
    """
    if len(before) != 1 or len(after) != 1:
        raise UsageError(f"A has {len(before)} results of checkpoints and B has {len(after)}. Name one of each.")
    [old], [new] = before, after
    reasons = [*_unequal(old, new)]
    if reasons and not label_unequal:
        raise UsageError(
            f"{title(_side(old))} is not compared with {title(_side(new))}, because of: {'; '.join(reasons)}. Compare "
            "results of the same work, or give --unequal to see the changes all the same."
        )
    chosen = [name for name in names if name in CHECKPOINT_METRICS]
    pair = PairChanges(
        before=_side(old),
        after=_side(new),
        paired=False,
        unequal=reasons,
        differs=[*_differing(old, new)],
        metrics=[_change(name, old, new) for name in chosen],
        no_value=[name for name in names if name not in CHECKPOINT_METRICS],
    )
    for limit in limits:
        if limit.metric not in CHECKPOINT_METRICS:
            raise UsageError(f"--fail-if '{limit.text}': {limit.metric} has no value in a result of checkpoints.")
    outcomes = [outcome(limit, title(pair.after), _change(limit.metric, old, new)) for limit in limits]
    return Changes(pairs=[pair], only_before=[], only_after=[], repeated=[], limits=outcomes)


def _change(name: str, before: Document, after: Document) -> MetricChange:
    return change_of(name, per_trial(before.trials, name), per_trial(after.trials, name))


def _side(document: Document) -> Side:
    return Side(
        document.workload,
        document.layout,
        document.nodes,
        document.ranks_per_node,
        len(document.trials),
        document.created,
        document.digest,
        False,
    )


def _unequal(before: Document, after: Document) -> Iterator[str]:
    """Why the work was not the same, or a result may not be compared."""
    for document in (before, after):
        if document.class_ == "INVALID":
            yield f"{printable(title(_side(document)))} is INVALID"
    for what in ("workload", "layout", "shards", "nodes", "ranks_per_node", "fraction", "checkpoints", "fsync"):
        values = [printable(str(getattr(document, what))) for document in (before, after)]
        if values[0] != values[1]:
            yield f"{what.replace('_', ' ')} ({values[0]} and {values[1]})"
    if before.bytes != after.bytes:
        yield f"bytes ({format_bytes(before.bytes)} and {format_bytes(after.bytes)})"


def _differing(before: Document, after: Document) -> Iterator[Differing]:
    for what in ("class_", "marks", "folder", "version", "code_digest", "rank_hosts"):
        values = [getattr(document, what) for document in (before, after)]
        told = [printable(", ".join(value) if isinstance(value, list) else str(value)) for value in values]
        if told[0] != told[1]:
            yield Differing(what.strip("_").replace("_", " "), *told)
