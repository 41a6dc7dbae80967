"""Marks that follow from what is recorded of checkpoints, so that nobody has to trust the marks in a file."""

from collections.abc import Sequence

import numpy as np

from dlio_bench.reports.checkpoint import metrics as checkpoint_metrics
from dlio_bench.reports.checkpoint.types import AWAITED, FRACTION, MOST_WAITED, NO_FSYNC, Document
from dlio_bench.reports.document.marks import FEW_TRIALS, VIRTUAL_NODES
from dlio_bench.reports.document.trials import CheckpointLoad, Trial
from dlio_bench.reports.numbers import intervals


def of_document(document: Document) -> list[str]:
    """Of a result of `dlio-bench checkpoint`."""
    waited = checkpoint_metrics.per_trial(document.trials, "checkpoint_waited_share")
    marks = {
        VIRTUAL_NODES: len({*document.rank_hosts}) < document.nodes,
        FRACTION: document.fraction < 1,
        NO_FSYNC: not document.fsync,
        FEW_TRIALS: len(document.trials) < intervals.MIN_TRIALS,
        "CACHE NOT ATTESTED": any(not trial.attestable for trial in document.trials),
        AWAITED: intervals.centre(waited) > MOST_WAITED,
    }
    return [mark for mark, holds in marks.items() if holds]


def of_trials(trials: Sequence[Trial]) -> list[str]:
    """Of the checkpoints that were written beside the input of a run's trials."""
    loads: list[CheckpointLoad] = [trial.checkpoint_load for trial in trials if trial.checkpoint_load is not None]
    if not loads:
        return []
    marks = {
        FRACTION: any(load.fraction < 1 for load in loads),
        AWAITED: intervals.centre(np.array([load.waited_share for load in loads])) > MOST_WAITED,
    }
    return [mark for mark, holds in marks.items() if holds]
