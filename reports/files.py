"""Write results and pages whole or not at all, with a clear error if that fails."""

import errno
from contextlib import suppress
from pathlib import Path

from dlio_bench import atomic_files
from dlio_bench.errors import EnvironmentFailure, remedy

FULL = (errno.ENOSPC, errno.EDQUOT)


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
        fix = f"{remedy(error)}, or name" if error.errno in FULL else "Name"
        raise EnvironmentFailure(
            f"'{path}' ({len(content)} bytes) could not be written: {error.strerror or error}. Nothing was left in its "
            f"place. {fix} a file in a folder that you may write to."
        ) from error
