"""`dlio-bench run` for real: mpirun, ranks, files; and every way it can go wrong for a user."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from runpy import run_path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from dlio_bench.harness.cli import main
from dlio_bench.harness.cluster import process
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.cluster.environment import usable_cores
from dlio_bench.harness.commands.run import measurement
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.measured import rank
from dlio_bench.harness.commands.run.measured.documents import Verified
from tests.datasets import made
from tests.mpi.conftest import complaint, dlio, start
from tests.needs import needs
from tests.processes import DLIO, PATIENCE, descendants, ending, gone, has_tier, ranks_of, until
from tests.results import load


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny dataset, which no test alters: sixteen steps of two ranks."""
    return made(tmp_path_factory.mktemp("data"), "cdb", 32).folder


@pytest.mark.parametrize("workload", ["cdb", "imagenet"])  # HDF5 and TFRecord
def test_a_run_ends_with_verdict_table_json_and_page(
    workload: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the formulas in the documentation give the metrics, from the files alone."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
    [block] = re.findall(r"(?s)```python\n(.*?)```", page.read_text("utf-8"))
    formulas = tmp_path / "formulas.py"
    formulas.write_text(block)
    asked = ("--nodes", "2", "--reader", "naive,prefetch", "--junit", "junit.xml", "--markdown", "summary.md")
    done = dlio(cache, tmp_path, "run", workload, "--tiny", *asked, "--out", "out")
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
    assert (tmp_path / "summary.md").read_text().startswith("## EXPLORE: ")
    suites = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (len(suites), suites.get("failures")) == (2, "0")


@pytest.mark.parametrize(("mode", "nodes"), [("cold", 2), ("first-epoch-cold", 1), ("warm", 1)])
def test_cache_modes_say_what_they_found(mode: str, nodes: int, cache: Path, tmp_path: Path) -> None:
    asked = (
        "--nodes",
        str(nodes),
        "--epochs",
        "3",
        "--warmup-trials",
        "0",
        "--cache",
        mode,
        "--reader",
        "double-buffer",
    )
    dlio(cache, tmp_path, "run", "cdb", "--tiny", *asked, "--out", "out")
    result, _ = load(tmp_path / "out" / f"double-buffer-{nodes}x1")
    epochs = [epoch for trial in result["trials"] for epoch in trial["epochs"]]
    assert ("SERVED FROM CACHE" in result["marks"]) == (mode == "first-epoch-cold")
    assert result["plan"]["cache"] == {"cold": "cold-epochs"}.get(mode, mode)
    if mode == "first-epoch-cold":
        assert [epoch["bytes_device"] > 0 for epoch in epochs] == [True, False, False] * len(result["trials"])
    shares = [host["resident_share"] for trial in result["trials"] for host in trial["cache"]["hosts"].values()]
    if mode == "cold":
        assert len(shares) == len(result["trials"])
        assert max(shares) <= 0.01
        assert all(epoch["bytes_device"] >= 0.99 * epoch["bytes_requested"] > 0 for epoch in epochs)
    if mode == "warm":
        assert min(shares) >= 0.95
        assert all(trial["bytes_device"] == 0 for trial in result["trials"])


def test_a_dataset_with_one_wrong_byte_is_found_and_named(cache: Path, dataset: Path, tmp_path: Path) -> None:
    data = own_dataset(dataset, tmp_path)
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
    harm: str, dataset: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    data = own_dataset(dataset, tmp_path)
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


@needs("root")  # only root can give files away
@pytest.mark.parametrize("mode", ["cold", "warm"])
def test_files_of_somebody_else_are_read_but_never_called_cold_or_warm(
    mode: str, dataset: Path, tmp_path: Path
) -> None:
    data = somebody_elses_dataset(dataset, tmp_path)
    done = without_privileges(tmp_path, "run", "cdb", "--tiny", "--data", str(data), "--cache", mode, "--out", "out")
    assert done.returncode == 0, done.stderr
    result, _ = load(tmp_path / "out" / "prefetch-1x1")
    assert "CACHE NOT ATTESTED" in result["marks"]
    [check] = [check for check in result["checks"] if check["name"] == f"{mode} cache"]
    assert "not attestable" in check["found"]


@needs("root")  # only root can give files away
def test_an_unreadable_file_is_named(dataset: Path, tmp_path: Path) -> None:
    data = somebody_elses_dataset(dataset, tmp_path)
    victim = sorted(data.glob("data-*.h5"))[3]
    victim.chmod(0)
    done = without_privileges(tmp_path, "run", "cdb", "--tiny", "--data", str(data), "--cache", "as-is", "--out", "out")
    assert done.returncode == 4
    assert str(victim) in complaint(done)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_more_ranks_than_samples(dataset: Path, refused: Callable[..., str]) -> None:
    assert "500 ranks" in refused("run", "cdb", "--tiny", "--nodes", "500", "--data", str(dataset))


@pytest.mark.parametrize("seconds", [0.0, 0.2, 0.5])  # from when the command has begun, however long Python took
def test_a_run_interrupted_while_it_starts_leaves_nothing(
    seconds: float, cache: Path, dataset: Path, tmp_path: Path
) -> None:
    asked = ("--nodes", "2", "--epochs", "100000", "--data", str(dataset))
    process = start(cache, tmp_path, "run", "cdb", "--tiny", *asked, "--out", "out")
    # the command line has begun when it catches SIGTERM, which Python by itself does not
    until(lambda: caught_signals(process.pid) & 1 << (signal.SIGTERM - 1), process)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4
    assert "Interrupted" in err
    assert list(tmp_path.iterdir()) == []


def test_a_killed_command_leaves_no_process_and_no_result(cache: Path, tmp_path: Path) -> None:
    asked = ("run", "cdb", "--tiny", "--nodes", "2", "--epochs", "2000", "--out", "out")
    with ending(start(cache, tmp_path, *asked)) as process:
        until(lambda: len(ranks_of(process.pid)) == 2, process, "the ranks did not start")
        ranks = ranks_of(process.pid)
        until(lambda: all(map(has_tier, ranks)), process, "the ranks did not begin a trial")
    gone(ranks)
    assert not list(tmp_path.rglob("result.json"))
    assert not list(tmp_path.rglob("report.html"))


def endless(dataset: Path, *readers: str) -> tuple[str, ...]:
    """A run whose first reader has its epochs soon, as it takes the files once from a slow file system. The second one
    takes them from there in each epoch, for longer than anybody waits.
    """
    slow = ("--data", str(dataset), "--emulate-pfs", "bandwidth=4MB/s", "--epochs", "100", "--validation", "none")
    unpaced = ("--compute", "none", "--warmup-trials", "0")
    return ("run", "cdb", "--tiny", "--reader", ",".join(readers), *slow, *unpaced, "--out", "out")


def require_kept(out: Path, name: str) -> None:
    """The first reader of an endless run is there alone, and marked."""
    result, steps = load(out / name)
    assert {"INTERRUPTED", "CONTENT NOT VERIFIED"} <= set(result["marks"])
    assert steps["stall"].shape[0] == result["plan"]["trials"] == 1
    left = {path.name for path in out.iterdir()}
    assert left - {"ranks.log"} == {name, "report.html", "status.jsonl", "unfinished.json"}


def test_a_reader_that_had_all_its_trials_before_an_interruption_is_kept_and_marked(
    cache: Path, dataset: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with ending(start(cache, tmp_path, *endless(dataset, "staged", "naive"))) as process:
        until(lambda: list(out.glob("work-*/staged.json")), process, "the first reader did not come to its end")
        process.send_signal(signal.SIGINT)
        told, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4
    assert "Interrupted" in err
    assert "[INTERRUPTED]" in told
    require_kept(out, "staged-1x1")


@needs("fuse")
def test_a_killed_rank_is_named_and_leaves_nothing_and_what_was_finished_is_kept(
    cache: Path, dataset: Path, tmp_path: Path
) -> None:
    """The second reader keeps tiers, the third one has processes of its own, and the file system is mounted."""
    scale = ("--nodes", "2", "--tiers", "ram=500kB", "--timeout", "77s")
    asked = (*endless(dataset, "staged", "cooperative", "upstream"), *scale)
    out = tmp_path / "out"
    with ending(start(cache, tmp_path, *asked)) as process:
        until(lambda: list(out.glob("work-*/staged.json")), process, "the first reader did not come to its end")
        ranks = ranks_of(process.pid)
        until(lambda: all(map(has_tier, ranks)), process, "the second reader did not begin")
        started = descendants(process.pid)
        shells = [pid for rank in ranks for pid in descendants(rank) if Path(f"/proc/{pid}/comm").read_text() == "sh\n"]
        assert len(shells) == len(ranks) == 2  # they wait for stacks
        [work] = out.glob("work-*")
        files = {"job.json", "measured.json", "timeout", "staged.json", "staged.npz"}
        assert {path.name for path in work.iterdir()} == files  # none for each rank, while all is well
        assert float((work / "timeout").read_text()) == 77.0
        os.kill(ranks[1], signal.SIGKILL)
        told, err = process.communicate(timeout=PATIENCE)
        gone(started)
    assert process.returncode == 4
    assert re.search(r"Rank 1 \((process \d+ )?on \S+\) was ended by SIGKILL", err), (
        err
    )  # its process is not always known
    assert "Traceback" not in err
    assert "[INTERRUPTED]" in told
    require_kept(out, "staged-2x1")
    assert str(cache) not in Path("/proc/self/mountinfo").read_text()


def test_a_killed_launcher_leaves_no_files_of_mpi(dataset: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def segments(command: int) -> set[str]:
        return {path for rank in ranks_of(command) for path in mapped(rank) if "sm_segment." in path}

    with ending(start(temporary, tmp_path, *endless(dataset, "naive"), "--nodes", "2")) as process:
        until(lambda: len(segments(process.pid)) == 2, process, "the ranks did not start")
        shared = segments(process.pid)
        assert list(temporary.rglob("pmix*"))
        [launcher] = [pid for pid in descendants(process.pid) if {*descendants(pid)} >= {*ranks_of(process.pid)}]
        os.kill(launcher, signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4
    assert "was ended by SIGKILL" in err
    assert not [path for path in shared if Path(path).exists()]
    assert not list(temporary.rglob("pmix*"))


def mapped(pid: int) -> set[str]:
    """The files in a process's memory, proc_pid_maps(5)."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) > 5}


def test_a_first_look_makes_trials_long_enough(cache: Path, tmp_path: Path) -> None:
    """Of a hundred seconds, however slow this machine is; nobody waits for them."""
    asked = ("--compute", "none", "--min-seconds", "100", "--reader", "naive", "--warmup-trials", "0")
    sizes: list[dict[str, Any]] = []

    def decided() -> bool:
        with suppress(FileNotFoundError):  # it comes with the first decision
            size = json.loads((tmp_path / "out" / "unfinished.json").read_text())["state"].get("size")
            sizes.extend([size] if size else [])
        return bool(sizes)

    with ending(start(cache, tmp_path, "run", "cdb", "--tiny", *asked, "--out", "out")) as process:
        until(decided, process, "nothing was decided")
        process.terminate()
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4
    assert "Interrupted by SIGTERM" in err
    assert not (tmp_path / "out").exists()  # nothing was finished
    assert sizes[0]["trial_steps"] >= 64
    assert sizes[0]["epochs"] > 4
    assert "by a first look" in " ".join(sizes[0]["notes"])


def test_files_that_are_removed_during_a_run_end_it_as_damaged_data(cache: Path, dataset: Path, tmp_path: Path) -> None:
    data = own_dataset(dataset, tmp_path)
    # each trial opens the files again
    asked = ("cdb", "--tiny", "--nodes", "2", "--data", str(data), "--compute", "emulate:50ms", "--trials", "1000")
    with ending(start(cache, tmp_path, "run", *asked, "--out", "out")) as process:
        until(lambda: list((tmp_path / "out").glob("work-*/job.json")), process)
        for victim in data.glob("data-*.h5"):
            victim.unlink()
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 5, err
    assert str(data) in err
    assert "Traceback" not in err


def test_a_file_that_is_cut_after_the_trials_makes_the_kept_results_invalid(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pass over the content finds it, before it has come to the second reader."""
    data = own_dataset(dataset, tmp_path)
    verify = rank.verify

    def harmed(*args: Any, **options: Any) -> Verified:
        os.truncate(min(data.glob("data-*.h5")), 1000)
        return verify(*args, **options)

    def launched(_argv: object, _env: object, work: Path, heard: process.OnEvent, **_: object) -> int:
        job = Job.load(work)
        with rank.start_pipeline(job) as pipeline:
            rank.measure(job, work, Solo(), heard, pipeline)
        return 0

    monkeypatch.setattr(rank, "verify", harmed)
    monkeypatch.setattr(measurement, "launch", launched)  # a rank in this process, for the moment
    asked = ("cdb", "--tiny", "--data", str(data), "--compute", "none", "--trials", "1", "--warmup-trials", "0")
    status = main(["run", *asked, "--reader", "staged,naive", "--min-seconds", "0", "--out", str(tmp_path / "out")])
    told, err = capsys.readouterr()
    assert (status, "ends at byte 1000" in err) == (5, True), err
    assert "INVALID" in told
    for reader in ("staged", "naive"):
        result, _ = load(tmp_path / "out" / f"{reader}-1x1")
        assert result["class"] == "INVALID"
        [failed] = [check for check in result["checks"] if not check["ok"]]
        assert failed["name"] == "content"
        assert "ends at byte 1000" in failed["found"]


def test_a_full_disk_is_named_and_nothing_half_written_stays(tmp_path: Path, small_disk: Path) -> None:
    done = dlio(small_disk, tmp_path, "run", "cdb", "--tiny", "--nodes", "2", status=4)
    assert str(small_disk) in complaint(done)
    assert not list(small_disk.rglob("manifest.json"))
    assert not list(small_disk.rglob("*.part"))


def test_a_full_output_folder_is_named(cache: Path, tmp_path: Path, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(950_000))
    done = dlio(cache, tmp_path, "run", "cdb", "--tiny", "--out", str(small_disk / "out"), status=4)
    assert str(small_disk) in complaint(done)
    assert not list(small_disk.rglob("report.html"))
    assert not list(small_disk.rglob("*.part"))


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_file_that_ranks_cannot_write_is_named_with_its_file_system(
    nodes: str, dataset: Path, cache: Path, tmp_path: Path, small_disk: Path
) -> None:
    (small_disk / "filler").write_bytes(bytes(1_020_000))
    asked = ("cdb", "--tiny", "--data", str(dataset), "--nodes", nodes, "--epochs", "8", "--compute", "none")
    done = dlio(cache, tmp_path, "run", *asked, "--out", str(small_disk / "out"), status=4)
    assert re.search(rf"{small_disk}/out/work-\w+/\w+\.(npz|json) .*\(tmpfs at {small_disk}\): No", complaint(done))


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


def somebody_elses_dataset(dataset: Path, tmp_path: Path) -> Path:
    """A dataset that everybody may read, of a user who is none of us."""
    data = own_dataset(dataset, tmp_path)
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.chown(path, 65534, 65534)
    return data


def own_dataset(dataset: Path, tmp_path: Path) -> Path:
    """A copy of a dataset, to be harmed."""
    return shutil.copytree(dataset, tmp_path / "data")


def caught_signals(pid: int) -> int:
    """A bit for each signal that a process has a handler for, proc_pid_status(5)."""
    found = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1], 16) if found else 0
