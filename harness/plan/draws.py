"""The randomness of plans: raw Philox words, one stream for each purpose, so that no two purposes share a word."""

from collections.abc import Callable
from enum import IntEnum

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.shape import KEEP, Shape

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
    FILES_OF_A_PASS = 11  # unsharded-shuffle


def draw_words(purpose: Purpose, unit: int, epoch: int, seed: int, count: int) -> Words:
    """uint64 [count] for one unit: a rank or a node, or 0 if all ranks draw the same words.

    Seed and epoch are the key of Philox; purpose and unit are the upper half of its counter. `count` words never fill
    the lower half (2**128 blocks of four words), so no two streams overlap.
    """
    key = np.array([seed, epoch], dtype=np.uint64)
    counter = np.array([0, 0, unit, purpose], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(count)


def permutation_of(drawn: Words) -> Ids:
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
    return np.concatenate([items, left[permutation_of(drain)]])


def sharers(shape: Shape) -> int:
    """How many ranks divide one share among themselves."""
    return shape.ranks_per_node if shape.shard == "node" else 1


def slice_files(shape: Shape, shares: int, share: int) -> Ids:
    """A contiguous slice of the files. With `last` "pad" the last shares continue at the first file.

    With `last` "keep" some shares have one file more than others.
    """
    if shape.last == KEEP:
        _require_files(shape, shares)
        return np.arange(share * shape.files // shares, (share + 1) * shape.files // shares, dtype=np.int64)
    each = _files_per_share(shape, shares)
    return np.arange(share * each, (share + 1) * each, dtype=np.int64) % shape.files


def stride_files(shape: Shape, shares: int, share: int) -> Ids:
    """Every shares-th file, as far as `last` allows: "pad" continues at the first file, "keep" deals all files."""
    if shape.last == KEEP:
        _require_files(shape, shares)
        return np.arange(share, shape.files, shares, dtype=np.int64)
    return np.arange(share, _files_per_share(shape, shares) * shares, shares, dtype=np.int64) % shape.files


def stage_partition(files: int, nodes: int, node: int) -> Ids:
    """Every nodes-th file, floor(files / nodes) on every node. No node has the remainder (`per_rank = len // size`).

    Source: the trimmed `.shard()` of the climate benchmark's readers. UsageError when there are fewer files than nodes.
    """
    if files < nodes:
        raise UsageError(
            f"stage-partition gives every node files of its own, but {nodes} nodes cannot share {files} files. Use "
            f"at most {files} nodes, more files, or --placement stage-replicate."
        )
    return np.arange(node, files - files % nodes, nodes, dtype=np.int64)


def subset_count(files: int, ranks: int, count: int | None) -> int:
    """Files that each rank draws: `count`, or its fair share floor(files / ranks).

    UsageError when that is less than one file, or more files than the dataset has.
    """
    chosen = files // ranks if count is None else count
    if not 0 < chosen <= files:
        raise UsageError(
            f"Each of {ranks} ranks cannot draw {chosen} different files of {files}. Use --order 'subset-shuffle(N)' "
            f"with N from 1 to {max(files, 1)}, or more files."
        )
    return chosen


def stage_subset(files: int, ranks: int, rank: int, count: int | None, seed: int) -> Ids:
    """The `count` files that this rank draws, ascending: without replacement, and independently of other ranks.

    So several ranks may want a file, or none (Kurth et al., SC'18: 250 training files a process on Summit).
    `count` and UsageError as `subset_count`.
    """
    count = subset_count(files, ranks, count)
    drawn = draw_words(Purpose.SUBSET, rank, 0, seed, files)
    # the files with the smallest words; [:count] for a tie at the edge, so that all machines agree
    return np.flatnonzero(drawn <= np.partition(drawn, count - 1)[count - 1])[:count].astype(np.int64, copy=False)


# How an order cuts a shape: Shape -> Shape with the steps of an epoch. UsageError when there is no step.


def by_samples(shape: Shape) -> Shape:
    """Samples are dealt, not files."""
    return replace(shape, cut=None)


def by_slices(shape: Shape) -> Shape:
    """Shares as `slice_files`, of a rank or a node."""
    shares = shape.ranks // sharers(shape)
    if shape.last == KEEP:
        return _equalise_steps(shape, _totals(shape, shares, slice_files), sharers(shape), shape.samples)
    sizes = shape.sizes(_files_per_share(shape, shares) * shares)
    return _equalise_steps(shape, sizes.reshape(shares, -1).sum(axis=1), sharers(shape), shape.samples)


def by_turns(shape: Shape) -> Shape:
    """Shares as `stride_files`, of a rank."""
    if shape.last == KEEP:
        return _equalise_steps(shape, _totals(shape, shape.ranks, stride_files), 1, shape.samples)
    sizes = shape.sizes(_files_per_share(shape, shape.ranks) * shape.ranks)
    return _equalise_steps(shape, sizes.reshape(-1, shape.ranks).sum(axis=0), 1, shape.samples)


def by_nodes(shape: Shape) -> Shape:
    """Shares as under stage-partition, one for each node. Its remainder is dropped, with `last` "pad" too.

    With `last` "keep" the first nodes have one file more.
    """
    _require_files(shape, shape.nodes)
    if shape.last == KEEP:
        return _equalise_steps(shape, _totals(shape, shape.nodes, stride_files), shape.ranks_per_node, shape.samples)
    totals = shape.sizes(shape.files - shape.files % shape.nodes).reshape(-1, shape.nodes).sum(axis=0)
    return _equalise_steps(shape, totals, shape.ranks_per_node, int(totals.sum()))


def by_permutation(shape: Shape) -> Shape:
    """Shares are slices of the permuted files, one for each rank. Bounds: the smallest and largest possible share."""
    if shape.last == KEEP:
        _require_files(shape, shape.ranks)
        fewest, most = shape.files // shape.ranks, -(-shape.files // shape.ranks)
        return _equalise_steps(
            shape, np.array([_extremes(shape, fewest)[0], _extremes(shape, most)[1]]), 1, shape.samples
        )
    return _equalise_steps(shape, _extremes(shape, _files_per_share(shape, shape.ranks)), 1, shape.samples)


def by_draws(shape: Shape, count: int | None = None) -> Shape:
    """Each rank draws its files (`stage_subset`). Bounds: the smallest and largest possible draw."""
    count = subset_count(shape.files, shape.ranks, count)
    cut = _equalise_steps(shape, _extremes(shape, count), 1, shape.samples)
    # how far the draws overlap depends on the seed, so different samples are counted by deliveries
    return replace(cut, cut=(cut.steps, min(shape.samples, cut.delivered)))


def _files_per_share(shape: Shape, shares: int) -> int:
    """Files in a share: floor(files / shares) with `last` "drop", else enough that no file is left over."""
    _require_files(shape, shares)
    return shape.files // shares if shape.last == "drop" else -(-shape.files // shares)


def _require_files(shape: Shape, shares: int) -> None:
    if shape.files < shares:
        who = "nodes" if shares == shape.nodes < shape.ranks else "ranks"
        raise UsageError(
            f"This order deals whole files, but {shares} {who} cannot share {shape.files} files. Use at most "
            f"{shape.files} {who}, more files, or an order of samples (sequential, global-shuffle)."
        )


def _totals(shape: Shape, shares: int, deal: Callable[[Shape, int, int], Ids]) -> Ids:
    """Samples of each share."""
    sizes = shape.sizes(shape.files)
    return np.array([int(sizes[deal(shape, shares, share)].sum()) for share in range(shares)])


def _extremes(shape: Shape, files: int) -> Ids:
    """Samples of the smallest and of the largest `files` files."""
    sizes = np.sort(shape.sizes(shape.files))
    return np.array([sizes[:files].sum(), sizes[len(sizes) - files :].sum()])


def _equalise_steps(shape: Shape, totals: Ids, sharing: int, different: int) -> Shape:
    """Every share gets the steps of the smallest one; with "pad" or "keep", of the largest. `totals`: of the shares."""
    step = sharing * shape.batch
    least, most = int(totals.min()), int(totals.max())
    padding = shape.last != "drop"
    steps = -(-most // step) if padding else least // step
    if steps == 0 or least == 0:
        who = f"a node's {sharing} ranks" if sharing > 1 else "a rank"
        raise UsageError(
            f"The files of {who} hold only {least} samples, but a step takes {step} (a batch of {shape.batch} each). "
            "Use fewer nodes or ranks, a smaller batch, or more data."
        )
    return replace(shape, cut=(steps, different if padding else steps * shape.step))
