"""What every rank reads under an order that a placement draws from what each node keeps."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from dlio_bench.batches import Ids
from dlio_bench.harness.plan.placement.rule import Placement
from dlio_bench.harness.plan.shape import Shape

# (rank, steps of an epoch, seed) -> the ids of each epoch, int64 [steps, batch]
Draw = Callable[[int, int, int], Sequence[Ids]]


def drawn(rule: Placement, sizes: Ids, capacities: Sequence[int], shape: Shape, epochs: int) -> Draw:
    """The order of a policy that draws its own. `sizes` [training samples] and `capacities` in bytes.

    The draws of a node are dealt to its ranks step by step. DoesNotApplyError if a node keeps nothing.
    """
    assert rule.keep is not None
    assert rule.redraw is not None
    redraw, per_node = rule.redraw, shape.ranks_per_node
    nothing = [np.zeros(0, np.int32)] * shape.nodes  # these placements do not depend on what is read
    contents = rule.keep(nothing, sizes, capacities, 1)

    @lru_cache(maxsize=2)
    def of_node(node: int, steps: int, seed: int) -> Ids:
        per_epoch = steps * per_node * shape.batch
        ids: Ids = redraw(contents, node, epochs * per_epoch, per_epoch, seed)
        return ids.reshape(epochs, steps, per_node, shape.batch)

    def of_rank(rank: int, steps: int, seed: int) -> Sequence[Ids]:
        node, place = divmod(rank, per_node)
        return list(of_node(node, steps, seed)[:, :, place].copy())

    return of_rank
