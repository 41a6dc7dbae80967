"""Orders that belong to a placement: the node reads what is near instead of what the global shuffle says."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.plan.placement.contents import DoesNotApplyError, NodeContents

_OPPORTUNISTIC, _STAGED, _SHARE = 1 << 60, 2 << 60, 3 << 60  # streams of their own, beside the epochs of other orders


def _words(seed: int, stream: int, node: int, count: int) -> npt.NDArray[np.uint64]:
    return np.random.Philox(key=np.array([seed, stream + node], dtype=np.uint64)).random_raw(count)


def _below(words: npt.NDArray[np.uint64], bound: int) -> Ids:
    """Words -> integers in [0, bound), bound < 2^32: the upper half of the word, scaled."""
    return ((words >> np.uint64(32)) * np.uint64(bound) >> np.uint64(32)).astype(np.int64)


def _kept(contents: Sequence[NodeContents], node: int) -> Ids:
    mine = contents[node].ids
    if not len(mine):
        raise DoesNotApplyError(
            f"The order is drawn from what a node keeps, and node {node} has no room for one sample. Use larger tiers."
        )
    return mine


def opportunistic(contents: Sequence[NodeContents], node: int, count: int, per_epoch: int, seed: int) -> Ids:
    """DeepIO's opportunistic order: `count` ids that are in memory, with replacement.

    A draw is local with probability 1 / (nodes - 1), else from the next node's RAM, as the published model of DeepIO
    has it (Boehringer, ETH 2020, section 5.2). DoesNotApplyError where the node keeps nothing.
    """
    del per_epoch
    nodes = len(contents)
    mine, next_one = _kept(contents, node), contents[(node + 1) % nodes].ids
    if not len(next_one):
        next_one = mine
    words = _words(seed, _OPPORTUNISTIC, node, 2 * count)
    local = _below(words[:count], max(1, nodes - 1)) == 0
    drawn = words[count:]
    return np.where(local, mine[_below(drawn, len(mine))], next_one[_below(drawn, len(next_one))])


def staged_draws(contents: Sequence[NodeContents], node: int, count: int, per_epoch: int, seed: int) -> Ids:
    """Parallel staging's order: `count` draws, with replacement, from what it keeps. DoesNotApplyError for nothing."""
    del per_epoch
    mine = _kept(contents, node)
    return mine[_below(_words(seed, _STAGED, node, count), len(mine))]


def share_shuffle(contents: Sequence[NodeContents], node: int, count: int, per_epoch: int, seed: int) -> Ids:
    """A new permutation of what the node keeps, every epoch, `per_epoch` ids of it; `count` ids in all."""
    mine = np.sort(contents[node].ids)
    epochs = -(-count // per_epoch)
    words = _words(seed, _SHARE, node, epochs * len(mine)).reshape(epochs, len(mine))
    order: Ids = np.argsort(words, axis=1, kind="stable")[:, :per_epoch]
    return mine[order].reshape(-1)[:count]
