"""`dlio-bench bench-readers` compares what it says it does, with real ranks; no figure is judged here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def bench(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-m", "dlio_bench", "bench-readers", "--cache-dir", str(folder), "--trials", "1"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_small_samples_are_held_against_plain_loops(ranks: str, tmp_path: Path) -> None:
    done = bench(tmp_path, "--tiny", "--size", "1MB", "--ranks", ranks, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert [one["workload"] for one in found] == ["hepcnnb", "cdb", "cosmoflow", "imagenet"]
    for one in found:
        assert {"prefetch", "shuffled", "naive", "plain loop"} == set(one["bytes_per_second"])
        assert all(rate > 0 for rate in one["bytes_per_second"].values())
        assert all(row["ratio"] > 0 and len(row["ratios"]) == 1 for row in one["ratios"])
        assert one["resident_share"] == 1


def test_true_samples_are_held_against_the_libraries(tmp_path: Path) -> None:
    done = bench(tmp_path, "imagenet", "cdb", "--size", "130MB")
    assert done.returncode == 0, done.stderr
    for contender in ("raw preadv", "tf.data interleave", "h5py read_direct", "prefetch + crc"):
        assert f"  {contender:<18}" in done.stdout
    assert "prefetch / raw preadv" in done.stdout
    assert "not measured" not in done.stdout


def test_a_library_that_is_missing_is_told_in_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorflow.py").write_text("raise ImportError('not here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    done = bench(tmp_path, "imagenet", "--size", "130MB", "--ranks", "1", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["ours"]: row for row in json.loads(done.stdout)[0]["ratios"]}
    assert rows["prefetch + crc"]["ratio"] is None
    assert "TensorFlow is not installed" in rows["prefetch + crc"]["not_measured"]
    assert rows["prefetch"]["ratio"] > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("--ranks", "0"), "--ranks 0 is too small"), (("nothing",), "There is no workload 'nothing'")],
)
def test_what_cannot_be_is_refused(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = bench(tmp_path, *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
