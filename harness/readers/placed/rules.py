"""What a rank decides about a sample while it runs: pure functions, which readers execute and predictions replay.

A sample that a node keeps is fetched once, by the first thread of its keeper that needs it; others wait for that
thread. A node that does not keep a sample asks its holder, which fetches it if no thread has begun.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dlio_bench.batches import Ids
from dlio_bench.harness.plan.placement.rule import Behaviour, Placement
from dlio_bench.harness.plan.shape import Shape
from dlio_bench.harness.readers.placed.claims import SampleState
from dlio_bench.harness.readers.placed.layout import TierLayout
from dlio_bench.harness.readers.placed.tiers import RAM, REMOTE
from dlio_bench.harness.storage.chunks import chunk_of, join_ids

# A holder is taken to have a sample when this node has filled the same tier this many samples further: nodes fill their
# tiers at about the same pace (SC'21, section 5; REMOTE_PREFETCH_OFFSET_DIFF of its runtime).
AHEAD_OF_HOLDER = 20
FILL_BYTES = 1 << 20  # small samples are fetched into a tier together, up to this size

Beats = Callable[[str], bool]  # whether the file system delivers faster than this source (see speeds.Speeds)


class Origin(Enum):
    """Where a rank gets a sample."""

    TIER = auto()  # this node's tier has it
    COMING = auto()  # this node's tier, as soon as another thread of this rank has fetched the sample
    FILES = auto()  # the file system
    CLAIMED = auto()  # the file system; the rank puts it into its tier
    COPY = auto()  # its holder; the rank puts it into its tier
    KEEPER = auto()  # the rank of this node that fetches it
    HOLDER = auto()  # the rank of another node that holds it
    LATER = auto()  # no source before the trainer needs it


class Outlook(NamedTuple):
    """What a rank knows when it needs samples. alone: there is no other rank. slow: for each tier, whether the file
    system is faster. asks: whether to ask other nodes. ahead: the trainer does not need the samples yet.
    """

    bypassed: bool
    alone: bool
    slow: Sequence[bool]
    asks: bool
    ahead: bool


def rival(layout: TierLayout, tiers: Sequence[str]) -> str | None:
    """The source that the file system must beat to be a node's fastest; None if no node keeps anything."""
    if (layout.holder >= 0).any():
        return REMOTE
    return tiers[0] if len(layout.ids) else None


def bypasses_tiers(behaviour: Behaviour, best: str | None, beats: Beats) -> bool:
    """Whether tiers are bypassed, because the file system is the only source or the fastest one.

    best: the node's `rival`.
    """
    return behaviour.ahead_pfs if best is None else prefers_files(behaviour, best, beats)


def prefers_files(behaviour: Behaviour, source: str, beats: Beats) -> bool:
    """Whether to read the file system although `source` has a sample. Some policies never do."""
    return behaviour.ahead_pfs and not behaviour.waits and beats(source)


def current_outlook(
    behaviour: Behaviour, tiers: Sequence[str], best: str | None, beats: Beats, *, alone: bool, ahead: bool
) -> Outlook:
    """The current Outlook. `tiers`: names. No file system beats memory once a sample is there."""
    slow = [tier != RAM and prefers_files(behaviour, tier, beats) for tier in tiers]
    asks = not alone and not prefers_files(behaviour, REMOTE, beats)
    return Outlook(bypasses_tiers(behaviour, best, beats), alone, slow, asks, ahead)


def origin(
    layout: TierLayout,
    behaviour: Behaviour,
    now: Outlook,
    sample: int,
    state: SampleState | None,
    progress: Sequence[int],
) -> Origin:
    """Where to get a sample. state: the answer of Claims.take, or ABSENT if tiers are bypassed; None: the node does not
    keep the sample. progress: how many places of each tier the node has filled.
    """
    if state is None:
        return _remote_origin(layout, behaviour, now, sample, progress)
    if state is SampleState.PRESENT:
        return Origin.FILES if now.slow[layout.tier[layout.number[sample]]] else Origin.TIER
    if state is SampleState.BUSY:
        return Origin.COMING
    if state is SampleState.CLAIMED:
        copied = layout.copy[layout.number[sample]] and not now.alone and layout.holder[sample] >= 0
        return Origin.COPY if copied else Origin.CLAIMED
    if state is SampleState.ABSENT or now.alone:
        return Origin.FILES
    return Origin.KEEPER


def _remote_origin(
    layout: TierLayout, behaviour: Behaviour, now: Outlook, sample: int, progress: Sequence[int]
) -> Origin:
    if now.asks and may_have(layout, behaviour, sample, progress):
        return Origin.HOLDER
    late = now.ahead and not behaviour.ahead_pfs and layout.holder[sample] < 0
    return Origin.LATER if late else Origin.FILES


def may_have(layout: TierLayout, behaviour: Behaviour, sample: int, progress: Sequence[int]) -> bool:
    """Whether to expect that another node has a sample that this one does not keep."""
    if layout.holder[sample] < 0:
        return False
    if not behaviour.guesses:
        return True
    tier = int(layout.holder_tier[sample])
    first, last = int(layout.bounds[tier]), int(layout.bounds[tier + 1])
    # as published: this node has filled the tier, or has no such tier, or has filled it far enough
    filled = progress[tier]
    return filled >= last - first or filled > int(layout.holder_place[sample]) + AHEAD_OF_HOLDER


class Answer(Enum):
    """What a rank does when another one asks for a sample."""

    GIVE = auto()
    BRING = auto()  # fetch it, and give it
    WAIT = auto()  # for the thread that fetches it, and give it
    REFUSE = auto()  # the other reads the file system


def answer(behaviour: Behaviour, state: SampleState, *, mine: bool) -> Answer:
    """How a rank answers a request for a sample that its node keeps. mine: the rank is its keeper.

    It fetches an absent sample for the other rank, so that each sample is read from the file system once, whichever
    rank is ahead. Under a policy that guesses, as published, it fetches nothing for others.
    """
    if state is SampleState.PRESENT:
        return Answer.GIVE
    if not mine or (state is SampleState.ABSENT and behaviour.guesses):
        return Answer.REFUSE
    return Answer.BRING if state is SampleState.ABSENT else Answer.WAIT


def filling_threads(threads: int) -> int:
    """How many threads of a rank fill each tier, if `threads` read."""
    return max(1, threads // 2)


def fill_runs(layout: TierLayout, rank: int, *, copies: bool) -> list[list[list[int]]]:
    """What a rank fetches into each tier, in order, a few neighbours at a time: from the file system or (`copies`) from
    other nodes. The numbers count what the node keeps.
    """
    mine = (layout.keeper[layout.ids] == rank) & (layout.copy == copies)
    tiers = []
    for first, last in pairwise(layout.bounds.tolist()):
        numbers = first + np.flatnonzero(mine[first:last])
        part = (np.cumsum(layout.size[numbers]) - layout.size[numbers]) // FILL_BYTES
        runs = np.split(numbers, np.flatnonzero(np.diff(part)) + 1)
        tiers.append([run.tolist() for run in runs if len(run)])
    return tiers


class Groups(NamedTuple):
    """The groups of neighbouring samples in which a plan is read. ids, within [n]: where each starts in its batch.

    rows [groups + 1]: the samples of a group. batches [groups].
    """

    ids: Ids
    within: Ids
    rows: Ids
    batches: Ids


def groups(plan: Sequence[Ids], sizes: Callable[[Ids], Ids], group_bytes: int, *, of_one: bool) -> Groups:
    """Cut batches into groups of about `group_bytes`. sizes: delivered bytes of each sample. of_one: each is a file."""
    ids, batches = join_ids(plan)
    starts = np.concatenate([[0], np.cumsum(sizes(ids))])
    counts = np.array([len(batch) for batch in plan], dtype=np.int64)
    within = starts[:-1] - starts[counts.cumsum() - counts][batches]
    return Groups(ids, within, *chunk_of(batches, within, group_bytes, np.arange(len(ids)) if of_one else None))


# (rank, steps of an epoch, seed) -> the ids of each epoch, int64 [steps, batch]
Draw = Callable[[int, int, int], Sequence[Ids]]


def draw_of(rule: Placement, sizes: Ids, capacities: Sequence[int], shape: Shape, epochs: int) -> Draw:
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
