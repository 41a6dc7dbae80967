"""A worker process that is killed is a failure of the machine, and the user learns what to do."""

import os
from pathlib import Path

import pytest

from dlio_bench.harness.cli import main
from dlio_bench.harness.commands.generation import verification
from tests.datasets import made


def test_verify_tells_of_a_killed_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = made(tmp_path / "set", "hepcnnb", 2)
    monkeypatch.setattr(verification, "partial", lambda *_: os._exit)  # what the workers are to do with each file
    assert main(["verify", str(dataset.folder), "--workers", "2"]) == 4
    told = capsys.readouterr().err
    assert f"A worker process that was verifying {dataset.folder} was killed." in told
    assert "memory runs out (see dmesg). Use fewer --workers, or end other" in told
    assert "defect" not in told
