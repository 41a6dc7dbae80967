"""What ends `dlio-bench run --compute train` before its time: status 4, one paragraph, and where the ranks stood.

A loss that is no number: tests/unit/training/test_train.py.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

from tests.mpi.conftest import generated, start
from tests.processes import PATIENCE, gone, pids_of, until


def test_a_rank_that_stops_in_training_ends_the_run_in_time(cache: Path, tmp_path: Path) -> None:
    # one long epoch, and a reader that asks no other rank: ranks wait for each other's gradients alone
    generated(tmp_path / "data", "hepcnnb", 100)
    process = start(
        cache, tmp_path, "run", "hepcnnb", "--tiny", "--data", "data", "--batch", "1", "--reader", "naive",
        "--nodes", "2", "--compute", "train", "--epochs", "1", "--warmup-trials", "0", "--validation", "none",
        "--no-verify", "--checkpoint", "5", "--exchange-timeout", "5s", "--out", "out",
    )  # fmt: skip
    try:
        # on a machine so busy that a rank comes that much later than the other, the run ends without a stopped one
        until(lambda: list(tmp_path.rglob("step-*.npz")) or process.poll() is not None, missing="no training")
        ranks = pids_of(str(tmp_path / "out" / "work-"))
        with suppress(IndexError, ProcessLookupError):
            os.kill(ranks[-1], signal.SIGSTOP)
        _, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    gone(ranks)
    assert process.returncode == 4
    [said] = [line for line in err.splitlines() if line.startswith("dlio-bench: ")]
    assert "was not over after 5 s, says rank" in said or "Horovod gave the exchange up" in said
    # the one that waited was in its exchange
    [work] = (tmp_path / "out").glob("work-*")
    assert f"{work.name}/stacks-*.txt" in said
    assert any("exchange.py" in path.read_text() for path in work.glob("stacks-*.txt"))
