"""Placements: what each node keeps follows from the plan, within its tiers, in the order it is needed."""

import tracemalloc
from collections.abc import Iterator, Sequence
from math import comb, floor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlio_bench.harness.plan.orders import Shape, global_shuffle
from dlio_bench.harness.plan.placement import redrawn, shares
from dlio_bench.harness.plan.placement.cooperative import cooperative, first_holders, seen_by_node
from dlio_bench.harness.plan.placement.frequency import (
    clairvoyant,
    count_accesses,
    count_in_one,
    count_in_parts,
    lbann_dynamic,
)
from dlio_bench.harness.plan.placement.rule import DoesNotApplyError, NodeContents, Sizes, cut_into_tiers
from dlio_bench.harness.plan.policies import PLACEMENTS

ALL = [name for name, rule in PLACEMENTS.items() if rule.keep is not None]


def sequences(samples: int, nodes: int, batch: int, epochs: int, seed: int = 1) -> list[np.ndarray]:
    shape = Shape(samples, nodes, batch)
    return [
        np.concatenate([global_shuffle(shape, node, epoch, seed).reshape(-1) for epoch in range(epochs)])
        for node in range(nodes)
    ]


def place(name: str, own: list[np.ndarray], sizes: Sizes, capacities: list[int], per_epoch: int) -> list[NodeContents]:
    keep = PLACEMENTS[name].keep
    assert keep is not None
    return keep(own, sizes, capacities, per_epoch)


def holders(contents: Sequence[NodeContents], samples: int) -> np.ndarray:
    return np.bincount(np.concatenate([node.ids for node in contents]), minlength=samples)


def expected_above(samples: int, nodes: int, epochs: int, excess: float) -> float:
    """Samples that one node is expected to read more than (1 + excess) * epochs / nodes times (SC'21, section 3.1)."""
    least = floor((1 + excess) * epochs / nodes + 1e-9) + 1
    hits = sum(comb(epochs, count) * (nodes - 1) ** (epochs - count) for count in range(least, epochs + 1))
    return samples * (hits / nodes**epochs)


cases = st.tuples(
    st.integers(1, 5),  # nodes
    st.integers(1, 4),  # batch
    st.integers(1, 5),  # steps
    st.integers(0, 3),  # samples that do not fill a step
    st.integers(1, 4),  # epochs
    st.lists(st.integers(0, 300), min_size=2, max_size=3),  # capacities
    st.integers(0, 99),
)


@given(cases, st.sampled_from(ALL))
def test_a_node_keeps_each_sample_once_and_no_tier_overflows(
    case: tuple[int, int, int, int, int, list[int], int], name: str
) -> None:
    nodes, batch, steps, rest, epochs, capacities, seed = case
    samples = nodes * batch * steps + min(rest, nodes * batch - 1)
    sizes = np.random.default_rng(seed).integers(1, 40, samples)
    own = sequences(samples, nodes, batch, epochs, seed)
    try:
        keeps = place(name, own, sizes, capacities, batch * steps)
    except DoesNotApplyError:
        return
    assert len(keeps) == nodes
    for node in keeps:
        assert len(np.unique(node.ids)) == len(node.ids)
        assert [len(copies) for copies in node.copies] == [len(ids) for ids in node.tiers]
        for ids, capacity in zip(node.tiers, capacities, strict=True):
            assert ids.dtype == np.int64
            if not name.startswith("lbann"):  # whose published condition is one of all nodes together
                assert sizes[ids].sum() <= capacity
    # a copy has a holder that took the sample from the file system
    originals = [ids[~copies] for node in keeps for ids, copies in zip(node.tiers, node.copies, strict=True)]
    for node in keeps:
        for ids, copies in zip(node.tiers, node.copies, strict=True):
            assert np.isin(ids[copies], np.concatenate(originals)).all()
    assert [[ids.tolist() for ids in node.tiers] for node in place(name, own, sizes, capacities, batch * steps)] == [
        [ids.tolist() for ids in node.tiers] for node in keeps
    ]


def test_cut_ends_a_tier_where_the_next_sample_overflows_it() -> None:
    sizes = np.array([5, 4, 3, 2, 1])
    tiers = cut_into_tiers(np.array([1, 0, 4, 3, 2]), sizes, [8, 6])
    assert [ids.tolist() for ids in tiers] == [[1], [0, 4]]


@given(st.integers(1, 4), st.integers(0, 60), st.integers(0, 60), st.integers(0, 9))
def test_clairvoyant_keeps_the_most_frequent_and_fetches_by_first_access(
    nodes: int, ram: int, disk: int, seed: int
) -> None:
    samples, epochs = 24, 6
    own = sequences(samples, nodes, 2, epochs, seed)
    for sequence, node in zip(own, clairvoyant(own, np.ones(samples, np.int64), [ram, disk]), strict=True):
        ids, counts, first = count_accesses(sequence)
        count, position = dict(zip(ids, counts, strict=True)), dict(zip(ids, first, strict=True))
        left = set(ids) - set(node.ids)
        assert len(node.ids) == min(len(ids), ram + disk)
        levels = [[count[k] for k in tier] for tier in (*node.tiers, left)]
        for upper, lower in ((0, 1), (0, 2), (1, 2)):
            assert min(levels[upper], default=99) >= max(levels[lower], default=0)
        for tier in node.tiers:
            assert [position[k] for k in tier] == sorted(position[k] for k in tier)


@given(st.lists(st.lists(st.integers(0, 9), max_size=30), min_size=1, max_size=4))
def test_what_comes_in_parts_is_counted_as_a_whole(parts: list[list[int]]) -> None:
    arrays = [np.array(part, np.int64) for part in parts]
    for one, other in zip(count_in_parts(arrays, 12), count_accesses(np.concatenate(arrays)), strict=True):
        assert one.tolist() == other.tolist()
        assert one.dtype == other.dtype
    for samples in (10, 200):  # fewer than are read, and more
        for one, other in zip(count_in_one(arrays[0], samples), count_accesses(arrays[0]), strict=True):
            assert one.tolist() == other.tolist()


def test_nodes_break_ties_differently() -> None:
    samples, nodes = 400, 4
    own = sequences(samples, nodes, 10, 2)
    kept = holders(clairvoyant(own, np.ones(samples, np.int64), [40, 10]), samples)
    # lowest ids first on every node would leave the upper half of the dataset with few holders
    assert (kept[samples // 2 :] > 0).sum() > 0.3 * (kept > 0).sum()


@given(st.integers(1, 5), st.integers(0, 40), st.integers(0, 40), st.integers(0, 9))
def test_cooperative_gives_every_sample_a_holder_before_any_has_two(nodes: int, ram: int, disk: int, seed: int) -> None:
    samples = 60
    own = sequences(samples, nodes, 3, 5, seed)
    keeps = cooperative(own, np.ones(samples, np.int64), [ram, disk], len(own[0]) // 5)
    kept = holders(keeps, samples)
    read = np.unique(np.concatenate(own))
    firsts = np.concatenate([ids[~copies] for one in keeps for ids, copies in zip(one.tiers, one.copies, strict=True)])
    assert len(np.unique(firsts)) == len(firsts) == (kept > 0).sum()
    for node, one in enumerate(keeps):  # copies are of what is read again
        copied = np.concatenate([ids[copies] for ids, copies in zip(one.tiers, one.copies, strict=True)])
        assert all(np.count_nonzero(own[node] == sample) > 1 for sample in copied)
    for sample in read[kept[read] == 0]:
        for node in range(nodes):
            if sample in own[node]:  # no room, and none of it has gone to a copy
                assert len(keeps[node].ids) == ram + disk
                assert not np.concatenate(keeps[node].copies).any()


def test_cooperative_keeps_nothing_of_a_single_epoch() -> None:
    own = sequences(60, 3, 3, 1)
    assert holders(cooperative(own, np.ones(60, np.int64), [60, 60], len(own[0])), 60).sum() == 0
    passes = [np.arange(60 + 4 * node, 64 + 4 * node) for node in range(3)]  # over validation samples, behind it
    firsts = first_holders([own, passes], 3, np.ones(80, np.int64), [80])
    assert sum(len(tiers[0]) for tiers in firsts) == 0


def test_the_first_reader_holds_and_a_full_one_leaves_it_to_the_next() -> None:
    own = [np.array([0, 1, 2, 3, 4, 5]), np.array([3, 4, 5, 0, 1, 2])]
    sizes = np.array([2, 2, 2, 1, 1, 1])
    epochs = [[ids[:3] for ids in own], [ids[3:] for ids in own]]
    (first,), (second,) = first_holders(epochs, 2, sizes, [5])
    assert first.tolist() == [0, 1]  # 2 does not fit
    assert second.tolist() == [3, 4, 5, 2]  # nor did node 0 have room for it; node 1 reads it in the next epoch


@settings(deadline=None)
@given(cases)
def test_a_node_sees_what_all_of_them_do_from_epochs_that_come_one_at_a_time(
    case: tuple[int, int, int, int, int, list[int], int],
) -> None:
    nodes, batch, steps, rest, epochs, capacities, seed = case
    samples = nodes * batch * steps + min(rest, nodes * batch - 1)
    sizes = np.random.default_rng(seed).integers(1, 40, samples)
    own, per_epoch = sequences(samples, nodes, batch, epochs, seed), batch * steps
    everything = cooperative(own, sizes, capacities, per_epoch)
    for node in range(nodes):
        mine = np.split(own[node], epochs)
        parts = ([ids[at : at + per_epoch] for ids in own] for at in range(0, epochs * per_epoch, per_epoch))
        for other, (seen, kept) in enumerate(
            zip(seen_by_node(parts, nodes, node, mine, sizes, capacities), everything, strict=True)
        ):
            shown = [
                ids if other == node else ids[~copies] for ids, copies in zip(kept.tiers, kept.copies, strict=True)
            ]
            assert [ids.tolist() for ids in seen.tiers] == [ids.tolist() for ids in shown]
            assert other != node or [one.tolist() for one in seen.copies] == [one.tolist() for one in kept.copies]


@pytest.mark.parametrize(("capacity", "asked"), [(10, 2), (1000, 2), (0, 2)])
def test_no_epoch_is_asked_for_that_decides_nothing(capacity: int, asked: int) -> None:
    own, came = sequences(43, 4, 5, 6), []  # three samples of the first epoch fill no step

    def epochs() -> Iterator[list[np.ndarray]]:
        for epoch in range(6):
            came.append(epoch)
            yield [ids[10 * epoch :][:10] for ids in own]

    first_holders(epochs(), 4, np.full(43, 7), [capacity, capacity])
    assert len(came) == asked


def test_copies_are_what_a_node_reads_most_often() -> None:
    # six samples, two nodes, three epochs; node 0 reads 3 twice and 4 and 5 once beside its own
    own = [np.array([0, 1, 2, 5, 3, 0, 1, 4, 3]), np.array([3, 4, 5, 0, 1, 2, 2, 5, 0])]
    first, second = cooperative(own, np.ones(6, np.int64), [2, 2], per_epoch=3)
    assert [ids.tolist() for ids in first.tiers] == [[0, 1], [2, 3]]
    assert [copies.tolist() for copies in first.copies] == [[False, False], [False, True]]
    assert [ids.tolist() for ids in second.tiers] == [[3, 4], [5, 0]]  # 0 and 2 are read twice, 0 sooner


def test_what_applies_to_the_whole_dataset_says_when_it_does_not_fit() -> None:
    own, sizes = sequences(40, 4, 5, 2), np.full(40, 10)
    for place_all in (shares.lbann_preload, lbann_dynamic):
        assert (holders(place_all(own, sizes, [100, 0]), 40) == 1).all()
        with pytest.raises(DoesNotApplyError, match=r"keeps the whole dataset in RAM: .* 4 nodes .* Use more nodes"):
            place_all(own, sizes, [99, 1000])
    assert (holders(shares.stage_partition(own, sizes, [60, 40]), 40) == 1).all()
    with pytest.raises(DoesNotApplyError, match="Node 0 has 99 B for 100 B"):
        shares.stage_partition(own, sizes, [60, 39])


def test_dynamic_keeps_first_reads_in_reading_order() -> None:
    own = sequences(40, 4, 5, 3)
    for sequence, node in zip(own, lbann_dynamic(own, np.ones(40, np.int64), [10, 5]), strict=True):
        assert node.tiers[0].tolist() == sequence[:10].tolist()
        assert not len(node.tiers[1])


def test_parallel_staging_copies_what_others_staged() -> None:
    keeps = shares.parallel_staging(sequences(40, 4, 5, 1), np.ones(40, np.int64), [7, 25])
    assert keeps[3].tiers[1].tolist() == [*range(30, 40), *range(15)]
    assert keeps[3].copies[1].tolist() == [False] * 10 + [True] * 15


def test_what_thousands_of_nodes_keep_takes_the_memory_of_what_they_keep() -> None:
    nodes, samples = 2000, 20_000
    own = [np.zeros(0, np.int32)] * nodes
    tracemalloc.start()
    contents = shares.parallel_staging(own, np.ones(samples, np.int64), [0, 20])
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [len(node.ids) for node in contents] == [20] * nodes
    assert kept < 5e6
    assert most < 10e6 < nodes * samples


def test_room_for_the_smallest_sample_is_asked_once_for_all_nodes() -> None:
    """To look for it costs as much as there are samples."""

    class Sizes(np.ndarray):  # type: ignore[type-arg]
        searched = 0

        def min(self, *args: Any, **options: Any) -> Any:
            Sizes.searched += 1
            return super().min(*args, **options)

    ones = np.ones(4000, np.int64).view(Sizes)
    first_holders([[np.arange(4000)[node::200] for node in range(200)]] * 5, 200, ones, [10])
    assert 0 < Sizes.searched <= 5


@given(st.integers(1, 6), st.integers(0, 5))
def test_redrawn_orders_stay_with_what_is_kept(nodes: int, seed: int) -> None:
    sizes, samples = np.ones(60, np.int64), 60
    own = [np.arange(0)] * nodes
    ram, staged = shares.deepio(own, sizes, [7, 0]), shares.parallel_staging(own, sizes, [0, 25])
    partition = shares.stage_partition(own, sizes, [60, 0])
    for node in range(nodes):
        drawn = redrawn.opportunistic(ram, node, 500, 50, seed)
        reach = np.concatenate([ram[node].ids, ram[(node + 1) % nodes].ids])
        assert np.isin(drawn, reach).all()
        assert np.isin(redrawn.staged_draws(staged, node, 500, 50, seed), staged[node].ids).all()
        per_epoch = samples // nodes
        epochs = redrawn.share_shuffle(partition, node, 3 * per_epoch, per_epoch, seed).reshape(3, per_epoch)
        assert (np.sort(epochs, axis=1) == partition[node].ids).all()
        assert len({tuple(epoch) for epoch in epochs.tolist()}) == 3 or nodes > 5


def test_opportunistic_draws_are_local_as_often_as_published() -> None:
    ram = shares.deepio([np.arange(0)] * 5, np.ones(1000, np.int64), [100, 0])
    drawn = redrawn.opportunistic(ram, 2, 40_000, 400, 1)
    assert np.isin(drawn, ram[2].ids).mean() == pytest.approx(1 / 4, abs=0.01)
    assert len(np.unique(drawn)) == 200


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("room", [3, 7, 100])
def test_nodes_that_read_the_same_hold_it_in_turn(copies: int, room: int) -> None:
    """`copies`: ranks of a node, which read the same too."""
    nodes, samples = 3, 20
    order = np.random.Generator(np.random.Philox(1)).permutation(samples)
    own = [np.tile(np.repeat(order, copies), 2)] * nodes
    epochs = [[ids[: samples * copies] for ids in own]]
    firsts = first_holders(epochs, nodes, np.ones(samples, np.int64), [room])
    held = np.concatenate([tiers[0] for tiers in firsts])
    assert len(np.unique(held)) == len(held) == min(samples, nodes * room)
    for node, (ids,) in enumerate(firsts):
        turn = order[node::nodes]
        assert ids.tolist() == turn[:room].tolist()
    kept = cooperative(own, np.ones(samples, np.int64), [room], samples * copies)
    for keeps in kept:
        assert len(np.unique(keeps.ids)) == len(keeps.ids) == min(room, samples)


def test_ranks_of_one_node_that_read_the_same_share_what_is_read_once() -> None:
    own = [np.repeat(np.arange(6), 2)]
    ((held,),) = first_holders([own], 1, np.ones(6, np.int64), [4])
    assert held.tolist() == [0, 1, 2, 3]


def test_a_sample_that_pads_an_epoch_is_held_once() -> None:
    own = [np.array([0, 1, 2, 0]), np.array([3, 4, 5, 1])]
    (first,), (second,) = first_holders([own, own], 2, np.ones(6, np.int64), [9])
    assert (first.tolist(), second.tolist()) == ([0, 1, 2], [3, 4, 5])
