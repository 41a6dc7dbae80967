"""Orders are pure functions: each sample as often as declared, alike everywhere, well mixed where they shuffle."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.draws import Purpose, shuffled, through_buffer, words
from dlio_bench.harness.plan.orders import ORDERS, Ids, Order, Shape, every_sample_once, find_order, permutation
from dlio_bench.harness.plan.staging import stage_partition, stage_subset

# every order there is, and those with a number also with a small one
NAMES = [*ORDERS, "buffered-shuffle(3)", "subset-shuffle(2)"]
ONCE = [name for name in NAMES if find_order(name).exactly_once]
SHUFFLES = [name for name in NAMES if name != "sequential"]


@st.composite
def shapes(draw: st.DrawFn, last: str = "drop") -> Shape:
    per_node, nodes = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    ranks = per_node * nodes
    sizes = draw(st.one_of(st.none(), st.lists(st.integers(1, 9), min_size=ranks, max_size=ranks + 12)))
    bounds = None if sizes is None else np.cumsum([0, *sizes], dtype=np.int64)
    return Shape(
        samples=draw(st.integers(ranks, 200)) if bounds is None else int(bounds[-1]),
        ranks=ranks,
        batch=draw(st.integers(1, 4)),
        bounds=bounds,
        ranks_per_node=per_node,
        shard=draw(st.sampled_from(["rank", "node"])),
        last=last,
        first=draw(st.sampled_from([0, 1000])),
    )


def fitted(name: str, shape: Shape) -> tuple[Order, Shape]:
    order = find_order(name)
    try:
        return order, order.fit(shape)
    except UsageError:
        assume(False)  # a share of files that does not fill a step: has a test of its own
        raise


def plans(order: Order, shape: Shape, epoch: int, seed: int) -> list[Ids]:
    return [order(shape, rank, epoch, seed) for rank in range(shape.ranks)]


epochs, seeds = st.integers(0, 4), st.integers(0, 2**32)


@pytest.mark.parametrize("name", NAMES)
@given(shape=shapes(), epoch=epochs, seed=seeds)
def test_every_rank_gets_equal_whole_steps_of_ids_of_the_split(name: str, shape: Shape, epoch: int, seed: int) -> None:
    order, fit = fitted(name, shape)
    parts = plans(order, shape, epoch, seed)
    assert {(part.shape, part.dtype) for part in parts} == {((fit.steps, shape.batch), np.dtype(np.int64))}
    for part in parts:
        assert len(np.unique(part)) == part.size  # no rank gets a sample twice
        assert ((part >= shape.first) & (part < shape.first + shape.samples)).all()


@pytest.mark.parametrize("name", ONCE)
@given(shape=shapes(), epoch=epochs, seed=seeds)
def test_no_sample_comes_twice_and_what_is_left_out_is_counted(name: str, shape: Shape, epoch: int, seed: int) -> None:
    order, fit = fitted(name, shape)
    ids = np.concatenate(plans(order, shape, epoch, seed), axis=None)
    assert len(np.unique(ids)) == len(ids) == fit.delivered == shape.samples - fit.dropped
    assert fit.padded == 0


@pytest.mark.parametrize("name", ONCE)
@given(shape=shapes(last="pad"), epoch=epochs, seed=seeds)
def test_padding_brings_every_sample_and_counts_the_second_times(
    name: str, shape: Shape, epoch: int, seed: int
) -> None:
    order, fit = fitted(name, shape)
    ids = np.concatenate(plans(order, shape, epoch, seed), axis=None)
    assert len(np.unique(ids)) == shape.samples - fit.dropped
    assert len(ids) == fit.delivered == shape.samples - fit.dropped + fit.padded
    if name != "node-shuffle":
        assert fit.dropped == 0
    else:  # what stage-partition leaves on no node
        left = np.arange(shape.files - shape.files % shape.nodes, shape.files, dtype=np.int64)
        assert fit.dropped == len(shape.samples_of(left)[0])


@pytest.mark.parametrize("name", ["sequential", "global-shuffle"])
@given(samples=st.integers(0, 300), ranks=st.integers(1, 9), batch=st.integers(1, 7))
def test_orders_of_samples_drop_or_pad_less_than_a_step(name: str, samples: int, ranks: int, batch: int) -> None:
    drop = Shape(samples, ranks, batch)
    pad = replace(drop, last="pad")
    assert drop.dropped < ranks * batch
    assert pad.padded < ranks * batch
    order = ORDERS[name]
    for shape in (drop, pad):
        ids = np.concatenate(plans(order, shape, 1, 2), axis=None)
        assert len(ids) == shape.delivered
        assert len(np.unique(ids)) == samples - shape.dropped


@given(shape=shapes(last="pad"))
def test_an_epoch_is_filled_up_from_its_own_start(shape: Shape) -> None:
    for order in (ORDERS["sequential"], ORDERS["global-shuffle"]):
        shape = replace(shape, shard="rank")
        parts = [part - shape.first for part in plans(order, shape, 1, 2)]
        # the global stream, step by step or share after share
        stream = np.concatenate(parts, axis=None if order.name == "sequential" else 1).ravel()
        assert (stream[shape.samples :] == stream[: shape.padded]).all()


@pytest.mark.parametrize("name", NAMES)
@given(shape=shapes(), epoch=epochs, seed=seeds)
def test_a_plan_is_made_alike_twice_and_moves_with_the_first_id(name: str, shape: Shape, epoch: int, seed: int) -> None:
    order, _ = fitted(name, shape)
    for part, again, at_zero in zip(
        plans(order, shape, epoch, seed),
        plans(find_order(name), replace(shape), epoch, seed),
        plans(order, replace(shape, first=0), epoch, seed),
        strict=True,
    ):
        assert (part == again).all()
        assert (part == at_zero + shape.first).all()


@pytest.mark.parametrize("shard", ["rank", "node"])
@pytest.mark.parametrize("name", SHUFFLES)
def test_other_epochs_and_seeds_give_other_plans(name: str, shard: str) -> None:
    shape = Shape(600, 4, 2, bounds=np.arange(0, 601, 5), ranks_per_node=2, shard=shard)
    found = {tuple(find_order(name)(shape, 1, epoch, seed).ravel()) for epoch in range(3) for seed in range(3)}
    assert len(found) == 9


@given(samples=st.integers(0, 200), ranks=st.integers(1, 9), batch=st.integers(1, 7))
def test_the_verification_pass_covers_everything_once(samples: int, ranks: int, batch: int) -> None:
    batches = [ids for rank in range(ranks) for ids in every_sample_once(samples, ranks, rank, batch)]
    assert np.concatenate([*batches, np.zeros(0, np.int64)]).tolist() == list(range(samples))
    assert all(0 < len(ids) <= batch for ids in batches)


# ---- what each order is


def test_sequential_is_each_ranks_own_share_front_to_back_in_every_epoch() -> None:
    shape = Shape(samples=12, ranks=2, batch=3)
    assert ORDERS["sequential"](shape, 1, 0, 9).tolist() == [[6, 7, 8], [9, 10, 11]]
    assert ORDERS["sequential"](shape, 1, 3, 7).tolist() == [[6, 7, 8], [9, 10, 11]]


def test_the_ranks_of_a_node_cut_its_share_step_by_step() -> None:
    shape = Shape(samples=16, ranks=4, batch=2, ranks_per_node=2, shard="node")
    assert ORDERS["sequential"](shape, 2, 0, 9).tolist() == [[8, 9], [12, 13]]
    assert ORDERS["sequential"](shape, 3, 0, 9).tolist() == [[10, 11], [14, 15]]


def test_global_shuffle_slices_one_permutation_batch_by_batch() -> None:
    shape = Shape(samples=12, ranks=2, batch=3)
    order = permutation(12, epoch=1, seed=5).reshape(2, 2, 3)
    for rank in range(2):
        assert ORDERS["global-shuffle"](shape, rank, 1, 5).tolist() == order[:, rank].tolist()


def test_the_permutation_is_the_same_on_every_machine() -> None:
    # golden: Philox words, sorted; a change here changes every published seed
    assert permutation(10, epoch=0, seed=1).tolist() == GOLDEN


GOLDEN = [3, 5, 2, 9, 7, 0, 8, 6, 1, 4]


def test_shuffles_differ_between_epochs_and_seeds() -> None:
    orders = {tuple(permutation(100, epoch, seed)) for epoch in range(3) for seed in range(3)}
    assert len(orders) == 9


FILES = Shape(400, 4, 1, bounds=np.arange(0, 401, 10), ranks_per_node=2)  # 40 files of ten samples


def files_of(stream: Ids) -> list[int]:
    """The files of ten samples that a stream goes through, each once and whole."""
    files = (stream.ravel() // 10).tolist()
    runs = [file for at, file in enumerate(files) if at == 0 or files[at - 1] != file]
    assert len(set(runs)) == len(runs) == len(files) // 10
    return runs


@pytest.mark.parametrize(("shard", "own"), [("rank", range(10, 20)), ("node", range(20))])
def test_file_shuffle_goes_through_its_own_files_in_a_new_order_each_epoch(shard: str, own: range) -> None:
    shape = replace(FILES, shard=shard)
    shared = (0, 1) if shard == "node" else (1,)
    orders = []
    for epoch in range(3):
        stream = np.stack([ORDERS["file-shuffle"](shape, rank, epoch, 5) for rank in shared], axis=1)
        orders.append(files_of(stream))
        inside = stream.ravel()[:10] % 10
        assert sorted(inside) == list(range(10)) != inside.tolist()  # a file's samples are permuted
    assert orders[0] == list(own)  # shuffled at the end of an epoch
    assert sorted(orders[1]) == sorted(orders[2]) == list(own)
    assert orders[0] != orders[1] != orders[2]


def test_global_file_shuffle_permutes_all_files_on_top_of_the_order_before() -> None:
    orders = []
    for epoch in range(4):
        parts = plans(ORDERS["global-file-shuffle"], FILES, epoch, 5)
        orders.append([file for part in parts for file in files_of(part)])
        assert [len(files_of(part)) for part in parts] == [10] * 4
    assert orders[0] == list(range(40))  # shuffled at the end of an epoch
    for epoch in range(1, 4):
        step = shuffled(words(Purpose.FILES_OF_ALL, 0, epoch, 5, 40))
        assert orders[epoch] == [orders[epoch - 1][place] for place in step]
        assert set(orders[epoch][:10]) != set(orders[epoch - 1][:10])  # a rank gets other files


def test_file_orders_of_one_sample_a_file_need_no_bounds() -> None:
    with_bounds = Shape(40, 4, 2, bounds=np.arange(41), ranks_per_node=2)
    for name in NAMES:
        for rank in range(4):
            plain = find_order(name)(replace(with_bounds, bounds=None), rank, 1, 5)
            assert plain.tolist() == find_order(name)(with_bounds, rank, 1, 5).tolist()


def test_node_shuffle_mixes_the_files_that_stage_partition_gives_the_node() -> None:
    shape = replace(FILES, batch=5)
    for node in range(2):
        parts = [ORDERS["node-shuffle"](shape, rank, 1, 5) for rank in (2 * node, 2 * node + 1)]
        files, counts = np.unique(np.concatenate(parts) // 10, return_counts=True)
        assert files.tolist() == stage_partition(40, 2, node).tolist()
        assert set(counts) == {10}
        # not file after file: a rank's first ten samples come from many
        assert all(len(set((part.ravel()[:10] // 10).tolist())) > 5 for part in parts)


def test_subset_shuffle_mixes_the_files_that_the_rank_drew_and_draws_them_once() -> None:
    for epoch in range(2):
        for rank in range(4):
            part = find_order("subset-shuffle(7)")(FILES, rank, epoch, 5)
            assert sorted(set((part.ravel() // 10).tolist())) == stage_subset(40, 4, rank, 7, 5).tolist()
            assert part.size == 70


@pytest.mark.parametrize("shard", ["rank", "node"])
def test_the_set_of_a_buffered_shuffle_is_known_whatever_its_buffer(shard: str) -> None:
    sizes = [3, 7, 5, 5, 2, 9, 6, 4, 4]
    shape = Shape(45, 4, 4, bounds=np.cumsum([0, *sizes]), ranks_per_node=2, shard=shard)
    for rank in range(4):
        kept = {
            tuple(sorted(find_order(f"buffered-shuffle({k})")(shape, rank, epoch, 5).ravel()))
            for k in (1, 4, 9, 99)
            for epoch in range(2)
        }
        assert len(kept) == 1
    # a rank's every ranks-th file; in a node's share every local_size-th
    firsts = [find_order("buffered-shuffle(1)")(shape, rank, 0, 5)[0, 0] for rank in range(4)]
    assert firsts == ([0, 3, 10, 15] if shard == "rank" else [0, 10, 3, 15])


@given(items=st.integers(0, 60), size=st.integers(1, 70), seed=seeds)
def test_a_buffer_shuffles_as_tensorflow_documents_it(items: int, size: int, seed: int) -> None:
    size = min(size, items)
    slots = words(Purpose.BUFFER_SLOTS, 0, 0, seed, items - size)
    drain = words(Purpose.BUFFER_DRAIN, 0, 0, seed, size)
    buffer, rest, expected = list(range(size)), iter(range(size, items)), []
    for word in slots.tolist():
        expected.append(buffer[word % size])
        buffer[word % size] = next(rest)
    expected += [item for _, item in sorted(zip(drain.tolist(), buffer, strict=True))]
    found = through_buffer(slots, drain)
    assert found.tolist() == expected
    assert sorted(expected) == list(range(items))
    assert (found - np.arange(items) < max(size, 1)).all()  # nobody is more than size - 1 early


def test_a_buffer_displaces_items_as_far_as_an_independent_one() -> None:
    items, size = 4000, 50
    order = find_order(f"buffered-shuffle({size})")
    ours = np.concatenate([order(Shape(items, 1, 1), 0, 0, seed).ravel() - np.arange(items) for seed in range(10)])
    theirs = np.concatenate([plain_buffer(items, size, random.Random(seed)) - np.arange(items) for seed in range(10)])
    grid = np.unique(np.concatenate([ours, theirs]))
    gap = [np.searchsorted(np.sort(moved), grid, side="right") / len(moved) for moved in (ours, theirs)]
    assert np.abs(gap[0] - gap[1]).max() < 0.02  # Kolmogorov-Smirnov: 0.0136 at 5 % of 40,000 each
    assert ours.max() == size - 1


def plain_buffer(items: int, size: int, chance: random.Random) -> Ids:
    buffer, out = list(range(size)), []
    for item in range(size, items):
        slot = chance.randrange(size)
        out.append(buffer[slot])
        buffer[slot] = item
    chance.shuffle(buffer)
    return np.array(out + buffer)


def test_orders_deal_shares_of_files_of_unequal_size_by_the_least() -> None:
    sizes = [4, 6, 2, 8, 5, 5, 1]  # seven files over two ranks: three each, the last one left over
    shape = Shape(31, 2, 2, bounds=np.cumsum([0, *sizes]))
    assert ORDERS["file-shuffle"].fit(shape).steps == 6  # 12 and 18 samples
    assert ORDERS["buffered-shuffle"].fit(shape).steps == 5  # 11 and 19
    assert ORDERS["node-shuffle"].fit(shape).steps == 5  # the same files
    assert ORDERS["global-file-shuffle"].fit(shape).steps == 3  # at worst 1 + 2 + 4
    assert find_order("subset-shuffle(2)").fit(shape).steps == 1  # at worst 1 + 2
    padded = replace(shape, last="pad")
    assert ORDERS["file-shuffle"].fit(padded).steps == 10  # 20 and 5 + 5 + 1 + 4
    assert ORDERS["global-file-shuffle"].fit(padded).steps == 12  # at worst 8 + 6 + 5 + 5


# ---- how well they mix


def of_global_shuffle(epoch: int, seed: int) -> Ids:
    return ORDERS["global-shuffle"](Shape(N, 1, 1), 0, epoch, seed).ravel()


def of_node_shuffle(epoch: int, seed: int) -> Ids:
    ids = ORDERS["node-shuffle"](Shape(2 * N, 4, 1, ranks_per_node=2), 2, epoch, seed).ravel()
    other = ORDERS["node-shuffle"](Shape(2 * N, 4, 1, ranks_per_node=2), 3, epoch, seed).ravel()
    return np.stack([ids, other], axis=1).ravel() // 2


def of_subset_shuffle(epoch: int, seed: int) -> Ids:
    return find_order(f"subset-shuffle({N})")(Shape(N, 2, 1), 1, epoch, seed).ravel()


def of_buffered_shuffle(epoch: int, seed: int) -> Ids:
    return ORDERS["buffered-shuffle"](Shape(2 * N, 2, 1), 1, epoch, seed).ravel() // 2


def of_own_files(epoch: int, seed: int) -> Ids:
    return ORDERS["file-shuffle"](Shape(2 * N, 2, 1), 1, epoch + 1, seed).ravel() - N


def of_all_files(epoch: int, seed: int) -> Ids:
    return ORDERS["global-file-shuffle"](Shape(N, 1, 1), 0, epoch + 1, seed).ravel()


def of_a_file_of_ones_own(epoch: int, seed: int) -> Ids:
    ids = ORDERS["file-shuffle"](Shape(2 * N, 1, 1, bounds=np.array([0, N, 2 * N])), 0, epoch, seed).ravel()
    return ids[ids < N]


def of_a_file_of_all(epoch: int, seed: int) -> Ids:
    ids = ORDERS["global-file-shuffle"](Shape(2 * N, 1, 1, bounds=np.array([0, N, 2 * N])), 0, epoch, seed).ravel()
    return ids[ids >= N] - N


N, DRAWS = 128, 200
PERMUTATIONS: list[Callable[[int, int], Ids]] = [
    of_global_shuffle,
    of_node_shuffle,
    of_subset_shuffle,
    of_buffered_shuffle,
    of_own_files,
    of_all_files,
    of_a_file_of_ones_own,
    of_a_file_of_all,
]


@pytest.mark.parametrize("draw", PERMUTATIONS)
def test_permutations_are_well_mixed(draw: Callable[[int, int], Ids]) -> None:
    drawn = np.stack([draw(seed % 3, seed) for seed in range(DRAWS)])
    assert (np.sort(drawn, axis=1) == np.arange(N)).all()
    # every item comes everywhere alike: chi-square of 16 x 16 cells, 225 degrees of freedom, five deviations of 21
    cells = np.histogram2d(np.tile(np.arange(N), DRAWS), drawn.ravel(), bins=16)[0]
    expected = DRAWS * N / 256
    assert 120 < ((cells - expected) ** 2 / expected).sum() < 330
    # a random permutation has one fixed point and one item behind its neighbour on average: 200 draws +- 5 x 14
    assert 130 < (drawn == np.arange(N)).sum() < 270
    assert 130 < (np.diff(drawn, axis=1) == 1).sum() < 270
    # draws of other seeds and epochs agree in one place on average
    agree = (drawn[1:] == drawn[:-1]).sum()
    assert 130 < agree < 270
    epochs_apart = np.array([(draw(1, seed) == draw(2, seed)).sum() for seed in range(DRAWS)]).sum()
    assert 130 < epochs_apart < 270


def test_ranks_and_nodes_mix_their_shares_differently() -> None:
    for name in ("file-shuffle", "buffered-shuffle", "node-shuffle"):
        shape = Shape(512, 4, 1)
        places = []  # of the items of a share, each counted from its own start
        for rank in range(4):
            ids = ORDERS[name](shape, rank, 1, 5).ravel()
            places.append(np.argsort(ids))
        for one, other in combinations(places, 2):
            assert (one == other).sum() < 10  # 1 is expected


def test_no_two_streams_share_a_word() -> None:
    drawn = [
        words(purpose, unit, epoch, seed, 200)
        for purpose in Purpose
        for unit in (0, 1, 1023)
        for epoch in (0, 1)
        for seed in (0, 1, 2**62)
    ]
    assert len(np.unique(np.concatenate(drawn))) == 200 * len(drawn)


# ---- what cannot be


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("global_shuffle", "Did you mean 'global-shuffle'"),
        ("", "no order ''"),
        ("buffered-shuffle(", r"no order 'buffered-shuffle\('"),
        ("buffered-shuffle()", "whole number"),
        ("buffered-shuffle(0)", "whole number"),
        ("buffered-shuffle(-5)", "whole number"),
        ("buffered-shuffle(1e3)", "whole number"),
        ("buffered-shuffle(" + "9" * 5000 + ")", "whole number"),
        ("sequential(3)", "takes no number"),
    ],
)
def test_orders_that_do_not_exist_are_refused_in_a_paragraph(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        find_order(text)


def test_orders_are_found_with_their_number_and_tell_it() -> None:
    assert find_order("buffered-shuffle(100)").name == "buffered-shuffle(100)"
    assert find_order("buffered-shuffle(100)").number == 100
    assert find_order("buffered-shuffle").name == "buffered-shuffle(10000)"
    assert find_order("subset-shuffle").number is None
    assert find_order("subset-shuffle(250)").name == "subset-shuffle(250)"
    assert all(find_order(name) is ORDERS[name] for name in ORDERS)


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("file-shuffle", Shape(3, 4, 1), "4 ranks cannot share 3 files"),
        ("file-shuffle", Shape(3, 4, 1, ranks_per_node=1, last="pad"), "4 ranks cannot share 3 files"),
        ("global-file-shuffle", Shape(90, 4, 1, bounds=np.arange(0, 91, 30)), "4 ranks cannot share 3 files"),
        ("buffered-shuffle", Shape(3, 4, 1), "at most 3 ranks"),
        ("node-shuffle", Shape(3, 8, 1, ranks_per_node=2), "4 nodes cannot share 3 files"),
        ("file-shuffle", Shape(3, 8, 1, ranks_per_node=2, shard="node"), "4 nodes cannot share 3 files"),
        ("subset-shuffle", Shape(3, 4, 1), r"cannot draw 0 different files of 3"),
        ("subset-shuffle(9)", Shape(8, 4, 1), r"cannot draw 9 different files of 8"),
        ("file-shuffle", Shape(12, 4, 4), "hold only 3 samples, but a step takes 4"),
        ("node-shuffle", Shape(14, 8, 1, ranks_per_node=4), None),
        ("node-shuffle", Shape(14, 8, 2, ranks_per_node=4), "a node's 4 ranks hold only 7 samples, but a step takes 8"),
    ],
)
def test_shares_that_cannot_be_are_refused_with_numbers(name: str, shape: Shape, says: str | None) -> None:
    order = find_order(name)
    if says is None:
        assert order.fit(shape).steps == 1
        return
    for attempt in (lambda: order.fit(shape), lambda: order(shape, 0, 0, 0)):
        with pytest.raises(UsageError, match=says):
            attempt()


def test_shapes_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="Shard 'socket' is not known"):
        Shape(8, 2, 1, shard="socket")
    with pytest.raises(UsageError, match="'keep' is not known"):
        Shape(8, 2, 1, last="keep")
    with pytest.raises(UsageError, match="6 ranks do not fill nodes of 4"):
        Shape(8, 6, 1, ranks_per_node=4)
    for bounds in ([0, 4], [1, 8], [0, 9, 8]):
        with pytest.raises(ValueError, match="bounds"):
            Shape(8, 2, 1, bounds=np.array(bounds))
