"""Staging by several ranks. Alone it is a job of one; `tests/mpi/test_worlds.py` runs it under mpirun as well."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import DataError, EnvironmentFailure
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.commands.run.measured.consumer import find_damage
from dlio_bench.harness.plan.orders import Shape, find_order
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.registry import open_reader
from dlio_bench.harness.readers.resources import RankContext, Resources
from dlio_bench.harness.readers.session import Planned, Reader, Tally, largest, plan_batches
from dlio_bench.harness.storage import tier
from tests.datasets import made_by_first, view_of
from tests.ranks import WORLD

FILES = 24
PIECE = 40_009  # bytes: several to a file, none of which ends with one


@pytest.fixture(scope="module")
def dataset(comm: Comm, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Files of different sizes, of many samples each."""
    return made_by_first(comm, tmp_path_factory.mktemp("imagenet"), "imagenet", FILES)


@pytest.fixture(params=[ranks for ranks in (1, 2) if WORLD % ranks == 0])
def seat(request: pytest.FixtureRequest, comm: Comm, tmp_path: Path) -> Iterator[RankContext]:
    """A node for every rank, or for every two; each with a tier that must be empty when all have left."""
    base = Path(comm.allgather(str(tmp_path))[0])
    own = RankContext(comm, request.param)
    place = base / f"node{own.node}"
    place.mkdir(exist_ok=True)
    yield replace(own, tier=place)
    comm.barrier()
    assert list(place.iterdir()) == []


def make(dataset: Dataset, plan: Sequence[Planned], placement: str, delivery: str, seat: RankContext) -> Reader:
    form = view_of(dataset)
    policy = replace(find("shuffled"), placement=placement, delivery=delivery)
    resources = Resources(threads=2, staging_bytes=16_000_000, batch_bytes=largest(plan))
    return open_reader(policy, form, resources, seat)


def plan_of(dataset: Dataset, rank: int, seed: int, *, stride: int = 1, node: int = 0) -> list[Planned]:
    """Two epochs of batches of samples of random files, of each `stride`-th from the node-th on."""
    form = view_of(dataset)
    draw = np.random.default_rng([rank, seed])
    files = dataset.locate(np.arange(dataset.samples), form.fields)[0]
    mine = draw.choice(np.arange(node, FILES, stride), size=min(5, len(range(node, FILES, stride))), replace=False)
    ids = np.flatnonzero(np.isin(files, mine))
    return plan_batches(form, [(epoch, np.array_split(draw.permutation(ids)[:12], 4)) for epoch in range(2)])


def files_of(dataset: Dataset, plan: Sequence[Planned]) -> set[int]:
    return {int(file) for batch in plan for file in dataset.locate(batch.ids, ())[0]}


def bytes_of(dataset: Dataset, files: set[int]) -> int:
    return sum(dataset.manifest.files[file].bytes for file in files)


def run(reader: Reader, plan: Sequence[Planned], comm: Comm) -> dict[str, Any]:
    """Deliver the plan; job-wide sums of its costs. All that comes is as planned and as generated."""
    tally, asked = Tally(), reader.requested_bytes(plan)
    with reader.session(plan, tally) as batches:
        for expected, batch in zip(plan, batches, strict=True):
            assert batch.ids.tolist() == expected.ids.tolist()
            assert find_damage(batch, reader.sample_view) == []
    assert asked == {epoch: tally.of(epoch).bytes_requested for epoch in asked}
    costs = [
        (tally.of(0).bytes_requested, tally.of(0).bytes_remote, tally.of(1).bytes_requested, tally.of(1).bytes_remote)
    ]
    return dict(zip(("read", "handed", "read later", "handed later"), np.sum(comm.allgather(costs[0]), 0), strict=True))


def nodes_want(seat: RankContext, dataset: Dataset, plan: Sequence[Planned]) -> list[set[int]]:
    wants, per_node = seat.comm.allgather(files_of(dataset, plan)), seat.ranks_per_node
    return [set().union(*wants[node * per_node : (node + 1) * per_node]) for node in range(seat.nodes)]


@pytest.mark.parametrize("delivery", ["on demand", "ahead"])
def test_partition_reads_a_nodes_files_once(dataset: Dataset, seat: RankContext, delivery: str) -> None:
    plan = plan_of(dataset, seat.comm.rank, 1, stride=seat.nodes, node=seat.node)
    found = run(make(dataset, plan, "stage-partition", delivery, seat), plan, seat.comm)
    job = set().union(*nodes_want(seat, dataset, plan))  # the nodes' files are disjoint
    assert found == {"read": bytes_of(dataset, job), "handed": 0, "read later": 0, "handed later": 0}


def test_replicate_reads_every_file_on_every_node(dataset: Dataset, seat: RankContext) -> None:
    plan = plan_of(dataset, seat.comm.rank, 2)
    found = run(make(dataset, plan, "stage-replicate", "ahead", seat), plan, seat.comm)
    assert found["read"] == seat.nodes * bytes_of(dataset, set(range(FILES)))
    assert found["handed"] == found["read later"] == 0


@pytest.mark.parametrize(("delivery", "piece"), [("on demand", tier.CHUNK_BYTES), ("ahead", PIECE)])
def test_subset_reads_a_file_once_in_the_job_and_hands_it_on(
    dataset: Dataset, seat: RankContext, delivery: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier, "CHUNK_BYTES", piece)
    plan = plan_of(dataset, seat.comm.rank, 3)
    wanted = nodes_want(seat, dataset, plan)
    union = sorted(set().union(*wanted))
    handed = sum(
        bytes_of(dataset, {file for file in want if union.index(file) % WORLD // seat.ranks_per_node != node})
        for node, want in enumerate(wanted)
    )
    reader = make(dataset, plan, "stage-subset", delivery, seat)
    for _ in range(2):  # a second session starts from nothing
        assert run(reader, plan, seat.comm) == {
            "read": bytes_of(dataset, set(union)),
            "handed": handed,
            "read later": 0,
            "handed later": 0,
        }


@pytest.mark.parametrize("name", ["staged", "staged-replicated", "staged-subset"])
def test_rows_of_the_table_stage_what_their_order_reads(dataset: Dataset, seat: RankContext, name: str) -> None:
    row = find(name)
    bounds = np.cumsum([0, *(entry.samples for entry in dataset.manifest.files)])
    shape = Shape(dataset.samples, WORLD, 2, bounds=bounds, ranks_per_node=seat.ranks_per_node)
    order = find_order(row.order)
    form = view_of(dataset)
    shape = order.fit(shape)
    plan = plan_batches(form, [(epoch, list(order(shape, seat.comm.rank, epoch, 5))) for epoch in range(2)])
    resources = Resources(threads=2, staging_bytes=16_000_000, batch_bytes=largest(plan))
    found = run(open_reader(row, form, resources, seat), plan, seat.comm)
    wanted = nodes_want(seat, dataset, plan)
    expected = {
        "staged": sum(bytes_of(dataset, files) for files in wanted),
        "staged-replicated": seat.nodes * bytes_of(dataset, set(range(FILES))),
        "staged-subset": bytes_of(dataset, set().union(*wanted)),
    }
    assert found["read"] == expected[name]
    if name == "staged":  # no file on two nodes
        assert sum(map(len, wanted)) == len(set().union(*wanted))


def test_a_node_keeps_what_its_ranks_want_and_nothing_else(dataset: Dataset, seat: RankContext) -> None:
    plan = plan_of(dataset, seat.comm.rank, 4)
    want = nodes_want(seat, dataset, plan)[seat.node]
    assert seat.tier is not None
    with make(dataset, plan, "stage-subset", "ahead", seat).session(plan, Tally()) as batches:
        next(batches)
        seat.comm.barrier()
        (folder,) = seat.tier.iterdir()
        copies = {int(copy.name): copy.read_bytes() for copy in folder.iterdir()}
        seat.comm.barrier()
    assert copies == {file: dataset.path(file).read_bytes() for file in want}


@pytest.mark.parametrize("placement", ["stage-partition", "stage-replicate", "stage-subset"])
def test_a_rank_without_batches_helps_the_others(dataset: Dataset, seat: RankContext, placement: str) -> None:
    plan = plan_of(dataset, seat.comm.rank, 5)
    reader = make(dataset, plan, placement, "ahead", seat)
    own = [] if seat.comm.rank == seat.comm.size - 1 else plan
    run(reader, own, seat.comm)


def test_ranks_may_leave_at_different_times(dataset: Dataset, seat: RankContext) -> None:
    """Who is done first takes nothing away from the others."""
    plan = plan_of(dataset, seat.comm.rank, 6)
    with make(dataset, plan, "stage-partition", "on demand", seat).session(plan, Tally()) as batches:
        next(batches)
        if seat.comm.rank == seat.comm.size - 1:
            seat.comm.barrier()  # the others are out, and then read here
            assert len(list(batches)) == len(plan) - 1
    if seat.comm.rank != seat.comm.size - 1:
        seat.comm.barrier()


@pytest.mark.parametrize("placement", ["stage-partition", "stage-replicate", "stage-subset"])
def test_a_file_that_is_gone_ends_the_session_of_every_rank(
    dataset: Dataset, seat: RankContext, placement: str
) -> None:
    plan = plan_of(dataset, seat.comm.rank, 7)
    victim = dataset.path(min(set().union(*nodes_want(seat, dataset, plan))))
    aside = victim.with_suffix(".aside")
    reader = make(dataset, plan, placement, "ahead", seat)
    seat.comm.barrier()
    if seat.comm.rank == 0:
        victim.rename(aside)
    seat.comm.barrier()
    try:
        with reader.session(plan, Tally()) as batches, pytest.raises(DataError, match=victim.name):
            next(batches)
        seat.comm.barrier()
    finally:
        if seat.comm.rank == 0:
            aside.rename(victim)
    seat.comm.barrier()


@pytest.mark.parametrize("side", ["write_piece", "read_piece"])  # of a receiver, of all that send
def test_a_rank_that_cannot_hand_a_piece_on_ends_the_session_of_every_rank(
    dataset: Dataset, seat: RankContext, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise EnvironmentFailure("this tier is full")

    plan = plan_of(dataset, seat.comm.rank, 8)
    reader = make(dataset, plan, "stage-subset", "ahead", seat)
    monkeypatch.setattr(tier, "CHUNK_BYTES", PIECE)
    wanted = nodes_want(seat, dataset, plan)
    union = sorted(set().union(*wanted))
    receiving = [n for n, want in enumerate(wanted) for f in want if union.index(f) % WORLD // seat.ranks_per_node != n]
    if receiving and (seat.node == receiving[0] or side == "read_piece"):  # one node has nobody to hand on to
        monkeypatch.setattr(tier, side, fail)
    with reader.session(plan, Tally()) as batches:
        if receiving:
            with pytest.raises(EnvironmentFailure, match="this tier is full"):
                next(batches)
        else:
            next(batches)


def test_nodes_that_share_a_disk_need_room_for_all_of_them(
    dataset: Dataset, seat: RankContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, room = plan_of(dataset, seat.comm.rank, 9), tier.room
    needed = seat.nodes * sum(-(-entry.bytes // 4096) * 4096 for entry in dataset.manifest.files)
    for free, enough in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr(tier, "room", lambda held, free=free: replace(room(held), free=free, block=4096))
        tally = Tally()
        with make(dataset, plan, "stage-replicate", "ahead", seat).session(plan, tally) as batches:
            if enough:
                next(batches)
            else:
                with pytest.raises(EnvironmentFailure, match=r"stage-replicate needs .* are free\. .*--local-tier"):
                    next(batches)
        assert (tally.of(0).bytes_requested > 0) == enough
