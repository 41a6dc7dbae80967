"""Writing a file so that a half-written one is never taken for whole."""

import os
from pathlib import Path

from dlio_bench.errors import EnvironmentFailure


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` aside (`.part`), fsync it, then rename it to `path`; the folder is made when missing.

    Raises EnvironmentFailure (disk full, no permission, read-only, ...): `path` then is as it was before.
    """
    aside = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        _discard(aside)
        raise EnvironmentFailure(
            f"'{path}' ({len(content)} bytes) could not be written: {error.strerror or error}. Nothing was left in "
            "its place; free some space, or name a folder that can be written."
        ) from error


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable: POSIX keeps it in the folder, not in the file."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _discard(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # the folder is gone or read-only; the error being raised already says so
