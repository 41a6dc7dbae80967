"""How well orders mix: their permutations against what random ones would be."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from dlio_bench.harness.plan.orders import ORDERS, Ids, Shape, find_order


def of_global_shuffle(epoch: int, seed: int) -> Ids:
    return ORDERS["global-shuffle"](Shape(N, 1, 1), 0, epoch, seed).ravel()


def of_node_shuffle(epoch: int, seed: int) -> Ids:
    ids = ORDERS["node-shuffle"](Shape(2 * N, 4, 1, ranks_per_node=2), 2, epoch, seed).ravel()
    other = ORDERS["node-shuffle"](Shape(2 * N, 4, 1, ranks_per_node=2), 3, epoch, seed).ravel()
    return np.stack([ids, other], axis=1).ravel() // 2


def of_subset_shuffle(epoch: int, seed: int) -> Ids:
    return find_order(f"subset-shuffle({N})")(Shape(N, 2, 1), 1, epoch, seed).ravel()


def of_buffered_shuffle(epoch: int, seed: int) -> Ids:
    return ORDERS["buffered-shuffle"](Shape(2 * N, 2, 1), 1, epoch, seed).ravel() // 2


def of_own_files(epoch: int, seed: int) -> Ids:
    return ORDERS["file-shuffle"](Shape(2 * N, 2, 1), 1, epoch + 1, seed).ravel() - N


def of_all_files(epoch: int, seed: int) -> Ids:
    return ORDERS["global-file-shuffle"](Shape(N, 1, 1), 0, epoch + 1, seed).ravel()


def of_a_file_of_ones_own(epoch: int, seed: int) -> Ids:
    ids = ORDERS["file-shuffle"](Shape(2 * N, 1, 1, bounds=np.array([0, N, 2 * N])), 0, epoch, seed).ravel()
    return ids[ids < N]


def of_a_file_of_all(epoch: int, seed: int) -> Ids:
    ids = ORDERS["global-file-shuffle"](Shape(2 * N, 1, 1, bounds=np.array([0, N, 2 * N])), 0, epoch, seed).ravel()
    return ids[ids >= N] - N


N, DRAWS = 128, 200
PERMUTATIONS: list[Callable[[int, int], Ids]] = [
    of_global_shuffle,
    of_node_shuffle,
    of_subset_shuffle,
    of_buffered_shuffle,
    of_own_files,
    of_all_files,
    of_a_file_of_ones_own,
    of_a_file_of_all,
]


@pytest.mark.parametrize("draw", PERMUTATIONS)
def test_permutations_are_well_mixed(draw: Callable[[int, int], Ids]) -> None:
    drawn = np.stack([draw(seed % 3, seed) for seed in range(DRAWS)])
    assert (np.sort(drawn, axis=1) == np.arange(N)).all()
    # every item comes everywhere alike: chi-square of 16 x 16 cells, 225 degrees of freedom, five deviations of 21
    cells = np.histogram2d(np.tile(np.arange(N), DRAWS), drawn.ravel(), bins=16)[0]
    expected = DRAWS * N / 256
    assert 120 < ((cells - expected) ** 2 / expected).sum() < 330
    # a random permutation has one fixed point and one item behind its neighbour on average: 200 draws +- 5 x 14
    assert 130 < (drawn == np.arange(N)).sum() < 270
    assert 130 < (np.diff(drawn, axis=1) == 1).sum() < 270
    # draws of other seeds and epochs agree in one place on average
    agree = (drawn[1:] == drawn[:-1]).sum()
    assert 130 < agree < 270
    epochs_apart = np.array([(draw(1, seed) == draw(2, seed)).sum() for seed in range(DRAWS)]).sum()
    assert 130 < epochs_apart < 270


def test_ranks_and_nodes_mix_their_shares_differently() -> None:
    for name in ("file-shuffle", "buffered-shuffle", "buffered-shuffle(40)", "node-shuffle"):
        shape = Shape(512, 4, 1)
        places = []  # of the items of a share, each counted from its own start
        for rank in range(4):
            ids = find_order(name)(shape, rank, 1, 5).ravel()
            places.append(np.argsort(ids))
        for one, other in combinations(places, 2):
            assert (one == other).sum() < 10  # 1 is expected, some more of a small buffer
