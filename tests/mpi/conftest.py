"""The command as a user starts it; small and read-only disks. Mounting needs root, as CI, where no test skips, has."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Mount = Callable[[str], Path]
DLIO = [sys.executable, "-m", "dlio_bench"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def start(cache: Path, cwd: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*DLIO, *arguments],
        cwd=cwd,
        env=os.environ | {"DLIO_BENCH_CACHE": str(cache), "TMPDIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def dlio(cache: Path, cwd: Path, *arguments: str, status: int = 0) -> "subprocess.CompletedProcess[str]":
    process = start(cache, cwd, *arguments)
    try:
        out, err = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{' '.join(arguments)} was not over in time.\n{_where_it_stands(process, cwd)}")
    assert process.returncode == status, out + err
    assert "Traceback" not in out + err
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _where_it_stands(process: "subprocess.Popen[str]", cwd: Path) -> str:
    """The stacks of a command that takes too long and of its ranks; it is ended."""
    process.send_signal(signal.SIGUSR1)
    time.sleep(3)  # for the launcher to pass it on
    found = {path.name: path.read_text() for path in cwd.rglob("stacks-*.txt")}
    process.terminate()
    out, err = process.communicate()
    return "\n".join([out, err, *(f"{name}:\n{stacks}" for name, stacks in found.items())])


def complaint(done: "subprocess.CompletedProcess[str]") -> str:
    """The one paragraph that ends a failed run."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("dlio-bench: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


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
