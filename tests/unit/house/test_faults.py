"""What fails below is told with its path, the reason and what may be done, and with the status that is documented."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.benchmarks import profile
from dlio_bench.benchmarks.pipeline import read_failure
from dlio_bench.datagen.dataset import open_dataset
from dlio_bench.errors import BenchError, DataError, EnvironmentFailure, UsageError
from dlio_bench.harness.cluster import system
from dlio_bench.harness.storage import tier_files
from dlio_bench.harness.storage.files import OpenFiles
from dlio_bench.reports import storage


def failing(number: int) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return call


def test_a_tier_that_fails_is_named_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [None, tmp_path]
    tiers = tier_files.tier_files_of(tier_files.make(places, [4096, 4096], 1), places, [4096, 4096])
    try:
        monkeypatch.setattr(os, "preadv", failing(errno.EIO))
        monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
        with pytest.raises(EnvironmentFailure, match=rf"{tmp_path} on .* cannot be read: Input/output.*dmesg.*--tiers"):
            tiers.read(1, 0, memoryview(bytearray(10)))
        with pytest.raises(EnvironmentFailure, match=rf"{tmp_path} on .* cannot be written: No space.*Free space"):
            tiers.write(1, 0, memoryview(bytearray(10)))
        with pytest.raises(EnvironmentFailure, match=r"The tier in memory on .* cannot be read"):
            tiers.read(0, 0, memoryview(bytearray(10)))
    finally:
        tiers.close()


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.ENOTCONN, "The daemon of this FUSE mount is dead"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EACCES, "permission"),
        (errno.EIO, "dmesg"),
        (errno.ESTALE, "mount the file system again"),
    ],
)
def test_a_file_that_cannot_be_opened_is_told_with_the_fix(
    number: int, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "open", failing(number))
    with pytest.raises(EnvironmentFailure, match=rf"{tmp_path}/one cannot be opened: {os.strerror(number)}.*{fix}"):
        OpenFiles(lambda _: tmp_path / "one", 1).get(0, 0).handle()


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (FileNotFoundError(errno.ENOENT, "gone"), DataError, "is missing from its dataset"),
        (OSError("Unable to open file (file signature not found)"), DataError, "names every bad file"),
        (OSError("Can't read data (file read failed: time = x, errno = 116, error message = 'y')"), None, "server"),
        (OSError(errno.ENOTCONN, "z"), None, "FUSE"),
    ],
)
def test_a_library_that_cannot_read_condemns_a_file_for_its_content_alone(
    error: OSError, kind: type[BenchError] | None, says: str
) -> None:
    failure = read_failure(Path("data.h5"), error)
    assert type(failure) is (kind or EnvironmentFailure)
    assert says in str(failure)


@pytest.mark.parametrize("load", [storage.load, profile.load, system.load])
def test_a_pipe_or_a_folder_is_no_file_and_nobody_waits_for_it(load: Callable[[Path], object], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match=rf"{pipe}' is a pipe and not a file.*Name a"):
        load(pipe)
    with pytest.raises(UsageError, match=rf"{tmp_path}' is a folder and not a file"):
        load(tmp_path)


def test_a_manifest_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(UsageError, match="is a pipe"):
        open_dataset(tmp_path)


MEMORY = """
import sys
import numpy
from dlio_bench.harness import cli
cli.COMMANDS["run"] = lambda _: bool(numpy.empty(1 << 55))
sys.exit(cli.main(["run", "cdb"]))
"""


def test_memory_that_runs_out_in_the_command_itself_is_no_defect_of_ours() -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert done.stderr.startswith("dlio-bench: Memory ran out here: Unable to allocate")
    assert "smaller --batch" in done.stderr
    assert "defect" not in done.stderr
