"""`dlio-bench storage` with one rank, on real files: what it tells, and that nothing of it stays."""

import json
import signal
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.datagen.dataset import open_dataset
from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.cli import main
from dlio_bench.harness.cluster.allocation import Allocation
from dlio_bench.harness.commands.storage_bench.attestation import attestation, furthest_share
from dlio_bench.harness.commands.storage_bench.command import scales_of
from dlio_bench.harness.commands.storage_bench.folder import NAME, claim_work_folder
from dlio_bench.harness.storage.cache import Residency
from dlio_bench.reports import storage
from dlio_bench.reports.document.typed import to_json
from tests.datasets import made
from tests.direct_folder import direct_folder
from tests.processes import PATIENCE, dlio, start, until

pytestmark = pytest.mark.slow

SMALL = ("--sample-size", "100kB", "--size", "4MB", "--ranks", "1", "--threads", "1,2", "--trials", "2")
FEW = ("--ranks", "1", "--trials", "1")
LONG = ("--sample-size", "1MB", "--size", "8MB", "--ranks", "1", "--trials", "100000")


def measured(cwd: Path, *arguments: str) -> dict[str, Any]:
    """The document of a command of this process."""
    with chdir(cwd), redirect_stdout(StringIO()) as told:
        assert main(["storage", *arguments, "--json"]) == 0
    return to_json(storage.validate(json.loads(told.getvalue())))


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_cold_reads_come_from_the_device_and_leave_nothing(tmp_path: Path) -> None:
    """And the text fits, while the JSON goes to a file."""
    where = tmp_path / "disk"
    where.mkdir()
    done = dlio(tmp_path, "storage", "disk", *SMALL, "--out", "new/ceiling.json")
    assert files_in(where) == []
    document = storage.load(tmp_path / "new" / "ceiling.json")
    assert done.stdout == storage.view(document).text()
    assert max(len(line) for line in done.stdout.splitlines()[1:]) <= 80
    found = to_json(document)
    assert (found["folder"], found["made"], found["workload"]) == (str(where), True, None)
    assert (found["files"], found["samples"], found["sample_bytes"]) == (1, 40, 100_000)
    assert found["attestation"]["attested"], found["attestation"]
    assert "FEW TRIALS" in found["marks"]
    kinds = [(row["pattern"], row["ranks"], row["threads"]) for row in found["reads"]]
    assert kinds == [("sequential", 1, 1), ("sequential", 1, 2), ("random", 1, 1), ("random", 1, 2)]
    for row in found["reads"]:
        assert len(row["trials"]) == 2
        assert all(trial["bytes"] == 4_000_000 for trial in row["trials"])
        assert all(trial["resident_share"] <= 0.01 for trial in row["trials"])
        # two threads at once may fetch a few pages at the border of two samples together
        assert row["device_bytes"] >= 4_000_000
    assert found["ceiling"]["median"] == max(row["median"] for row in found["reads"])
    operations = [row["operation"] for row in found["metadata"]["rates"]]
    assert operations == ["open+fstat+close", "create", "unlink"]


def test_warm_reads_do_not(tmp_path: Path) -> None:
    done = dlio(tmp_path, "storage", ".", *SMALL, "--cache", "warm", "--json")  # no other reads in its process
    found = to_json(storage.validate(json.loads(done.stdout)))
    assert found["attestation"]["attested"], found["attestation"]
    assert all(trial["resident_share"] >= 0.95 for row in found["reads"] for trial in row["trials"])
    assert all(row["device_bytes"] == 0 for row in found["reads"])
    assert storage.ceiling_for(storage.validate(found), 100_000) is None


def test_direct_reads_come_from_the_device_though_the_files_are_in_the_cache(tmp_path: Path) -> None:
    with direct_folder(tmp_path) as folder:
        found = measured(tmp_path, str(folder), *SMALL, "--cache", "warm", "--io", "direct")
        assert found["io"] == "direct"
        assert all(trial["resident_share"] >= 0.95 for row in found["reads"] for trial in row["trials"])
        assert all(row["device_bytes"] >= 4_000_000 for row in found["reads"])
        cold = measured(tmp_path, str(folder), *SMALL, "--io", "direct")
        assert cold["attestation"]["attested"]
        assert "O_DIRECT" in cold["attestation"]["found"]


@pytest.mark.parametrize("workload", ["cdb", "imagenet"])  # a sample in each file, and records of varying length
def test_a_datasets_files_are_read_and_none_is_made(workload: str, tmp_path: Path) -> None:
    made(tmp_path / "set", workload, 20)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "set").iterdir()}
    found = measured(tmp_path, "--data", "set", *FEW, "--threads", "1,2")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "set").iterdir()} == before
    assert files_in(tmp_path) == [tmp_path / "set"]
    dataset = open_dataset(tmp_path / "set")
    assert not found["made"]
    assert (found["files"], found["samples"]) == (len(dataset.training_files), dataset.training_samples)
    stored = sum(entry.bytes for entry in dataset.training_files)
    by_pattern = {row["pattern"]: row["trials"][0]["bytes"] for row in found["reads"]}
    assert by_pattern["sequential"] == stored
    assert 0.5 * stored < by_pattern["random"] <= stored
    assert [row["operation"] for row in found["metadata"]["rates"]] == ["open+fstat+close"]
    less = measured(tmp_path, ".", "--data", "set", "--size", f"{stored // 2}B", *FEW, "--threads", "1")
    assert 1 <= less["files"] <= max(1, found["files"] // 2)
    assert files_in(tmp_path) == [tmp_path / "set"]


def test_a_dataset_that_is_not_whole_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    made(tmp_path / "set", "cdb", 4)
    next((tmp_path / "set").glob("*.h5")).unlink()
    assert "is not whole" in refused("storage", "--data", "set", status=5)


@pytest.mark.parametrize(
    ("number", "sign", "arguments"),
    [(signal.SIGINT, "file-0000000", (*LONG, "--size", "500MB")), (signal.SIGTERM, "empty", LONG)],
    ids=["write", "read"],
)
def test_an_interruption_leaves_nothing(number: int, sign: str, arguments: tuple[str, ...], tmp_path: Path) -> None:
    process = start(tmp_path, "storage", ".", *arguments)
    until((tmp_path / NAME / sign).exists, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4, out + err
    assert "Interrupted" in err
    assert "Traceback" not in err
    assert out == ""
    assert files_in(tmp_path) == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    process = start(tmp_path, "storage", ".", *LONG)
    until((tmp_path / NAME / "empty").exists, process)
    process.kill()
    process.communicate(timeout=PATIENCE)
    assert (tmp_path / NAME / "file-0000000").exists()
    (tmp_path / NAME / "empty" / "0-0-0").touch()  # of the name that the next one makes first
    dlio(tmp_path, "storage", ".", *SMALL)
    assert files_in(tmp_path) == []


def test_two_processes_do_not_measure_in_one_folder(tmp_path: Path, refused: Callable[..., str]) -> None:
    with claim_work_folder(tmp_path) as place:
        (place / "file-0").touch()
        assert "Another process" in refused("storage", ".", *SMALL, status=4)
        assert (place / "file-0").exists()
    assert files_in(tmp_path) == []


def test_somebody_elses_folder_of_that_name_is_left_alone(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "thesis.tex").write_text("dear")
    assert "thesis.tex" in refused("storage", ".", *SMALL)
    assert (tmp_path / NAME / "thesis.tex").read_text() == "dear"
    (tmp_path / NAME / "thesis.tex").rename(tmp_path / "thesis.tex")
    (tmp_path / NAME).rmdir()
    (tmp_path / NAME).write_text("a file")
    assert "is a file" in refused("storage", ".", *SMALL)


def test_the_ranks_folder_stays_only_where_a_message_refers_to_it(tmp_path: Path) -> None:
    def fail(told: str) -> None:
        with claim_work_folder(tmp_path) as place:
            for name in ("work-1", "empty"):
                (place / name).mkdir()
            (place / "file-0").touch()
            raise EnvironmentFailure(told.format(place))

    with pytest.raises(EnvironmentFailure):
        fail("the whole is in {}/work-1/ranks.log")
    assert [path.name for path in files_in(tmp_path / NAME)] == ["work-1"]
    with pytest.raises(EnvironmentFailure):
        fail("no space")
    assert files_in(tmp_path) == []


def scales(ranks: tuple[int, ...] | None, nodes: int | None, given: Allocation | None) -> list[tuple[int, int]]:
    return [(scale.nodes, scale.count) for scale in scales_of(ranks, nodes, given, None)]


def test_ranks_are_spread_evenly_over_as_many_nodes_as_divide_them() -> None:
    four = Allocation("slurm", 4, job="12")
    assert scales((1, 2, 6, 8), None, four) == [(1, 1), (2, 2), (3, 6), (4, 8)]
    assert scales((8,), 2, four) == [(2, 8)]
    assert scales(None, None, None) == [(1, 1), (1, 2)]
    assert scales(None, None, Allocation("launched", 2, 3)) == [(2, 6)]
    with pytest.raises(UsageError, match="--ranks 6 on --nodes 4"):
        scales((4, 6), 4, four)
    with pytest.raises(UsageError, match="--nodes 5 is more than the 4 nodes of the Slurm allocation 12"):
        scales((5,), 5, four)


def test_the_cache_of_the_worst_host_counts() -> None:
    cold, warm = Residency(100, 0, True, False, None), Residency(100, 100, True, False, None)
    assert furthest_share("cold", [("node1", cold), ("node2", cold), ("node2", warm)]) == 0.5
    assert furthest_share("warm", [("node1", warm), ("node2", cold), ("node2", warm)]) == 0.5
    assert furthest_share("cold", [("node1", cold), ("node2", cold)]) == 0.0


def test_a_cache_that_proves_nothing_is_not_attested() -> None:
    seen = {"resident_share": 0.0, "attestable": True, "memory_backed": False, "note": None}
    full, hidden = seen | {"resident_share": 1.0}, seen | {"attestable": False, "note": "nfs keeps data"}
    in_memory = seen | {"memory_backed": True, "attestable": False, "note": "tmpfs"}
    assert attestation("cold", [seen, seen])["attested"]
    assert not attestation("cold", [seen, seen | {"resident_share": 0.02}])["attested"]
    assert not attestation("cold", [seen, hidden])["attested"]
    assert "nfs keeps data" in attestation("cold", [seen, hidden])["found"]
    assert not attestation("cold", [in_memory])["attested"]
    assert attestation("warm", [full])["attested"]
    assert attestation("warm", [in_memory])["attested"]
    assert not attestation("warm", [full, seen | {"resident_share": 0.9}])["attested"]
    assert not attestation("warm", [hidden])["attested"]
    whole, part = ({"bytes": 1000, "device_bytes": size, "attestable": True} | seen for size in (1024, 900))
    assert attestation("cold", [whole], direct=True)["attested"]
    assert not attestation("cold", [whole, part], direct=True)["attested"]  # a file system that took no notice
