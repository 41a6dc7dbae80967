"""The cores of a rank: those of its own, and its part of those that it shares."""

import os
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.harness.cluster.comm import Cores, Solo, allowed_cpus, cores_of
from dlio_bench.harness.readers.threads import spare_cores

MACHINE = 8
ANY = frozenset(range(MACHINE))


def of(number: int, *of_ranks: Sequence[int], usable: int | None = None) -> Cores:
    """The cores of one of the ranks of a host."""
    sets = [frozenset(cpus) for cpus in of_ranks]
    return cores_of(sets[number], sets, len(frozenset().union(*sets)) if usable is None else usable, MACHINE)


@pytest.mark.parametrize("ranks", range(1, 13))
def test_ranks_that_nobody_binds_share_all_cores_in_equal_parts(ranks: int) -> None:
    all_alike = of(0, *[range(MACHINE)] * ranks)
    assert all_alike == (MACHINE / ranks, ANY, None)
    assert spare_cores(all_alike.rank) == MACHINE // ranks - 1


def test_bound_ranks_have_their_cores_to_themselves() -> None:
    assert [of(rank, [0, 1, 2, 3], [4, 5, 6, 7])[::2] for rank in (0, 1)] == [(4.0, 4)] * 2
    assert [of(rank, *([core] for core in range(MACHINE))) for rank in (0, 7)] == [(1.0, ANY, 1)] * 2
    assert of(0, [3], [3]) == (0.5, frozenset({3}), 1)  # two ranks on one core, and seven cores idle


def test_cores_that_some_ranks_share_count_in_parts() -> None:
    sets = ([0, 1, 2], [2], [2, 3])
    assert [of(rank, *sets).rank for rank in range(3)] == pytest.approx([2 + 1 / 3, 1 / 3, 1 + 1 / 3])
    thirds = ([0, 1, 2], [0, 1, 2], [0, 1, 2])
    assert of(0, *thirds).rank == 1.0  # exactly: as many threads as whole cores


def test_a_quota_cuts_the_parts_of_all_ranks() -> None:
    assert of(0, range(8), range(8), usable=4).rank == 2.0
    assert of(0, [0, 1, 2, 3], [4, 5, 6, 7], usable=2).rank == 1.0


@given(st.lists(st.frozensets(st.integers(0, MACHINE - 1), min_size=1), min_size=1, max_size=9))
def test_the_parts_of_all_ranks_are_the_cores_of_the_host(sets: list[frozenset[int]]) -> None:
    usable = max(1, len(frozenset().union(*sets)) // 2)
    assert sum(cores_of(cpus, sets, usable, MACHINE).rank for cpus in sets) == pytest.approx(usable)


def test_a_rank_alone_has_the_processors_that_it_may_run_on() -> None:
    every = allowed_cpus()
    assert Solo().cores.host == every
    os.sched_setaffinity(0, {min(every)})
    try:
        assert Solo().cores == (1.0, {min(every)}, 1 if (os.cpu_count() or 1) > 1 else None)
    finally:
        os.sched_setaffinity(0, every)
