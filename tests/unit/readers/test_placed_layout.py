"""Where samples lie, by the plan alone: what one rank works out of another node is what that node does."""

import threading
import tracemalloc
from mmap import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlio_bench.harness.plan.orders import Shape, find_order
from dlio_bench.harness.plan.placement.rule import DoesNotApplyError
from dlio_bench.harness.plan.policies import PLACEMENTS
from dlio_bench.harness.readers.placed.claims import Claims, SampleState
from dlio_bench.harness.readers.placed.layout import NOWHERE, Sequences, lay_out
from dlio_bench.harness.readers.placed.tiers import PROOF_BYTES, Speeds
from dlio_bench.harness.readers.threads import queued_seconds


@settings(deadline=None)
@given(
    name=st.sampled_from([name for name, rule in PLACEMENTS.items() if rule.keeps_samples]),
    nodes=st.integers(1, 4),
    per_node=st.integers(1, 3),
    samples=st.integers(24, 80),
    capacities=st.lists(st.integers(1, 900), min_size=1, max_size=2),
    seed=st.integers(0, 99),
)
def test_nodes_agree_on_who_keeps_what(
    name: str, nodes: int, per_node: int, samples: int, capacities: list[int], seed: int
) -> None:
    sizes = np.random.default_rng(seed).integers(1, 30, samples)
    shape, order = Shape(samples, nodes * per_node, 2), find_order("global-shuffle")
    read = Sequences(lambda rank, epoch: order(shape, rank, epoch, seed).ravel(), shape.ranks, per_node, range(3))
    try:
        found = [lay_out(PLACEMENTS[name], read, sizes, samples, capacities, node) for node in range(nodes)]
    except DoesNotApplyError:
        return
    for node, own in enumerate(found):
        if not name.startswith("lbann"):  # whose published condition is one of all nodes together
            assert all(kept <= capacity for kept, capacity in zip(own.bytes, capacities, strict=True))
        assert len(np.unique(own.ids)) == len(own.ids)
        assert own.number[own.ids].tolist() == list(range(len(own.ids)))
        assert (own.number >= 0).sum() == len(own.ids)
        assert own.size.tolist() == sizes[own.ids].tolist()
        for tier, (first, last) in enumerate(zip(own.bounds[:-1], own.bounds[1:], strict=True)):
            assert (own.tier[first:last] == tier).all()  # one behind the other, without gaps
            assert own.offset[first:last].tolist() == [0, *np.cumsum(own.size[first:last])][: last - first]
        assert (own.keeper[own.ids] // per_node == node).all()
        assert (own.keeper[own.number < 0] == NOWHERE).all()
        held = np.flatnonzero(own.holder != NOWHERE)
        for sample in held.tolist():
            other = found[own.holder[sample] // per_node]
            assert other is not own
            assert other.keeper[sample] == own.holder[sample]
            number = int(other.number[sample])
            assert not other.copy[number]
            assert other.tier[number] == own.holder_tier[sample]
            assert number - other.bounds[other.tier[number]] == own.holder_place[sample]
        firsts = [set(other.ids[~other.copy].tolist()) for other in found if other is not own]
        assert set(held.tolist()) == set().union(*firsts)
        assert set(own.ids[own.copy].tolist()) <= set(held.tolist())


def test_ranks_of_a_node_read_side_by_side() -> None:
    plans = {0: [1, 2, 3], 1: [4, 5, 6], 2: [7], 3: [8, 9]}  # shares may be uneven
    read = Sequences(lambda rank, epoch: np.array(plans[rank]) + 10 * epoch, 4, 2, [0, 1])
    assert read.ids(0, 1).tolist() == [11, 14, 12, 15, 13, 16]
    assert [part.tolist() for part in read.asking(1, 0)] == [[7, 8, 9], [2, 3, 3]]
    assert [[ids.tolist() for ids in epoch] for epoch in read.by_epoch()] == [
        [[1, 4, 2, 5, 3, 6], [7, 8, 9]],
        [[11, 14, 12, 15, 13, 16], [17, 18, 19]],
    ]
    assert [ids.tolist() for ids in read.whole()] == [
        [1, 4, 2, 5, 3, 6, 11, 14, 12, 15, 13, 16],
        [7, 8, 9, 17, 18, 19],
    ]


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=5))
def test_epochs_of_any_lengths_are_put_behind_each_other(epochs: list[list[int]]) -> None:
    read = Sequences(lambda _, epoch: np.array(epochs[epoch], np.int64), 1, 1, range(len(epochs)))
    (found,) = read.whole()
    assert found.tolist() == [sample for ids in epochs for sample in ids]


@pytest.mark.parametrize("per_node", [1, 2])
def test_memory_does_not_grow_with_the_epochs(per_node: int) -> None:
    samples, nodes, epochs = 100_000, 8, 60
    shape, order = Shape(samples, nodes * per_node, 5), find_order("global-shuffle")
    read = Sequences(lambda rank, epoch: order(shape, rank, epoch, 1).ravel(), shape.ranks, per_node, range(epochs))
    tracemalloc.start()
    try:
        found = lay_out(PLACEMENTS["cooperative"], read, np.full(samples, 10), samples, (300_000,), 3)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.copy.any()
    assert peak < 140 * samples  # the accesses of the job would be 240 bytes a sample besides


def test_ranks_that_read_the_same_take_turns_to_be_first() -> None:
    read = Sequences(lambda rank, epoch: np.arange(4), 4, 2, [0])  # noqa: ARG005 - the same for all
    assert [part.tolist() for part in read.asking(0, 0)] == [[0, 0, 1, 1, 2, 2, 3, 3], [0, 1, 0, 1, 1, 0, 1, 0]]
    assert read.asking(1, 0)[1].tolist() == [2, 3, 2, 3, 3, 2, 3, 2]


def test_a_sample_is_brought_by_one_thread_and_waited_for_by_the_others() -> None:
    claims = Claims(mmap(-1, 3), np.array([True, True, False]))
    assert claims.take(0) is SampleState.CLAIMED
    assert claims.take(0) is SampleState.BUSY
    assert claims.take(2) is SampleState.FOREIGN
    waited: list[bool] = []
    waiting = threading.Thread(target=lambda: waited.append(claims.wait(0, 30)))
    waiting.start()
    claims.settle(0, present=True)
    waiting.join()
    assert waited == [True]
    assert claims.take(0) is SampleState.PRESENT
    assert claims.take(1) is SampleState.CLAIMED
    claims.settle(1, present=False)  # it failed
    assert claims.wait(1, 30) is False
    assert claims.take(1) is SampleState.CLAIMED
    assert claims.wait(1, 0.01) is False


def test_threads_that_claim_at_once_get_a_sample_each() -> None:
    claims, won = Claims(mmap(-1, 500), np.ones(500, bool)), []

    def take() -> None:
        won.extend(number for number in range(500) if claims.take(number) is SampleState.CLAIMED)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(500))


@pytest.mark.parametrize(
    ("rate", "size", "faster"),
    [(200e6, 8 * PROOF_BYTES, False), (5e9, 8 * PROOF_BYTES, True), (5e9, PROOF_BYTES // 2, False)],
)
def test_a_file_system_is_preferred_when_it_is_proven_to_be_memory(rate: float, size: int, faster: bool) -> None:
    speeds = Speeds()
    for _ in range(10):
        speeds.saw_file_system(size // 10, size / 10 / rate)
    assert not speeds.file_system_beats("remote")  # than nothing known
    speeds.saw_memory(1_000_000, 1e-3)
    speeds.saw_memory(1_000_000, 1e-4)
    assert speeds.file_system_beats("remote") is faster
    for _ in range(100):
        speeds.saw_file_system(size, size / 100e6)
    assert not speeds.file_system_beats("remote")


def test_waits_for_a_core_are_not_the_file_systems() -> None:
    speeds = Speeds()
    speeds.saw_memory(1_000_000, 1e-4)
    speeds.saw_file_system(2 * PROOF_BYTES, 1.0, queued=0.99)
    assert speeds.file_system_beats("remote")
    assert queued_seconds() >= 0


@pytest.mark.parametrize("cached", [True, False, None])
def test_a_fast_disk_is_no_cache(cached: bool | None) -> None:
    """Of files that are known not to lie in the page cache, no rate says that tiers are needless."""
    speeds = Speeds()
    speeds.saw_memory(1_000_000, 1e-4)
    speeds.begin(cached=cached)
    assert speeds.file_system_beats("remote") is (cached is True)
    speeds.saw_file_system(2 * PROOF_BYTES, 0.01)
    assert speeds.file_system_beats("remote") is (cached is not False)


def test_a_description_decides_between_the_sources_that_it_names() -> None:
    speeds = Speeds({"pfs": 1e9, "remote": 2e9, "disk": 0.5e9})
    assert not speeds.file_system_beats("remote")
    assert speeds.file_system_beats("disk")
    assert not speeds.file_system_beats("ram")
