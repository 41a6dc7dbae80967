"""The script that weighs the harness still works, and both of its loops do the same work."""

from pathlib import Path

import pytest

from scripts.measure import training_cost


def test_both_loops_train_the_same_network(tmp_path: Path) -> None:
    found = training_cost.pairs(side=16, batch=4, steps=2, count=2, folder=tmp_path)
    bare, harness = found["losses"]
    assert len(harness) == 6  # with those of the first turns, which are not weighed
    assert harness == pytest.approx(bare, rel=1e-3)
    assert set(training_cost.summary(found)) >= {"median", "low", "high", "cpu_median"}
    assert len(found["bare"]) == len(found["harness"]) == 2
