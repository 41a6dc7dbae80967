"""What barriers cost is told apart from the wait for the last rank."""

import numpy as np
import pytest

from dlio_bench.harness.timeline import beyond_last


def test_a_barrier_costs_what_passes_after_the_last_rank_came() -> None:
    came = np.array([[1.0, 5.0], [2.0, 3.0]])  # two ranks, two steps
    left = np.array([[2.1, 5.0], [2.2, 5.3]])
    last = came.max(axis=0)
    assert [beyond_last(rank, last) for rank in left] == pytest.approx([0.1, 0.5])
    assert [beyond_last(rank, last) for rank in came] == [0.0, 0.0]  # no barrier: nobody leaves later than all came
