"""`dlio-bench generate`, `verify` and `index` for real: ranks, processes, kills, full and read-only disks."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.datagen import generate as generation
from dlio_bench.datagen.dataset import open_dataset
from tests.datasets import verify_files
from tests.processes import PATIENCE, dlio, gone, start, until

FILES = 400
MANY = ("hepcnnb", "--tiny", "--fill", "random", "--files", str(FILES))  # most of a second of work, and more
FILE_BYTES = 202_840  # of a tiny training file


def made(cwd: Path, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(dlio(cwd, "generate", *arguments, "--json").stdout)
    return found


@pytest.mark.parametrize(("workload", "fill"), [("cdb", "physical"), ("imagenet", "random")])  # HDF5 and TFRecord
def test_ranks_and_processes_make_the_same_dataset(workload: str, fill: str, tmp_path: Path) -> None:
    asked = (workload, "--tiny", "--fill", fill, "--files", "7", "--no-raw")
    ranks = made(tmp_path, *asked, "--out", "ranks", "--nodes", "3")
    own = made(tmp_path, *asked, "--out", "own", "--workers", "2")
    one = made(tmp_path, *asked, "--out", "one", "--ranks-per-node", "1")
    assert ranks["digest"] == own["digest"] == one["digest"]
    assert (ranks["processes"], ranks["launcher"]) == (3, "mpirun")
    assert (own["processes"], own["launcher"]) == (2, None)
    assert (one["processes"], one["launcher"]) == (1, "local")
    assert sum(split["files"] for split in own["splits"]) == 7
    assert not (tmp_path / "ranks" / ".progress").exists()


@pytest.mark.parametrize("who", [("--workers", "2"), ("--ranks-per-node", "2")])
def test_the_json_holds_our_rate_beside_the_folders_own(who: tuple[str, str], tmp_path: Path) -> None:
    found = made(tmp_path, "cdb", "--tiny", "--files", "6", "--fill", "random", "--out", "set", *who)
    assert found["written_bytes"] == found["stored_bytes"] == sum(s["stored_bytes"] for s in found["splits"])
    assert found["stored_bytes_per_second"] == pytest.approx(found["written_bytes"] / found["seconds"])
    assert found["raw_seconds"] >= 2 or found["raw_bytes"] >= 2_000_000_000
    assert found["raw_bytes_per_second"] == pytest.approx(found["raw_bytes"] / found["raw_seconds"])
    assert found["ratio"] == pytest.approx(found["stored_bytes_per_second"] / found["raw_bytes_per_second"])
    assert found["allocated_bytes"] >= found["stored_bytes"]
    assert found["duplicate_share"] < 0.01
    again = made(tmp_path, "cdb", "--tiny", "--files", "6", "--fill", "random", "--no-raw", "--out", "set", *who)
    assert again["digest"] == found["digest"]
    assert again["written_bytes"] == 0
    assert again["seconds"] is None


@pytest.mark.parametrize(("who", "victim"), [(("--workers", "2"), "command"), (("--nodes", "2"), "writer")])
def test_a_killed_generation_goes_on_where_it_was(who: tuple[str, ...], victim: str, tmp_path: Path) -> None:
    process = start(tmp_path, "generate", *MANY, "--out", "set", *who)
    writers = wait_for_writers(tmp_path / "set", process)
    os.kill(writers[0] if victim == "writer" else process.pid, signal.SIGKILL)
    _, err = process.communicate(timeout=PATIENCE)
    gone(writers)
    if victim == "writer":
        assert process.returncode == 4
        assert "kill" in err.lower()
        assert "finished files are kept" in err
        assert not list((tmp_path / "set").rglob("*.h5.part"))
    assert "Traceback" not in err
    assert not (tmp_path / "set" / "manifest.json").exists()
    assert "holds no manifest" in dlio(tmp_path, "verify", "set", status=5).stderr
    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "set").glob("*.h5")}
    assert 10 < len(finished) < FILES
    found = made(tmp_path, *MANY, "--out", "set", "--no-raw", *who)
    kept = sum(path.stat().st_mtime_ns == written for path, written in finished.items())
    assert kept >= len(finished) - 2  # one a writer that is whole but was not yet recorded
    assert found["written_bytes"] < found["stored_bytes"] - 8 * FILE_BYTES
    dataset = open_dataset(tmp_path / "set")
    assert verify_files(dataset) == []
    assert not list((tmp_path / "set").rglob("*.part"))
    assert {path.name for path in (tmp_path / "set").iterdir() if path.suffix != ".h5"} == {
        ".lock", "manifest.json", "extents.npy", "checksums.npy"
    }  # fmt: skip


@pytest.mark.parametrize("who", [("--workers", "2"), ("--nodes", "2")])
def test_a_disk_that_fills_up_is_named_and_nothing_half_stays(
    who: tuple[str, str], tmp_path: Path, mount: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., str],
) -> None:  # fmt: skip
    disk = mount("size=10m")
    monkeypatch.setattr(generation, "_require_space", lambda *_: None)  # as before somebody else filled it
    asked = ("generate", *MANY[:-1], "150", "--out", str(disk / "set"), "--no-raw", *who)
    told = refused(*asked, status=4)
    assert "No space left" in told
    assert str(disk / "set") in told
    assert list((disk / "set").glob("*.h5"))
    assert not list((disk / "set").rglob("*.h5.part"))
    assert not (disk / "set" / "manifest.json").exists()
    subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
    dlio(tmp_path, *asked)
    assert verify_files(open_dataset(disk / "set")) == []


# In a process of its own, as HDF5 crashes rather than fails; it must also end well. argv: folder, tries
FILL_UP = """
import sys
from pathlib import Path
import numpy as np
from dlio_bench.datagen.claim import Progress
from dlio_bench.datagen.formats import hdf5
from dlio_bench.datagen.layout import Written
folder = Path(sys.argv[1])
full = 0
for number in range(int(sys.argv[2])):
    path = folder / str(number)
    try:
        if number % 3 == 2:
            (folder / ".progress").mkdir(exist_ok=True)
            Progress(folder).keep(number, 1, Written(np.zeros((64, 9, 3), "i8"), np.zeros((64, 9), "u4")))
        elif number % 3:
            hdf5.write_chunks(path, "g", {"x": np.zeros(512, "f4"), "y": np.zeros(512, "f4")}, ("v108", "v108"))
        else:
            hdf5.allocate(path, [("x", "<f4", (64, 64)), ("y", "<f4", (64,)), ("z", "<i8", (64,))])
    except OSError as error:
        assert error.errno == 28, error
        full += 1
assert full
"""


@pytest.mark.parametrize("pages", [1, 2, 4, 11])
def test_files_on_a_full_disk_are_errors_and_nothing_else(pages: int, mount: Callable[[str], Path]) -> None:
    disk = mount(f"size={pages * os.sysconf('SC_PAGE_SIZE')}")
    done = subprocess.run([sys.executable, "-c", FILL_UP, disk, "12"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_too_small_a_disk_is_refused_before_the_first_byte(tmp_path: Path, small_disk: Path) -> None:
    done = dlio(tmp_path, "generate", "cdb", "--files", "20", "--out", str(small_disk / "set"), status=4)
    assert "free" in done.stderr
    assert not list((small_disk / "set").rglob("*.h5*"))


@pytest.mark.parametrize("who", [("--workers", "2"), ("--nodes", "2")])
def test_a_read_only_folder_is_named(who: tuple[str, str], tmp_path: Path, read_only: Path) -> None:
    done = dlio(tmp_path, "generate", "cdb", "--tiny", "--files", "4", "--out", str(read_only / "set"), *who, status=4)
    assert str(read_only / "set") in done.stderr
    assert "can be written" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("cosmoflow", "--files", "4", "--variant", "cori"), "Use mlperf-v1, mlperf-v0.7, sc18 or original-64"),
        (("cdb", "--files", "4", "--fill", "zeros"), "physical or random"),
        (("cdb", "--files", "0"), "at least"),
        (("cdb", "--bytes", "1kB"), "at least that"),
        (("cdb", "--fraction", "2"), "--fraction"),
        (("cdb",), "one of the arguments --files --bytes --fraction --full is required"),
        (("cdb", "--files", "4", "--full"), "not allowed with"),
        (("cdb", "--files", "4", "--workers", "2", "--nodes", "2"), "Give either"),
        (("cdb", "--files", "4", "--workers", "0"), "--workers 0"),
        (("cdb", "--files", "4", "--nodes", "0"), "--nodes 0"),
        (("cdb", "--files", "4", "--launcher", "telnet"), "telnet"),
        (("cdb", "--files", "4", "--seed", "-1"), "seed"),
    ],
)
def test_what_cannot_be_is_answered_before_anything_is_made(
    arguments: tuple[str, ...], says: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    assert says in refused("generate", *arguments, "--tiny", "--out", "set")
    assert not (tmp_path / "set").exists()


def test_another_dataset_in_the_folder_is_left_alone(tmp_path: Path, refused: Callable[..., str]) -> None:
    first = made(tmp_path, "cdb", "--tiny", "--files", "4", "--no-raw", "--out", "set")
    for other in (("hepcnnb", "--files", "4"), ("cdb", "--files", "5"), ("cdb", "--files", "4", "--seed", "2")):
        for who in ((), ("--nodes", "2")):
            told = refused("generate", *other, "--tiny", "--out", "set", *who)
            assert "holds another dataset (cdb cori tiny" in told
    assert made(tmp_path, "cdb", "--tiny", "--files", "4", "--out", "set")["digest"] == first["digest"]
    fill = refused("generate", "cdb", "--files", "4", "--tiny", "--out", "set", "--fill", "random")
    assert "random fill" in fill


def test_verify_lists_every_bad_file_and_says_5(tmp_path: Path) -> None:
    made(tmp_path, "hepcnnb", "--tiny", "--files", "6", "--no-raw", "--out", "set")
    assert "every byte is as it was written" in dlio(tmp_path, "verify", "set", "--sample-fraction", "0.5").stdout
    files = sorted((tmp_path / "set").glob("*.h5"))
    flipped = bytearray(files[0].read_bytes())
    flipped[len(flipped) // 2] ^= 1
    files[0].write_bytes(flipped)
    os.truncate(files[2], 1000)
    files[4].unlink()
    done = dlio(tmp_path, "verify", "set", "--workers", "2", "--json", status=5)
    found = json.loads(done.stdout)
    assert {one["file"] for one in found["bad"]} == {files[n].name for n in (0, 2, 4)}
    assert all(
        str(tmp_path / "set" / one["file"]) in one["problem"] or one["file"] in one["problem"] for one in found["bad"]
    )
    text = dlio(tmp_path, "verify", "set", status=5).stdout
    assert "3 bad files" in text


@pytest.mark.parametrize("workload", ["hepcnnb", "imagenet"])
def test_a_run_reads_the_training_files_of_an_indexed_dataset(workload: str, tmp_path: Path) -> None:
    made(tmp_path, workload, "--tiny", "--fill", "random", "--files", "20", "--no-raw", "--out", "set")
    for name in ("manifest.json", "extents.npy", "checksums.npy"):
        (tmp_path / "set" / name).unlink()
    indexed = json.loads(dlio(tmp_path, "index", "set", "--workload", workload, "--tiny", "--json").stdout)
    run = ("run", workload, "--tiny", "--data", "set", "--compute", "none", "--json", "--out", "out")
    (result,) = json.loads(dlio(tmp_path, *run).stdout)
    assert result["class"] == "EXPLORE"
    assert result["dataset"]["samples"] == indexed["splits"][0]["samples"]
    assert result["dataset"]["files"] == indexed["splits"][0]["files"]
    assert result["dataset"]["fill"] == "indexed"


def wait_for_writers(folder: Path, process: "subprocess.Popen[str]") -> list[int]:
    """The process ids of the two writers, once files have been finished."""
    until(lambda: len(list((folder / ".progress").glob("*.npz"))) >= 15, process, "no file was finished")
    writers = [pid for pid in descendants(process.pid) if is_writer(pid)]
    assert len(writers) == 2, writers
    return writers


def is_writer(pid: int) -> bool:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return False
    return "prte" not in line and "mpirun" not in line and ("spawn_main" in line or "generation.rank" in line)


def descendants(pid: int) -> list[int]:
    """All processes that come from `pid`."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found, new = [], {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new}
        found += sorted(new)
    return found


@pytest.fixture
def small_disk(mount: Callable[[str], Path]) -> Path:
    """A file system of 100 MB."""
    return mount("size=100m")
