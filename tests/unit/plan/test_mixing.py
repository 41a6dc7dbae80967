"""How well orders mix: their permutations against what random ones would be."""

from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from dlio_bench.harness.plan.orders import Ids, Shape, find_order

N, DRAWS = 128, 200


def drawn_by(name: str, epoch: int, seed: int, *, samples: int = N, ranks: int = 1, rank: int = 0, **shape: Any) -> Ids:
    return find_order(name)(Shape(samples, ranks, 1, **shape), rank, epoch, seed).ravel()


def of_node_shuffle(epoch: int, seed: int) -> Ids:
    ranks = [
        drawn_by("node-shuffle", epoch, seed, samples=2 * N, ranks=4, rank=rank, ranks_per_node=2) for rank in (2, 3)
    ]
    return np.stack(ranks, axis=1).ravel() // 2


def of_a_file(name: str, first: int, epoch: int, seed: int) -> Ids:
    ids = drawn_by(name, epoch, seed, samples=2 * N, bounds=np.array([0, N, 2 * N]))
    return ids[(ids >= first) & (ids < first + N)] - first


PERMUTATIONS: dict[str, Callable[[int, int], Ids]] = {
    "all": partial(drawn_by, "global-shuffle"),
    "of a node": of_node_shuffle,
    "of a subset": partial(drawn_by, f"subset-shuffle({N})", ranks=2, rank=1),
    "buffered": lambda *draw: drawn_by("buffered-shuffle", *draw, samples=2 * N, ranks=2, rank=1) // 2,
    "own files": lambda epoch, seed: drawn_by("file-shuffle", epoch + 1, seed, samples=2 * N, ranks=2, rank=1) - N,
    "all files": lambda epoch, seed: drawn_by("global-file-shuffle", epoch + 1, seed),
    "inside an own file": partial(of_a_file, "file-shuffle", 0),
    "inside a file of all": partial(of_a_file, "global-file-shuffle", N),
}


@pytest.mark.parametrize("draw", PERMUTATIONS.values(), ids=PERMUTATIONS)
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
