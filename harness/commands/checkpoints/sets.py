"""A set: the folder of one checkpoint. It is written aside, and whole only when it has its name and its manifest.

The manifest comes last: NAME.part/ gets the files, then manifest.json, then the name NAME. What was killed before is
NAME.part, or lacks the manifest, and is never taken for whole.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dlio_bench.atomic_files import PART, part_of
from dlio_bench.errors import DataError, EnvironmentFailure, remedy
from dlio_bench.free_space import free_bytes
from dlio_bench.units import format_bytes

MANIFEST = "manifest.json"
SCHEMA = "dlio-bench/checkpoint-set/1"


class Syncs:
    """Makes files durable, if asked to, and counts it: calls of fsync(2), and the seconds that they took."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self.calls, self.seconds = 0, 0.0

    def sync(self, handle: int) -> None:
        """fsync an open file. OSError."""
        if not self._wanted:
            return
        began = time.perf_counter()
        os.fsync(handle)
        self.seconds += time.perf_counter() - began
        self.calls += 1

    def folder(self, path: Path) -> None:
        """fsync a folder. OSError."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(handle)
        finally:
            os.close(handle)


OF_COMMIT = 3  # calls of fsync in `commit`


def name(step: int) -> str:
    """The folder of a checkpoint, as argonne-lcf/dlio_benchmark @e1919d7 names it."""
    return f"global_epoch1_step{step}"


def unfinished_folder(place: Path, step: int) -> Path:
    """The folder in which the set of a step is written."""
    return part_of(place / name(step))


def commit(place: Path, step: int, sizes: Mapping[str, int], about: Mapping[str, Any], syncs: Syncs) -> None:
    """All files are written: add the manifest and give the set its name. OSError."""
    folder = unfinished_folder(place, step)
    manifest = part_of(folder / MANIFEST)
    content = {"schema": SCHEMA, **about, "files": dict(sizes)}
    with manifest.open("w") as file:
        json.dump(content, file)
        file.flush()
        syncs.sync(file.fileno())
    manifest.rename(folder / MANIFEST)
    syncs.folder(folder)
    folder.rename(place / name(step))
    syncs.folder(place)


def whole(folder: Path) -> dict[str, Any]:
    """The manifest of a set. DataError that says why a folder is none: cut short, files missing or of another size."""
    if folder.name.endswith(PART) or not folder.is_dir():
        raise _broken_error(folder, "its writing did not end" if folder.is_dir() else "there is no such folder")
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        sizes = {str(file): int(size) for file, size in manifest["files"].items()}
        known = manifest["schema"] == SCHEMA
    except FileNotFoundError:
        raise _broken_error(folder, f"it has no {MANIFEST}, which is written last") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _broken_error(folder, f"its {MANIFEST} cannot be read ({error})") from None
    if not known:
        raise _broken_error(folder, f"its {MANIFEST} is of another schema")
    for file, size in sizes.items():
        path = folder / file
        if Path(file).name != file or not path.is_file():
            raise _broken_error(folder, f"'{file}' is missing")
        if path.stat().st_size != size:
            raise _broken_error(folder, f"'{file}' has {path.stat().st_size} bytes, and {size} were written")
    return dict(manifest)


def _broken_error(folder: Path, why: str) -> DataError:
    return DataError(f"{folder} is not a whole checkpoint: {why}. Use an earlier one, or write it again.")


@contextmanager
def explain_failures(path: Path, done: str) -> Iterator[None]:
    """EnvironmentFailure for an error of the file system that tells file, reason, what is free there, and the fix."""
    try:
        yield
    except OSError as error:
        free = free_bytes(path.parent)
        raise EnvironmentFailure(
            f"{path}, of a checkpoint, cannot be {done}: {error.strerror or error}"
            f"{f' ({format_bytes(free)} free there)' if free is not None else ''}. {remedy(error)}."
        ) from error
