"""Write results and pages whole or not at all, with a clear error if that fails."""

import errno
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dlio_bench import atomic_files
from dlio_bench.errors import EnvironmentFailure, remedy

FULL = (errno.ENOSPC, errno.EDQUOT)


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` to `path` as a whole; the folder is made when missing.

    Raises EnvironmentFailure (disk full, no permission, read-only, ...): `path` then is as it was before.
    """
    _write_atomically(path, [content], f" ({len(content)} bytes)")


def write_parts(path: Path, parts: Iterable[bytes]) -> None:
    """As `write_whole`, of a content that comes in parts and is never held as a whole."""
    _write_atomically(path, parts, "")


def _write_atomically(path: Path, parts: Iterable[bytes], size: str) -> None:
    part = atomic_files.part_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            file.writelines(parts)
        atomic_files.publish(part, path)
        atomic_files.sync(path.parent)
    except OSError as error:
        with suppress(OSError):  # the folder is gone or read-only: the error being raised says so already
            part.unlink(missing_ok=True)
        fix = f"{remedy(error)}, or name" if error.errno in FULL else "Name"
        raise EnvironmentFailure(
            f"'{path}'{size} could not be written: {error.strerror or error}. Nothing was left in its place. {fix} a "
            "file in a folder that you may write to."
        ) from error
