"""Checkpoints beside a training: a share after every so many steps, the newest two kept, the last one compared."""

from pathlib import Path

import numpy as np
import pytest

from dlio_bench.benchmarks.published_models.models import MODELS
from dlio_bench.errors import DataError, EnvironmentFailure
from dlio_bench.harness.cli import main
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.commands.checkpoints.beside import KEPT, beside
from dlio_bench.harness.storage import cache
from dlio_bench.harness.training.trainer import Emulated

MODEL, FRACTION = MODELS["hepcnn"], 0.01
BYTES = int(4 * 594_178 * FRACTION) + int(8 * 594_178 * FRACTION)  # weights, and two moments of Adam


def test_shares_are_written_every_few_steps_and_the_newest_two_stay(tmp_path: Path) -> None:
    with beside(Emulated(), Solo(), MODEL, 3, FRACTION, tmp_path, seed=1) as trainer:
        assert not trainer.meets
        for trial in range(2):
            trainer.begin("naive", trial, 0)
            for _ in range(11):
                trainer.save()
            assert len(list(tmp_path.glob("*/global_epoch1_step*"))) == 2
            left = trainer.end()
            assert left is not None
            assert left.phases == ("checkpoint",)
            assert left.summary is None
            load = left.load  # type: ignore[attr-defined]
            assert load.bytes == [BYTES] * 3
            assert load.fsyncs == [2] * 3
            assert load.compared_bytes == BYTES
            assert np.all(np.array(load.synced) <= load.seconds)
            assert not list(tmp_path.glob("*/global_epoch1_step*"))
        trainer.begin("naive", 2, 0)  # a trial that is too short for one
        trainer.save()
        left = trainer.end()
        assert left is not None
        assert left.load.compared_bytes == 0  # type: ignore[attr-defined]
    assert not list(tmp_path.iterdir())


def test_what_was_written_is_dropped_from_memory_before_it_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[Path] = []
    monkeypatch.setattr(cache, "drop", dropped.extend)
    left = cache.Residency(BYTES, 7, attestable=True)
    monkeypatch.setattr(cache, "residency", lambda files: left if files == dropped else None)
    with beside(Emulated(), Solo(), MODEL, 1, FRACTION, tmp_path, seed=1) as trainer:
        trainer.begin("naive", 0, 0)
        trainer.save()
        files = {*tmp_path.rglob("*.pt")}
        load = trainer.end().load  # type: ignore[union-attr]
    assert {*dropped} == files
    assert load.compared_cached == 7


def test_a_share_that_was_altered_ends_the_trial(tmp_path: Path) -> None:
    with beside(Emulated(), Solo(), MODEL, 1, FRACTION, tmp_path, seed=1) as trainer:
        trainer.begin("naive", 0, 0)
        trainer.save()
        file = next(tmp_path.rglob("*optim_states.pt"))
        file.write_bytes(bytes(file.stat().st_size))
        with pytest.raises(DataError, match="another content"):
            trainer.end()


def test_space_is_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlio_bench.harness.commands.checkpoints.beside.free_bytes", lambda _: 1000)
    with (
        pytest.raises(EnvironmentFailure, match=rf"1000 bytes are available, {KEPT * BYTES} are required"),
        beside(Emulated(), Solo(), MODEL, 1, FRACTION, tmp_path, seed=1),
    ):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--checkpoint-load", "llama3-8b"), "needs --checkpoint-load-every K"),
        (("--checkpoint-load", "llama3-8b", "--checkpoint-load-every", "0"), "--checkpoint-load-every: '0'"),
        (("--checkpoint-load", "llama3-8b", "--checkpoint-load-every", "x"), "--checkpoint-load-every: 'x'"),
        (
            ("--checkpoint-load", "hepcnn", "--checkpoint-load-every", "1000", "--steps", "16"),
            "no checkpoint would be written",
        ),
        (("--checkpoint-load", "llama", "--checkpoint-load-every", "2"), "'llama' is not known"),
        (("--checkpoint-load-every", "2"), "Name the model with --checkpoint-load"),
        (
            ("--checkpoint-load", "llama3-8b", "--checkpoint-load-every", "2", "--checkpoint-load-dir", "no"),
            "is not a folder",
        ),
        (("--checkpoint-load", "llama3-405b", "--checkpoint-load-every", "2", "--nodes", "3"), "--shards 512"),
        (("--checkpoint-load", "llama3-8b", "--checkpoint-load-every", "2", "--predict"), "--predict"),
    ],
)
def test_what_cannot_be_is_refused(
    words: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["run", "cdb", "--tiny", *words]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_a_dry_run_tells_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("--checkpoint-load", "llama3-8b", "--checkpoint-load-every", "2", "--dry-run")
    assert main(["run", "cdb", "--tiny", *words]) == 0
    assert "112 GB of Llama 3 8B after every 2 steps, in 2 files" in " ".join(capsys.readouterr().out.split())
