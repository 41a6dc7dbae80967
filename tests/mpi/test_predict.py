"""`calibrate` and `run --predict` with real ranks on an emulated file system: structure and bytes, no seconds."""

import json
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.harness.calibration import command as calibration
from dlio_bench.harness.cli import main
from dlio_bench.harness.cluster.system import load
from dlio_bench.harness.run.predicted import forecast
from tests import results
from tests.mpi.conftest import complaint, dlio, start
from tests.processes import until

PFS = "bandwidth=100MB/s,open=1ms,request=0.3ms"
READERS = "naive,shuffled,double-buffer,staged,staged-replicated,cooperative,lbann-preload"
TIERS = ("--tiers", "ram=10MB")
SMALL = ("--size", "8MB", "--threads", "1,2", "--sample-bytes", "64KiB,512KiB")
RUN = (
    "--tiny", "--nodes", "2", "--epochs", "2", "--batch", "16", "--trials", "1", "--warmup-trials", "0", "--no-verify",
)  # fmt: skip


@pytest.fixture(scope="module")
def system(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A description of two virtual nodes on the emulated file system."""
    folder = tmp_path_factory.mktemp("calibrated")
    local = ("--local", ".", "--nodes", "2", "--emulate-pfs", PFS, "--out", "system.toml", "--json")
    found = json.loads(dlio(cache, folder, "calibrate", "--pfs", ".", *SMALL, *local).stdout)
    assert found["measured"] == tomllib.loads((folder / "system.toml").read_text())["measured"]
    assert [path.name for path in folder.iterdir()] == ["system.toml"]
    return folder / "system.toml"


def test_a_calibration_finds_the_emulated_rates(system: Path) -> None:
    found = load(system)
    assert [nodes for nodes, _ in found.pfs.points] == [1, 2]
    # floors on the time that reads take are ceilings of what is measured; a little credit is given for late wake-ups
    assert all(0 < rate <= 115 for _, rate in found.pfs.points)
    assert found.pfs_open >= 0.001
    assert found.pfs_stream is not None
    for size in (65_536, 524_288):
        assert found.pfs_stream.seconds(size) > 0.95 * (size / 100e6)
    assert [tier.name for tier in found.tiers] == ["staging", "ram", "disk"]
    assert found.network > 0
    assert found.by["emulated"].startswith("100 MB/s")


def test_the_prediction_is_there_before_the_run_and_shown_after_it(cache: Path, tmp_path: Path, system: Path) -> None:
    predict = ("--predict", "--system", str(system), "--emulate-pfs", PFS, "--out", "out", "--json")
    process = start(cache, tmp_path, "run", "hepcnnb", *RUN, *TIERS, "--reader", READERS, *predict)
    written = tmp_path / "out" / "prediction.json"
    until(lambda: list((tmp_path / "out").glob("work-*")), process)  # where ranks meet
    before: dict[str, Any] = json.loads(written.read_text())
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    measured = json.loads(out)
    assert json.loads(written.read_text()) == before  # nobody touches it afterwards
    assert [row["reader"] for row in before["rows"]] == READERS.split(",")
    for row, result in zip(before["rows"], measured, strict=True):
        assert len(row["epoch_seconds"]) == 2
        assert result["prediction"]["epoch_seconds"] == row["epoch_seconds"]
        trial = result["trials"][0]
        assert row["bytes"]["pfs"] == trial["bytes_requested"]  # the model reads what the reader reads
        assert row["bytes"]["local"] == trial["bytes_local"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Predicted before the run, and measured" in page


def test_without_a_description_the_machine_is_measured_first(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forecast, "SCRATCH_BYTES", 16_000_000)
    few = partial(calibration.Options, threads=(1, 2), sample_bytes=(65_536, 1 << 20))
    monkeypatch.setattr(calibration, "Options", few)
    monkeypatch.setenv("DLIO_BENCH_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
    fast = PFS.replace("100MB/s", "800MB/s")
    asked = ("--reader", "naive,upstream", "--predict", "--emulate-pfs", fast, "--out", "out", "--verbose")
    assert main(("run", "hepcnnb", *RUN, *asked)) == 0
    out = capsys.readouterr().out
    assert "time of an epoch" in out
    assert "not predicted: its delivery (its own) is not modelled" in " ".join(out.split())
    made = load(tmp_path / "out" / "system.toml")
    assert made.by["emulated"].startswith("800 MB/s")
    left = [path.name for path in (cache / "datasets").iterdir()]
    assert not [name for name in left if name.startswith("dlio-bench")]  # scratch data are gone


def test_a_description_made_of_the_run_s_own_data_is_refused(cache: Path, tmp_path: Path, system: Path) -> None:
    asked = ("--reader", "naive", "--predict", "--system", str(system), "--out", "a", "--verbose")
    other = dlio(cache, tmp_path, "run", "hepcnnb", *RUN, *asked)
    assert "and the run reads real storage" in " ".join(other.stdout.split())
    result, _ = results.load(tmp_path / "a" / "naive-2x1")
    own = tmp_path / "own.toml"
    text = system.read_text()
    digest = result["dataset"]["digest"]
    own.write_text(text.replace('data = "', f'data = "{digest}, '))
    asked = ("--reader", "naive", "--predict", "--system", str(own), "--out", "b")
    failed = dlio(cache, tmp_path, "run", "hepcnnb", *RUN, *asked, status=2)
    assert "calibrated on the dataset that this run reads" in complaint(failed)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--pfs", "nowhere"), "--pfs nowhere does not exist"),
        (("--pfs", ".", "--nodes", "0"), "--nodes 0 is too small"),
        (("--pfs", ".", "--size", "1MB"), "Ask for more with --size"),
        (("--pfs", ".", "--workload", "hepcnnb", "--local", "nowhere"), "--local nowhere does not exist"),
        (("--pfs", ".", "--out", "."), "is a folder"),
        (("--pfs", ".", "--threads", "0"), "--threads '0'"),
        (("--pfs", ".", "--sample-bytes", "0"), "--sample-bytes '0'"),
    ],
)
def test_what_cannot_be_calibrated(
    tmp_path: Path, words: tuple[str, ...], says: str, refused: Callable[..., str]
) -> None:
    assert says in refused("calibrate", *words)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_description_keeps_what_is_declared(cache: Path, tmp_path: Path) -> None:
    declares = '[declared]\nname = "ours"  # by hand\n[declared.tiers.staging]\ncapacity = "1GB"\nthreads = 4\n'
    (tmp_path / "here.toml").write_text(declares + '[declared.tiers.ram]\ncapacity = "3GB"\nthreads = 4\n')
    dlio(cache, tmp_path, "calibrate", "--pfs", ".", *SMALL, "--workload", "imagenet", "--out", "here.toml")
    found = load(tmp_path / "here.toml")
    assert (tmp_path / "here.toml").read_text().startswith(declares)
    assert (found.name, found.tiers[1].capacity) == ("ours", 3_000_000_000)
    assert found.preprocess < float("inf")
    assert found.network == 0  # one node
    assert [path.name for path in tmp_path.iterdir()] == ["here.toml"]
