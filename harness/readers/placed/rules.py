"""What a rank decides about a sample while it runs: pure functions, which readers execute and predictions replay.

A sample that a node keeps is fetched once, by whoever of its keeper's threads needs it first; others wait for that one.
Who does not keep a sample asks its holder, which brings it if it has not begun.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dlio_bench.batches import Ids
from dlio_bench.harness.plan.placement.rule import Behaviour
from dlio_bench.harness.readers.placed.claims import State
from dlio_bench.harness.readers.placed.layout import Layout
from dlio_bench.harness.readers.placed.speeds import REMOTE
from dlio_bench.harness.readers.placed.tiers import RAM
from dlio_bench.harness.storage.chunks import chunk_of, joined_ids

# A holder is taken to have a sample when this node's own filling of the same tier is so many samples further: nodes
# fill their tiers at about the same pace (SC'21, section 5; REMOTE_PREFETCH_OFFSET_DIFF of its runtime).
AHEAD_OF_HOLDER = 20
FILL_BYTES = 1 << 20  # brought into a tier at a time, where samples are smaller

Beats = Callable[[str], bool]  # whether the file system delivers faster than this source (see speeds.Speeds)


class Origin(Enum):
    """Where a rank gets a sample."""

    TIER = auto()  # this node's tier has it
    COMING = auto()  # the same, when another thread of this rank has brought it
    FILES = auto()  # the file system
    CLAIMED = auto()  # the file system, and the rank puts it into its tier
    COPY = auto()  # its holder, and the rank puts it into its tier
    KEEPER = auto()  # the rank of this node that brings it
    HOLDER = auto()  # the rank of another node that holds it
    LATER = auto()  # not before the trainer needs it


class Outlook(NamedTuple):
    """What a rank knows when samples are asked of it. alone: there is no other rank. slow: by tier, whether the file
    system beats it. asks: whether other nodes are asked. ahead: the trainer does not need the samples yet.
    """

    bypassed: bool
    alone: bool
    slow: Sequence[bool]
    asks: bool
    ahead: bool


def rival(layout: Layout, tiers: Sequence[str]) -> str | None:
    """The source that the file system must beat to be the best one for a node; None where nobody keeps anything."""
    if (layout.holder >= 0).any():
        return REMOTE
    return tiers[0] if len(layout.ids) else None


def bypassed(behaviour: Behaviour, best: str | None, beats: Beats) -> bool:
    """Whether tiers are bypassed: the file system is the only source, or the fastest, so that keeping is a waste.

    best: the node's `rival`.
    """
    return behaviour.ahead_pfs if best is None else prefers_files(behaviour, best, beats)


def prefers_files(behaviour: Behaviour, source: str, beats: Beats) -> bool:
    """Whether the file system is read although `source` has a sample. Some policies never do."""
    return behaviour.ahead_pfs and not behaviour.waits and beats(source)


def outlook(
    behaviour: Behaviour, tiers: Sequence[str], best: str | None, beats: Beats, *, alone: bool, ahead: bool
) -> Outlook:
    """What holds now for a node's tiers, by name. No file system beats memory once a sample is there."""
    slow = [tier != RAM and prefers_files(behaviour, tier, beats) for tier in tiers]
    asks = not alone and not prefers_files(behaviour, REMOTE, beats)
    return Outlook(bypassed(behaviour, best, beats), alone, slow, asks, ahead)


def origin(
    layout: Layout, behaviour: Behaviour, now: Outlook, sample: int, state: State | None, progress: Sequence[int]
) -> Origin:
    """Where to get a sample. state: what Claims.take answers, ABSENT without asking where tiers are bypassed; None for
    a sample that the node does not keep. progress: how many places of each tier the node has filled.
    """
    if state is None:
        return _elsewhere(layout, behaviour, now, sample, progress)
    if state is State.PRESENT:
        return Origin.FILES if now.slow[layout.tier[layout.number[sample]]] else Origin.TIER
    if state is State.BUSY:
        return Origin.COMING
    if state is State.CLAIMED:
        copied = layout.copy[layout.number[sample]] and not now.alone and layout.holder[sample] >= 0
        return Origin.COPY if copied else Origin.CLAIMED
    if state is State.ABSENT or now.alone:
        return Origin.FILES
    return Origin.KEEPER


def _elsewhere(layout: Layout, behaviour: Behaviour, now: Outlook, sample: int, progress: Sequence[int]) -> Origin:
    if now.asks and may_have(layout, behaviour, sample, progress):
        return Origin.HOLDER
    late = now.ahead and not behaviour.ahead_pfs and layout.holder[sample] < 0
    return Origin.LATER if late else Origin.FILES


def may_have(layout: Layout, behaviour: Behaviour, sample: int, progress: Sequence[int]) -> bool:
    """Whether another node is taken to have a sample that this one does not keep."""
    if layout.holder[sample] < 0:
        return False
    if not behaviour.guesses:
        return True
    tier = int(layout.holder_tier[sample])
    first, last = int(layout.bounds[tier]), int(layout.bounds[tier + 1])
    # as published: the tier does not exist here, or is filled here, or far enough
    filled = progress[tier]
    return filled >= last - first or filled > int(layout.holder_place[sample]) + AHEAD_OF_HOLDER


class Answer(Enum):
    """What a rank does when another one asks for a sample."""

    GIVE = auto()
    BRING = auto()  # and give
    WAIT = auto()  # for the thread that brings it, and give
    REFUSE = auto()  # the other reads the file system


def answer(behaviour: Behaviour, state: State, *, mine: bool) -> Answer:
    """How a rank answers for a sample that its node keeps. mine: the rank is its keeper.

    So a look-ahead that is faster than this rank's own costs the file system nothing. Where the policy leaves it to
    guesses whether a sample is there, as published, nothing is brought for others.
    """
    if state is State.PRESENT:
        return Answer.GIVE
    if not mine or (state is State.ABSENT and behaviour.guesses):
        return Answer.REFUSE
    return Answer.BRING if state is State.ABSENT else Answer.WAIT


def filling_threads(threads: int) -> int:
    """Threads of a rank that fill each tier, of the threads that read."""
    return max(1, threads // 2)


def fill_runs(layout: Layout, rank: int, *, copies: bool) -> list[list[list[int]]]:
    """What a rank brings into each tier, in order, a few neighbours at a time: from the file system or (`copies`) from
    other nodes. Numbers among those that the node keeps.
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


def groups(plan: Sequence[Ids], sizes: Callable[[Ids], Ids], group_bytes: int) -> Groups:
    """Cut batches into groups of about `group_bytes`. sizes: delivered bytes of each sample."""
    ids, batches = joined_ids(plan)
    starts = np.concatenate([[0], np.cumsum(sizes(ids))])
    counts = np.array([len(batch) for batch in plan], dtype=np.int64)
    within = starts[:-1] - starts[counts.cumsum() - counts][batches]
    return Groups(ids, within, *chunk_of(batches, within, group_bytes))
