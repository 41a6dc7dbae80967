"""Generation: whole or absent, resumable after any end, alone in its folder, and found damaged when it is."""

import errno
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from dlio_bench.benchmarks.layouts import find_layout
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.datagen.dataset import Dataset, open_dataset
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import PHYSICAL, RANDOM, FileSpec, Layout, WrittenFile, ids_in
from dlio_bench.datagen.manifest import CHECKSUMS, NAME
from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.cli import main
from tests.datasets import LAYOUTS, verify_files
from tests.processes import PATIENCE, gone, until

pytestmark = pytest.mark.slow

HEP = WORKLOADS["hepcnnb"].variants["224"](True, RANDOM)
CDB = WORKLOADS["cdb"].variants["cori"](True, RANDOM)
MANY = 20  # files enough that an end in the middle is in the middle

# A generation of its own process, which tells its workers' ids as soon as a file is whole.
GENERATION = """
import faulthandler, multiprocessing, os, signal, sys, time
from concurrent.futures import _base
from msgspec.structs import replace
from pathlib import Path
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import RANDOM
from dlio_bench.errors import BenchError

HEP = WORKLOADS["hepcnnb"].variants["224"](True, RANDOM)

def slow(path, spec, seed):
    if spec.first:
        path.write_bytes(b"half")
        time.sleep(600)
    return HEP.write(path, spec, seed)

def tell(done, total):
    if done:
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)

def interrupted(futures):
    lock(futures)
    os.kill(os.getpid(), signal.SIGINT)

if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    if sys.argv[3:] == ["in a lock"]:
        lock, _base._AcquireFutures.__enter__ = _base._AcquireFutures.__enter__, interrupted
    try:
        layout = replace(HEP, write=slow) if sys.argv[3:] else HEP
        generate(layout, int(sys.argv[2]), Path(sys.argv[1]), 1, workers=2, progress=tell)
    except BenchError as error:
        print(error, file=sys.stderr)
        sys.exit(error.status)
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_generated_is_whole(layout: Layout, tmp_path: Path) -> None:
    dataset = generate(layout, 3, tmp_path / "set", 1)
    assert verify_files(dataset) == []
    assert dataset.samples == sum(spec.samples for spec in layout.spec_files(3))
    assert [file.name for file in dataset.manifest.files] == [spec.name for spec in layout.spec_files(3)]
    assert leftovers(dataset.folder) == []


def test_progress_counts_up_to_all_bytes(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    generate(HEP, 4, tmp_path / "set", 1, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(n * HEP.file_bytes, 4 * HEP.file_bytes) for n in range(5)]


def test_only_missing_and_resized_files_are_mended(tmp_path: Path) -> None:
    first = generate(CDB, 4, tmp_path / "set", 1)
    before = times(first)
    first.path(1).unlink()
    os.truncate(first.path(2), 5)
    mended = generate(CDB, 4, tmp_path / "set", 1)
    assert mended.digest == first.digest
    assert verify_files(mended) == []
    assert [old == new for old, new in zip(before, times(mended), strict=True)] == [True, False, False, True]


def test_foreign_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("irreplaceable")
    with pytest.raises(UsageError, match=r"thesis\.tex.*hepcnnb 224 tiny"):
        generate(HEP, 2, tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("files", "seed", "workers"), [(0, 1, None), (-1, 1, None), (1, -1, None), (1, 2**32, 1), (1, 1, 0)]
)
def test_counts_out_of_range_are_refused(tmp_path: Path, files: int, seed: int, workers: int | None) -> None:
    with pytest.raises(UsageError):
        generate(HEP, files, tmp_path / "set", seed, workers=workers)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO])
def test_a_failing_file_system_is_named_with_a_way_out(tmp_path: Path, number: int) -> None:
    failing = replace(HEP, write=Failing(number, after=1))
    with pytest.raises(EnvironmentFailure, match=f"{tmp_path / 'set'}.*{os.strerror(number)}"):
        generate(failing, 3, tmp_path / "set", 1, workers=1)
    assert leftovers(tmp_path / "set") == []
    assert verify_files(generate(HEP, 3, tmp_path / "set", 1)) == []


def test_a_failing_file_system_is_named_by_workers_too(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # no file of the dataset fits
    try:
        with pytest.raises(EnvironmentFailure, match=f"{tmp_path / 'set'}.*{os.strerror(errno.EFBIG)}"):
            generate(HEP, 3, tmp_path / "set", 1, workers=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert leftovers(tmp_path / "set") == []
    assert verify_files(generate(HEP, 3, tmp_path / "set", 1)) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFailure, match="folders only"):
        generate(HEP, 1, tmp_path / "file" / "set", 1)


def test_a_killed_worker_is_reported_and_the_rest_resumed(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill(done: int, _total: int) -> None:
        if done >= 3 * 202_840 and not killed:
            killed.append(multiprocessing.active_children()[0].pid or 0)
            os.kill(killed[0], signal.SIGKILL)

    with pytest.raises(EnvironmentFailure, match="repeat the same command"):
        generate(HEP, MANY, tmp_path / "set", 1, workers=2, progress=kill)
    assert leftovers(tmp_path / "set") == []
    files = sorted((tmp_path / "set").glob("*.h5"))
    os.truncate(files[0], 100)
    content = bytearray(files[1].read_bytes())
    content[len(content) // 2] ^= 1  # finished, of the right size, and no longer what was written
    files[1].write_bytes(content)
    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "set").glob("*.h5")}
    assert 3 <= len(finished) < MANY
    seen: list[int] = []
    dataset = generate(HEP, MANY, tmp_path / "set", 1, progress=lambda done, _total: seen.append(done))
    assert seen[0] >= 202_840
    assert verify_files(dataset) == []
    kept = sum(path.stat().st_mtime_ns == written for path, written in finished.items())
    assert kept >= len(finished) - 4  # the two harmed, and one a worker that is whole but was not yet recorded
    assert dataset.digest == generate(HEP, MANY, tmp_path / "other", 1).digest


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_generation_leaves_no_process_and_nothing_half(tmp_path: Path, number: signal.Signals) -> None:
    running = start(tmp_path, 3, "slow")
    assert running.stdout is not None
    workers = [int(word) for word in running.stdout.readline().split()]  # as soon as a file is whole
    assert len(workers) == 2
    until(lambda: len(leftovers(tmp_path / "set")) == 2, running)
    if number == signal.SIGINT:
        os.killpg(running.pid, number)  # as a terminal does: the workers get it too
    else:
        os.kill(running.pid, number)
    assert finish(running) != 0
    gone(workers)
    assert not (tmp_path / "set" / NAME).exists()
    if number == signal.SIGINT:  # which does not wait for files in the making
        assert leftovers(tmp_path / "set") == []
    assert [path.stat().st_size for path in (tmp_path / "set").glob("*.h5")] == [202_840]
    assert finish(start(tmp_path, 3)) == 0
    assert leftovers(tmp_path / "set") == []
    assert verify_files(open_dataset(tmp_path / "set")) == []


def test_an_interrupt_within_a_lock_of_the_pool_ends_the_generation(tmp_path: Path) -> None:
    assert finish(start(tmp_path, 3, "in a lock")) != 0
    assert leftovers(tmp_path / "set") == []


def test_a_callback_that_fails_ends_the_workers(tmp_path: Path) -> None:
    def fail(done: int, _total: int) -> None:
        if done:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        generate(HEP, MANY, tmp_path / "set", 1, workers=2, progress=fail)
    assert multiprocessing.active_children() == []
    assert leftovers(tmp_path / "set") == []


def test_a_second_process_in_the_folder_is_told(tmp_path: Path) -> None:
    def intrude(done: int, _total: int) -> None:
        if done == 202_840:
            with pytest.raises(EnvironmentFailure, match=f"Another process.*{tmp_path / 'set'}"):
                generate(HEP, 3, tmp_path / "set", 1)

    dataset = generate(HEP, 3, tmp_path / "set", 1, progress=intrude)
    assert verify_files(dataset) == []


def test_processes_at_once_do_not_spoil_the_dataset(tmp_path: Path) -> None:
    running = [start(tmp_path, 30) for _ in range(3)]
    statuses = [finish(one) for one in running]
    assert set(statuses) <= {0, 4}
    assert 0 in statuses
    assert verify_files(open_dataset(tmp_path / "set")) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_wrong_byte_is_found_and_its_file_named(layout: Layout, tmp_path: Path) -> None:
    dataset = generate(layout, 2, tmp_path / "set", 1)
    path = dataset.path(1)
    content = bytearray(path.read_bytes())
    offset, length = (
        int(part[0, 0]) for part in dataset.locate(np.array([dataset.samples - 1]), [layout.fields[0].name])[1:3]
    )
    content[offset + length // 2] ^= 16
    path.write_bytes(content)
    (problem,) = verify_files(dataset)
    assert str(path) in problem
    assert "sample" in problem


def test_a_wrong_auxiliary_file_is_named(tmp_path: Path) -> None:
    dataset = generate(CDB, 1, tmp_path / "set", 1)
    path = dataset.folder / "stats.h5"
    path.write_bytes(bytes(path.stat().st_size))
    (problem,) = verify_files(dataset)
    assert str(path) in problem


class Failing:
    """Writes `after` files, then fails as the operating system does, its file half written."""

    def __init__(self, number: int, after: int) -> None:
        self.number, self.after = number, after

    def __call__(self, path: Path, spec: FileSpec, seed: int) -> WrittenFile:
        """Layout.write."""
        if spec.first // spec.samples < self.after:
            return HEP.write(path, spec, seed)
        path.write_bytes(b"half")
        raise OSError(self.number, os.strerror(self.number))


def start(folder: Path, files: int, *more: str) -> subprocess.Popen[str]:
    script = folder / "generation.py"
    script.write_text(GENERATION)
    return subprocess.Popen(
        [sys.executable, script, folder / "set", str(files), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(running: subprocess.Popen[str]) -> int:
    """Its exit status; where it does not end, the stacks of its threads are in the failure."""
    try:
        running.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGUSR1)
        time.sleep(3)
        os.killpg(running.pid, signal.SIGKILL)
        pytest.fail("\n".join(running.communicate()))
    return running.returncode


def leftovers(folder: Path) -> list[str]:
    """Half-written files anywhere, and the record of progress beside a whole dataset."""
    found = [path.name for path in folder.rglob("*.part")]
    whole = (folder / NAME).exists() and json.loads((folder / NAME).read_bytes())
    return found + ([".progress"] if whole and (folder / ".progress").exists() else [])


def times(dataset: Dataset) -> list[int]:
    return [dataset.path(number).stat().st_mtime_ns for number in range(len(dataset.manifest.files))]


@pytest.mark.parametrize(("workload", "fill"), [("hepcnnb", PHYSICAL), ("hepcnnb", RANDOM), ("imagenet", RANDOM)])
def test_sorted_files_hold_the_samples_of_a_split_in_the_order_of_their_labels(
    workload: str, fill: str, tmp_path: Path
) -> None:
    counts = {"train": 3, "validation": 2}
    layout = find_layout(WORKLOADS[workload], None, tiny=True, fill=fill, sorted_by="label")
    made, mixed = (
        generate(layout, counts, tmp_path / "sorted", 1),
        generate(replace(layout, sorted_by=""), counts, tmp_path / "mixed", 1),
    )
    assert (made.manifest.sorted_by, mixed.manifest.sorted_by) == ("label", "")
    assert made.manifest.spec != mixed.manifest.spec
    assert layout.labels is not None
    ids = np.concatenate([ids_in(spec, 1, layout.labels) for spec in layout.files(counts)])
    first = next(file.first for file in made.manifest.files if file.split == "validation")
    for split in (ids[:first], ids[first:]):
        labels = layout.labels(1, np.sort(split))[split - split.min()]
        assert (np.diff(labels) >= 0).all()
        assert labels[0] < labels[-1]
    assert sorted(ids[:first].tolist()) == list(range(first))  # a split keeps its own
    assert sorted(ids[first:].tolist()) == list(range(first, made.samples))
    np.testing.assert_array_equal(np.load(made.folder / CHECKSUMS), np.load(mixed.folder / CHECKSUMS)[ids])
    assert main(["verify", str(made.folder), "--sample-fraction", "1"]) == 0  # made anew from the manifest alone


def test_what_has_no_class_is_not_sorted_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["cdb"], ["cosmoflow"], ["wsi"], ["imagenet", "--variant", "raw"]):
        asked = ["generate", *words, "--tiny", "--files", "10", "--out", str(tmp_path / "set"), "--sorted-by", "label"]
        assert main(asked) == 2
        said = capsys.readouterr().err
        assert f"Samples of {words[0]} " in said
        assert "use hepcnnb 224 or imagenet tfrecord" in said
    assert not (tmp_path / "set").exists()
