"""Results whose trials vary as those of real runs do, with an effect that is known."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dlio_bench.reports import kinds
from dlio_bench.reports.document.measured import Measured
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.numbers.meetings import Steps
from tests.results import complete

Made = Callable[..., tuple[dict[str, Any], dict[str, Any]]]


def noisy(*arguments: Any, **options: Any) -> Measured:
    """`noisy_run` as `compare` takes it."""
    return kinds.run(*noisy_run(*arguments, **options))


def noisy_run(
    make: Made,
    factor: float,
    seed: int,
    *,
    reader: str = "prefetch",
    trials: int = 5,
    noise: float = 0.02,
    created: str = "2026-11-21T01:40:00+00:00",
    version: str = "0.1.0",
    cache: str = "cold-epochs",
    startup: float | None = None,
    bad_rank: float = 0.0,
) -> tuple[Result, Steps]:
    """A result and its steps: times are `factor` x those of `make`, the fixture draft_and_steps, with noise.

    noise: of each trial, relative. startup: of the ranks, in seconds; a run of its own without. bad_rank: seconds that
    rank 1 stalls longer, each step.
    """
    draws = np.random.default_rng(seed)
    draft, steps = make(reader, 4, trials)
    draft["created"], draft["version"], draft["plan"]["cache"] = created, version, cache
    draft["environment"]["startup_seconds"] = float(draws.random()) if startup is None else startup
    factors = factor * (1 + draws.normal(0, noise, trials + 1))
    late = 16 * bad_rank  # seconds of a trial, as the other ranks wait at each step
    steps["stall"][:, 1] += bad_rank
    steps["exchange"] += bad_rank * (np.arange(4) != 1)[None, :, None]
    steps["start"] += bad_rank * np.arange(16)
    steps["loop"] += late
    for trial, times in zip(draft["trials"], factors.tolist(), strict=True):
        trial["elapsed_seconds"] = (trial["elapsed_seconds"] + late) * times
        for epoch in trial["epochs"]:
            epoch["seconds"] = (epoch["seconds"] + late / 2) * times
    for name in set(steps) - {"epoch"}:
        steps[name] = steps[name] * factors.reshape(-1, *[1] * (steps[name].ndim - 1))
    return complete(draft, steps), steps
