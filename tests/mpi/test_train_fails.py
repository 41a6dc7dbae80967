"""What ends `dlio-bench run --compute train` before its time: status 4, one paragraph, and where the ranks stood."""

import os
import signal
from pathlib import Path

import h5py

from tests.mpi.conftest import complaint, dlio, start
from tests.processes import PATIENCE, gone, pids_of, until


def test_a_loss_that_is_no_number_ends_the_run(cache: Path, tmp_path: Path) -> None:
    dlio(cache, tmp_path, "generate", "hepcnnb", "--tiny", "--files", "2", "--out", "data")
    [path] = (tmp_path / "data").rglob("hep_train*.h5")
    with h5py.File(path, "r+") as file:
        file["data"][...] = 1e34  # a NaN would not do: fused with its convolution, a ReLU makes 0 of it
    done = dlio(
        cache, tmp_path, "run", "hepcnnb", "--tiny", "--data", "data", "--batch", "4", "--compute", "train",
        "--validation", "none", "--no-verify", "--out", "out", status=4,
    )  # fmt: skip
    assert "The loss of hepcnn is nan at step" in complaint(done)
    assert not (tmp_path / "out").exists()


def test_a_rank_that_stops_in_training_ends_the_run_in_time(cache: Path, tmp_path: Path) -> None:
    # one long epoch, and a reader that asks no other rank: ranks wait for each other's gradients alone
    dlio(cache, tmp_path, "generate", "cosmoflow", "--tiny", "--files", "400", "--out", "data")
    process = start(
        cache, tmp_path, "run", "cosmoflow", "--tiny", "--data", "data", "--batch", "1", "--reader", "naive",
        "--nodes", "2", "--compute", "train", "--epochs", "1", "--warmup-trials", "0", "--validation", "none",
        "--no-verify", "--checkpoint", "5", "--exchange-timeout", "10s", "--out", "out",
    )  # fmt: skip
    try:
        until(lambda: list(tmp_path.rglob("step-*.npz")), process, "no training is at work")
        ranks = pids_of(str(tmp_path / "out" / "work-"))
        os.kill(ranks[-1], signal.SIGSTOP)
        _, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    gone(ranks)
    assert process.returncode == 4
    [said] = [line for line in err.splitlines() if line.startswith("dlio-bench: ")]
    assert "was not over after 10 s, says rank" in said or "Horovod gave the exchange up" in said
    # the one that waited was in its exchange
    [work] = (tmp_path / "out").glob("work-*")
    assert f"{work.name}/stacks-*.txt" in said
    stacks = [path.read_text() for path in work.glob("stacks-*.txt")]
    assert any("exchange.py" in one for one in stacks)
