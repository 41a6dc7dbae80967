"""Checkpoints: everything that a training needs to go on bit for bit, in one file that is whole or not there.

A file is an uncompressed .npz: NumPy writes and reads it as fast as the disk takes it, and its zip container holds a
CRC32 of each array, so that a file which is cut short or altered does not load. Keras's .weights.h5 has no place for
the step, and no checksum.
"""

import io
import json
import re
import time
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import asdict

from dlio_bench import recorder
from dlio_bench.atomic_files import PART, part_of, publish, sync
from dlio_bench.components import CODE
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError
from dlio_bench.harness.cluster.comm import Comm, run_on_all_ranks

Arrays = list[npt.NDArray[Any]]

WRITE, SYNC = CODE["checkpoint write"], CODE["checkpoint sync"]
KEPT = 2  # the newest, and the one before it
_NAME = re.compile(r"step-(\d{8,})\.npz")
_ABOUT = "about"
_GROUPS = ("weights", "optimizer", "lagged")


class TrainingState(Struct, frozen=True):
    """A training between two steps.

    step: steps done since the start; epoch: the one that step `step` belongs to. weights: all of the model's variables,
    trained or not; optimizer: all of the optimiser's; lagged: means that wait for the next step, None without a lag.
    about: what else must be the same to go on, as JSON (the workload, the batch, the ranks).
    """

    step: int
    epoch: int
    seed: int
    weights: Arrays
    optimizer: Arrays
    lagged: Arrays | None = None
    about: dict[str, Any] = field(default_factory=dict)


class Saved(Struct, frozen=True):
    """A checkpoint that was written: started and ended in seconds of time.perf_counter, made durable included."""

    path: Path
    nbytes: int
    started: float
    ended: float


class Found(Struct, frozen=True):
    """The newest whole checkpoint of a folder; refused: why each newer file was passed over, a sentence each."""

    state: TrainingState
    path: Path
    refused: tuple[str, ...]


def copies_of(variables: Sequence[Any]) -> Arrays:
    """Copies of Keras or TensorFlow variables."""
    return [np.array(variable.numpy()) for variable in variables]


def restore(variables: Sequence[Any], values: Sequence[npt.NDArray[Any]], what: str, source: Path) -> None:
    """Give variables their values of a checkpoint. DataError where they do not belong together."""
    wanted = [(tuple(variable.shape), str(variable.dtype)) for variable in variables]
    held = [(value.shape, str(value.dtype)) for value in values]
    if wanted != held:
        raise DataError(
            f"{source} holds {what} of another model: {len(held)} arrays with {_numbers(held)} numbers, and "
            f"{len(wanted)} with {_numbers(wanted)} are needed. Resume with the workload, the shapes and the optimiser "
            "that it was written with."
        )
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def save(folder: Path, state: TrainingState, kept: int = KEPT) -> Saved:
    """Write a checkpoint, which is whole or not there, then remove all but the newest `kept`. EnvironmentFailure.

    One process writes into a folder.
    """
    started = time.perf_counter()
    path = folder / f"step-{state.step:08d}.npz"
    about = asdict(TrainingState(state.step, state.epoch, state.seed, [], [], None, state.about))
    arrays: dict[str, npt.NDArray[Any]] = {_ABOUT: np.frombuffer(json.dumps(about).encode(), np.uint8)}
    groups: dict[str, Arrays | None] = {group: getattr(state, group) for group in _GROUPS}
    for group, values in groups.items():
        arrays |= {f"{group}-{number}": np.asarray(value) for number, value in enumerate(values or [])}
    arrays["counts"] = np.array([-1 if values is None else len(values) for values in groups.values()])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"step-*.npz{PART}"):  # of a training that was killed
            left.unlink()
        writing = time.perf_counter()
        with part_of(path).open("wb") as file:
            sink = _Sink(file)
            np.savez(sink, **arrays)  # type: ignore[arg-type, unused-ignore]  # its stubs mix arrays and options
            if sink.error is not None:
                raise sink.error
        nbytes = part_of(path).stat().st_size
        written = time.perf_counter()
        publish(part_of(path), path)
        sync(folder)
        if track := recorder.current_track():
            track.add(WRITE, writing, written, nbytes)
            track.add(SYNC, written, time.perf_counter())
        for _, old in _files(folder)[kept:]:
            if old != path:
                old.unlink()
    except OSError as error:
        with suppress(OSError):
            part_of(path).unlink()
        raise EnvironmentFailure(
            f"The checkpoint {path} cannot be written: {error.strerror or error}. Name a folder that can be written "
            "and has the room."
        ) from error
    return Saved(path, nbytes, started, time.perf_counter())


def newest(folder: Path) -> Found | None:
    """The newest whole checkpoint in a folder; None where there is none at all. DataError where none is whole."""
    refused: list[str] = []
    for _, path in _files(folder):
        try:
            return Found(_load(path), path, tuple(refused))
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            refused.append(f"{path} is not a whole checkpoint ({error}) and is passed over.")
    if refused:
        raise DataError(
            f"No checkpoint in {folder} can be used. {' '.join(refused)} Resume from another folder, or start anew "
            "without --resume; these files stay as they are."
        )
    return None


def load_on_all_ranks(comm: Comm, folder: Path, about: dict[str, Any]) -> Found:
    """The newest whole checkpoint, read by rank 0 and passed on to all ranks, which call it together.

    UsageError where there is none, or where it was written under other conditions than `about`; DataError where none is
    whole.
    """
    checkpoint = run_on_all_ranks(comm, lambda: load_required(folder, about) if comm.rank == 0 else None)[0]
    assert checkpoint is not None
    return checkpoint


def load_required(folder: Path, about: dict[str, Any]) -> Found:
    """The newest whole checkpoint of a folder, on one rank. UsageError and DataError as `load_on_all_ranks`."""
    checkpoint = newest(folder)
    if checkpoint is None:
        raise UsageError(f"There is no checkpoint in {folder} to resume from. Name another folder, or leave it out.")
    held = checkpoint.state.about
    if differ := [
        f"{name} {held.get(name)!r}, now {value!r}" for name, value in about.items() if held.get(name) != value
    ]:
        raise UsageError(
            f"{checkpoint.path} was written with {'; '.join(differ)}. Ask for the same (--data names the dataset), or "
            "leave --resume out."
        )
    return checkpoint


def _files(folder: Path) -> list[tuple[int, Path]]:
    """(step, path), newest first."""
    matches = ((_NAME.fullmatch(path.name), path) for path in (folder.iterdir() if folder.is_dir() else ()))
    return sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)


class _Sink(io.RawIOBase):
    """A file that keeps its first error for later: leaving a zip archive half-written would raise another one."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        """Write it, unless an earlier write failed."""
        if self.error is None:
            try:
                self._file.write(content)
            except OSError as error:
                self.error = error
        return memoryview(content).nbytes


def _load(path: Path) -> TrainingState:
    # opened here: NumPy leaves a file open that is no zip archive
    with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
        about = json.loads(held[_ABOUT].tobytes())
        counts = held["counts"].tolist()
        groups = {
            group: None if count < 0 else [held[f"{group}-{number}"] for number in range(count)]
            for group, count in zip(_GROUPS, counts, strict=True)
        }
    return TrainingState(**(about | groups))


def _numbers(arrays: Sequence[tuple[tuple[int, ...], str]]) -> int:
    return sum(int(np.prod(shape)) for shape, _ in arrays)
