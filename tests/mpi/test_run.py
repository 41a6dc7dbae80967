"""`dlio-bench run` for real: mpirun, ranks, files; and every way it can go wrong for a user."""

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest

from dlio_bench.free_space import SHARED_MEMORY
from dlio_bench.harness.cluster.environment import usable_cores
from dlio_bench.harness.storage import tier
from tests.mpi.conftest import complaint, dlio, start
from tests.processes import DLIO, PATIENCE, descendants, gone, pids_of, until
from tests.results import load

# Users who are not root run these tests too, and cannot give files away. `.ci/run` fails where a test skips.
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away; .ci/run is root and allows no skip")


@pytest.fixture(scope="module")
def first(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one plain run of two ranks has written; its dataset is in the cache."""
    folder = tmp_path_factory.mktemp("first")
    dlio(cache, folder, "run", "cdb", "--tiny", "--nodes", "2", "--out", "out")
    return folder / "out"


@pytest.mark.parametrize("workload", ["hepcnnb", "cdb", "cosmoflow", "imagenet"])
def test_every_workload_ends_with_verdict_table_json_and_page(
    workload: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the formulas in the documentation give the metrics, from the files alone."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
    [block] = re.findall(r"(?s)```python\n(.*?)```", page.read_text("utf-8"))
    formulas = tmp_path / "formulas.py"
    formulas.write_text(block)
    done = dlio(
        cache, tmp_path, "run", workload, "--tiny", "--nodes", "2", "--reader", "naive,prefetch", "--out", "out"
    )
    assert "EXPLORE" in done.stdout
    assert "VIRTUAL NODES" in done.stdout
    for reader in ("naive", "prefetch"):
        result, steps = load(tmp_path / "out" / f"{reader}-2x1")
        assert result["plan"]["steps"] >= 16
        assert result["environment"]["rank_memory_bytes"] < 200_000_000
        assert result["environment"]["cores_per_rank"] == usable_cores() / 2
        names = {check["name"] for check in result["checks"]}
        assert names >= {"exactly once", "content", "delivered bytes", "cold cache"}
        assert all(check["ok"] for check in result["checks"]), result["checks"]
        assert steps["stall"].shape == (2, 2, result["plan"]["steps"])
        assert np.all(steps["compute"] >= result["compute"]["asked_step_seconds"])
        for trial in result["trials"]:
            assert sum(trial["rank_bytes"]) == trial["bytes_useful"]
            assert trial["elapsed_seconds"] >= steps["loop"][trial["trial"]].max() - 1e-3
        monkeypatch.chdir(tmp_path / "out" / f"{reader}-2x1")
        by_hand = run_path(str(formulas))
        for name in ("au", "stall_share", "own_stall_share", "no_io_seconds"):
            assert by_hand[name] == pytest.approx(result["metrics"][name]["value"], rel=1e-9), name
    assert (tmp_path / "out" / "report.html").stat().st_size > 100_000


def test_node_counts_and_ranks_per_node_give_one_result_each(cache: Path, tmp_path: Path) -> None:
    done = dlio(
        cache, tmp_path, "run", "cdb", "--tiny", "--nodes", "1,2", "--ranks-per-node", "2", "--out", "out", "--json"
    )
    results = json.loads(done.stdout)
    assert [(r["plan"]["nodes"], r["plan"]["ranks"]) for r in results] == [(1, 2), (2, 4)]
    assert len({r["dataset"]["digest"] for r in results}) == 1
    assert [("VIRTUAL NODES" in r["marks"]) for r in results] == [False, True]


@pytest.mark.parametrize(("mode", "nodes"), [("cold-epochs", 2), ("warm", 1)])
def test_cache_modes_say_what_they_found(mode: str, nodes: int, cache: Path, tmp_path: Path) -> None:
    asked = ("--nodes", str(nodes), "--epochs", "3", "--warmup-trials", "0", "--cache", mode)
    dlio(cache, tmp_path, "run", "cdb", "--tiny", *asked, "--out", "out")
    result, _ = load(tmp_path / "out" / f"prefetch-{nodes}x1")
    shares = [host["resident_share"] for trial in result["trials"] for host in trial["cache"]["hosts"].values()]
    if mode == "cold-epochs":
        assert max(shares) <= 0.01
        assert all(epoch["bytes_device"] > 0 for trial in result["trials"] for epoch in trial["epochs"])
    if mode == "warm":
        assert min(shares) >= 0.95
        assert all(trial["bytes_device"] == 0 for trial in result["trials"])


def test_a_dataset_with_one_wrong_byte_is_found_and_named(cache: Path, first: Path, tmp_path: Path) -> None:
    data = own_dataset(first, tmp_path)
    victim = sorted(data.glob("data-*.h5"))[3]
    content = bytearray(victim.read_bytes())
    content[len(content) // 8] ^= 1
    victim.write_bytes(content)
    done = dlio(cache, tmp_path, "run", "cdb", "--tiny", "--nodes", "2", "--data", str(data), "--out", "out", status=5)
    assert "INVALID" in done.stdout
    assert victim.name in "".join(done.stdout.split())  # a long path is broken into lines
    result, _ = load(tmp_path / "out" / "prefetch-2x1")
    assert result["class"] == "INVALID"


@pytest.mark.parametrize("harm", ["gone", "short", "manifest"])
def test_a_dataset_that_is_not_whole_is_refused_before_launch(
    harm: str, first: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    data = own_dataset(first, tmp_path)
    victim = sorted(data.glob("data-*.h5"))[3]
    if harm == "gone":
        victim.unlink()
    elif harm == "short":
        os.truncate(victim, 1000)
    else:
        (data / "manifest.json").write_text("{")
    told = refused("run", "cdb", "--tiny", "--nodes", "2", "--data", str(data), "--out", "out", status=5)
    assert ("manifest" if harm == "manifest" else victim.name) in told
    assert not (tmp_path / "out").exists()


def test_a_cached_dataset_is_mended_where_it_is_damaged_and_never_made_again(tmp_path: Path) -> None:
    mine = tmp_path / "cache"

    def run(out: str) -> None:
        asked = ("--reader", "naive", "--warmup-trials", "0", "--compute", "none", "--no-verify")
        dlio(mine, tmp_path, "run", "cdb", "--tiny", *asked, "--out", out)

    run("first")
    made = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in mine.rglob("data-*.h5")}
    victim = sorted(made)[2]
    victim.unlink()
    run("mended")
    assert victim.read_bytes() == made[victim][1]
    assert all(path.stat().st_mtime_ns == made[path][0] for path in made if path != victim)


@root
@pytest.mark.parametrize("mode", ["cold", "warm"])
def test_files_of_somebody_else_are_read_but_never_called_cold_or_warm(mode: str, first: Path, tmp_path: Path) -> None:
    data = somebody_elses_dataset(first, tmp_path)
    done = without_privileges(tmp_path, "run", "cdb", "--tiny", "--data", str(data), "--cache", mode, "--out", "out")
    assert done.returncode == 0, done.stderr
    result, _ = load(tmp_path / "out" / "prefetch-1x1")
    assert "CACHE NOT ATTESTED" in result["marks"]
    [check] = [check for check in result["checks"] if check["name"] == f"{mode} cache"]
    assert "not attestable" in check["found"]


@root
def test_an_unreadable_file_is_named(first: Path, tmp_path: Path) -> None:
    data = somebody_elses_dataset(first, tmp_path)
    victim = sorted(data.glob("data-*.h5"))[3]
    victim.chmod(0)
    done = without_privileges(tmp_path, "run", "cdb", "--tiny", "--data", str(data), "--cache", "as-is", "--out", "out")
    assert done.returncode == 4
    assert str(victim) in complaint(done)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_more_ranks_than_samples(first: Path, refused: Callable[..., str]) -> None:
    assert "500 ranks" in refused("run", "cdb", "--tiny", "--nodes", "500", "--data", str(dataset_of(first)))


@pytest.mark.parametrize("seconds", [0.0, 0.2, 0.5])  # from when the command has begun, however long Python took
def test_a_run_interrupted_while_it_starts_leaves_nothing(
    seconds: float, cache: Path, first: Path, tmp_path: Path
) -> None:
    process = start(cache, tmp_path, "run", "cdb", "--tiny", "--nodes", "2", "--epochs", "100000", "--out", "out")
    # the command line has begun when it catches SIGTERM, which Python by itself does not
    until(lambda: caught_signals(process.pid) & 1 << (signal.SIGTERM - 1), process)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4
    assert "Interrupted" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_process_and_no_result(
    number: signal.Signals, cache: Path, tmp_path: Path
) -> None:
    with running(cache, tmp_path) as (process, ranks):
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE)
        gone(ranks)
    if number is not signal.SIGKILL:
        assert process.returncode == 4
        assert "Interrupted" in err
        assert "Traceback" not in err
        assert not (tmp_path / "out").exists()
    assert not list(tmp_path.rglob("result.json"))
    assert not list(tmp_path.rglob("report.html"))


@pytest.mark.parametrize("by", ["interruption", "dead rank"])
def test_a_reader_that_had_all_its_trials_is_kept_and_marked(by: str, cache: Path, tmp_path: Path) -> None:
    second = "prefetch" if by == "interruption" else "upstream"  # whose processes are there from the start
    asked = ("--reader", f"naive,{second}", "--warmup-trials", "0", "--compute", "none", "--epochs", "600")
    process = start(cache, tmp_path, "run", "cdb", "--tiny", "--nodes", "2", *asked, "--out", "out")
    out_folder = tmp_path / "out"
    until(lambda: list(out_folder.glob("work-*/naive.json")), process, "the first reader did not come to its end")
    started = descendants(process.pid)
    if by == "interruption":
        process.send_signal(signal.SIGINT)
    else:
        os.kill(pids_of(f"dlio_bench.harness.run.measured.rank {out_folder.resolve()}")[1], signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE)
    gone(started)
    assert process.returncode == 4
    assert ("Interrupted" if by == "interruption" else "was ended by SIGKILL") in err
    assert "[INTERRUPTED]" in out
    result, steps = load(tmp_path / "out" / "naive-2x1")
    assert {"INTERRUPTED", "CONTENT NOT VERIFIED"} <= set(result["marks"])
    assert steps["stall"].shape[0] == result["plan"]["trials"] == 1
    printed = {"ranks.log"} if by == "dead rank" else set()
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left - printed == {"naive-2x1", "report.html", "status.jsonl", "unfinished.json"}


def test_a_first_look_makes_trials_long_enough(cache: Path, tmp_path: Path) -> None:
    asked = ("--compute", "none", "--min-seconds", "0.2", "--reader", "naive,prefetch", "--warmup-trials", "0")
    dlio(cache, tmp_path, "run", "cdb", "--tiny", "--nodes", "2", *asked, "--out", "out")
    for reader in ("naive", "prefetch"):
        result, _ = load(tmp_path / "out" / f"{reader}-2x1")
        elapsed = [trial["elapsed_seconds"] for trial in result["trials"] if not trial["warmup"]]
        assert result["plan"]["steps"] >= 64
        assert result["plan"]["epochs"] > 4
        assert "by a first look" in " ".join(result["plan"]["notes"])
        assert ("SHORT" in result["marks"]) == (min(elapsed) < 0.2) == (not result["plan"]["comparable"])


def test_a_killed_rank_ends_the_run_and_is_named(cache: Path, tmp_path: Path) -> None:
    with running(cache, tmp_path) as (process, ranks):
        files = {path.name for path in (tmp_path / "out").glob("work-*/*")}
        assert files == {"job.json", "measured.json", "timeout"}  # none for each rank, while all is well
        shells = [int(pid) for rank in ranks for pid in Path(f"/proc/{rank}/task/{rank}/children").read_text().split()]
        assert len(shells) == len(ranks)  # they wait for stacks
        os.kill(ranks[1], signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENCE)
        gone([*ranks, *shells])
    assert process.returncode == 4
    assert re.search(r"Rank \d \(process \d+ on \S+\) was ended by SIGKILL", err), err
    assert "Traceback" not in err


def test_files_that_are_removed_during_a_run_end_it_as_damaged_data(cache: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    dlio(cache, tmp_path, "generate", "cdb", "--tiny", "--files", "40", "--out", "data")
    asked = ["cdb", "--tiny", "--nodes", "2", "--data", str(data), "--compute", "none", "--trials", "1000"]
    process = start(cache, tmp_path, "run", *asked, "--out", "out")
    until(lambda: list((tmp_path / "out").glob("work-*/job.json")), process)
    for victim in data.glob("data-*.h5"):
        victim.unlink()
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 5, err
    assert str(data) in err
    assert "Traceback" not in err


def test_a_rank_that_was_stopped_ends_the_run_in_time_and_is_named(cache: Path, tmp_path: Path) -> None:
    with running(cache, tmp_path, "--timeout", "10s") as (process, ranks):
        [first] = [
            pid for pid in ranks if b"OMPI_COMM_WORLD_RANK=0" in Path(f"/proc/{pid}/environ").read_bytes()
        ]  # it speaks for all
        os.kill(first, signal.SIGSTOP)
        _, err = process.communicate(timeout=PATIENCE)
        gone(ranks)
    assert process.returncode == 4
    [said] = [line for line in err.splitlines() if line.startswith("dlio-bench: ")]
    assert f"Rank 0 on {platform.node()} (process {first}) gave no sign of life for 10 s" in said
    assert "/stacks-*.txt" in said
    # the other one was at work or waited
    [stacks] = (tmp_path / "out").glob("work-*/stacks-rank-1.txt")
    assert "in run_rank" in stacks.read_text()


def test_a_full_disk_is_named_and_nothing_half_written_stays(tmp_path: Path, small_disk: Path) -> None:
    done = dlio(small_disk, tmp_path, "run", "cdb", "--tiny", "--nodes", "2", status=4)
    assert str(small_disk) in complaint(done)
    assert not list(small_disk.rglob("manifest.json"))
    assert not list(small_disk.rglob("*.part"))


def test_a_full_output_folder_is_named(cache: Path, tmp_path: Path, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(950_000))
    done = dlio(cache, tmp_path, "run", "cdb", "--tiny", "--nodes", "2", "--out", str(small_disk / "out"), status=4)
    assert str(small_disk) in complaint(done)
    assert not list(small_disk.rglob("report.html"))
    assert not list(small_disk.rglob("*.part"))


@pytest.fixture
def small_disk(mount: Callable[[str], Path]) -> Path:
    """A file system of one megabyte."""
    return mount("size=1m")


def without_privileges(cwd: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """One rank as a user who is root by name alone, and may do no more with somebody else's files than anybody.

    Another user could not start Python where it lies in a home that is closed to others (pyenv below a /root of mode
    0700): root without capabilities(7) owns that home. setpriv is part of util-linux.
    """
    dropped = [f"--{kind}=-dac_override,-dac_read_search,-fowner,-chown" for kind in ("bounding-set", "inh-caps")]
    return subprocess.run(
        ["setpriv", *dropped, *DLIO, *arguments], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE
    )


def somebody_elses_dataset(first: Path, tmp_path: Path) -> Path:
    """A dataset that everybody may read, of a user who is none of us."""
    data = own_dataset(first, tmp_path)
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.chown(path, 65534, 65534)
    return data


def dataset_of(first: Path) -> Path:
    """The folder of the dataset that a run has read."""
    result, _ = load(first / "prefetch-2x1")
    return Path(result["dataset"]["folder"])


def own_dataset(first: Path, tmp_path: Path) -> Path:
    """A copy of a cached dataset, to be harmed."""
    shutil.copytree(dataset_of(first), tmp_path / "data")
    return tmp_path / "data"


def caught_signals(pid: int) -> int:
    """A bit for each signal that a process has a handler for, proc_pid_status(5)."""
    found = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1], 16) if found else 0


@contextmanager
def running(cache: Path, cwd: Path, *options: str) -> "Iterator[tuple[subprocess.Popen[str], list[int]]]":
    """A run of two ranks that lasts long enough to be harmed; gives its process and the ranks' process ids."""
    asked = ("run", "cdb", "--tiny", "--nodes", "2", "--epochs", "2000", "--out", "out", *options)
    process, work = start(cache, cwd, *asked), cwd / "out" / "work"
    try:
        ranks = two_ranks(process, work)
        until(lambda: all(map(keeping, ranks)), process, "the ranks did not come to the timed loop")
        time.sleep(0.1)  # into it
        yield process, ranks
    finally:
        process.kill()
        process.wait()


def keeping(pid: int) -> bool:
    """Whether a rank has its tiers open, which are files without a name: from the start of its first trial on."""
    for entry in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):  # closed since
            name = str(entry.readlink())
            if name.startswith(f"{SHARED_MEMORY}/{tier.PREFIX}") and "(deleted)" in name:
                return True
    return False


def two_ranks(process: "subprocess.Popen[str]", work: Path) -> list[int]:
    """The process ids of the two ranks of a run, once they have started."""
    name = f"dlio_bench.harness.run.measured.rank {work.resolve()}"
    until(lambda: len(pids_of(name)) == 2, process, "the ranks did not start")
    return pids_of(name)
