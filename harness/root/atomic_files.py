"""Files that are whole or absent: written aside, synced, renamed."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PART = ".part"  # the ending of a file that is not whole yet


def part_of(path: Path) -> Path:
    """Where `path` is written before it is whole."""
    return path.with_name(path.name + PART)


def publish(part: Path, path: Path) -> None:
    """Make a finished `part` durable and give it its name. OSError."""
    sync(part)
    part.rename(path)


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file at once: readers see the old content, none, or all of it. OSError."""
    part = part_of(path)
    with naming(path):
        part.write_bytes(content)
        publish(part, path)
        sync(path.parent)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError in this block names `path`, if it names no file: that of a write to an open file does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def sync(path: Path) -> None:
    """fsync a file or a folder. OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_at(handle: int, out: memoryview, offset: int) -> None:
    """Fill `out` by preadv from `offset`. OSError, also where the file ends early."""
    while out:
        count = os.preadv(handle, [out], offset)
        if count == 0:
            raise OSError(errno.EIO, "it ends early")
        out, offset = out[count:], offset + count


def write_at(handle: int, content: Any, offset: int) -> None:
    """pwrite all of a contiguous buffer at `offset`. OSError."""
    left = memoryview(content).cast("B")
    while left:
        written = os.pwrite(handle, left, offset)
        offset += written
        left = left[written:]
