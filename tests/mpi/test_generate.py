"""`dlio-bench generate`, `verify` and `index` for real: ranks, processes, kills, full and read-only disks."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.datagen import generate as generation
from dlio_bench.datagen.dataset import open_dataset
from dlio_bench.harness import cli
from tests import datasets
from tests.datasets import verify_files
from tests.mpi.conftest import standing
from tests.processes import PATIENCE, descendants, dlio, ending, gone, ranks_of, start, until

FILES = 40
MANY = ("cosmoflow", "--tiny", "--fill", "random", "--files", str(FILES))


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """told("index", ...) -> the JSON of a command that starts no other process, in this one, in tmp_path."""

    def ask(*arguments: str, status: int = 0) -> Any:
        monkeypatch.chdir(tmp_path)
        assert cli.main([*arguments, "--json"]) == status
        return json.loads(capsys.readouterr().out)

    return ask


def made(cwd: Path, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(dlio(cwd, "generate", *arguments, "--json").stdout)
    return found


def test_ranks_and_processes_make_the_same_dataset_and_tell_their_rate_beside_the_folders_own(
    tmp_path: Path, told: Callable[..., Any]
) -> None:
    asked = ("cdb", "--tiny", "--fill", "random", "--files", "7")
    ranks = made(tmp_path, *asked, "--out", "ranks", "--nodes", "3")
    own = made(tmp_path, *asked, "--out", "own", "--workers", "2")
    one = told("generate", *asked, "--out", "one", "--ranks-per-node", "1", "--no-raw")
    assert ranks["digest"] == own["digest"] == one["digest"]
    assert (ranks["processes"], ranks["launcher"]) == (3, "mpirun")
    assert (own["processes"], own["launcher"]) == (2, None)
    assert (one["processes"], one["launcher"]) == (1, "local")
    assert one["raw_bytes"] is None
    assert not (tmp_path / "ranks" / ".progress").exists()
    for found in (ranks, own):
        assert sum(split["files"] for split in found["splits"]) == 7
        assert found["written_bytes"] == found["stored_bytes"] == sum(s["stored_bytes"] for s in found["splits"])
        assert found["stored_bytes_per_second"] == pytest.approx(found["written_bytes"] / found["seconds"])
        assert found["raw_seconds"] >= 2 or found["raw_bytes"] >= 2_000_000_000
        assert found["raw_bytes_per_second"] == pytest.approx(found["raw_bytes"] / found["raw_seconds"])
        assert found["ratio"] == pytest.approx(found["stored_bytes_per_second"] / found["raw_bytes_per_second"])
        assert found["allocated_bytes"] >= found["stored_bytes"]
        assert found["duplicate_share"] < 0.01
    for who in (("--nodes", "3"), ("--workers", "2")):  # there is nothing to start them for
        again = told("generate", *asked, "--no-raw", "--out", "ranks", *who)
        assert again["digest"] == ranks["digest"]
        assert again["written_bytes"] == 0
        assert again["seconds"] is None


@pytest.mark.parametrize(("who", "victim"), [(("--workers", "2"), "command"), (("--nodes", "2"), "writer")])
def test_a_killed_generation_goes_on_where_it_was(
    who: tuple[str, ...], victim: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    folder = tmp_path / "set"
    half = standing(folder, "cosmoflow", FILES, at=35, fill="random")  # the other writer goes on
    with ending(start(tmp_path, "generate", *MANY, "--out", "set", *who)) as process:
        until(lambda: len(list((folder / ".progress").glob("*.npz"))) >= 15, process, "no file was finished")
        until(lambda: len(writers_of(process.pid)) == 2, process, "there are not two writers")
        writers = writers_of(process.pid)
        os.kill(writers[0] if victim == "writer" else process.pid, signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENCE)
        gone(writers)
    if victim == "writer":
        assert process.returncode == 4
        assert "kill" in err.lower()
        assert "finished files are kept" in err
        assert not list(folder.rglob("*.tfrecord.part"))
    else:
        half.unlink()
        half.write_bytes(b"half a file")
    assert "Traceback" not in err
    assert not (folder / "manifest.json").exists()
    assert "holds no manifest" in refused("verify", "set", status=5)
    finished = {path: path.stat().st_mtime_ns for path in folder.rglob("*.tfrecord")}
    assert 10 < len(finished) < FILES
    found = made(tmp_path, *MANY, "--out", "set", "--no-raw", *who)
    kept = [path for path, written in finished.items() if path.stat().st_mtime_ns == written]
    assert len(kept) >= len(finished) - 2  # one a writer that is whole but was not yet recorded
    assert found["stored_bytes"] - found["written_bytes"] == sum(path.stat().st_size for path in kept)
    dataset = open_dataset(folder)
    assert verify_files(dataset) == []
    assert not list(folder.rglob("*.part"))
    assert {path.name for path in folder.iterdir()} == {
        "train", "validation", ".lock", "manifest.json", "extents.npy", "checksums.npy"
    }  # fmt: skip


@pytest.mark.parametrize("who", [("--workers", "2"), ("--nodes", "2")])
def test_a_disk_that_fills_up_is_named_and_nothing_half_stays(
    who: tuple[str, str], mount: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str],
    told: Callable[..., Any],
) -> None:  # fmt: skip
    disk = mount("size=5m")
    monkeypatch.setattr(generation, "_require_space", lambda *_: None)  # as before somebody else filled it
    asked = ("generate", "hepcnnb", "--tiny", "--fill", "random", "--files", "80", "--out", str(disk / "set"))
    said = refused(*asked, "--no-raw", *who, status=4)
    assert "No space left" in said
    assert str(disk / "set") in said
    assert list((disk / "set").glob("*.h5"))
    assert not list((disk / "set").rglob("*.h5.part"))
    assert not (disk / "set" / "manifest.json").exists()
    subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
    found = told(*asked, "--no-raw", "--workers", "1")
    assert 0 < found["written_bytes"] < found["stored_bytes"]
    assert verify_files(open_dataset(disk / "set")) == []


# In a process of its own, as HDF5 crashes rather than fails; it must also end well. argv: folder, tries
FILL_UP = """
import sys
from pathlib import Path
import numpy as np
from dlio_bench.datagen.claim import FinishedFiles
from dlio_bench.datagen.formats import hdf5
from dlio_bench.datagen.layout import WrittenFile
folder = Path(sys.argv[1])
full = 0
for number in range(int(sys.argv[2])):
    path = folder / str(number)
    try:
        if number % 3 == 2:
            (folder / ".progress").mkdir(exist_ok=True)
            written = WrittenFile(np.zeros((64, 9, 3), "i8"), np.zeros((64, 9), "u4"))
            FinishedFiles(folder).record_file(number, 1, written)
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


def test_too_small_a_disk_is_refused_before_the_first_byte(small_disk: Path, refused: Callable[..., str]) -> None:
    assert "free" in refused("generate", "cdb", "--files", "20", "--out", str(small_disk / "set"), status=4)
    assert not list((small_disk / "set").rglob("*.h5*"))


@pytest.mark.parametrize("who", [("--workers", "2"), ("--nodes", "2")])
def test_a_read_only_folder_is_named(who: tuple[str, str], read_only: Path, refused: Callable[..., str]) -> None:
    asked = ("generate", "cdb", "--tiny", "--files", "4", "--out", str(read_only / "set"), *who)
    said = refused(*asked, status=4)
    assert str(read_only / "set") in said
    assert "can be written" in said


def test_another_dataset_in_the_folder_is_left_alone(told: Callable[..., Any], refused: Callable[..., str]) -> None:
    asked = ("generate", "cdb", "--tiny", "--files", "4", "--no-raw", "--out", "set")
    first = told(*asked)
    for other in (("hepcnnb", "--files", "4"), ("cdb", "--files", "5"), ("cdb", "--files", "4", "--seed", "2")):
        for who in ((), ("--nodes", "2")):
            said = refused("generate", *other, "--tiny", "--out", "set", *who)
            assert "holds another dataset (cdb cori tiny" in said
    assert told(*asked)["digest"] == first["digest"]
    fill = refused("generate", "cdb", "--files", "4", "--tiny", "--out", "set", "--fill", "random")
    assert "random fill" in fill


def test_verify_lists_every_bad_file_and_says_5(
    tmp_path: Path, told: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    told("generate", "hepcnnb", "--tiny", "--files", "6", "--no-raw", "--out", "set")
    assert cli.main(["verify", "set", "--sample-fraction", "0.5"]) == 0
    assert "every byte is as it was written" in capsys.readouterr().out
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
    assert cli.main(["verify", "set"]) == 5
    assert "3 bad files" in capsys.readouterr().out


@pytest.mark.parametrize("workload", ["hepcnnb", "imagenet"])
def test_a_run_reads_the_training_files_of_an_indexed_dataset(
    workload: str, tmp_path: Path, told: Callable[..., Any]
) -> None:
    datasets.bare(datasets.made(tmp_path / "set", workload, {"train": 10, "validation": 10}))
    indexed = told("index", "set", "--workload", workload, "--tiny")
    run = ("run", workload, "--tiny", "--data", "set", "--compute", "none", "--json", "--out", "out")
    (result,) = json.loads(dlio(tmp_path, *run).stdout)
    assert result["class"] == "EXPLORE"
    assert result["dataset"]["samples"] == indexed["splits"][0]["samples"]
    assert result["dataset"]["files"] == indexed["splits"][0]["files"]
    assert result["dataset"]["fill"] == "indexed"


def writers_of(pid: int) -> list[int]:
    """The processes, or ranks, that write for a command."""
    workers = [child for child in descendants(pid) if "spawn_main" in command_line(child)]
    return workers or ranks_of(pid)


def command_line(pid: int) -> str:
    with suppress(OSError):  # it has ended
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


@pytest.fixture
def small_disk(mount: Callable[[str], Path]) -> Path:
    """A file system of 100 MB."""
    return mount("size=100m")
