"""What a trial plans."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from dlio_bench.harness.commands.run.measured.trial import Trial
from dlio_bench.harness.plan.orders import Shape
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.placed.tiers import Tiers


def test_every_trial_and_epoch_has_an_order_of_its_own_and_no_sample_twice() -> None:
    job: Any = SimpleNamespace(model_of=lambda rank: (0, rank), seed=5, epochs=2, tiers=Tiers())
    trials = [Trial(job, Shape(40, 2, 4), find("shuffled"), number) for number in (0, 1)]
    orders = [
        np.concatenate([ids.ravel() for ids in (trial.ids(0)[epoch], trial.ids(1)[epoch])])
        for trial in trials
        for epoch in range(2)
    ]
    assert all(sorted(order) == list(range(40)) for order in orders)
    assert len({order.tobytes() for order in orders}) == 4
