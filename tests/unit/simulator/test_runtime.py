"""Our readers on the virtual clock, held against what can be worked out by hand."""

from functools import partial

import pytest
from msgspec.structs import replace

from dlio_bench.harness.cluster.system import MB, Rates, Stream, System, Tier
from dlio_bench.harness.commands.run.predicted import runtime
from dlio_bench.harness.commands.run.predicted.devices import FileSystem, NodeCores, TierDevice
from dlio_bench.harness.commands.run.predicted.runtime import Handles
from dlio_bench.harness.readers.threads import Readers
from dlio_bench.harness.simulator.kernel import Barrier, Clock, Link, Process

LATENCY, OPEN = 0.001, 0.002
SIZE = 1_000_000


def machine(rate: float = 100, link: float = 100) -> System:
    """One MB takes 10 ms on the file system and 1 ms of latency."""
    memory = Rates(((1, 1000.0), (4, 1000.0)))
    tiers = tuple(Tier(name, 1 << 30, 4, memory, memory) for name in ("staging", "ram"))
    alone = SIZE / (SIZE / (min(rate, link) * MB) + LATENCY) / MB
    return System(
        "test", 100, None, 1, float("inf"), 1000, link, Rates(((1, rate),)), tiers, OPEN, Stream(((SIZE, alone),))
    )


def devices(clock: Clock, pfs: FileSystem) -> runtime.Devices:
    return runtime.Devices(pfs, pfs, NodeCores(clock, 2, 1, shared=True))


def chunks(steps: int, of_a_step: int = 1) -> list[runtime.Chunk]:
    return [runtime.Chunk(step, ((0, SIZE),)) for step in range(steps) for _ in range(of_a_step)]


def run(
    ranks: list[runtime.SimulatedRank],
    *,
    ahead: tuple[int, int] | None,
    step_seconds: float = 0.0,
    system: System | None = None,
    chosen: bool = False,
    change: tuple[float, float] | None = None,
) -> float:
    """Seconds of the whole; ahead: (threads, slots). chosen: as many threads read as their chunks call for.

    change: (moment, MB/s of all nodes from then on).
    """
    clock, system = Clock(), system or machine()
    pfs = FileSystem(clock, system, len(ranks))
    readers = Readers(ahead[0] if ahead else 0, trainer=False, waits=chosen)
    if change is not None:
        clock.start(changed(pfs, *change))
    meeting = Barrier(clock, len(ranks), 0.0)
    pace = runtime.StepPace(step_seconds, "step", 1)
    for rank in ranks:
        handles = runtime.Handles(4, pfs.open_seconds)
        fetch = partial(runtime.fetch_reads, clock, rank, devices(clock, pfs), handles)
        if ahead is None:
            batch = runtime.on_demand(rank, fetch)
        else:
            batch = runtime.Ahead(clock, rank, fetch, readers, ahead[1], pace).batch
        clock.start(runtime.train(clock, rank, meeting, pace, batch))
    clock.run()
    assert pfs.bytes == sum(size for rank in ranks for chunk in rank.chunks for _, size in chunk.reads)
    return clock.now


def changed(pfs: FileSystem, moment: float, rate: float) -> Process:
    yield moment
    pfs._shared.rate = rate * MB


@pytest.mark.parametrize(
    ("latency", "change", "per_node"),
    [
        (0.0, None, 1),
        (0.0, None, 2),
        (0.04, None, 1),
        (0.04, None, 2),
        (0.0, (2.0, 400.0), 1),
        (0.04, (2.0, 400.0), 1),
        (0.04, (2.0, 3000.0), 1),
    ],
)
def test_the_default_is_as_good_as_the_best_number_of_threads(
    latency: float, change: tuple[float, float] | None, per_node: int
) -> None:
    """Steps of 5 MB on 4 ranks, which ask for 500 MB/s: 800 MB/s are there, and later more, or less than is needed."""
    half = SIZE // 2
    stream = Stream(((half, half / (half / 800e6 + latency / 2) / MB),))
    system = replace(machine(800, 800), pfs_stream=stream)

    def took(threads: int, *, chosen: bool = False) -> float:
        of_rank = [runtime.Chunk(step, ((0, half), (0, half))) for step in range(150) for _ in range(5)]
        ranks = [runtime.SimulatedRank(number // per_node, of_rank, 150) for number in range(4)]
        return run(ranks, ahead=(threads, 16), step_seconds=0.04, system=system, chosen=chosen, change=change)

    fixed = [took(threads) for threads in (1, 2, 8, 32)]
    assert took(32, chosen=True) <= 1.05 * min(fixed)
    if not latency and not change:
        assert fixed[-1] > 0.05 + fixed[1]  # the second step waits behind later ones


def test_on_demand_every_read_and_step_adds_up() -> None:
    rank = runtime.SimulatedRank(0, chunks(5), 5)
    assert run([rank], ahead=None, step_seconds=0.02) == pytest.approx(OPEN + 5 * (0.010 + LATENCY + 0.02))
    assert rank.stall == pytest.approx(OPEN + 5 * (0.010 + LATENCY))
    assert (rank.ends - rank.begins).tolist() == pytest.approx([OPEN + 0.031, *[0.031] * 4])


def test_nodes_share_the_file_system() -> None:
    ranks = [runtime.SimulatedRank(node, chunks(10), 10) for node in range(4)]
    # in each step the last node's read has waited for those of the three others
    assert run(ranks, ahead=None) == pytest.approx(OPEN + 10 * (4 * 0.010 + LATENCY))


def test_reads_take_longer_when_all_nodes_read() -> None:
    crowded = replace(machine(), pfs_stream_all=Stream(((SIZE, SIZE / (4 * 0.010 + 0.003) / MB),)))
    ranks = [runtime.SimulatedRank(node, chunks(10), 10) for node in range(4)]
    # 3 ms more than four reads one after the other
    assert run(ranks, ahead=None, system=crowded) == pytest.approx(OPEN + 10 * (4 * 0.010 + LATENCY + 0.003))
    assert run([runtime.SimulatedRank(0, chunks(10), 10)], ahead=None, system=crowded) == pytest.approx(
        OPEN + 10 * 0.011
    )


def test_a_node_s_own_link_limits_it() -> None:
    ranks = [runtime.SimulatedRank(0, chunks(10, 2), 10), runtime.SimulatedRank(1, chunks(10, 2), 10)]
    slow = run(ranks, ahead=(2, 4), system=machine(1000, 50))
    # two reads of a step at 50 MB/s, the latency of all but the first hidden behind the next read
    assert 0.4 <= slow < 0.45


def test_reading_ahead_hides_reads_behind_compute() -> None:
    rank = runtime.SimulatedRank(0, chunks(20), 20)
    # 30 ms of compute a step cover the 11 ms of the next read
    assert run([rank], ahead=(1, 2), step_seconds=0.03) == pytest.approx(OPEN + 0.011 + 20 * 0.03)
    rank = runtime.SimulatedRank(0, chunks(20), 20)
    # 5 ms of compute do not: the file system is busy all the time
    assert run([rank], ahead=(4, 8), step_seconds=0.005) == pytest.approx(OPEN + 20 * 0.010 + LATENCY + 0.005, abs=0.02)


def test_the_buffer_bounds_what_is_read_ahead() -> None:
    # the first step computes for long; with two slots one batch more is there at its end, with eight all are
    def read(slots: int) -> int:
        clock, system = Clock(), machine()
        pfs = FileSystem(clock, system, 1)
        rank = runtime.SimulatedRank(0, chunks(6), 6)
        fetch = partial(runtime.fetch_reads, clock, rank, devices(clock, pfs), runtime.Handles(4, 0.0))
        pace = runtime.StepPace(0.05, "none", 1)
        ahead = runtime.Ahead(clock, rank, fetch, Readers(2, trainer=False), slots, pace)
        clock.start(runtime.train(clock, rank, Barrier(clock, 1, 0.0), pace, ahead.batch))
        clock.run(until=0.055)
        return pfs.bytes

    assert read(2) == 2 * SIZE
    assert read(8) == 6 * SIZE


def test_readers_that_rest_between_epochs_read_nothing_of_the_next_one() -> None:
    def read(*, pauses: bool) -> int:
        clock, system = Clock(), machine()
        pfs = FileSystem(clock, system, 1)
        rank = runtime.SimulatedRank(0, chunks(8), 8)
        fetch = partial(runtime.fetch_reads, clock, rank, devices(clock, pfs), runtime.Handles(4, 0.0))
        pace = runtime.StepPace(0.05, "none", 4, pauses)
        ahead = runtime.Ahead(clock, rank, fetch, Readers(2, trainer=False), 8, pace)
        clock.start(runtime.train(clock, rank, Barrier(clock, 1, 0.0), pace, ahead.batch))
        clock.run(until=0.15)
        so_far = pfs.bytes
        clock.run()
        assert pfs.bytes == 8 * SIZE
        return so_far

    assert read(pauses=True) == 4 * SIZE
    assert read(pauses=False) == 8 * SIZE


def test_large_reads_of_threads_take_turns() -> None:
    clock, system = Clock(), replace(machine(), pfs_stream=None)
    pfs, ends = FileSystem(clock, system, 1), []

    def read(size: int) -> Process:
        yield from pfs.read(0, size)
        ends.append((size, clock.now))

    for size in (8 << 20, 1 << 20):
        clock.start(read(size))
    clock.run()
    assert ends == [(1 << 20, pytest.approx(2 * 1.048576e-2)), (8 << 20, pytest.approx(9 * 1.048576e-2))]


def test_threads_decode_on_the_cores_that_there_are() -> None:
    clock = Clock()
    cores = NodeCores(clock, 2, 1, shared=True)
    for _ in range(8):
        clock.start(cores.compute(0, 0.5))
    clock.run()
    assert clock.now == 2.0


def test_a_batch_of_nothing_gives_no_slot_back() -> None:
    clock, system = Clock(), machine()
    pfs = FileSystem(clock, system, 1)
    rank = runtime.SimulatedRank(0, [runtime.Chunk(step, ((0, SIZE),)) for step in (0, *range(4, 10))], 10)
    fetch = partial(runtime.fetch_reads, clock, rank, devices(clock, pfs), runtime.Handles(4, 0.0))
    pace = runtime.StepPace(0.05, "none", 1)
    ahead = runtime.Ahead(clock, rank, fetch, Readers(2, trainer=False), 2, pace)
    clock.start(runtime.train(clock, rank, Barrier(clock, 1, 0.0), pace, ahead.batch))
    clock.run(until=0.19)  # in the last step that has nothing
    assert pfs.bytes == 3 * SIZE


def test_files_are_opened_once_while_they_are_kept() -> None:
    handles = runtime.Handles(2, OPEN)
    assert handles.ready(1, 0.0) == OPEN
    assert handles.ready(1, 0.001) == OPEN  # another thread waits for the same open
    assert handles.ready(1, 1.0) == 1.0
    handles.ready(2, 1.0)
    handles.ready(3, 1.0)
    assert handles.ready(1, 2.0) == 2.0 + OPEN  # forgotten


def test_staging_copies_files_with_all_threads() -> None:
    clock, system = Clock(), machine()
    pfs = FileSystem(clock, system, 1)
    target = TierDevice(clock, Rates(((1, 1000.0),)), 4, 1, shared=False)
    ended: list[float] = []

    def stage() -> Process:
        yield from runtime.staging(clock, 0, [[SIZE, SIZE]] * 4, pfs, target, 2)
        ended.append(clock.now)

    clock.start(stage())
    clock.run()
    assert pfs.bytes == target.bytes == 8 * SIZE
    assert 8 * 0.010 < ended[0] < 8 * 0.010 + 2 * OPEN + 8 * (LATENCY + 0.001)


def test_a_meeting_ends_when_the_last_one_comes() -> None:
    clock, ends = Clock(), []
    meeting = Barrier(clock, 3, 0.5)

    def one(seconds: float) -> Process:
        for _ in range(2):
            yield clock.now + seconds
            yield from meeting.meet()
            ends.append(clock.now)

    for seconds in (1.0, 2.0, 4.0):
        clock.start(one(seconds))
    clock.run()
    assert ends == [4.5] * 3 + [9.0] * 3


def test_a_link_is_first_come_first_served() -> None:
    link = Link(100.0)
    assert link.reserve(0.0, 100) == (0.0, 1.0)
    assert link.reserve(0.5, 50) == (1.0, 1.5)
    assert link.reserve(9.0, 100) == (9.0, 10.0)


def test_the_files_read_last_stay_open() -> None:
    handles = Handles(2, open_seconds=1.0)
    for key in (1, 2, 1, 3):  # the third read makes 2 the one that was read longest ago
        handles.ready(key, 0.0)
    assert handles.ready(1, 5.0) == 5.0
    assert handles.ready(2, 5.0) == 6.0
