"""Where plans get their chance from: raw Philox words, one stream for every purpose, so that no two share a word."""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


class Purpose(IntEnum):
    """What a stream of words decides. Numbers are part of every plan: add new ones behind, never renumber."""

    SAMPLES_OF_ALL = 0  # global-shuffle: the first, and the only one whose published seeds have no other part
    FILES_OF_A_SHARE = 1  # file-shuffle
    SAMPLES_OF_A_SHARE = 2
    FILES_OF_ALL = 3  # global-file-shuffle
    SAMPLES_OF_A_DEAL = 4
    BUFFER_SLOTS = 5  # buffered-shuffle
    BUFFER_DRAIN = 6
    SAMPLES_OF_A_NODE = 7  # node-shuffle
    SUBSET = 8  # stage-subset: which files
    SAMPLES_OF_A_SUBSET = 9  # subset-shuffle
    FILES_OF_A_DRAW = 10  # overlapping-shuffle


def words(purpose: Purpose, unit: int, epoch: int, seed: int, count: int) -> Words:
    """uint64 [count] for one unit (a rank or a node; 0 where all draw alike).

    Seed and epoch are the key of Philox; purpose and unit are the upper half of its counter, of which `count` words
    never fill the lower half (2**128 blocks of four words). So streams are disjoint by construction.
    """
    key = np.array([seed, epoch], dtype=np.uint64)
    counter = np.array([0, 0, unit, purpose], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(count)


def shuffled(drawn: Words) -> Ids:
    """The permutation of range(len(drawn)) that these words stand for: their stable sort, in a third of argsort's time.

    Each word's position replaces its last bits, and numbers are sorted. What is equal but for those bits, some ten of
    10 million random words, is put in order by the whole words.
    """
    bits = np.uint64(max(len(drawn) - 1, 0).bit_length())
    last = (np.uint64(1) << bits) - np.uint64(1)
    packed = drawn & ~last
    packed |= np.arange(len(drawn), dtype=np.uint64)
    packed.sort()
    order: Ids = (packed & last).view(np.int64)
    packed >>= bits
    alike = np.flatnonzero(packed[1:] == packed[:-1])
    at = np.union1d(alike, alike + 1)
    order[at] = order[at][np.lexsort((order[at], drawn[order[at]]))]
    return order


def through_buffer(slots: Words, drain: Words) -> Ids:
    """The permutation that a shuffle buffer of len(drain) slots makes of len(slots) + len(drain) items.

    tf.data's algorithm (`Dataset.shuffle`): the buffer is filled with the first items; then a random slot is emitted
    and refilled with the next item; at the end what is left comes in random order. Word t of `slots` chooses the slot
    of emission t, modulo the slots; the left-over comes by the sort of `drain`. So no item comes more than
    len(drain) - 1 positions early; it may come arbitrarily late.

    Slot s emits at time t what was put there when it was last emitted, at time t' < t: item len(drain) + t'; or item
    s, when it never was. Finding t' is a sort by slot, no loop over items.
    """
    size, emitted = len(drain), len(slots)
    slot = (slots % np.uint64(max(size, 1))).astype(np.int64)
    by_slot = np.argsort(slot, kind="stable")
    again = slot[by_slot[1:]] == slot[by_slot[:-1]]
    items = slot.copy()
    items[by_slot[1:][again]] = size + by_slot[:-1][again]
    last = by_slot[np.append(~again, True)[:emitted]]  # the last emission of each slot that had one
    left = np.arange(size, dtype=np.int64)
    left[slot[last]] = size + last
    return np.concatenate([items, left[shuffled(drain)]])
