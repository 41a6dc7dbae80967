"""Several ranks in one process, a thread each: what they ask of the file system, and of each other."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace

from dlio_bench.batches import Ids
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.comm import Comm, Solo
from dlio_bench.harness.cluster.peers import Peers, Serving
from dlio_bench.harness.commands.run.measured.consumer import find_damage
from dlio_bench.harness.plan.orders import Shape, find_order
from dlio_bench.harness.plan.placement.rule import Behaviour
from dlio_bench.harness.plan.policies import PLACEMENTS, find
from dlio_bench.harness.readers.placed import reader as placed
from dlio_bench.harness.readers.placed import rules, source_picker, tier_server, tiers
from dlio_bench.harness.readers.placed.layout import TierLayout
from dlio_bench.harness.readers.placed.tier_server import TierServer
from dlio_bench.harness.readers.placed.tiers import Speeds, Tiers
from dlio_bench.harness.readers.registry import open_reader
from dlio_bench.harness.readers.resources import RankContext, Resources
from dlio_bench.harness.readers.session import Planned, Tally, largest, plan_batches
from dlio_bench.harness.storage import extents
from dlio_bench.harness.storage.cache import Residency
from dlio_bench.harness.storage.extents import ExtentReader
from tests.datasets import made, view_of
from tests.processes import PATIENCE, open_files, until

BATCH = 4
IN_ORDER = [name for name, rule in PLACEMENTS.items() if rule.keeps_samples and not rule.draws_order]


class Threads(Solo):
    """One of several ranks that are threads of this process."""

    def __init__(self, rank: int, barrier: threading.Barrier, told: list[Any]) -> None:
        self.rank, self.size, self.host_rank, self.host_size = rank, len(told), rank, len(told)
        self._barrier, self._told = barrier, told

    def barrier(self) -> None:
        self._barrier.wait(PATIENCE)

    def allgather(self, value: Any) -> list[Any]:
        self._told[self.rank] = value
        self._barrier.wait(PATIENCE)
        found = list(self._told)
        self._barrier.wait(PATIENCE)
        return found


def on_all(ranks: int, work: Callable[[Comm], Any]) -> list[Any]:
    """What each rank makes of `work`."""
    barrier, told = threading.Barrier(ranks), [None] * ranks
    found: list[Any] = [None] * ranks
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            found[rank] = work(Threads(rank, barrier, told))
        except BaseException as failure:  # noqa: BLE001 - raised below
            failures.append(failure)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank-{rank}") for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return found


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return made(tmp_path_factory.mktemp("data"), "cosmoflow", 96)


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # nobody reads the file system a second time because another thread is slow
    monkeypatch.setattr(placed, "Peers", partial(Peers, patience=PATIENCE))
    for module in (source_picker, tier_server):
        monkeypatch.setattr(module, "WAIT_SECONDS", PATIENCE)
    threads, handles = set(threading.enumerate()), len(open_files())
    yield
    assert set(threading.enumerate()) <= threads  # one of an earlier test may have ended meanwhile
    assert len(open_files()) <= handles


SLOW = {"pfs": 1e6, "remote": 1e9, "ram": 1e9, "disk": 1e9}  # the file system: the tests' own would be bypassed


def tiers_of(ram: int, disk: int = 0) -> Tiers:
    return Tiers(ram=ram, disk=disk, rates=SLOW)


def size_of(dataset: Dataset) -> int:
    return int(Tiers().sizes_of(view_of(dataset)).sum())


def plan_of(dataset: Dataset, comm: Comm, epochs: int, *, known: bool = True) -> list[Planned]:
    shape, order = Shape(dataset.samples, comm.size, BATCH), find_order("global-shuffle")

    def of(rank: int, epoch: int) -> Ids:
        return order(shape, rank, epoch, 7).ravel()

    steps = [(epoch, list(order(shape, comm.rank, epoch, 7))) for epoch in range(epochs)]
    return plan_batches(view_of(dataset), steps, of if known else None)


def deliver(
    policy: str,
    dataset: Dataset,
    tiers: Tiers,
    ranks: int = 4,
    *,
    ranks_per_node: int = 1,
    epochs: int = 3,
    known: bool = True,
    place: Path | None = None,
    at: Callable[[Comm, int], None] | None = None,
) -> list[list[Cost]]:
    """The costs of each rank's epochs, all content compared."""

    def rank(comm: Comm) -> list[Cost]:
        plan, tally = plan_of(dataset, comm, epochs, known=known), Tally()
        resources = Resources(2, 4 * largest(plan), largest(plan), tiers=tiers)
        reader = open_reader(find(policy), view_of(dataset), resources, RankContext(comm, ranks_per_node, place))
        with reader.session(plan, tally) as batches:
            for step, (expected, batch) in enumerate(zip(plan, batches, strict=True)):
                if at is not None:
                    at(comm, step)
                assert batch.ids.tolist() == expected.ids.tolist()
                assert find_damage(batch, reader.sample_view) == []
        return [tally.of(epoch) for epoch in range(epochs)]

    return on_all(ranks, rank)


def total(costs: Sequence[Sequence[Cost]], name: str) -> int:
    return sum(getattr(cost, name) for own in costs for cost in own)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_cooperative_asks_the_file_system_for_each_sample_once(
    dataset: Dataset, ranks_per_node: int, known: bool
) -> None:
    tiers = tiers_of(size_of(dataset) // 2)  # of the aggregate, and of no node
    costs = deliver("cooperative", dataset, tiers, ranks_per_node=ranks_per_node, known=known)
    assert total(costs, "bytes_requested") == view_of(dataset).stored_size(np.arange(dataset.samples))
    assert all(cost.bytes_requested == 0 for own in costs for cost in own[1:])
    assert total(costs, "bytes_remote") > 0
    assert total(costs, "bytes_ram") > 0
    assert total(costs, "remote_misses") == 0


def test_what_the_staging_buffer_fetches_first_is_kept(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed.TierFiller, "begin", lambda _: None)
    costs = deliver("cooperative", dataset, tiers_of(size_of(dataset) // 2))
    assert total(costs, "bytes_requested") == view_of(dataset).stored_size(np.arange(dataset.samples))
    assert total(costs, "bytes_kept") < total(costs, "bytes_requested")


@pytest.mark.parametrize("policy", [name for name in IN_ORDER if name not in ("clairvoyant",)])
def test_what_holds_the_dataset_reads_it_once(dataset: Dataset, policy: str, tmp_path: Path) -> None:
    costs = deliver(policy, dataset, tiers_of(size_of(dataset), size_of(dataset)), place=tmp_path)
    assert total(costs, "bytes_requested") == view_of(dataset).stored_size(np.arange(dataset.samples))
    assert (total(costs, "bytes_local") > 0) == (policy == "locality-aware")


def test_a_disk_that_is_as_fast_as_memory_is_read_once(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    cold = Residency(1, 0, attestable=True, memory_backed=False)
    monkeypatch.setattr(placed.cache, "residency", lambda _: cold)
    monkeypatch.setattr(tiers, "PROOF_BYTES", 1)
    costs = deliver("cooperative", dataset, Tiers(ram=size_of(dataset)), ranks=2)
    assert total(costs, "bytes_requested") == view_of(dataset).stored_size(np.arange(dataset.samples))


@pytest.mark.parametrize("policy", ["cooperative", "clairvoyant", "deepio-ordered", "locality-aware"])
@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_tiers_that_are_too_small_save_what_they_hold(dataset: Dataset, policy: str, ranks_per_node: int) -> None:
    costs = deliver(policy, dataset, tiers_of(size_of(dataset) // 10), ranks_per_node=ranks_per_node)
    stored = view_of(dataset).stored_size(np.arange(dataset.samples))
    assert stored < total(costs, "bytes_requested") < 3 * stored
    assert total(costs, "bytes_requested") - total(costs, "bytes_kept") + total(costs, "bytes_spared") == 3 * stored


@pytest.mark.parametrize("policy", ["cooperative", "lbann-preload", "lbann-dynamic"])
def test_a_dead_peer_is_done_without_and_counted(
    dataset: Dataset, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: dict[str, Serving] = {}

    class Mortal(Serving):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            served[threading.current_thread().name] = self

    monkeypatch.setattr(placed, "Serving", Mortal)

    together = threading.Barrier(4)  # no rank is through with the plan before rank 1 serves no more

    def at(comm: Comm, step: int) -> None:
        if step == dataset.samples // (4 * BATCH):  # the second epoch begins
            together.wait(PATIENCE)
            if comm.rank == 1:
                served["rank-1"].close()
            together.wait(PATIENCE)

    costs = deliver(policy, dataset, tiers_of(size_of(dataset)), at=at)
    assert total(costs, "remote_misses") > 0
    stored = view_of(dataset).stored_size(np.arange(dataset.samples))
    assert total(costs, "bytes_requested") - total(costs, "bytes_kept") + total(costs, "bytes_spared") == 3 * stored


@pytest.mark.parametrize(
    ("policy", "chunk"),
    [("cooperative", extents.CHUNK_BYTES), ("clairvoyant", extents.CHUNK_BYTES), ("clairvoyant", 999)],
)
def test_a_file_system_that_is_the_fastest_source_is_read_straight(
    dataset: Dataset, policy: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extents, "CHUNK_BYTES", chunk)  # a small one cuts batches into many chunks
    rates = {"pfs": 9e9, "remote": 1e9, "ram": 5e9}
    costs = deliver(policy, dataset, Tiers(ram=size_of(dataset), rates=rates))
    assert total(costs, "bytes_spared") == total(costs, "bytes_kept") == 0
    assert total(costs, "bytes_requested") == 3 * view_of(dataset).stored_size(np.arange(dataset.samples))


def test_what_was_brought_to_memory_is_not_read_again_where_the_file_system_proves_fast(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiers are filled until it shows that the file system is as fast: what they have by then is taken from them."""
    fast, fill = threading.Event(), TierServer.fill
    each = threading.Barrier(4, fast.set)  # rank has brought something, and then looks again

    def until_kept(server: TierServer, numbers: Sequence[int], tally: Tally, *, copies: bool = False) -> None:
        fill(server, numbers, tally, copies=copies)
        fills = threading.current_thread().name.startswith("reader-filling")
        if fills and not fast.is_set() and any(cost.bytes_kept for cost in tally.epochs.values()):
            each.wait(PATIENCE)

    def wait() -> None:
        assert fast.wait(PATIENCE)

    monkeypatch.setattr(TierServer, "fill", until_kept)
    monkeypatch.setattr(Speeds, "file_system_beats", lambda *_: fast.is_set())
    costs = deliver("cooperative", dataset, Tiers(ram=size_of(dataset)), at=lambda *_: wait())
    kept, spared, requested = (total(costs, f"bytes_{name}") for name in ("kept", "spared", "requested"))
    assert requested - kept + spared == 3 * view_of(dataset).stored_size(np.arange(dataset.samples))
    assert spared >= kept > 0
    assert requested > kept  # what was not there by then is kept no more


def test_what_is_read_once_is_kept_nowhere_and_read_straight(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def sample_by_sample(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(ExtentReader, "read", sample_by_sample)
    costs = deliver("cooperative", dataset, tiers_of(size_of(dataset)), epochs=1)
    assert total(costs, "bytes_kept") == 0
    assert total(costs, "bytes_requested") == view_of(dataset).stored_size(np.arange(dataset.samples))


def test_tiers_in_which_a_policy_cannot_work_are_refused_when_it_is_opened(dataset: Dataset) -> None:
    resources = Resources(1, 1_000_000_000, 1, tiers=Tiers(ram=1000))
    with pytest.raises(UsageError, match="Use more nodes or a larger RAM tier"):
        open_reader(find("lbann-preload"), view_of(dataset), resources)
    with pytest.raises(UsageError, match="--tiers ram=1GB"):
        open_reader(find("cooperative"), view_of(dataset), replace(resources, tiers=Tiers()))
    with pytest.raises(UsageError, match="--local-tier"):
        open_reader(find("cooperative"), view_of(dataset), replace(resources, tiers=Tiers(disk=1000)))


def test_a_holder_is_guessed_to_have_what_this_node_has_filled_well_beyond() -> None:
    layout = SimpleNamespace(
        holder=np.array([1]), holder_tier=np.array([0]), holder_place=np.array([5]), bounds=np.array([0, 100])
    )
    guesses = Behaviour(ahead=True, guesses=True)
    expected = {
        progress: rules.may_have(cast(TierLayout, layout), guesses, 0, [progress]) for progress in (6, 25, 26, 100)
    }
    assert expected == {6: False, 25: False, 26: True, 100: True}  # 20 samples, as published (SC'21, section 5)


def test_filling_threads_rest_in_a_pause_and_fill_everything_once() -> None:
    size, filled = 30, list[int]()

    def fill(run: Sequence[int], _tally: Tally, *, copies: bool) -> None:
        time.sleep(0.002)
        filled.extend(run)

    layout: Any = SimpleNamespace(
        bounds=np.array([0, size]),
        keeper=np.zeros(size, np.int32),
        ids=np.arange(size),
        copy=np.zeros(size, bool),
        size=np.full(size, rules.FILL_BYTES),
    )
    picker, server = SimpleNamespace(progress=[0], bypassed=False), SimpleNamespace(fill=fill)
    filler = placed.TierFiller(layout, picker, server, 0, 3)  # type: ignore[arg-type]
    filler.begin()
    until(lambda: filled, None, "nothing was filled")
    filler.pause()
    there = len(filled)
    time.sleep(0.05)
    assert len(filled) == there < size
    filler.go_on()
    until(lambda: len(filled) == size, None, "the filling did not go on")
    filler.end(Tally())
    assert sorted(filled) == list(range(size))
