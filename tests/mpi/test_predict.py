"""`calibrate` and `run --predict` with real ranks on an emulated file system: structure and bytes, no seconds."""

import json
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.harness.cli import main
from dlio_bench.harness.cluster.system import System, load
from dlio_bench.harness.commands.run.predicted import prediction
from tests.mpi.conftest import Gate, dlio, start
from tests.needs import needs
from tests.processes import until

PFS = "bandwidth=100MB/s,open=1ms,request=0.3ms"
READERS = "naive,shuffled,double-buffer,staged,staged-replicated,cooperative,lbann-preload"
TIERS = ("--tiers", "ram=10MB")
SMALL = ("--size", "8MB", "--threads", "1,2", "--sample-bytes", "64KiB,512KiB")
RUN = (
    "--tiny", "--nodes", "2", "--epochs", "2", "--batch", "16", "--trials", "1", "--warmup-trials", "0", "--no-verify",
)  # fmt: skip
# What somebody has written by hand.
DECLARES = """[declared]
name = "ours"  # by hand
[declared.tiers.staging]
capacity = "1GB"
threads = 4
[declared.tiers.ram]
capacity = "3GB"
threads = 4
[declared.tiers.disk]
capacity = "1GB"
threads = 4
"""


@needs("fuse")
def test_a_description_is_measured_and_predicts_a_run_before_it_begins(
    cache: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    system = tmp_path / "system.toml"
    system.write_text(DECLARES)
    local = ("--local", ".", "--nodes", "2", "--emulate-pfs", PFS, "--workload", "imagenet")
    done = dlio(cache, tmp_path, "calibrate", "--pfs", ".", *SMALL, *local, "--out", system.name, "--json")
    assert json.loads(done.stdout)["measured"] == tomllib.loads(system.read_text())["measured"]
    assert [path.name for path in tmp_path.iterdir()] == [system.name]
    assert system.read_text().startswith(DECLARES)
    a_calibration_finds_the_emulated_rates(load(system))
    digest = the_prediction_is_there_before_the_run_and_shown_after_it(cache, tmp_path)

    own = tmp_path / "own.toml"  # made of the run's own data
    own.write_text(system.read_text().replace('data = "', f'data = "{digest}, '))
    asked = ("--reader", "naive", "--predict", "--system", str(own), "--out", "b")
    assert "calibrated on the dataset that this run reads" in refused("run", "hepcnnb", *RUN, *asked)


def a_calibration_finds_the_emulated_rates(found: System) -> None:
    assert [nodes for nodes, _ in found.pfs.points] == [1, 2]
    # floors on the time that reads take are ceilings of what is measured; a little credit is given for late wake-ups
    assert all(0 < rate <= 115 for _, rate in found.pfs.points)
    assert found.pfs_open >= 0.001
    assert found.pfs_stream is not None
    for size in (65_536, 524_288):
        assert found.pfs_stream.seconds(size) > 0.95 * (size / 100e6)
    assert (found.name, found.tiers[1].capacity) == ("ours", 3_000_000_000)
    assert [tier.name for tier in found.tiers] == ["staging", "ram", "disk"]
    assert found.network > 0
    assert found.preprocess < float("inf")
    assert found.by["emulated"].startswith("100 MB/s")


def the_prediction_is_there_before_the_run_and_shown_after_it(cache: Path, folder: Path) -> str:
    """The digest of the run's dataset."""
    gate = Gate(folder / "gate", "dlio_bench.harness.commands.run.measured.rank")
    predict = ("--predict", "--system", "system.toml", "--emulate-pfs", PFS, "--out", "out", "--json")
    process = start(cache, folder, "run", "hepcnnb", *RUN, *TIERS, "--reader", READERS, *predict, **gate.env)
    written = folder / "out" / "prediction.json"
    until(written.exists, process)  # no rank has begun
    before: dict[str, Any] = json.loads(written.read_text())
    gate.open()
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
    page = (folder / "out" / "report.html").read_text()
    assert "Predicted before the run, and measured" in page
    return str(measured[0]["dataset"]["digest"])


@needs("fuse")
def test_without_a_description_the_machine_is_measured_first(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prediction, "SCRATCH_BYTES", 16_000_000)
    few = partial(prediction.Calibration, threads=(1, 2), sample_bytes=(65_536, 1 << 20))
    monkeypatch.setattr(prediction, "Calibration", few)
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
