"""What a node brings to a job, and what a result notes of nodes that are not alike."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.measured import node
from dlio_bench.harness.commands.run.told.building import node_notes
from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.harness.plan.policies import find
from dlio_bench.reports.document.environment import Host, NodeRoom
from tests.jobs import JOB
from tests.processes import PATIENCE


def test_local_storage_is_neither_memory_nor_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    monkeypatch.setattr(node, "memory_backed", lambda folder: folder == memory)
    monkeypatch.setattr(node, "FOLDERS", ())
    env = {"SLURM_TMPDIR": str(tmp_path / "missing"), "TMPDIR": str(memory)}
    with pytest.raises(EnvironmentFailure, match=f"{memory} lies in memory.*--local-tier"):
        node.local_storage("", env)
    assert node.local_storage("", env | {"BBPATH": str(disk)}) == disk
    assert node.local_storage(str(memory), env) == memory  # the user's own wish
    with pytest.raises(EnvironmentFailure, match="missing is not a folder on"):
        node.local_storage(str(tmp_path / "missing"), env)


class Ranks:
    """Ranks of hosts that share a machine, one a thread: what `together` needs of them."""

    def __init__(self, size: int) -> None:
        self.size, self.given, self.meeting = size, dict[int, Any](), threading.Barrier(size, timeout=PATIENCE)
        self.names = threading.local()

    def run(self, job: Job) -> list[Any]:
        def one(rank: int) -> Any:
            self.names.rank = rank
            try:
                with node.settle_node_sizes(job, cast(Any, Rank(self, rank))) as (decided, _):
                    self.meeting.wait()
                    return decided.tier_folders
            except EnvironmentFailure as error:
                return str(error)

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(one, range(self.size)))


class Rank:
    """One of them."""

    def __init__(self, ranks: Ranks, rank: int) -> None:
        self.ranks, self.rank, self.size = ranks, rank, ranks.size

    def barrier(self) -> None:
        self.ranks.meeting.wait()

    def allgather(self, value: Any) -> list[Any]:
        self.ranks.given[self.rank] = value
        self.barrier()
        gathered = [self.ranks.given[rank] for rank in range(self.size)]
        self.barrier()
        return gathered


def test_a_folder_that_hosts_share_is_passed_by_unless_the_user_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, mine = tmp_path / "shared", [tmp_path / "disk0", tmp_path / "disk1"]
    for folder in (shared, *mine):
        folder.mkdir()
    ranks = Ranks(2)
    monkeypatch.setattr(node, "host_name", lambda: f"node{ranks.names.rank}")
    monkeypatch.setattr(node, "memory_backed", lambda _: False)
    monkeypatch.setattr(node, "VARIABLES", ())
    monkeypatch.setattr(node, "outliving_folder", temp_folder)  # goes after a failure too

    class Folders:
        def __iter__(self) -> Iterator[str]:
            yield str(shared)
            yield str(mine[ranks.names.rank] if mine else tmp_path / "missing")

    monkeypatch.setattr(node, "FOLDERS", Folders())
    row = find("staged")
    job = replace(
        JOB, readers={"staged": row}, virtual=False, real=True, left_open=("disk",), node_memory=10**9,
        staging_bytes=1000, nodes=2, ranks_per_node=1,
    )  # fmt: skip
    for folders in ranks.run(job):
        assert [Path(folder).parent for folder in folders] == mine
    for said in ranks.run(replace(job, local_tier=str(shared))):
        assert f"--local-tier {shared} is no node-local storage: node0 and node1 see" in said
        assert "leave it out" not in said
    mine.clear()
    for said in ranks.run(job):
        assert f"{shared} is the same folder on node0 and node1" in said
        assert "missing is no folder" in said


def test_a_node_without_room_for_samples_says_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    job = replace(JOB, readers={"prefetch": find("prefetch")})
    monkeypatch.setattr("dlio_bench.harness.readers.placed.room.available_bytes", lambda: 4096)
    with pytest.raises(
        EnvironmentFailure, match=r"prefetch keeps .* 4.1 kB of its memory are free\. .*--local-tier DIR"
    ) as told:
        node._require_tier(job, NodeRoom(memory_bytes=100, ram_tier_bytes=0))
    assert "--tiers ram" not in str(told.value)


def test_clocks_and_sizes_that_differ_are_noted() -> None:
    job = replace(JOB, virtual=False, real=True, left_open=("memory", "disk"))
    rooms = [NodeRoom(memory_bytes=100, disk_tier_bytes=size) for size in (2000, 1000)]
    hosts = {"a": Host(room=rooms[0]), "b": Host(room=rooms[1], clock_offset_seconds=-2.0)}
    clock, disk = node_notes(job, hosts, "a")
    assert "the clock of b is 2 s behind that of a" in clock
    assert "the tier 'disk' of every node is taken as 1 kB, which b has; a has 2 kB" in disk
    assert not list(node_notes(JOB, {"a": Host(clock_offset_seconds=0.05)}, "a"))
