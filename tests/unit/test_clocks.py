"""How far two clocks are apart, from what barriers allow."""

import pytest

from dlio_bench.harness.cluster.clocks import ahead

FIRST = ([10.0, 11.0, 12.0], [10.4, 11.1, 12.3])  # came, left


@pytest.mark.parametrize("offset", [5.0, -3.0, 0.25, 0.0])
def test_the_offset_is_at_most_the_shortest_barrier_too_small(offset: float) -> None:
    other = ([10.1 + offset, 11.05 + offset, 12.0 + offset], [10.5 + offset, 11.12 + offset, 12.4 + offset])
    found = ahead(FIRST, other)
    assert abs(found) <= abs(offset) + 1e-9
    assert abs(found - offset) <= 0.12


def test_clocks_that_may_agree_are_not_called_apart() -> None:
    assert ahead(FIRST, ([10.0, 10.9, 12.0], [10.4, 11.1, 12.3])) == 0
    assert ahead(FIRST, FIRST) == 0
