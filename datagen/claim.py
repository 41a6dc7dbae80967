"""A folder claimed for one dataset by one process, and its finished files until there is a manifest."""

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from msgspec import Struct

from dlio_bench.atomic_files import part_of, write_whole
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.layout import WrittenFile
from dlio_bench.datagen.manifest import NAME, PROGRESS
from dlio_bench.errors import EnvironmentFailure, UsageError

LOCK = ".lock"  # the empty lock file stays: removing it would let two processes hold two locks
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}  # file systems without locks: go on without
PATIENCE = 600.0  # seconds in which a process that makes a dataset has to finish a file, while others wait for it
_LOOK = 0.2  # seconds

Waiting = Callable[[int], None]  # told again and again how many files another process has finished


class FinishedFiles(Struct, frozen=True):
    """What is finished of a dataset: one small file for each of its files, so that a killed generation can go on."""

    folder: Path  # of the dataset

    def record_file(self, number: int, size: int, written: WrittenFile) -> None:
        """Record that file `number` is whole. OSError. Not synced: what a crash takes from it is only made again."""
        path = self._path(number)
        content = BytesIO()  # on a full disk NumPy's archive would fail once more while it is cleaned up
        np.savez(content, size=np.int64(size), extents=written.extents, checksums=written.checksums)
        part_of(path).write_bytes(content.getbuffer())
        part_of(path).rename(path)

    def whole_file(self, number: int, path: Path) -> tuple[int, WrittenFile] | None:
        """Size and extents of file `number` when it is recorded as whole and `path` still has that size."""
        try:
            with np.load(self._path(number)) as kept:
                size, written = int(kept["size"]), WrittenFile(kept["extents"], kept["checksums"])
            return (size, written) if path.stat().st_size == size else None
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            return None

    def forget(self) -> None:
        """Remove the record. OSError."""
        shutil.rmtree(self.folder / PROGRESS)

    def _path(self, number: int) -> Path:
        return self.folder / PROGRESS / f"{number:07d}.npz"


@contextmanager
def claim_folder(
    folder: Path, spec: str, title: str, *, damaged: bool = False, waiting: Waiting | None = None
) -> Iterator[FinishedFiles]:
    """Claim `folder`, made if absent, for the dataset with the digest `spec`.

    waiting: called while another process holds the folder and makes progress; None: do not wait for it.
    damaged: accept a folder whose manifest cannot be read.

    UsageError when it holds anything else (`title` says what was asked for), EnvironmentFailure when another process
    holds it. OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _refuse_foreign(folder, spec, title, damaged=damaged)
    with _lock_folder(folder, waiting):
        _refuse_foreign(folder, spec, title, damaged=damaged)
        (folder / PROGRESS).mkdir(exist_ok=True)
        for left in (folder / PROGRESS).glob("raw-*"):  # of a killed process that measured the raw write rate
            left.unlink()
        write_whole(folder / PROGRESS / "spec.json", json.dumps({"spec": spec, "title": title}).encode())
        yield FinishedFiles(folder)


def discard(folder: Path) -> None:
    """Empty a claimed folder; its manifest goes first, so that nobody takes the rest for a dataset. OSError."""
    rest = [entry for entry in folder.iterdir() if entry.name not in (NAME, LOCK, PROGRESS)]
    for entry in (folder / NAME, *rest):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def await_maker(folder: Path, waiting: Waiting) -> None:
    """Return when no other process is making a dataset in `folder`. EnvironmentFailure when it does not go on."""
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # nobody ever held it, or this user may not look
        return
    try:
        _lock(handle, folder, fcntl.LOCK_SH, waiting)
    finally:
        os.close(handle)


def keep_intact(progress: FinishedFiles, dataset: Dataset) -> None:
    """Turn a dataset with missing files back into an unfinished one that has all others. OSError."""
    for number, entry in enumerate(dataset.manifest.files):
        path = dataset.path(number)
        if path.is_file() and path.stat().st_size == entry.bytes:
            progress.record_file(number, entry.bytes, dataset.describe_file(number))
    (dataset.folder / NAME).unlink()


def _refuse_foreign(folder: Path, spec: str, title: str, *, damaged: bool) -> None:
    known = _spec(folder / NAME) or _spec(folder / PROGRESS / "spec.json") or _spec(folder / NAME)  # whole just now
    if known is None:
        foreign = sorted({entry.name for entry in folder.iterdir()} - {PROGRESS, LOCK})
        if foreign:
            raise UsageError(
                f"{folder} holds '{foreign[0]}', which is not of the dataset to be generated there ({title}). "
                "Choose an empty or new folder."
            )
    elif known[0] != spec and not (damaged and known[0] == _UNREADABLE):
        raise UsageError(
            f"{folder} holds another dataset ({known[1]}) than the one to be generated ({title}). "
            "Choose another folder."
        )


_UNREADABLE = ""  # in place of a digest


def _spec(path: Path) -> tuple[str, str] | None:
    """Digest and title of the dataset that a manifest or an unfinished record names; None when there is none."""
    try:
        raw = json.loads(path.read_bytes())
        if path.name == NAME:
            title = title_of(raw["workload"], raw["variant"], raw["fill"], raw["tiny"], len(raw["files"]), raw["seed"])
        else:
            title = raw["title"]
        return str(raw["spec"]), str(title)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return _UNREADABLE, f"unreadable: {path}"


def title_of(workload: str, variant: str, fill: str, tiny: bool, files: int, seed: int) -> str:
    """A dataset in a few words."""
    return f"{workload} {variant}{' tiny' if tiny else ''}, {fill} fill, {files} files, seed {seed}"


@contextmanager
def _lock_folder(folder: Path, waiting: Waiting | None) -> Iterator[None]:
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _lock(handle, folder, fcntl.LOCK_EX, waiting)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path, kind: int, waiting: Waiting | None) -> None:
    """Lock an open lock file; wait for who holds it while it finishes files and `waiting` is there to be told."""
    finished, since = -1, time.monotonic()
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if waiting is None:
                raise EnvironmentFailure(
                    f"Another process is generating a dataset in {folder}. Wait until it has ended and repeat the "
                    "command, which will then find the dataset whole or go on with it, or choose another folder."
                ) from error
            before, finished = finished, len(list((folder / PROGRESS).glob("*.npz")))
            if finished != before:
                since = time.monotonic()
            if time.monotonic() - since > PATIENCE:
                raise EnvironmentFailure(
                    f"Another process is making a dataset in {folder}, and has finished no file of it for "
                    f"{PATIENCE / 60:g} minutes. Look whether it still works (fuser -v {folder / LOCK}); once it has "
                    "ended, repeat the command, which goes on where it stopped."
                ) from error
            waiting(finished)
            time.sleep(_LOOK)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return
        else:
            return
