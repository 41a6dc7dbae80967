"""Orders that belong to a placement: a node reads what is near instead of its part of the global shuffle."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.plan.placement.rule import DoesNotApplyError, NodeContents

_OPPORTUNISTIC, _STAGED, _SHARE = 1 << 60, 2 << 60, 3 << 60  # Philox streams, apart from the epochs of other orders


def _draw_words(seed: int, stream: int, node: int, count: int) -> npt.NDArray[np.uint64]:
    return np.random.Philox(key=np.array([seed, stream + node], dtype=np.uint64)).random_raw(count)


def _bounded_integers(words: npt.NDArray[np.uint64], bound: int) -> Ids:
    """Words -> integers in [0, bound), bound < 2^32: the upper half of each word, scaled."""
    return ((words >> np.uint64(32)) * np.uint64(bound) >> np.uint64(32)).astype(np.int64)


def _require_kept(contents: Sequence[NodeContents], node: int) -> Ids:
    kept = contents[node].ids
    if not len(kept):
        raise DoesNotApplyError(
            f"The order is drawn from what a node keeps, but node {node} has no room for a sample. Use larger tiers."
        )
    return kept


def opportunistic(contents: Sequence[NodeContents], node: int, count: int, per_epoch: int, seed: int) -> Ids:
    """DeepIO's opportunistic order: `count` ids that are in memory, with replacement.

    A draw is local with probability 1 / (nodes - 1), else from the next node's RAM, as in the published model of DeepIO
    (Boehringer, ETH 2020, section 5.2). DoesNotApplyError if the node keeps nothing.
    """
    del per_epoch
    nodes = len(contents)
    kept, neighbour_kept = _require_kept(contents, node), contents[(node + 1) % nodes].ids
    if not len(neighbour_kept):
        neighbour_kept = kept
    words = _draw_words(seed, _OPPORTUNISTIC, node, 2 * count)
    local = _bounded_integers(words[:count], max(1, nodes - 1)) == 0
    drawn = words[count:]
    return np.where(
        local, kept[_bounded_integers(drawn, len(kept))], neighbour_kept[_bounded_integers(drawn, len(neighbour_kept))]
    )


def staged_draws(contents: Sequence[NodeContents], node: int, count: int, per_epoch: int, seed: int) -> Ids:
    """Parallel staging's order: `count` draws, with replacement, from what the node keeps. DoesNotApplyError."""
    del per_epoch
    kept = _require_kept(contents, node)
    return kept[_bounded_integers(_draw_words(seed, _STAGED, node, count), len(kept))]


def share_shuffle(contents: Sequence[NodeContents], node: int, count: int, per_epoch: int, seed: int) -> Ids:
    """The first `per_epoch` ids of a new permutation, every epoch, of what the node keeps; `count` ids in all."""
    kept = np.sort(contents[node].ids)
    epochs = -(-count // per_epoch)
    words = _draw_words(seed, _SHARE, node, epochs * len(kept)).reshape(epochs, len(kept))
    order: Ids = np.argsort(words, axis=1, kind="stable")[:, :per_epoch]
    return kept[order].reshape(-1)[:count]
