"""Why a result of checkpoints may not be used: its own checks and numbers, and what the limits ask of every result."""

from collections.abc import Iterator

from dlio_bench.reports.checkpoint import metrics as checkpoint_metrics
from dlio_bench.reports.checkpoint.types import Document, checks
from dlio_bench.reports.judging.admission import broken, differing, too_fast, too_little, too_small
from dlio_bench.reports.judging.judgement import Reason
from dlio_bench.reports.judging.limits import Settings

COLD = ("cold", "cold-epochs", "first-epoch-cold")  # of limits: the cache is dropped before the reads of every trial


def reasons(document: Document, asked: Settings) -> list[Reason]:
    """All reasons, in a fixed order; none for a result that may be used. `min_steps` is for runs."""
    return [
        *broken(checks(document)),  # made again from the trials
        *differing(document.metrics, checkpoint_metrics.metrics(document.trials), "trials"),
        *too_little([trial.seconds for trial in document.trials], asked),
        *_caches(document, asked),
    ]


def _caches(document: Document, asked: Settings) -> Iterator[Reason]:
    if asked.cache is not None and asked.cache not in COLD:
        yield Reason("cache", f"checkpoints are read from a cold cache, the limits ask for {asked.cache}")
    if not all(trial.attestable and not trial.memory_backed for trial in document.trials):
        held = document.bytes * document.checkpoints
        yield from too_small("the checkpoints of a trial have", held, document.hosts.values(), asked)
    rate = max(checkpoint_metrics.per_trial(document.trials, "checkpoint_read_bandwidth"))
    yield from too_fast(rate, "read", document.nodes, asked)
