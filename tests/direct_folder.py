"""A folder from which files can be read directly: one on a disk, else a file system of our own on a loop device."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.storage import direct

LOOP_BYTES = 256 << 20


@contextmanager
def direct_folder(folder: Path, *, always_loop: bool = False) -> Iterator[Path]:
    """`folder`, or, where its file system refuses direct reads, the root of an ext4 that is mounted in it (as root)."""
    if not always_loop:
        with suppress(EnvironmentFailure):
            direct.require_folder(folder)
            yield folder
            return
    image, place = folder / "disk.img", folder / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(LOOP_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
        image.unlink()
