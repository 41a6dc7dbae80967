"""The names that limits may have: workloads with their readers, and models with the layouts of their checkpoints."""

from collections.abc import Collection
from pathlib import Path

from dlio_bench.benchmarks.published_models.models import SUBSET, models_by_name
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.harness.commands.checkpoints.options import LAYOUTS
from dlio_bench.harness.plan.policies import ALIASES, POLICIES
from dlio_bench.reports.judging import limits
from dlio_bench.reports.judging.limits import Limits


def load(path: Path, workloads: Collection[str] = (), readers: Collection[str] = ()) -> Limits:
    """The limits in a file. workloads, readers: names of results beside those that are known. See `limits.load`."""
    return limits.load(
        path,
        [
            *dict.fromkeys((*WORKLOADS, *models_by_name(), SUBSET, *sorted(workloads)))
        ],  # no sets: messages list them in order
        [*dict.fromkeys((*POLICIES, *ALIASES, *LAYOUTS, *sorted(readers)))],
    )
