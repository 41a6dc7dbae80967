"""The folder of the test files: made by one process at a time, filled with incompressible bytes, removed afterwards."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dlio_bench.atomic_files import write_at
from dlio_bench.datagen.random_bytes import octets, source
from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.commands.storage_bench.plan import Files, samples_of
from dlio_bench.harness.commands.storage_bench.sizing import FileSetShape
from dlio_bench.harness.ground.folders import WORK, lock_folder
from dlio_bench.units import format_bytes

NAME = "dlio-bench-storage"
EMPTY, FILE = "empty", "file-"  # where empty files are made; a test file's name begins so
_BLOCK = 4 << 20


@contextmanager
def claim_work_folder(folder: Path) -> Iterator[Path]:
    """A new folder in `folder`, held against other processes and removed with all that is in it, however this ends.

    What a killed process left there is removed first. The ranks' work folder stays where an error's message refers to
    it, until the next time. UsageError where the name is taken by something else, EnvironmentFailure.
    """
    place = folder.absolute() / NAME
    busy = (
        f"Another process is measuring in {place}, and the two would slow each other. Wait until it has ended, or "
        "choose another folder on other storage."
    )
    with lock_folder(place.parent, busy=busy):
        _make_folder(place)
        kept = False
        try:
            _clear(place, keep_work=False)
            yield place
        except BaseException as error:
            kept = str(place / WORK) in str(error)
            raise
        finally:
            with _defer_signals():
                if kept:
                    _clear(place, keep_work=True)
                else:
                    shutil.rmtree(place, ignore_errors=True)


def write_files(place: Path, shape: FileSetShape, seed: int, report: Callable[[int, int], None]) -> Files:
    """Make the test files in `place`, synced; `report(done, total)` gets bytes. EnvironmentFailure."""
    paths = [place / f"{FILE}{number:07d}" for number in range(shape.files)]
    report(0, shape.bytes)
    try:
        for number, path in enumerate(paths):
            words = source(seed, number, 0)
            with path.open("wb", buffering=0) as file:
                for at in range(0, shape.file_bytes, _BLOCK):
                    write_at(file.fileno(), octets(words, min(_BLOCK, shape.file_bytes - at)), at)
                    report(number * shape.file_bytes + at, shape.bytes)
                os.fsync(file.fileno())
    except OSError as error:
        raise EnvironmentFailure(
            f"The test files ({format_bytes(shape.bytes)}) could not be written to {place.parent}: {error.strerror}. "
            "They are removed again. Free space there, choose another folder, or ask for less with --size."
        ) from error
    return Files(tuple(map(str, paths)), (shape.file_bytes,) * shape.files, samples_of(shape))


def _make_folder(place: Path) -> None:
    """Make the folder if it is absent. UsageError where the name is taken by something else, EnvironmentFailure."""
    try:
        place.mkdir(exist_ok=True)
        names = sorted(path.name for path in place.iterdir())
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{place} is a file, and test files are made in a folder of that name. Move it.") from None
    except OSError as error:
        raise EnvironmentFailure(
            f"No folder for test files can be made in {place.parent}: {error.strerror}. Give permission there, choose "
            "another folder, or read an existing dataset with --data."
        ) from error
    if foreign := [name for name in names if name != EMPTY and not name.startswith((WORK, FILE))]:
        raise UsageError(
            f"{place} holds '{foreign[0]}', which is no test file of this command. Move it, or choose another folder."
        )


def _clear(place: Path, *, keep_work: bool) -> None:
    for path in place.iterdir():
        if path.name.startswith(FILE):
            path.unlink()
        elif not path.name.startswith(WORK) or not keep_work:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _defer_signals() -> Iterator[None]:
    """Signals wait until the end: a second Ctrl-C must not leave half of the files."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
