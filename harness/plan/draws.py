"""The randomness of plans: raw Philox words, one stream for each purpose, so that no two purposes share a word."""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


class Purpose(IntEnum):
    """What a stream of words decides. The numbers are part of every plan: append new ones, never renumber."""

    SAMPLES_OF_ALL = 0  # global-shuffle
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
    """uint64 [count] for one unit: a rank or a node, or 0 if all ranks draw the same words.

    Seed and epoch are the key of Philox; purpose and unit are the upper half of its counter. `count` words never fill
    the lower half (2**128 blocks of four words), so no two streams overlap.
    """
    key = np.array([seed, epoch], dtype=np.uint64)
    counter = np.array([0, 0, unit, purpose], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(count)


def shuffled(drawn: Words) -> Ids:
    """The permutation of range(len(drawn)) that sorts these words (stable), in a third of argsort's time.

    The position of each word replaces its last bits, and the results are sorted. Words that differ only in those bits,
    about ten of 10 million, are then sorted by the whole words.
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

    tf.data's algorithm (`Dataset.shuffle`): fill the buffer with the first items; then emit a random slot and refill it
    with the next item; at the end emit the rest in random order. Word t of `slots`, modulo the number of slots, chooses
    the slot of emission t; the sort of `drain` orders the rest. So an item comes at most len(drain) - 1 positions early
    and arbitrarily late.

    At time t slot s emits the item that refilled it at its last emission t' < t, which is item len(drain) + t', or
    item s if the slot was not emitted before. A sort by slot finds t' without a loop over items.
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
