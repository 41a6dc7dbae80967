"""`--validation`: resolves and checks it."""

import re
from collections.abc import Iterable

from msgspec import Struct

from dlio_bench.benchmarks.workload import Workload
from dlio_bench.datagen.layout import VALIDATION, Layout
from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.training import TRAIN
from dlio_bench.harness.plan.policies import OWN, Policy


class Validation(Struct, frozen=True):
    """A pass over the validation split follows every `every`-th epoch.

    sample_seconds: of emulated compute for a sample; 0: no compute is emulated.
    """

    every: int
    sample_seconds: float = 0.0


def resolve(options: Options, workload: Workload, layout: Layout, rows: Iterable[Policy]) -> int:
    """Epochs from one validation pass to the next; 0: no passes. UsageError.

    Without --validation, published pipelines and trainings validate. All readers of a run do the same.
    """
    value, published = options.validation, workload.validation
    has_split = options.data is not None or any(split.name == VALIDATION for split in layout.splits)
    if value is None:
        training = options.mode == TRAIN
        as_published = training or any(row.delivery == OWN for row in rows)
        return published.every if as_published and published is not None and has_split else 0
    if value == "none":
        return 0
    if not has_split:
        raise UsageError(
            f"--validation {value}: {workload.name} {layout.variant} has no validation split. Use --validation none, "
            "or another --variant."
        )
    if value == "published":
        if published is None:
            raise UsageError(
                f"--validation published: how {workload.name} validates was not published. Give a number of epochs."
            )
        return published.every
    if not re.fullmatch("[1-9][0-9]{0,8}", value):
        raise UsageError(
            f"--validation '{value}' is not known. Use none, published, or the number of epochs from one pass to the "
            "next, which is 1 or more."
        )
    return int(value)
