"""Write results and pages whole or not at all, with a clear error if that fails."""

from contextlib import suppress
from pathlib import Path

from dlio_bench import atomic_files
from dlio_bench.errors import EnvironmentFailure


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` to `path` as a whole; the folder is made when missing.

    Raises EnvironmentFailure (disk full, no permission, read-only, ...): `path` then is as it was before.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_whole(path, content)
    except OSError as error:
        with suppress(OSError):  # the folder is gone or read-only: the error being raised says so already
            atomic_files.part_of(path).unlink(missing_ok=True)
        raise EnvironmentFailure(
            f"'{path}' ({len(content)} bytes) could not be written: {error.strerror or error}. Nothing was left in "
            "its place; free some space, or name a folder that can be written."
        ) from error
