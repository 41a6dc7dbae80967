"""`dlio-bench storage` with real ranks, and on disks that are full, small, read-only or in memory."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from dlio_bench.harness.commands.storage_bench import command
from dlio_bench.reports import storage
from dlio_bench.reports.document.typed import to_json
from tests.processes import PATIENCE, dlio, start, until

SMALL = ("--sample-size", "100kB", "--size", "4MB", "--threads", "2")


def test_two_ranks_share_the_bytes_and_all_of_them_come_from_the_device(tmp_path: Path) -> None:
    found = to_json(
        storage.validate(json.loads(dlio(tmp_path, "storage", ".", *SMALL, "--ranks", "1,2", "--json").stdout))
    )
    assert {row["ranks"] for row in found["reads"]} == {1, 2}
    for row in found["reads"]:
        assert [trial["bytes"] for trial in row["trials"]] == [4_000_000] * 5
        assert row["device_bytes"] >= 4_000_000
    assert found["attestation"]["attested"], found["attestation"]
    assert "FEW TRIALS" not in found["marks"]
    rates = [(row["operation"], row["ranks"]) for row in found["metadata"]["rates"]]
    assert rates == [(name, ranks) for ranks in (1, 2) for name in ("open+fstat+close", "create", "unlink")]
    assert list(tmp_path.iterdir()) == []


def test_interrupted_ranks_leave_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, "storage", ".", *SMALL, "--ranks", "2", "--trials", "100000")
    until(lambda: list(tmp_path.glob("dlio-bench-storage/empty/*")), process, "no rank is at work")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4, out + err
    assert "Interrupted" in err
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_too_small_is_told_before_the_first_byte(
    mount: Callable[[str], Path], refused: Callable[..., str]
) -> None:
    disk = mount("size=10m")
    assert "free" in refused("storage", str(disk), "--workload", "cdb", status=4)
    assert "need 20 MB" in refused("storage", str(disk), "--sample-size", "1MB", "--size", "20MB", status=4)
    assert list(disk.iterdir()) == []


def test_a_disk_that_fills_up_is_told_and_nothing_stays(
    mount: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    disk = mount("size=100m")
    monkeypatch.setattr(command, "free_bytes", lambda _: 10**9)  # as before somebody else filled it
    asked = ("--sample-size", "1MB", "--size", "256MB", "--ranks", "1")
    told = refused("storage", str(disk), *asked, status=4)
    assert "No space left" in told
    assert "--size" in told
    assert list(disk.iterdir()) == []


def test_a_read_only_folder_is_named(read_only: Path, refused: Callable[..., str]) -> None:
    said = refused("storage", str(read_only), *SMALL, status=4)
    assert f"in {read_only}: Read-only file system" in said
    assert "--data" in said


@pytest.mark.parametrize(("cache", "marked"), [("cold", True), ("warm", False)])
def test_files_in_memory_are_never_cold(cache: str, marked: bool, tmp_path: Path, mount: Callable[[str], Path]) -> None:
    where = ("storage", str(mount("size=50m")))
    done = dlio(tmp_path, *where, *SMALL, "--ranks", "1", "--trials", "1", "--cache", cache)
    assert ("[CACHE NOT ATTESTED]" in done.stdout) is marked
    assert "tmpfs" in done.stdout
