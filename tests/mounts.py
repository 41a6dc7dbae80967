"""Emulated file systems that tests mount, and the folder that they show."""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.harness.machine.mounts import parse_mountinfo
from dlio_bench.harness.storage.pfs.board import Board
from dlio_bench.harness.storage.pfs.emulation import Emulation, mount_nodes
from dlio_bench.harness.storage.pfs.spec import PfsSpec

MIB = 1 << 20
FREE = PfsSpec(None)
BIG = 6 * MIB + 4711


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    (folder / "inner, with a comma").mkdir()
    draw = np.random.default_rng(1)
    for name, size in {"empty": 0, "one": 1, "page": 4096, "inner, with a comma/odd": MIB + 5, "big": BIG}.items():
        (folder / name).write_bytes(draw.bytes(size))
    (folder / "link").symlink_to("big")
    (folder / "dangling").symlink_to("nowhere")
    return folder


@contextmanager
def running(
    spec: PfsSpec, source: Path, nodes: int, work: Path, *, writable: bool = False
) -> Iterator[tuple[Emulation, Board]]:
    with mount_nodes(spec, source, nodes, work, writable=writable) as emulation, Board.open(emulation.board) as board:
        yield emulation, board


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def read(fd: int, offset: int, length: int) -> bytes:
    """Into memory that begins at a page, so that the kernel asks for whole MiB."""
    with mmap.mmap(-1, length) as buffer:
        got = os.preadv(fd, [buffer], offset)
        return buffer[:got]


def mounts_below(folder: Path) -> list[str]:
    text = Path("/proc/self/mountinfo").read_text()
    return [mount.point for mount in parse_mountinfo(text) if mount.point.startswith(f"{folder}/")]
