"""Orders: which sample ids a rank asks for, in which sequence, in one epoch.

An order is a pure function (shape, rank, epoch, seed) -> int64 [steps, batch]. Random orders use only raw Philox words
and integer operations, so that every machine and NumPy version makes the same plan. With `last` "keep" the last batches
of a rank may be smaller: they end with -1.

An order deals the dataset to *shares*: one for every rank, or, under shard "node", one for every node. The ranks of a
node then divide its stream step by step: local rank l gets part l of the node's samples in a step. That is the
published `--fs local` and `local_rank/local_size` for one dataset over all nodes. If every node holds the whole set and
reads all of it (CosmoFlow's `n_file_sets`), an epoch here is one nodes-th of theirs. buffered-shuffle divides a node's
files among its ranks before it shuffles, as tf.data must. Global orders, node-shuffle and subset-shuffle have only one
way to deal, and ignore `shard` "node".

Under shard "job" every rank reads what the only rank of a job would read: all samples, in the same order. Ranks that
hold parts of one model read like this ("model parallel: each process goes over the same dataset", A. Gainaru, WANT
workshop at NeurIPS 2023).
"""

import re
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.errors import UsageError, did_you_mean, one_of
from dlio_bench.harness.plan import draws
from dlio_bench.harness.plan.draws import Ids, Purpose, draw_words, permutation_of, through_buffer
from dlio_bench.harness.plan.shape import KEEP, ONE_ORDER, Shape

__all__ = ["ORDERS", "Ids", "Order", "Shape", "every_sample_once", "find_order", "permutation", "steps_of"]

BUFFER = 10_000  # samples; TensorFlow's official ImageNet pipeline, imagenet_preprocessing.py


@lru_cache(maxsize=1)  # planning for all ranks needs the permutation of an epoch once for each rank
def permutation(samples: int, epoch: int, seed: int) -> Ids:
    """The permutation of range(samples) that every rank draws alike for this epoch: a stable sort of Philox words.

    All callers share the array, so it is read-only.
    """
    order = permutation_of(draw_words(Purpose.SAMPLES_OF_ALL, 0, epoch, seed, samples))
    order.flags.writeable = False
    return order


# ---- orders of samples


def sequential(shape: Shape, rank: int, epoch: int, seed: int) -> Ids:
    """Each share is contiguous and read from front to back, the same in every epoch."""
    del epoch, seed
    sharers, share, place = _place_of(shape, rank)
    if shape.last == KEEP:
        shares = shape.ranks // sharers
        first, last = share * shape.samples // shares, (share + 1) * shape.samples // shares
        return _part(shape, np.arange(first, last, dtype=np.int64), sharers, place)
    length = shape.steps * sharers * shape.batch
    return _part(shape, np.arange(share * length, (share + 1) * length, dtype=np.int64) % shape.samples, sharers, place)


def global_shuffle(shape: Shape, rank: int, epoch: int, seed: int) -> Ids:
    """All samples permuted anew each epoch; step s of rank i is slice [i*b, (i+1)*b) of global batch s (NoPFS)."""
    return _part(shape, permutation(shape.samples, epoch, seed), shape.ranks, rank)


# ---- orders of files


def file_shuffle(shape: Shape, rank: int, epoch: int, seed: int) -> Ids:
    """Each share is a contiguous slice of files, in another order in each epoch, with the samples of a file permuted.

    Epoch 0 reads the files in their own order. (HEPCNNB's local shuffle: a rank shuffles its list of files at the end
    of an epoch, and the samples of a file when it loads the file; NERSC/DL-Parallel-IO
    benchmarks/hep_cnn/networks/binary_classifier_tf.py.)
    """
    sharers, share, place = _place_of(shape, rank)
    files = draws.slice_files(shape, shape.ranks // sharers, share)
    if epoch > 0:
        files = files[permutation_of(draw_words(Purpose.FILES_OF_A_SHARE, share, epoch, seed, len(files)))]
    return _part(
        shape, _shuffle_within_files(shape, files, Purpose.SAMPLES_OF_A_SHARE, share, epoch, seed), sharers, place
    )


def global_file_shuffle(shape: Shape, rank: int, epoch: int, seed: int) -> Ids:
    """After each epoch all ranks permute the files alike, from their last order on, and deal them again.

    So epoch 0 deals the files in their own order, and the cost grows with files times epochs. The samples of a file are
    permuted too. (HEPCNNB's global shuffle, source as in `file_shuffle`.)
    """
    order = np.arange(shape.files, dtype=np.int64)
    for earlier in range(1, epoch + 1):
        order = order[permutation_of(draw_words(Purpose.FILES_OF_ALL, 0, earlier, seed, shape.files))]
    files = order[draws.slice_files(shape, shape.ranks, rank)]
    return _part(shape, _shuffle_within_files(shape, files, Purpose.SAMPLES_OF_A_DEAL, rank, epoch, seed), 1, 0)


def buffered_shuffle(shape: Shape, rank: int, epoch: int, seed: int, *, buffer: int = BUFFER) -> Ids:
    """tf.data's shard(ranks, rank).shuffle(buffer): every ranks-th file, samples in file order, through a buffer.

    The epoch is cut (or padded) to whole steps before the shuffle, so that its set of ids does not depend on what the
    buffer emits. Under shard "node" a node's share is every nodes-th file, and local rank l has every local_size-th
    file of it, from l on: `--fs local` shards before it shuffles, too.
    """
    if shape.shard == "node":
        node, local = divmod(rank, shape.ranks_per_node)
        rank = node + local * shape.nodes
    ids = _part(shape, shape.samples_of(draws.stride_files(shape, shape.ranks, rank))[0], 1, 0)
    stream = ids[ids >= 0]
    size = min(buffer, len(stream))
    slots = draw_words(Purpose.BUFFER_SLOTS, rank, epoch, seed, len(stream) - size)
    drain = draw_words(Purpose.BUFFER_DRAIN, rank, epoch, seed, size)
    ids.ravel()[: len(stream)] = stream[through_buffer(slots, drain)]
    return ids


def node_shuffle(shape: Shape, rank: int, epoch: int, seed: int) -> Ids:
    """In each epoch a node permutes the samples of its stage-partition files; its ranks divide that stream."""
    node, place = divmod(rank, shape.ranks_per_node)
    whole = shape.last == KEEP
    files = (
        draws.stride_files(shape, shape.nodes, node) if whole else draws.stage_partition(shape.files, shape.nodes, node)
    )
    ids = shape.samples_of(files)[0]
    order = permutation_of(draw_words(Purpose.SAMPLES_OF_A_NODE, node, epoch, seed, len(ids)))
    return _part(shape, ids[order], shape.ranks_per_node, place)


def subset_shuffle(shape: Shape, rank: int, epoch: int, seed: int, *, count: int | None = None) -> Ids:
    """In each epoch a rank permutes the samples of its random files; `count` and the draw as in `stage_subset`."""
    ids = shape.samples_of(draws.stage_subset(shape.files, shape.ranks, rank, count, seed))[0]
    return _part(shape, ids[permutation_of(draw_words(Purpose.SAMPLES_OF_A_SUBSET, rank, epoch, seed, len(ids)))], 1, 0)


def overlapping_shuffle(shape: Shape, rank: int, epoch: int, seed: int) -> Ids:
    """In each epoch a rank permutes all files by a draw of its own and takes every ranks-th, so shares overlap.

    Samples come in file order. (CosmoFlow's `shuffle` before `shard` without a common seed; sparticlesteve/
    cosmoflow-benchmark @559eafb, data/cosmo.py.)
    """
    order = permutation_of(draw_words(Purpose.FILES_OF_A_DRAW, rank, epoch, seed, shape.files))
    files = order[rank :: shape.ranks][: shape.files // shape.ranks]
    return _part(shape, shape.samples_of(files)[0], 1, 0)


def unsharded_shuffle(shape: Shape, rank: int, epoch: int, seed: int) -> Ids:
    """Each rank goes through all files, which it shuffles for itself and anew for each pass; no file is dealt.

    An epoch is as many samples as a fair share would have, so that a pass takes as many epochs as there are ranks.
    Samples come in file order. (CosmoFlow's string_input_producer; NERSC/CosmoFlow, branch AugTests @6e50963,
    io_Cosmo.py.)
    """
    number, part = divmod(epoch, shape.ranks)
    files = permutation_of(draw_words(Purpose.FILES_OF_A_PASS, rank, number, seed, shape.files))
    return _part(shape, np.roll(shape.samples_of(files)[0], -part * shape.steps * shape.batch), 1, 0)


# ---- parts of orders


def _place_of(shape: Shape, rank: int) -> tuple[int, int, int]:
    """(ranks that share a stream, number of this rank's stream, its place among them)."""
    sharers = draws.sharers(shape)
    return sharers, *divmod(rank, sharers)


def _part(shape: Shape, stream: Ids, sharers: int, place: int) -> Ids:
    """Part `place` of a stream that `sharers` ranks divide, int64 [steps, batch]; padded from the stream's start."""
    if shape.last == KEEP:
        return _all_of(shape, stream, sharers, place)
    length = shape.steps * sharers * shape.batch
    if length > len(stream):
        stream = stream[np.arange(length) % len(stream)]
    # a copy: a view would keep the whole stream of every epoch in memory
    part = stream[:length].reshape(shape.steps, sharers, shape.batch)[:, place].copy()
    part += shape.first
    return part


def _all_of(shape: Shape, stream: Ids, sharers: int, place: int) -> Ids:
    """`_part` with `last` "keep": samples that do not fill a step are dealt evenly in a last, smaller one."""
    step = sharers * shape.batch
    full = len(stream) // step
    rest = stream[full * step :]
    mine = rest[place * len(rest) // sharers : (place + 1) * len(rest) // sharers]
    part = np.full((shape.steps, shape.batch), -1, dtype=np.int64)
    part[:full] = stream[: full * step].reshape(full, sharers, shape.batch)[:, place]
    if len(mine):
        part[full, : len(mine)] = mine
    part[part >= 0] += shape.first
    return part


def _shuffle_within_files(shape: Shape, files: Ids, purpose: Purpose, unit: int, epoch: int, seed: int) -> Ids:
    """The samples file after file, permuted in each file."""
    samples, place = shape.samples_of(files)
    if shape.bounds is None:
        return samples
    inside: Ids = np.lexsort((draw_words(purpose, unit, epoch, seed, len(samples)), place))
    return samples[inside]


# ---- the orders by name


class Order(Struct, frozen=True):
    """An order by name; called with (shape, rank, epoch, seed) it gives the rank's ids, int64 [steps, batch].

    name: with its number if it has one, as in results. number: items of its buffer, or files of its subset.
    exactly_once: in an epoch no sample comes twice, neither to one rank nor to two (except by padding).
    tf_data: a tf.data pipeline can deliver it. tf.data shards and shuffles files, and samples in a buffer; it cannot
    shuffle all samples, or by what a node keeps.
    of_shares: the order of a node or rank depends on its share, so that it differs from that of a job of one rank.
    """

    name: str
    draw: Callable[[Shape, int, int, int], Ids]
    cut: Callable[[Shape], Shape] = draws.by_samples
    number: int | None = None
    exactly_once: bool = True
    tf_data: bool = False
    of_shares: bool = False

    def __call__(self, shape: Shape, rank: int, epoch: int, seed: int) -> Ids:
        """The ids of this rank in this epoch. UsageError as `fit`."""
        shape = self.fit(shape)
        if shape.shard in ONE_ORDER:
            return self.draw(_of_one(shape), 0, epoch, seed)
        return self.draw(shape, rank, epoch, seed)

    def fit(self, shape: Shape) -> Shape:
        """The shape with the steps, and so the dropped and padded samples, that every epoch has under this order.

        They are the same on every rank and in every epoch. If shares of files differ, all ranks take the steps of the
        smallest share (of the largest, when padding). If ranks draw files, the smallest possible draw counts. For an
        order that is not exactly_once, dropped and padded count deliveries, whatever the draws have in common.
        UsageError when there are fewer files than shares, when a share does not fill a step, and for `last` "keep" with
        an order that leaves samples out.
        """
        if shape.last == KEEP and not self.exactly_once:
            raise UsageError(
                f"The order {self.name} cannot bring each sample once: some come to several ranks, some to none. Use "
                "--last drop, or an order such as global-shuffle."
            )
        if shape.shard in ONE_ORDER:
            return replace(shape, cut=self.cut(_of_one(shape)).cut)
        return _fit_shape(self.cut, shape)


@lru_cache(maxsize=16)  # planning for all ranks asks once for each rank, and all shares may have to be added up
def _fit_shape(cut: Callable[[Shape], Shape], shape: Shape) -> Shape:
    return cut(shape)


def _of_one(shape: Shape) -> Shape:
    """The shape of a job of one rank."""
    return replace(shape, ranks=1, ranks_per_node=1, shard="rank")


def _buffered_order(number: int | None) -> Order:
    size = BUFFER if number is None else number
    return Order(
        f"buffered-shuffle({size})", partial(buffered_shuffle, buffer=size), draws.by_turns, size, tf_data=True
    )


def _subset(number: int | None) -> Order:
    return Order(
        "subset-shuffle" if number is None else f"subset-shuffle({number})",
        partial(subset_shuffle, count=number),
        partial(draws.by_draws, count=number),
        number,
        exactly_once=False,
        of_shares=True,
    )


ORDERS: dict[str, Order] = {
    "sequential": Order("sequential", sequential, tf_data=True),
    "global-shuffle": Order("global-shuffle", global_shuffle),
    "file-shuffle": Order("file-shuffle", file_shuffle, draws.by_slices, tf_data=True),
    "global-file-shuffle": Order("global-file-shuffle", global_file_shuffle, draws.by_permutation, tf_data=True),
    "buffered-shuffle": _buffered_order(None),
    "overlapping-shuffle": Order(
        "overlapping-shuffle", overlapping_shuffle, draws.by_draws, exactly_once=False, of_shares=True
    ),
    "unsharded-shuffle": Order("unsharded-shuffle", unsharded_shuffle, exactly_once=False, of_shares=True),
    "node-shuffle": Order("node-shuffle", node_shuffle, draws.by_nodes, of_shares=True),
    "subset-shuffle": _subset(None),
}

# Orders that take a number: name(NUMBER).
NUMBERED: dict[str, Callable[[int], Order]] = {"buffered-shuffle": _buffered_order, "subset-shuffle": _subset}


def find_order(text: str) -> Order:
    """The order of this name, with its number where one is given: `buffered-shuffle(100)`. UsageError for others."""
    match = re.fullmatch(r"([^()]*)(?:\(([^()]*)\))?", text.strip())
    name, number = match.groups() if match else (text, None)
    if name not in ORDERS:
        names = [f"{known}(NUMBER)" if known in NUMBERED else known for known in ORDERS]
        raise UsageError(f"There is no order '{text}'.{did_you_mean(name, ORDERS)} Use {one_of(names)}.")
    if number is None:
        return ORDERS[name]
    if name not in NUMBERED:
        raise UsageError(f"Order '{name}' takes no number, but '{text}' gives one. Use '{name}'.")
    if not re.fullmatch("[1-9][0-9]{0,17}", number):
        raise UsageError(f"Order '{text}' needs a whole number from 1 on, such as '{name}(100)'.")
    return NUMBERED[name](int(number))


def part_of_pass(order: Order, shape: Shape, rank: int, epoch: int, seed: int, *, steps: int, parts: int) -> Ids:
    """The ids of an epoch if a pass over the samples is cut into `parts` epochs of `steps` steps, int64 [steps, batch].

    Later steps of a pass are left out.
    """
    number, part = divmod(epoch, parts)
    return order(shape, rank, number, seed)[part * steps : (part + 1) * steps]


def steps_of(ids: Ids) -> list[Ids]:
    """The batches of a plan int64 [steps, batch], without the -1 of those that are smaller."""
    return list(ids) if ids.size == 0 or ids.min() >= 0 else [row[row >= 0] for row in ids]


def every_sample_once(samples: int, ranks: int, rank: int, batch: int) -> list[Ids]:
    """This rank's share of an untimed pass over the whole dataset: batches of at most `batch` ids."""
    first, last = rank * samples // ranks, (rank + 1) * samples // ranks
    return [np.arange(at, min(at + batch, last), dtype=np.int64) for at in range(first, last, batch)]
