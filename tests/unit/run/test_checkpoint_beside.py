"""Checkpoints beside a training: a share after every so many steps, the newest two kept, the last one compared."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from dlio_bench.errors import DataError, EnvironmentFailure
from dlio_bench.harness.cli import main
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.commands.run.measured.checkpoints_beside import KEPT, CheckpointsBeside, checkpoints_beside
from dlio_bench.harness.commands.run.measured.observer import Rank, Running, Segment
from dlio_bench.harness.commands.run.measured.times import TrialTimes
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.session import Reader
from dlio_bench.harness.storage import cache
from dlio_bench.harness.timeline import StepLog
from dlio_bench.harness.training.trainer import Emulated
from dlio_bench.reports.document.trials import RankLoad

FRACTION = 0.01
BYTES = int(4 * 594_178 * FRACTION) + int(8 * 594_178 * FRACTION)  # weights, and two moments of Adam


@contextmanager
def beside(every: int, below: Path) -> Iterator[CheckpointsBeside]:
    options = SimpleNamespace(
        checkpoint_load="hepcnn", checkpoint_load_every=every, checkpoint_load_fraction=FRACTION,
        checkpoint_load_dir=below,
    )  # fmt: skip
    rank = SimpleNamespace(job=SimpleNamespace(options=options, seed=1), comm=Solo(), folder=below / "job")
    with checkpoints_beside(cast(Rank, rank)) as made:
        assert made is not None
        yield made


def begun(made: CheckpointsBeside, steps: int) -> Running:
    """A trial after its steps."""
    times = TrialTimes(0, 0, [np.zeros((steps, 1), np.int64)], StepLog.empty(steps, 1))
    trial = Running("naive", find("naive"), cast(Reader, None), Emulated(0.0), times, copies=False, behind={})
    made.before_trial(trial)
    for step, call in made.after_step(Segment(trial, [0], steps, times.log)).items():
        call(step, iter(()))
    return trial


def ended(made: CheckpointsBeside, trial: Running) -> RankLoad:
    made.after_trial(trial)
    assert trial.times.load is not None
    return trial.times.load


def test_shares_are_written_every_few_steps_and_the_newest_two_stay(tmp_path: Path) -> None:
    with beside(3, tmp_path) as made:
        assert made.phases == ("checkpoint",)
        for _ in range(2):
            trial = begun(made, 11)
            assert len(list(tmp_path.glob("*/global_epoch1_step*"))) == 2
            # the phase of a step that saves ends behind its checkpoint
            assert np.flatnonzero(trial.times.log.clock[:, -1]).tolist() == [2, 5, 8]
            load = ended(made, trial)
            assert load.bytes == [BYTES] * 3
            assert load.fsyncs == [2] * 3
            assert load.compared_bytes == BYTES
            assert np.all(np.array(load.synced) <= load.seconds)
            assert not list(tmp_path.glob("*/global_epoch1_step*"))
        assert ended(made, begun(made, 1)).compared_bytes == 0  # a trial that is too short for one
    assert not list(tmp_path.iterdir())


def test_what_was_written_is_dropped_from_memory_before_it_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[Path] = []
    monkeypatch.setattr(cache, "drop", dropped.extend)
    left = cache.Residency(BYTES, 7, attestable=True)
    monkeypatch.setattr(cache, "residency", lambda files: left if files == dropped else None)
    with beside(1, tmp_path) as made:
        trial = begun(made, 1)
        files = {*tmp_path.rglob("*.pt")}
        load = ended(made, trial)
    assert {*dropped} == files
    assert load.compared_cached == 7


def test_a_share_that_was_altered_ends_the_trial(tmp_path: Path) -> None:
    with beside(1, tmp_path) as made:
        trial = begun(made, 1)
        file = next(tmp_path.rglob("*optim_states.pt"))
        file.write_bytes(bytes(file.stat().st_size))
        with pytest.raises(DataError, match="another content"):
            made.after_trial(trial)


def test_space_is_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = "dlio_bench.harness.commands.run.measured.checkpoints_beside"
    monkeypatch.setattr(f"{place}.free_bytes", lambda _: 1000)
    with (
        pytest.raises(EnvironmentFailure, match=rf"1000 bytes are available, {KEPT * BYTES} are required"),
        beside(1, tmp_path),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_a_dry_run_tells_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("--checkpoint-load", "llama3-8b", "--checkpoint-load-every", "2", "--dry-run")
    assert main(["run", "cdb", "--tiny", *words]) == 0
    assert "112 GB of Llama 3 8B after every 2 steps, in 2 files" in " ".join(capsys.readouterr().out.split())
