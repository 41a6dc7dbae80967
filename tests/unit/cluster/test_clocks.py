"""How far two clocks are apart, from what barriers allow."""

import pytest

from dlio_bench.harness.cluster.clocks import ClockOffset, clock_offset, drift, interpolate, wall_ahead

FIRST = ([10.0, 11.0, 12.0], [10.4, 11.1, 12.3])  # came, left


@pytest.mark.parametrize("offset", [5.0, -3.0, 0.25, 0.0])
def test_the_offset_is_at_most_the_shortest_barrier_too_small(offset: float) -> None:
    other = ([10.1 + offset, 11.05 + offset, 12.0 + offset], [10.5 + offset, 11.12 + offset, 12.4 + offset])
    found = clock_offset(FIRST, other)
    assert abs(found) <= abs(offset) + 1e-9
    assert abs(found - offset) <= 0.12


def test_clocks_that_may_agree_are_not_called_apart() -> None:
    assert clock_offset(FIRST, ([10.0, 10.9, 12.0], [10.4, 11.1, 12.3])) == 0
    assert clock_offset(FIRST, FIRST) == 0


def test_a_process_that_loses_its_processor_between_two_clocks_sees_no_drift() -> None:
    interrupted = (999.92, 1000.0)  # 80 ms between the reads of the two clocks
    assert drift((1000.0, 1000.0), interrupted) == drift(interrupted, (1000.0, 1000.0)) == 0
    assert drift((1000.0, 1000.00001), (1000.5, 1000.50001)) == pytest.approx(0.49999)
    assert drift((1000.0, 1000.00001), (997.0, 997.00001)) == pytest.approx(-2.99999)


def test_both_clocks_of_a_host_are_read_together() -> None:
    least, most = wall_ahead()
    assert -1e-6 < most - least < 60  # a wall clock's float resolves 0.24 µs
    assert abs(drift((least, most), wall_ahead())) < 1


def test_between_two_estimates_the_middle_holds_give_or_take_half_the_drift() -> None:
    held = interpolate(ClockOffset(12.3e-3, 40e-6), ClockOffset(12.5e-3, 30e-6))
    assert held.seconds == pytest.approx(12.4e-3)
    assert held.within == pytest.approx(140e-6)
    assert interpolate(ClockOffset(0, 0), ClockOffset(0, 0)) == ClockOffset(0, 0)
