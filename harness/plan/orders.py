"""Orders: which sample ids a rank asks for, in which sequence, in one epoch.

An order is a pure function (shape, rank, epoch, seed) -> int64 [steps, batch]. Random orders come from raw
Philox words and integer operations only, so that every machine and NumPy version makes the same plan. Where nothing is
dropped and nothing comes twice (`last` "keep") the last batches of a rank are smaller: they end with -1.

An order deals the dataset to *shares*: to every rank, or, under shard "node", to every node, whose ranks then cut
the node's stream among them, step by step: in a step local rank l has part l of the node's samples. That is the
published `--fs local` and `local_rank/local_size` (each rank's place is that in its node) for one dataset over all
nodes; where every node holds the whole set and goes through all of it (CosmoFlow's `n_file_sets`), an epoch here is
one nodes-th of theirs. buffered-shuffle cuts a node's files among its ranks before it shuffles, as tf.data must.
Global orders, node-shuffle and subset-shuffle have only one way to deal, and ignore `shard` "node".

Under shard "job" every rank has what the only rank of a job would have: all samples, in the same order. That is the
reading of ranks that hold parts of one model ("model parallel: each process goes over the same dataset", A. Gainaru,
WANT workshop at NeurIPS 2023).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from dlio_bench.errors import UsageError
from dlio_bench.harness.plan import deals
from dlio_bench.harness.plan.draws import Ids, Purpose, shuffled, through_buffer, words
from dlio_bench.harness.plan.shape import JOB, KEEP, Shape
from dlio_bench.refusals import did_you_mean, one_of

__all__ = ["ORDERS", "Ids", "Order", "Shape", "every_sample_once", "find_order", "permutation", "steps_of"]

BUFFER = 10_000  # samples; TensorFlow's official ImageNet pipeline, imagenet_preprocessing.py


@lru_cache(maxsize=1)  # who works out the plans of all ranks asks for each epoch's as often as there are ranks
def permutation(samples: int, epoch: int, seed: int) -> Ids:
    """The permutation of range(samples) that every rank draws alike for this epoch: a stable sort of Philox words.

    The array is everybody's, and cannot be written.
    """
    found = shuffled(words(Purpose.SAMPLES_OF_ALL, 0, epoch, seed, samples))
    found.flags.writeable = False
    return found


# ---- orders of samples


def sequential(shape: Shape, rank: int, epoch: int, seed: int) -> Ids:
    """Each share is contiguous and read from front to back, alike every epoch."""
    del epoch, seed
    sharers, share, place = _seat(shape, rank)
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
    """Each share is a contiguous slice of files; each epoch they come in another order.

    The samples of a file are permuted when it comes. Epoch 0 has the files as they lie. (HEPCNNB's local shuffle: the
    own list is shuffled at the end of an epoch, a file's samples when it is loaded; NERSC/DL-Parallel-IO
    benchmarks/hep_cnn/networks/binary_classifier_tf.py.)
    """
    sharers, share, place = _seat(shape, rank)
    files = deals.sliced(shape, shape.ranks // sharers, share)
    if epoch > 0:
        files = files[shuffled(words(Purpose.FILES_OF_A_SHARE, share, epoch, seed, len(files)))]
    return _part(shape, _mixed(shape, files, Purpose.SAMPLES_OF_A_SHARE, share, epoch, seed), sharers, place)


def global_file_shuffle(shape: Shape, rank: int, epoch: int, seed: int) -> Ids:
    """All files are permuted after each epoch, on top of the order before, alike on every rank, and dealt anew.

    So epoch 0 deals the files as they lie, and costs grow with files times epochs. The samples of a file are permuted
    when it comes. (HEPCNNB's global shuffle, source as in `file_shuffle`.)
    """
    order = np.arange(shape.files, dtype=np.int64)
    for earlier in range(1, epoch + 1):
        order = order[shuffled(words(Purpose.FILES_OF_ALL, 0, earlier, seed, shape.files))]
    files = order[deals.sliced(shape, shape.ranks, rank)]
    return _part(shape, _mixed(shape, files, Purpose.SAMPLES_OF_A_DEAL, rank, epoch, seed), 1, 0)


def buffered_shuffle(shape: Shape, rank: int, epoch: int, seed: int, *, buffer: int = BUFFER) -> Ids:
    """tf.data's shard(ranks, rank).shuffle(buffer): every ranks-th file, samples in file order, through a buffer.

    What does not fill the last step is dropped (or padded) before the shuffle, so that an epoch's set of ids is known
    whatever the buffer emits. Under shard "node" a node's share is every nodes-th file, and local rank l has
    every local_size-th file of it, from l on: the sharding of `--fs local` comes before the shuffle too.
    """
    if shape.shard == "node":
        node, local = divmod(rank, shape.ranks_per_node)
        rank = node + local * shape.nodes
    ids = _part(shape, shape.samples_of(deals.strided(shape, shape.ranks, rank))[0], 1, 0)
    stream = ids[ids >= 0]
    size = min(buffer, len(stream))
    slots = words(Purpose.BUFFER_SLOTS, rank, epoch, seed, len(stream) - size)
    drain = words(Purpose.BUFFER_DRAIN, rank, epoch, seed, size)
    ids.ravel()[: len(stream)] = stream[through_buffer(slots, drain)]
    return ids


def node_shuffle(shape: Shape, rank: int, epoch: int, seed: int) -> Ids:
    """Each node permutes the samples of the files that stage-partition gives it anew; its ranks cut that stream."""
    node, place = divmod(rank, shape.ranks_per_node)
    whole = shape.last == KEEP
    files = deals.strided(shape, shape.nodes, node) if whole else deals.stage_partition(shape.files, shape.nodes, node)
    ids = shape.samples_of(files)[0]
    order = shuffled(words(Purpose.SAMPLES_OF_A_NODE, node, epoch, seed, len(ids)))
    return _part(shape, ids[order], shape.ranks_per_node, place)


def subset_shuffle(shape: Shape, rank: int, epoch: int, seed: int, *, count: int | None = None) -> Ids:
    """Each rank permutes the samples of its own random files anew; `count` and the draw as in `stage_subset`."""
    ids = shape.samples_of(deals.stage_subset(shape.files, shape.ranks, rank, count, seed))[0]
    return _part(shape, ids[shuffled(words(Purpose.SAMPLES_OF_A_SUBSET, rank, epoch, seed, len(ids)))], 1, 0)


def overlapping_shuffle(shape: Shape, rank: int, epoch: int, seed: int) -> Ids:
    """Each rank permutes all files by a draw of its own, anew each epoch, and takes every ranks-th: shares overlap.

    Samples in file order. (CosmoFlow's `shuffle` before `shard` without a common seed; sparticlesteve/
    cosmoflow-benchmark @559eafb, data/cosmo.py.)
    """
    order = shuffled(words(Purpose.FILES_OF_A_DRAW, rank, epoch, seed, shape.files))
    files = order[rank :: shape.ranks][: shape.files // shape.ranks]
    return _part(shape, shape.samples_of(files)[0], 1, 0)


# ---- what they are made of


def _seat(shape: Shape, rank: int) -> tuple[int, int, int]:
    """(ranks that share a stream, number of this rank's stream, its place among them)."""
    sharers = deals.sharers(shape)
    return sharers, *divmod(rank, sharers)


def _part(shape: Shape, stream: Ids, sharers: int, place: int) -> Ids:
    """The ids int64 [steps, batch] of one of the ranks that share a stream, cut or filled up from its own start."""
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
    """As `_part`, with all of the stream: what does not fill a step of its ranks is dealt evenly, in a last one."""
    step = sharers * shape.batch
    full = len(stream) // step
    rest = stream[full * step :]
    own = rest[place * len(rest) // sharers : (place + 1) * len(rest) // sharers]
    part = np.full((shape.steps, shape.batch), -1, dtype=np.int64)
    part[:full] = stream[: full * step].reshape(full, sharers, shape.batch)[:, place]
    if len(own):
        part[full, : len(own)] = own
    part[part >= 0] += shape.first
    return part


def _mixed(shape: Shape, files: Ids, purpose: Purpose, unit: int, epoch: int, seed: int) -> Ids:
    """File after file, the samples of each permuted."""
    samples, place = shape.samples_of(files)
    if shape.bounds is None:
        return samples
    inside: Ids = np.lexsort((words(purpose, unit, epoch, seed, len(samples)), place))
    return samples[inside]


# ---- the orders by name


@dataclass(frozen=True)
class Order:
    """An order by name; called with (shape, rank, epoch, seed) it gives the rank's ids, int64 [steps, batch].

    name: with its number where it has one, as results tell it. number: items of its buffer, or files of its subset.
    exactly_once: in an epoch no sample comes twice, to one rank or to two (padding excepted).
    tf_data: a tf.data pipeline can deliver it. It shards and shuffles files, or samples in a buffer; it has no shuffle
    of all samples, and none that depends on what a node keeps.
    of_shares: a node or a rank has another order than it would have alone with the dataset.
    """

    name: str
    draw: Callable[[Shape, int, int, int], Ids]
    cut: Callable[[Shape], Shape] = deals.by_samples
    number: int | None = None
    exactly_once: bool = True
    tf_data: bool = False
    of_shares: bool = False

    def __call__(self, shape: Shape, rank: int, epoch: int, seed: int) -> Ids:
        """The ids of this rank in this epoch. UsageError as `fit`."""
        shape = self.fit(shape)
        if shape.shard == JOB:
            return self.draw(_of_one(shape), 0, epoch, seed)
        return self.draw(shape, rank, epoch, seed)

    def fit(self, shape: Shape) -> Shape:
        """The shape with the steps, and so the dropped and padded samples, that every epoch has under this order.

        They are alike on every rank and in every epoch. Where shares of files differ, all ranks take the steps of the
        smallest share (the largest, when padding); where files are drawn, those of the smallest that could be drawn.
        For an order that is not exactly_once, dropped and padded count deliveries, not what the draws have in common.
        UsageError when there are fewer files than shares, when a share does not fill a step, or when an order that
        leaves samples out is to keep all.
        """
        if shape.last == KEEP and not self.exactly_once:
            raise UsageError(
                f"Under the order {self.name} samples come to several ranks, or to none, so that it cannot bring each "
                "of them once. Use --last drop, or an order such as global-shuffle."
            )
        if shape.shard == JOB:
            return replace(shape, cut=self.cut(_of_one(shape)).cut)
        return self.cut(shape)


def _of_one(shape: Shape) -> Shape:
    """The shape of a job of one rank."""
    return replace(shape, ranks=1, ranks_per_node=1, shard="rank")


def _buffered(number: int | None) -> Order:
    size = BUFFER if number is None else number
    return Order(
        f"buffered-shuffle({size})", partial(buffered_shuffle, buffer=size), deals.by_turns, size, tf_data=True
    )


def _subset(number: int | None) -> Order:
    return Order(
        "subset-shuffle" if number is None else f"subset-shuffle({number})",
        partial(subset_shuffle, count=number),
        partial(deals.by_draws, count=number),
        number,
        exactly_once=False,
        of_shares=True,
    )


ORDERS: dict[str, Order] = {
    "sequential": Order("sequential", sequential, tf_data=True),
    "global-shuffle": Order("global-shuffle", global_shuffle),
    "file-shuffle": Order("file-shuffle", file_shuffle, deals.by_slices, tf_data=True),
    "global-file-shuffle": Order("global-file-shuffle", global_file_shuffle, deals.by_permutation, tf_data=True),
    "buffered-shuffle": _buffered(None),
    "overlapping-shuffle": Order(
        "overlapping-shuffle", overlapping_shuffle, deals.by_draws, exactly_once=False, of_shares=True
    ),
    "node-shuffle": Order("node-shuffle", node_shuffle, deals.by_nodes, of_shares=True),
    "subset-shuffle": _subset(None),
}

# Orders that take a number: name(NUMBER).
NUMBERED: dict[str, Callable[[int], Order]] = {"buffered-shuffle": _buffered, "subset-shuffle": _subset}


def find_order(text: str) -> Order:
    """The order of this name, with its number where one is given: `buffered-shuffle(100)`. UsageError for others."""
    found = re.fullmatch(r"([^()]*)(?:\(([^()]*)\))?", text.strip())
    name, number = found.groups() if found else (text, None)
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
    """The ids of an epoch of `steps` steps where a pass over the samples is cut into `parts` epochs, int64 [steps,
    batch]; what is left of a pass is left out. One part: the first steps of each pass.
    """
    number, part = divmod(epoch, parts)
    return order(shape, rank, number, seed)[part * steps : (part + 1) * steps]


def steps_of(ids: Ids) -> list[Ids]:
    """The batches of a plan int64 [steps, batch], without the -1 of those that are smaller."""
    return list(ids) if ids.size == 0 or ids.min() >= 0 else [own[own >= 0] for own in ids]


def every_sample_once(samples: int, ranks: int, rank: int, batch: int) -> list[Ids]:
    """This rank's share of an untimed pass over the whole dataset, nothing dropped: batches of at most `batch` ids."""
    first, last = rank * samples // ranks, (rank + 1) * samples // ranks
    return [np.arange(at, min(at + batch, last), dtype=np.int64) for at in range(first, last, batch)]
