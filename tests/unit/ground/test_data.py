"""The dataset that is kept for runs: nothing but damage removes it, and processes that need it wait for each other."""

import errno
import fcntl
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.benchmarks.registry import find
from dlio_bench.datagen import claim
from dlio_bench.datagen.claim import LOCK
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import RANDOM
from dlio_bench.datagen.manifest import PROGRESS
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.commands.run.asked import data
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.ground.progress import Progress

LAYOUT = find("cdb").variants["cori"](True, RANDOM)
FILES = {"train": 3}


@pytest.fixture
def source(tmp_path: Path) -> data.Source:
    generate(LAYOUT, FILES, tmp_path / "set", data.SEED, workers=1)
    return data.Source(tmp_path / "set", 0, 0, FILES)


def state(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("name", ["manifest.json", "extents.npy", "checksums.npy", "data-"])
def test_an_error_that_may_pass_leaves_the_dataset_alone(
    name: str, number: int, source: data.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state(source.folder)

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            if name in str(path):
                raise OSError(number, os.strerror(number), str(path))
            return real(path, *arguments, **options)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", failing(os.open))
        patched.setattr(io, "open", failing(io.open))
        if name == "data-":  # these are looked at, not opened
            patched.setattr(os, "stat", failing(os.stat))
        with pytest.raises(EnvironmentFailure, match=name) as failed:
            data.ready(source, LAYOUT, Progress())
    assert os.strerror(number) in str(failed.value)
    assert "Delete" not in str(failed.value)
    assert state(source.folder) == before
    data.ready(source, LAYOUT, Progress())
    assert state(source.folder) == before


def test_a_damaged_dataset_is_replaced_under_its_lock(source: data.Source) -> None:
    content = {path.name: path.read_bytes() for path in source.folder.glob("data-*")}
    (source.folder / "manifest.json").write_text("{")
    handle, seen = held(source.folder), []

    def waiting(_: int) -> None:
        seen.append({path.name for path in source.folder.glob("data-*")})
        if len(seen) == 2:
            os.close(handle)

    generate(LAYOUT, FILES, source.folder, data.SEED, replace_damaged=True, waiting=waiting)
    assert seen == [set(content)] * 2  # as long as somebody else had it
    assert {path.name: path.read_bytes() for path in source.folder.glob("data-*")} == content
    assert not (source.folder / PROGRESS).exists()


@pytest.mark.parametrize("name", ["manifest.json", "extents.npy"])
def test_a_dataset_without_its_tables_is_made_again(name: str, source: data.Source) -> None:
    whole = {path.name: path.read_bytes() for path in source.folder.glob("*.*")}
    (source.folder / name).write_text("{")
    dataset = data.ready(source, LAYOUT, Progress(io.StringIO()))
    assert dataset.samples == data.open_dataset(source.folder).samples > 0
    assert {path.name: path.read_bytes() for path in source.folder.glob("*.*")} == whole


def test_who_makes_no_progress_is_not_waited_for(source: data.Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "PATIENCE", 0.0)
    handle, _ = in_the_making(source.folder)
    try:
        with pytest.raises(EnvironmentFailure, match="has finished no file of it"):
            data.ready(source, LAYOUT, Progress(io.StringIO()))
    finally:
        os.close(handle)


@pytest.mark.parametrize("given", [False, True])
def test_a_dataset_in_the_making_is_waited_for_and_that_is_said(
    given: bool, source: data.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, stream = state(source.folder), io.StringIO()
    handle, manifest = in_the_making(source.folder)

    def finish(_: float) -> None:  # what the other process does meanwhile
        (source.folder / "manifest.json").write_bytes(manifest)
        os.close(handle)

    monkeypatch.setattr(claim.time, "sleep", finish)
    if given:
        data.await_generation(Options("cdb", data=source.folder), Progress(stream))
    else:
        data.ready(source, LAYOUT, Progress(stream))
    assert f"waiting for the dataset that another process is making in {source.folder}" in stream.getvalue()
    after = state(source.folder)
    assert {path: after[path] for path in before if "data-" in path} == {
        path: time for path, time in before.items() if "data-" in path
    }


def held(folder: Path) -> int:
    """The lock that another process has on a dataset while it makes it."""
    handle = os.open(folder / LOCK, os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def in_the_making(folder: Path) -> tuple[int, bytes]:
    """A dataset as another process has it shortly before the end: its lock, and the manifest that is still to come."""
    manifest = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").unlink()
    (folder / PROGRESS).mkdir()
    (folder / PROGRESS / "spec.json").write_text(json.dumps({"spec": json.loads(manifest)["spec"], "title": "it"}))
    return held(folder), manifest
