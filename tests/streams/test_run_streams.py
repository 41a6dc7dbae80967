"""`dlio-bench run --reader stream`: real ranks, streams and files; and all that can go wrong on the way.

That every planned sample came once, with its bytes, is checked by the run itself: a run that ends well has shown it.
"""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.free_space import SHARED_MEMORY
from tests import processes
from tests.processes import PATIENCE, descendants, gone, ranks_of, until

ONE_NODE = ("--nodes", "1", "--reader", "stream", "--warmup-trials", "0", "--out", "out")
QUICK = (*ONE_NODE, "--compute", "none")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


Dlio = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def dlio(cache: Path, tmp_path: Path) -> Dlio:
    def run(*words: str, status: int = 0) -> "subprocess.CompletedProcess[str]":
        env = {"DLIO_BENCH_CACHE": str(cache), "TMPDIR": str(tmp_path)}
        return processes.dlio(tmp_path, "run", *words, status=status, **env)

    return run


@pytest.fixture
def start(cache: Path, tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    def run(*words: str) -> "subprocess.Popen[str]":
        env = {"DLIO_BENCH_CACHE": str(cache), "TMPDIR": str(tmp_path)}
        return processes.start(tmp_path, "run", *words, **env)

    return run


def result(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """The result of a run that ended well, every check held."""
    [found] = json.loads(done.stdout)
    assert all(check["ok"] for check in found["checks"]), found["checks"]
    assert {"exactly once", "bytes as planned", "content", "delivered bytes"} <= {c["name"] for c in found["checks"]}
    return dict(found)


def complaint(err: str) -> str:
    """The one paragraph that ends a failed run."""
    assert "Traceback" not in err, err
    [paragraph] = [line for line in err.splitlines() if line.startswith("dlio-bench: ")]
    return paragraph


@pytest.mark.parametrize(
    ("workload", "words", "ranks", "streamed"),
    [
        ("cdb", "--stream planned --producers 3 --ranks-per-node 2 --epochs 2 --validation 1", 2, True),
        ("imagenet", "--stream planned --producers 2 --ranks-per-node 1 --decode --check-crc", 1, True),
        ("cdb", "--stream round-robin --producers 2 --ranks-per-node 3 --epochs 2", 3, True),
        ("imagenet", "--stream round-robin --producers 1 --ranks-per-node 4 --batch 1", 4, True),
        ("cdb", "--stream all --producers 2 --ranks-per-node 3 --batch 1 --validation 1", 3, True),
        ("hepcnnb", "--stream on-demand --producers 2 --ranks-per-node 3 --batch 2 --epochs 2", 3, True),
        ("cosmoflow", "--stream planned --stream-engine bp --producers 2 --ranks-per-node 2", 2, True),
    ],
)
def test_every_mode_delivers_each_planned_sample_once(
    workload: str, words: str, ranks: int, streamed: bool, dlio: Dlio, tmp_path: Path
) -> None:
    found = result(dlio(workload, "--tiny", *QUICK, *words.split(), "--json"))
    assert found["plan"]["ranks"] == ranks
    assert found["plan"]["steps"] > 1
    assert len(found["trials"][0]["epochs"]) == (2 if "--epochs 2" in words else 1)
    assert found["policy"]["decode"] is None or "--decode" in words
    assert ("validation" in {check["name"] for check in found["checks"]}) == ("--validation" in words)
    [trial] = found["trials"]
    assert trial["bytes_remote"] == trial["bytes_requested"] or "--decode" in words or workload == "cosmoflow"  # gzip
    assert trial["bytes_device"] is not None  # what the processes of producers have caused
    left = [path.name for path in tmp_path.rglob("*") if path.suffix == ".sst" or path.name == "streams"]
    assert left == []


def test_the_emulated_file_system_delivers_each_byte_once_whoever_trains(dlio: Dlio) -> None:
    words = ("--stream", "all", "--producers", "2", "--ranks-per-node", "2", "--emulate-pfs", "bandwidth=100MB/s")
    [trial] = result(dlio("cdb", "--tiny", *QUICK, *words, "--json"))["trials"]
    assert trial["bytes_requested"] <= trial["bytes_device"] < 1.5 * trial["bytes_requested"]  # it delivers blocks


def test_two_trainers_train_on_a_stream(dlio: Dlio) -> None:
    words = ("--ranks-per-node", "2", "--batch", "4", "--compute", "train", "--validation", "none")
    [trial] = result(dlio("hepcnnb", "--tiny", *ONE_NODE, *words, "--json"))["trials"]
    assert trial["training"] is not None


def test_a_full_queue_that_discards_ends_with_what_to_change(dlio: Dlio) -> None:
    words = ("--stream-full", "discard", "--stream-queue", "1", "--ranks-per-node", "2")
    said = complaint(dlio("cdb", "--tiny", *QUICK, *words, status=4).stderr)
    assert "--stream-full block" in said


def streaming(folder: Path) -> bool:
    """Whether ranks of a run have met on a stream."""
    return any(folder.glob("out/work-*/streams/*"))


LONG = (*ONE_NODE, "--ranks-per-node", "2", "--producers", "2", "--epochs", "50", "--compute", "emulate:50ms")


def test_a_trainer_that_stands_still_for_a_while_loses_nothing(
    start: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    words = ("--ranks-per-node", "2", "--compute", "emulate:50ms", "--stream", "all", "--stream-queue", "1", "--json")
    process = start("cdb", "--tiny", *ONE_NODE, *words)
    until(lambda: streaming(tmp_path), process, "no streams")
    [trainer, _, _] = ranks_of(process.pid)
    os.kill(trainer, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(trainer, signal.SIGCONT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode in (0, 3), err  # emulated compute that stood still says so
    [found] = json.loads(out)
    assert {"exactly once": True, "content": True}.items() <= {c["name"]: c["ok"] for c in found["checks"]}.items()


def shared_memory(pids: list[int]) -> set[Path]:
    """What these processes map of it, by name."""
    names = set()
    for pid in pids:
        with suppress(OSError):  # it has ended
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            names |= {Path(line.split()[5]) for line in lines if f" {SHARED_MEMORY}/" in line}
    return names


@pytest.mark.parametrize("victim", ["trainer", "producer", "command"])
def test_whoever_is_killed_at_whatever_moment_nothing_hangs_and_nothing_is_left(
    victim: str, cache: Path, start: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    """At ten moments in all, from the start of the ranks into the stream."""
    number = {"trainer": 1, "producer": 2, "command": None}[victim]
    moments = random.Random(victim)
    for mode in ("planned", "all", "round-robin", "on-demand")[: 4 if victim != "command" else 2]:
        process = start("cdb", "--tiny", *LONG, "--stream", mode, "--timeout", "10s", "--out", f"out-{mode}")
        until(lambda pid=process.pid: len(ranks_of(pid)) == 4, process, "no ranks")  # type: ignore[misc]
        time.sleep(moments.uniform(0, 2.5))
        started = descendants(process.pid)
        shared = shared_memory(started)
        os.kill(process.pid if number is None else ranks_of(process.pid)[number], signal.SIGKILL)
        out, err = process.communicate(timeout=PATIENCE)
        gone(started)
        assert not [path for path in shared if path.exists()]
        if number is not None:
            assert process.returncode == 4, out + err
            told = complaint(err).lower()
            # A rank that dies while it connects to mpirun has no name there yet, but its signal is told. A trainer that
            # opens the stream of a dead producer may tell that first, by its name: session, producer, reader.
            told_as = (f"rank {number} ", "mpirun ended with status 137", "could not open or use the stream 0-")
            assert any(words in told for words in told_as), told
            assert not list(tmp_path.rglob("*.sst"))
    if victim != "command":
        assert all(path.name.startswith("out-") for path in tmp_path.iterdir())
    process = start("cdb", "--tiny", *QUICK)  # what a killed command has left does not disturb, and goes now
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    # Open MPI's own folders may stay, which are empty
    left = [path for path in tmp_path.rglob("*") if not path.relative_to(tmp_path).parts[0].startswith("out")]
    assert not [path for path in left if path.is_file()], left


def test_a_damaged_file_under_a_producer_ends_the_run_with_its_name(dlio: Dlio, tmp_path: Path) -> None:
    processes.dlio(tmp_path, "generate", "imagenet", "--tiny", "--files", "4", "--out", "data")
    [first, *_] = sorted(path for path in (tmp_path / "data").rglob("*train*") if path.is_file())
    with first.open("r+b") as file:
        file.truncate(first.stat().st_size // 2)
    said = complaint(dlio("imagenet", "--tiny", "--data", "data", *QUICK, "--ranks-per-node", "2", status=5).stderr)
    assert first.name in said


HIDING = """
import importlib.util, os
if os.environ.get("OMPI_COMM_WORLD_RANK") == "1":
    really = importlib.util.find_spec
    importlib.util.find_spec = lambda name, package=None: None if name == "adios2" else really(name, package)
"""


def test_a_rank_that_cannot_reach_adios2_ends_the_run(
    dlio: Dlio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text(HIDING)
    monkeypatch.setenv("PYTHONPATH", str(hiding))
    said = complaint(dlio("cdb", "--tiny", *QUICK, "--ranks-per-node", "2", status=4).stderr)
    assert "there is no libadios2_c.so here" in said
    assert "pip install 'dlio-bench[stream]'" in said
