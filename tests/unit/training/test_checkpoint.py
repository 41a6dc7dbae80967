"""Checkpoints are whole or refused, and a training that resumes is the training that was never stopped."""

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlio_bench.errors import DataError, EnvironmentFailure, UsageError
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.training import checkpoint
from dlio_bench.harness.training.checkpoint import TrainingState


def state(step: int, **changes: Any) -> TrainingState:
    numbers = np.random.Generator(np.random.Philox(step))
    given: dict[str, Any] = {
        "step": step,
        "epoch": step // 4,
        "seed": 2**63 + 1,
        "weights": [numbers.standard_normal((5, 3)).astype(np.float32), np.array([1, 2**32 - 1], np.uint32)],
        "optimizer": [np.array(step, np.int64), np.asfortranarray(numbers.standard_normal((2, 3)))],
        "about": {"workload": "cdb", "batch": 2},
    }
    return TrainingState(**(given | changes))


def same(one: TrainingState, other: TrainingState) -> bool:
    """Bit for bit, arrays and all."""

    def key(one: TrainingState) -> tuple[Any, ...]:
        groups = [one.weights, one.optimizer, one.lagged or []]
        arrays = [[(array.dtype.str, array.shape, array.tobytes()) for array in group] for group in groups]
        return one.step, one.epoch, one.seed, one.about, one.lagged is None, arrays

    return key(one) == key(other)


@pytest.mark.parametrize("lagged", [None, [], [np.ones(3, np.float32)]], ids=["no lag", "empty", "lag"])
def test_what_was_saved_comes_back_bit_for_bit(tmp_path: Path, lagged: Any) -> None:
    saved = checkpoint.save(tmp_path / "new" / "folder", state(7, lagged=lagged))
    assert saved.nbytes == saved.path.stat().st_size
    assert saved.started < saved.ended
    found = checkpoint.newest(tmp_path / "new" / "folder")
    assert found is not None
    assert same(found.state, state(7, lagged=lagged))
    assert found.refused == ()


def test_the_newest_two_are_kept_and_leftovers_swept(tmp_path: Path) -> None:
    (tmp_path / "step-00000099.npz.part").write_bytes(b"killed")
    (tmp_path / "notes.txt").write_text("mine")
    for step in (2, 100_000_000, 30):
        checkpoint.save(tmp_path, state(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "notes.txt",
        "step-00000030.npz",
        "step-100000000.npz",
    ]
    found = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.state.step == 100_000_000


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def altered(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(state(20).weights[0].tobytes()) + 9] ^= 1
    path.write_bytes(content)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    np.savez(path, something=np.ones(3))


@pytest.mark.parametrize("damage", [cut, altered, emptied, foreign])
def test_a_damaged_file_is_refused_and_the_one_before_it_used(tmp_path: Path, damage: Any) -> None:
    checkpoint.save(tmp_path, state(10))
    checkpoint.save(tmp_path, state(20))
    damage(tmp_path / "step-00000020.npz")
    found = checkpoint.newest(tmp_path)
    assert found is not None
    assert same(found.state, state(10))
    assert "step-00000020.npz is not a whole checkpoint" in found.refused[0]
    emptied(tmp_path / "step-00000010.npz")
    with pytest.raises(DataError, match="can be used"):
        checkpoint.newest(tmp_path)


def test_resuming_needs_a_checkpoint_of_the_same_training(tmp_path: Path) -> None:
    about = {"workload": "cdb", "batch": 2}
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError, match="no checkpoint in"):
            checkpoint.load_on_all_ranks(Solo(), folder, about)
    checkpoint.save(tmp_path, state(10))
    assert same(checkpoint.load_on_all_ranks(Solo(), tmp_path, about).state, state(10))
    with pytest.raises(UsageError, match="written with workload 'cdb', now 'hepcnnb'; batch 2, now 4"):
        checkpoint.load_on_all_ranks(Solo(), tmp_path, {"workload": "hepcnnb", "batch": 4})


def test_a_folder_that_takes_no_file_is_an_environment_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EnvironmentFailure, match="cannot be written"):
        checkpoint.save(tmp_path / "file", state(1))


def test_a_full_disk_leaves_the_checkpoint_before_it(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, state(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(EnvironmentFailure, match="cannot be written"):
            checkpoint.save(tmp_path, state(2, weights=[np.zeros(1 << 16)]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.npz"]


def test_what_was_just_saved_is_never_tidied_away(tmp_path: Path) -> None:
    for step in (400, 500, 10):
        assert checkpoint.save(tmp_path, state(step)).path.exists()
