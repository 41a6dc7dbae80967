"""The suites of gradient exchange under real mpirun, and ranks that die in the middle of one."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cluster import process
from tests.needs import require
from tests.processes import gone
from tests.ranks import mpirun

ROOT = Path(__file__).parents[2]
SUITES = {4: ("exchange", "exchange_training")}

STANDING = ("-o", "faulthandler_timeout=200")  # a rank whose test takes so many seconds says where it stands


@pytest.mark.parametrize("ranks", SUITES)
def test_the_suites_pass_on_every_rank(ranks: int) -> None:
    suites = [f"tests/contract/test_{suite}.py" for suite in SUITES[ranks]]
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *STANDING, *suites)
    argv, env = mpirun(ranks, command, {"DLIO_TEST_WORLD": str(ranks)})
    done = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == ranks
    if "skipped" in done.stdout:
        require("horovod")  # the rest passed
    assert "skipped" not in done.stdout


@pytest.mark.parametrize(
    ("kind", "end", "ranks"),  # each rank of Horovod loads TensorFlow
    # one that is stopped: test_train_fails.py
    [("mpi", "absent", 3), ("mpi", "killed", 3), ("horovod", "absent", 2)],
)
def test_a_rank_that_dies_in_an_exchange_ends_the_job_with_a_reason(
    kind: str, end: str, ranks: int, tmp_path: Path
) -> None:
    if kind == "horovod":
        require("horovod")
    rank = Path(__file__).with_name("failing_rank.py")
    command = (sys.executable, "-P", str(rank), str(tmp_path), kind, end, str(ranks))
    argv, env = mpirun(ranks, command)
    said: list[int] = []

    def heard(event: dict[str, Any]) -> None:
        said.append(event["step"])
        (tmp_path / f"heard-{said[-1]}").touch()  # for which the rank that fails waits

    reason = r"Rank 1 .* was ended by SIGKILL" if end == "killed" else r"was not over after 2 s|Horovod gave the exch"
    with pytest.raises(EnvironmentFailure, match=reason) as failure:
        process.launch(argv, env, tmp_path, heard)
    if end == "absent":  # the one that stands still says where, too
        assert f"stacks of {ranks} ranks are in {tmp_path}/stacks-*.txt" in str(failure.value)
        assert "failing_rank.py" in (tmp_path / "stacks-rank-1.txt").read_text()
    assert said == [0, 1]  # it was at work before
    gone(int(path.read_text()) for path in tmp_path.glob("pid-*"))
