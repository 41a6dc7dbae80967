"""What a node brings to a job, and what a result notes of nodes that are not alike."""

from dataclasses import replace
from pathlib import Path

import pytest

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.run.measured import node
from dlio_bench.harness.run.told.nodes import notes
from dlio_bench.reports.environment import Host, NodeRoom
from tests.jobs import JOB


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


def test_clocks_and_sizes_that_differ_are_noted() -> None:
    job = replace(JOB, virtual=False, real=True, left_open=("memory", "disk"))
    rooms = [NodeRoom(memory_bytes=100, disk_tier_bytes=size) for size in (2000, 1000)]
    hosts = {"a": Host(room=rooms[0]), "b": Host(room=rooms[1], clock_offset_seconds=-2.0)}
    clock, disk = notes(job, hosts, "a")
    assert "the clock of b is 2 s behind that of a" in clock
    assert "the tier 'disk' of every node is taken as 1 kB, which b has; a has 2 kB" in disk
    assert not list(notes(JOB, {"a": Host(clock_offset_seconds=0.05)}, "a"))
