"""Readers that keep samples, on the virtual clock: who reads what from where."""

import numpy as np
import pytest

from dlio_bench.harness.cluster.system import Rates
from dlio_bench.harness.commands.run.predicted import runtime
from dlio_bench.harness.commands.run.predicted.devices import Cache, FileSystem, NodeCores, TierDevice
from dlio_bench.harness.commands.run.predicted.placed import Keeping, NodeTiers, ReadCosts
from dlio_bench.harness.plan.orders import Shape, find_order
from dlio_bench.harness.plan.policies import PLACEMENTS
from dlio_bench.harness.readers.placed.layout import Sequences, lay_out
from dlio_bench.harness.readers.placed.tiers import Speeds
from dlio_bench.harness.readers.threads import Readers
from dlio_bench.harness.simulator.kernel import Barrier, Clock, Process
from tests.unit.simulator.test_runtime import machine

SAMPLES, SIZE, EPOCHS, BATCH = 64, 100_000, 3, 4


def run(
    policy: str, nodes: int, capacity: int, *, per_node: int = 1, step_seconds: float = 0.0
) -> tuple[FileSystem, TierDevice, Keeping, list[runtime.SimulatedRank]]:
    """All ranks read EPOCHS epochs with tiers of `capacity` bytes in memory."""
    one, ranks = PLACEMENTS[policy], nodes * per_node
    shape, order = Shape(SAMPLES, ranks, BATCH, ranks_per_node=per_node), find_order("global-shuffle")
    ids = [[order(shape, rank, epoch, 7) for epoch in range(EPOCHS)] for rank in range(ranks)]
    read = Sequences(lambda rank, epoch: ids[rank][epoch].ravel(), ranks, per_node, range(EPOCHS))
    sizes = np.full(SAMPLES, SIZE)
    tiers = [NodeTiers(lay_out(one, read, sizes, SAMPLES, (capacity,), node), ("ram",)) for node in range(nodes)]
    clock = Clock()
    pfs = FileSystem(clock, machine(), nodes)
    memory, writes = (TierDevice(clock, Rates(((1, 10_000.0),)), 4, nodes, shared=False) for _ in range(2))
    cores = NodeCores(clock, 2, nodes, shared=True)
    costs = ReadCosts(lambda _: [SIZE], sizes.tolist(), pfs, memory, [Cache(0)] * nodes, [memory], [writes], 1e9, cores)
    keeping = Keeping(clock, tiers, one.behaviour, costs, [Speeds() for _ in range(ranks)])
    meeting = Barrier(clock, ranks, 0.0)
    steps = EPOCHS * len(ids[0][0])
    all_ranks = []

    def process(number: int, rank: runtime.SimulatedRank) -> Process:
        for copies in (False, True) if one.first else ():
            yield from runtime.run_together(clock, list(keeping.fill(number, 2, copies=copies, patient=False)))
            yield from meeting.meet()
        for filler in [] if one.first else keeping.fill(number, 2, copies=False, patient=True):
            clock.start(filler)
        pace, readers = runtime.StepPace(step_seconds, "step", 1), Readers(2, trainer=False)
        ahead = runtime.Ahead(clock, rank, lambda chunk: keeping.fetch(number, chunk), readers, 4, pace)

        def batch(step: int) -> Process:
            yield from ahead.batch(step)
            yield from keeping.complete(number, step)

        yield from runtime.train(clock, rank, meeting, pace, batch)
        keeping.end(number)

    for number, own in enumerate(ids):
        flat = np.concatenate(own)
        chunks = [runtime.Chunk(step, (), samples=tuple(batch.tolist())) for step, batch in enumerate(flat)]
        all_ranks.append(runtime.SimulatedRank(number // per_node, chunks, steps))
        clock.start(process(number, all_ranks[-1]))
    clock.run()
    assert all((rank.ends > 0).all() for rank in all_ranks)  # nobody waits for ever
    return pfs, memory, keeping, all_ranks


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize(
    "policy", ["cooperative", "lbann-preload", "lbann-dynamic", "deepio-ordered", "locality-aware"]
)
def test_the_file_system_delivers_each_sample_once(policy: str, nodes: int) -> None:
    pfs, memory, keeping, _ = run(policy, nodes, SAMPLES * SIZE)
    assert pfs.bytes == SAMPLES * SIZE
    assert (keeping.remote > 0) == (nodes > 1)
    assert memory.bytes > 0


@pytest.mark.parametrize("policy", ["cooperative", "clairvoyant", "deepio-ordered", "locality-aware"])
def test_tiers_that_are_too_small_leave_the_rest_to_the_file_system(policy: str) -> None:
    pfs, _, keeping, _ = run(policy, 4, 4 * SIZE)
    assert SAMPLES * SIZE < pfs.bytes <= EPOCHS * SAMPLES * SIZE
    assert keeping.remote <= EPOCHS * SAMPLES * SIZE - pfs.bytes + 4 * 4 * SIZE


def test_ranks_of_a_node_share_its_tiers() -> None:
    pfs, _, _, _ = run("cooperative", 2, SAMPLES * SIZE, per_node=2)
    assert pfs.bytes == SAMPLES * SIZE


def test_what_is_kept_makes_later_epochs_quick() -> None:
    _, _, _, ranks = run("cooperative", 2, SAMPLES * SIZE)
    per_epoch = len(ranks[0].begins) // EPOCHS
    first = ranks[0].ends[per_epoch - 1] - ranks[0].begins[0]
    later = (ranks[0].ends[-1] - ranks[0].begins[per_epoch]) / (EPOCHS - 1)
    # 64 samples of 0.1 MB at 100 MB/s; then at network and memory speed
    assert first == pytest.approx(0.064, rel=0.35)
    assert later < first / 10


def test_copies_come_from_their_holders() -> None:
    pfs, _, keeping, _ = run("parallel-staging", 2, SAMPLES * SIZE)
    assert pfs.bytes == SAMPLES * SIZE  # each node stages its half
    assert keeping.remote >= SAMPLES * SIZE  # and takes the other one from the other
