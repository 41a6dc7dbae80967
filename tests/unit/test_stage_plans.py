"""Staging plans: which files a node keeps, who reads each from the parallel file system, who sends it on."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.errors import UsageError
from dlio_bench.harness.plan.orders import Shape, find_order
from dlio_bench.harness.plan.staging import (
    STAGED,
    StagePlan,
    stage_partition,
    stage_plan,
    stage_replicate,
    stage_subset,
)

nodes_and_ranks = {"nodes": st.integers(1, 5), "per_node": st.integers(1, 4)}
seeds = st.integers(0, 2**62)


def holders(plan: StagePlan, per_node: int) -> list[set[int]]:
    """What each node has after the staging, from reads and sends alone (a reader may throw away what it passes on)."""
    has: list[set[int]] = [set() for _ in plan.nodes]
    for rank, files in plan.reads.items():
        has[rank // per_node] |= set(files.tolist()) & set(plan.nodes[rank // per_node].tolist())
    for file, reader, receiver in plan.sends:
        assert file in plan.reads[reader]  # nobody sends what it has not read
        assert reader // per_node != receiver // per_node
        assert file not in has[receiver // per_node]  # nor what is there already
        has[receiver // per_node].add(file)
    return has


@pytest.mark.parametrize("placement", STAGED)
@given(files=st.integers(20, 80), seed=seeds, **nodes_and_ranks)
def test_every_node_gets_what_it_keeps_and_ranks_share_the_work(
    placement: str, files: int, nodes: int, per_node: int, seed: int
) -> None:
    plan = stage_plan(placement, files, nodes, per_node, seed)
    assert [set(kept.tolist()) for kept in plan.nodes] == holders(plan, per_node)
    assert sorted(plan.reads) == list(range(nodes * per_node))
    for read in plan.reads.values():
        assert read.dtype == np.int64
        assert (np.diff(read) > 0).all()
    for kept in plan.nodes:
        assert kept.dtype == np.int64
        assert (np.diff(kept) > 0).all()
    for node in range(nodes):
        loads = [len(plan.reads[rank]) for rank in range(node * per_node, (node + 1) * per_node)]
        assert max(loads) - min(loads) <= 1
        received = Counter(receiver for _, _, receiver in plan.sends if receiver // per_node == node)
        counts = [received[rank] for rank in range(node * per_node, (node + 1) * per_node)]
        assert max(counts) - min(counts) <= 1
    assert plan.sends == sorted(plan.sends)
    assert repr(stage_plan(placement, files, nodes, per_node, seed)) == repr(plan)


def test_a_partition_deals_files_in_turn_and_leaves_the_remainder_out() -> None:
    assert [stage_partition(11, 3, node).tolist() for node in range(3)] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    plan = stage_plan("stage-partition", 11, 3, 2, seed=1)
    assert {rank: read.tolist() for rank, read in plan.reads.items()} == {
        0: [0, 6],
        1: [3],
        2: [1, 7],
        3: [4],
        4: [2, 8],
        5: [5],
    }
    assert plan.sends == []


def test_a_replica_is_read_by_every_node_as_published() -> None:
    assert stage_replicate(4, 3, 2).tolist() == [0, 1, 2, 3]
    plan = stage_plan("stage-replicate", 5, 2, 2, seed=1)
    assert [plan.reads[rank].tolist() for rank in range(4)] == [[0, 2, 4], [1, 3], [0, 2, 4], [1, 3]]
    assert plan.sends == []


@given(files=st.integers(20, 60), count=st.integers(1, 20), seed=seeds, **nodes_and_ranks)
def test_a_file_of_a_subset_is_read_once_in_the_job(
    files: int, count: int, nodes: int, per_node: int, seed: int
) -> None:
    plan = stage_plan("stage-subset", files, nodes, per_node, seed, count)
    ranks = nodes * per_node
    wanted = [set(stage_subset(files, ranks, rank, count, seed).tolist()) for rank in range(ranks)]
    assert all(len(files_of_rank) == count for files_of_rank in wanted)
    for node, kept in enumerate(plan.nodes):
        assert set(kept.tolist()) == set().union(*wanted[node * per_node : (node + 1) * per_node])
    union = sorted(set().union(*wanted))
    assert sorted(np.concatenate(list(plan.reads.values())).tolist()) == union
    for rank, read in plan.reads.items():
        assert read.tolist() == union[rank::ranks]
    # at most one receiver on a node
    assert len({(file, receiver // per_node) for file, _, receiver in plan.sends}) == len(plan.sends)


def test_subsets_are_drawn_without_replacement_evenly_and_independently() -> None:
    files, ranks, count, seeds_tried = 60, 8, 15, 100
    drawn = [[stage_subset(files, ranks, rank, count, seed) for rank in range(ranks)] for seed in range(seeds_tried)]
    hits = np.bincount(np.concatenate([one for job in drawn for one in job]), minlength=files)
    # every file 200 times, binomial with deviation 12; five of them
    assert 140 < hits.min() <= hits.max() < 260
    shared = [len(np.intersect1d(a, b)) for job in drawn for i, a in enumerate(job) for b in job[:i]]
    assert abs(np.mean(shared) - count * count / files) < 0.2  # 15 / 4 of two independent draws
    union = np.mean([len(np.unique(np.concatenate(job))) for job in drawn])
    assert abs(union - files * (1 - 0.75**ranks)) < 0.5  # some files are on no node
    assert len({tuple(one) for job in drawn for one in job}) == ranks * seeds_tried


@pytest.mark.parametrize(
    ("placement", "order"),
    [("stage-partition", "node-shuffle"), ("stage-subset", "subset-shuffle"), ("stage-subset", "subset-shuffle(5)")],
)
def test_an_order_asks_a_node_only_for_files_that_it_keeps(placement: str, order: str) -> None:
    bounds = np.cumsum([0, *(3 + file % 4 for file in range(50))])
    shape = Shape(int(bounds[-1]), 6, 2, bounds=bounds, ranks_per_node=2, first=0)
    plan = stage_plan(placement, 50, 3, 2, seed=9, count=find_order(order).number)
    for rank in range(6):
        for epoch in range(2):
            ids = find_order(order)(shape, rank, epoch, 9).ravel()
            files = np.searchsorted(bounds, ids, side="right") - 1
            assert set(files.tolist()) <= set(plan.nodes[rank // 2].tolist())


def test_nothing_is_staged_where_nothing_is_placed() -> None:
    plan = stage_plan("none", 9, 2, 2, seed=1)
    assert [kept.tolist() for kept in plan.nodes] == [[], []]
    assert {rank: read.tolist() for rank, read in plan.reads.items()} == {0: [], 1: [], 2: [], 3: []}
    assert plan.sends == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("stage-partition", 3, 4, 1, 0), "4 nodes cannot share 3 files"),
        (("stage-subset", 3, 4, 1, 0), "cannot draw 0 different files of 3"),
        (("stage-subset", 3, 4, 1, 0, 5), "cannot draw 5 different files of 3"),
        (("stage-subset", 0, 4, 1, 0, 1), "cannot draw 1 different files of 0"),
        (("clairvoyant", 30, 4, 1, 0), "'clairvoyant' stages no files"),
    ],
)
def test_placements_that_cannot_be_are_refused(arguments: tuple[str, int, int, int, int], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        stage_plan(*arguments)
