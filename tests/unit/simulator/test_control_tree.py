"""The control plane's tree: its published shape, and how many messages each rank sends and gets."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.harness.cli import main
from dlio_bench.harness.simulator.control_tree import FLAT, depth, messages, parents


def test_a_tree_by_hand() -> None:
    # 0: [1..4] [5..7]; 1: [2, 3] [4]; 2: [3]; 5: [6] [7]
    assert parents(8, 2).tolist() == [-1, 0, 1, 2, 1, 0, 5, 5]
    incoming, outgoing = messages(parents(8, 2))
    assert incoming.tolist() == outgoing.tolist() == [2, 3, 2, 1, 1, 3, 1, 1]
    assert depth(parents(8, 2)) == 3
    assert parents(5, FLAT).tolist() == [-1, 0, 0, 0, 0]
    assert parents(1, 2).tolist() == [-1]


@given(st.integers(2, 400), st.integers(2, 9))
def test_the_tree_has_the_published_shape(ranks: int, radix: int) -> None:
    parent = parents(ranks, radix)
    assert (parent[1:] < np.arange(1, ranks)).all()
    children = [np.flatnonzero(parent == rank) for rank in range(ranks)]
    sizes = np.ones(ranks, int)  # of the tree below each rank
    for rank in reversed(range(1, ranks)):
        sizes[parent[rank]] += sizes[rank]
    for rank, below in enumerate(children):
        assert len(below) == min(radix, sizes[rank] - 1)
        if len(below):
            assert below[0] == rank + 1  # preorder is the order of the ranks: ranges stand one behind the other
            assert np.array_equal(below[1:], below[:-1] + sizes[below[:-1]])
            assert sizes[below].max() - sizes[below].min() <= 1
            assert (np.diff(sizes[below]) <= 0).all()  # the longer ones first


@given(st.integers(2, 3000), st.sampled_from([FLAT, 2, 3, 4, 8]))
def test_messages_add_up_and_stay_within_the_bound(ranks: int, radix: int) -> None:
    parent = parents(ranks, radix)
    incoming, outgoing = messages(parent)
    assert incoming.sum() == outgoing.sum() == 2 * (ranks - 1)  # a request and a response of each rank but one
    most = max(ranks - 1, 1) if radix == FLAT else radix + 1
    assert max(incoming.max(), outgoing.max()) <= most
    assert incoming[0] == min(ranks - 1 if radix == FLAT else radix, ranks - 1)


def test_a_user_sees_the_load_of_rank_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--control-tree", "27360", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    trees = {tree["radix"]: tree for tree in document["trees"]}
    assert trees[0]["root_in"] == trees[0]["most_in"] == 27359
    assert {radix: tree["root_in"] for radix, tree in trees.items() if radix} == {2: 2, 4: 4, 8: 8}
    assert all(tree["most_out"] == radix + 1 for radix, tree in trees.items() if radix)
    assert trees[2]["depth"] == 14  # 2^14 <= 27,360 < 2^15
    assert main(["simulate", "--control-tree", "6", "--radix", "0,3"]) == 0
    text = capsys.readouterr().out
    assert "until 6 ranks agree on one tensor" in text
    assert [line.split()[:2] for line in text.splitlines()[-2:]] == [["flat", "5"], ["3", "3"]]
