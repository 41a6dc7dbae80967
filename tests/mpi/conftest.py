"""The command as a user starts it, and held where it launches ranks; small and read-only disks."""

import io
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from dlio_bench.atomic_files import part_of
from dlio_bench.datagen.claim import claim_folder
from dlio_bench.datagen.manifest import spec_digest
from dlio_bench.harness.cli import main
from dlio_bench.harness.cluster.launch_site import detect_site
from dlio_bench.harness.commands.generation.amount import Amount, counts
from tests import processes
from tests.datasets import layout
from tests.needs import require

Mount = Callable[[str], Path]


@pytest.fixture(scope="session")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The datasets that commands make, which tests of all files read and none alters."""
    return tmp_path_factory.mktemp("datasets")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, datasets: Path) -> Path:
    """The cache of commands, and their folder for temporary files."""
    folder = tmp_path_factory.mktemp("cache")
    (folder / "datasets").symlink_to(datasets)
    return folder


def start(cache: Path, cwd: Path, *arguments: str, **env: str) -> "subprocess.Popen[str]":
    return processes.start(cwd, *arguments, DLIO_BENCH_CACHE=str(cache), TMPDIR=str(cache), **env)


def dlio(cache: Path, cwd: Path, *arguments: str, status: int = 0) -> "subprocess.CompletedProcess[str]":
    return processes.dlio(cwd, *arguments, status=status, DLIO_BENCH_CACHE=str(cache), TMPDIR=str(cache))


def generated(folder: Path, workload: str, files: int, *more: str) -> Path:
    """A tiny dataset as the command makes it, but in this process: one of its own takes seconds to start."""
    words = ("generate", workload, "--tiny", "--files", str(files), "--workers", "1", *more, "--out", str(folder))
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as told:
        assert main(words) == 0, told.getvalue()
    return folder


class Gate:
    """Holds up, as they start, processes in whose command is a word, until it is opened. env: for who starts them."""

    def __init__(self, folder: Path, word: str) -> None:
        folder.mkdir()
        self._file = folder / "gate"
        self._file.touch()
        self.env = {"PYTHONPATH": str(folder)}
        (folder / "sitecustomize.py").write_text(  # which Python runs first of all
            "import pathlib, sys, time\n"
            f"while any({word!r} in each for each in sys.orig_argv) and pathlib.Path({str(self._file)!r}).exists():\n"
            "    time.sleep(0.01)\n"
        )

    def open(self) -> None:
        self._file.unlink()


HOLDING = """#!/bin/sh
case "$*" in
*measured.rank*) echo $$ >'{held}.part' && mv '{held}.part' '{held}' && exec sleep 3600 ;;
esac
exec '{mpirun}' "$@"
"""


class Hold:
    """An mpirun that starts no ranks of a run: the command that wants them stands there until it is ended."""

    def __init__(self, folder: Path) -> None:
        self._held, self._bin = folder / "held", folder / "bin"
        self._bin.mkdir()
        mpirun = Path(detect_site().mpirun or "")
        (folder / "lib").symlink_to(mpirun.resolve().parent.parent / "lib")  # where its library is looked for
        (self._bin / "mpirun").write_text(HOLDING.format(held=self._held, mpirun=mpirun))
        (self._bin / "mpirun").chmod(0o755)

    def start(self, cache: Path, cwd: Path, *arguments: str) -> "tuple[subprocess.Popen[str], int]":
        """Start a command, and wait until it stands; its process, and that in the place of the launcher."""
        self._held.unlink(missing_ok=True)
        path = f"{self._bin}:{os.environ['PATH']}"
        process = processes.start(cwd, *arguments, DLIO_BENCH_CACHE=str(cache), TMPDIR=str(cache), PATH=path)
        processes.until(self._held.exists, process, "no ranks were to be started")
        return process, int(self._held.read_text())


@pytest.fixture
def hold(tmp_path_factory: pytest.TempPathFactory) -> Hold:
    return Hold(tmp_path_factory.mktemp("hold"))


def standing(folder: Path, workload: str, files: int, at: int, fill: str) -> Path:
    """Begin a tiny dataset of TFRecord files in `folder` that stands at file number `at`: whoever opens a FIFO to write
    waits for a reader. Returns the FIFO.
    """
    of_all = layout(workload, fill=fill)
    of_splits = counts(of_all, Amount(files=files))
    with claim_folder(folder, spec_digest(of_all, of_splits, seed=1), "a test's"):
        fifo = part_of(folder / of_all.files(of_splits)[at].name)
        fifo.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(fifo)
    return fifo


def complaint(done: "subprocess.CompletedProcess[str]") -> str:
    """The one paragraph that ends a failed run."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("dlio-bench: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """mount(options) -> the folder of a tmpfs with these options, gone after the test."""
    require("mounts")
    places: list[Path] = []

    def make(options: str) -> Path:
        place = tmp_path / f"disk{len(places)}"
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
        places.append(place)
        return place

    yield make
    for place in places:
        subprocess.run(["umount", place], check=True)


@pytest.fixture
def read_only(mount: Mount) -> Path:
    """A file system that cannot be written, even by root."""
    return mount("ro,size=1m")
