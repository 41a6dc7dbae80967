"""Small and read-only disks. Mounting needs root, as CI has; CI would count a skipped test as a failure."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Mount = Callable[[str], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """mount(options) -> the folder of a tmpfs with these options, gone after the test."""
    places: list[Path] = []

    def make(options: str) -> Path:
        place = tmp_path / f"disk{len(places)}"
        place.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True).returncode:
            pytest.skip("mounting needs root")
        places.append(place)
        return place

    yield make
    for place in places:
        subprocess.run(["umount", place], check=True)


@pytest.fixture
def read_only(mount: Mount) -> Path:
    """A file system that cannot be written, even by root."""
    return mount("ro,size=1m")
