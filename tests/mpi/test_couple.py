"""`dlio-bench couple` with real ranks and twins, through files."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from dlio_bench.harness.commands.coupling.ways.files import HEAD
from dlio_bench.reports.coupling import document as couple
from tests.mpi.conftest import complaint, dlio, start
from tests.needs import needs
from tests.processes import PATIENCE, descendants, gone, ranks_of, until

OUTPUT = 2 * 8 * 16**3


@needs("fuse")
def test_ranks_and_twins_meet_through_files_and_every_byte_is_counted(cache: Path, tmp_path: Path) -> None:
    done = dlio(
        cache, tmp_path, "couple", "grayscott", "--tiny", "--through", "files", "--producers", "2", "--consumers", "2",
        "--queue", "2", "--emulate-pfs", "bandwidth=200MB/s", "--out", "out", "--json",
    )  # fmt: skip
    document = couple.load(tmp_path / "out")
    assert json.loads(done.stdout)["digest"] == document.digest
    assert (tmp_path / "out" / "report.html").is_file()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "result.json"]
    assert document.marks[:3] == ["TINY", "VIRTUAL NODES", "EMULATED PFS"]
    traffic = couple.traffic(document, "files")
    assert traffic is not None
    assert traffic.written_bytes == 4 * (OUTPUT + HEAD)
    assert traffic.read_bytes == 2 * 4 * (OUTPUT + HEAD)
    apart = couple.traffic(document, couple.APART)
    assert apart is not None
    assert (apart.written_bytes, apart.read_bytes) == (traffic.written_bytes, traffic.read_bytes)
    alone = couple.traffic(document, "side by side")
    assert alone is not None
    assert alone.written_bytes == alone.read_bytes == 0
    for case in ("twins alone", "side by side", couple.APART, "files"):
        assert couple.losses(document, case) == pytest.approx(couple.losses(document, "twins alone"), rel=0.05)
    assert not list(cache.glob("dlio-bench-*"))  # TMPDIR of the command
    assert f"[{document.marks[0]}]" in dlio(cache, tmp_path, "show", "out").stdout


@needs("fuse")
@pytest.mark.parametrize("victim", [0, 1], ids=["the solver", "a twin"])
def test_a_side_that_is_killed_ends_the_command_and_nothing_is_left(victim: int, cache: Path, tmp_path: Path) -> None:
    process = start(
        cache, tmp_path, "couple", "grayscott", "--through", "files", "--size", "32", "--steps", "100", "--plotgap",
        "5", "--trials", "2000", "--emulate-pfs", "bandwidth=200MB/s", "--out", "out",
    )  # fmt: skip
    until(lambda: list(cache.glob("dlio-bench-couple-*/shared/files-*/output-*")), process, "nothing is coupled")
    started = descendants(process.pid)
    os.kill(ranks_of(process.pid)[victim], signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4, out + err
    assert "rank" in complaint(subprocess.CompletedProcess([], 4, out, err))
    gone(started)
    assert not list(cache.glob("dlio-bench-*"))
    assert not (tmp_path / "out" / "result.json").exists()
