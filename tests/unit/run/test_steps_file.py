"""Rank 0 writes the steps of all ranks as they come."""

import io
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.commands.run.measured import documents

RANKS, STEPS, TRIALS = 64, 2000, 3
AT_ONCE = 4


def arrays(rank: int, trial: int) -> dict[str, npt.NDArray[Any]]:
    """What a rank has measured in a trial."""
    random = np.random.default_rng([rank, trial])
    return {
        "stall": random.random(STEPS), "check": random.random((STEPS, 2))[:, 0], "loop": np.array(random.random()),
        "epoch": np.repeat(np.arange(2), STEPS // 2),
    }  # fmt: skip


class First(Solo):
    """Rank 0 of many, which makes up what the others send."""

    size = RANKS

    def __init__(self) -> None:
        self.sent = [(name, trial) for name in ("stall", "check", "loop") for trial in range(TRIALS)]

    def blocks(self, values: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
        name, trial = self.sent.pop(0)
        assert np.array_equal(values, arrays(0, trial)[name])
        for first in range(0, RANKS, AT_ONCE):
            yield np.stack([arrays(rank, trial)[name] for rank in range(first, first + AT_ONCE)])


def test_the_file_is_what_numpy_makes_of_all_arrays_in_the_memory_of_a_few(tmp_path: Path) -> None:
    own = [arrays(0, trial) for trial in range(TRIALS)]
    tracemalloc.start()
    documents.write_steps(tmp_path / "a.npz", own, First())
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 20 * AT_ONCE * STEPS * 8 < RANKS * TRIALS * STEPS * 8
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
    whole = {
        name: np.stack([[arrays(rank, trial)[name] for rank in range(RANKS)] for trial in range(TRIALS)])
        for name in ("stall", "check", "loop")
    }
    content = io.BytesIO()
    np.savez(content, **whole, epoch=own[0]["epoch"])
    assert (tmp_path / "a.npz").read_bytes() == content.getvalue()


def test_a_disk_that_fills_up_leaves_no_file_and_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Full(First):
        def blocks(self, values: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
            yield from [values]
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        documents.write_steps(tmp_path / "a.npz", [arrays(0, 0)], Full())
    assert not (tmp_path / "a.npz").exists()
    assert "ignored" not in capsys.readouterr().err
