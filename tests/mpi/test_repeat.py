"""`run --from`: the same work again, on the same data, and what differs now."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.harness import cli
from dlio_bench.reports.document.result import digest
from tests.mpi.conftest import dlio
from tests.results import load

SEVERAL = (
    "cosmoflow", "--nodes", "1,2", "--reader", "shuffled", "--order", "global-shuffle,file-shuffle", "--delivery",
    "ahead", "--placement", "cooperative", "--shard", "node", "--steps-per-epoch", "6", "--epochs", "3",
    "--validation", "2", "--warmup-trials", "0", "--trials", "2", "--cache", "as-is", "--tiers", "ram=10MB",
)  # fmt: skip
ONE = (
    "hepcnnb", "--reader", "naive", "--steps", "10", "--memory-per-node", "500MB", "--staging", "1MB", "--compute",
    "emulate:2ms", "--sync", "epoch", "--emulate-pfs", "bandwidth=400MB/s", "--no-verify", "--check-crc",
)  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without a link in it: its datasets are moved, and named by their real paths."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def first(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a run of one reader."""
    folder = tmp_path_factory.mktemp("first")
    dlio(cache, folder, "run", *ONE, "--tiny", "--out", "out")
    return folder / "out"


@pytest.fixture
def planned(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """planned(words) -> the jobs that `run` would launch, and how."""

    def ask(*words: str) -> Any:
        monkeypatch.setenv("DLIO_BENCH_CACHE", str(cache))
        assert cli.main(["run", *words, "--dry-run", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return ask


def require_same_work(before: Path, after: Path) -> None:
    """The results of two runs are of the same plan, data and readers, trial by trial."""
    folders = [sorted(folder.glob("*/result.json")) for folder in (before, after)]
    assert len(folders[0]) == len(folders[1]) > 0
    for paths in zip(*folders, strict=True):
        (old, old_steps), (new, new_steps) = map(load, paths)
        assert new["repeats"]["digest"] == old["digest"]
        assert new["options"] == old["options"]
        assert old["dataset"]["digest"] == new["dataset"]["digest"]
        assert old["policy"] == new["policy"]
        assert {**old["plan"], "notes": [], "comparable": 0} == {**new["plan"], "notes": [], "comparable": 0}
        assert old_steps["epoch"].tolist() == new_steps["epoch"].tolist()
        for one, other in zip(old["trials"], new["trials"], strict=True):
            for name in ("seed", "samples", "steps", "bytes_useful", "bytes_planned", "rank_bytes"):
                assert one[name] == other[name], name


def test_all_readers_and_node_counts_do_the_same_again(cache: Path, tmp_path: Path, planned: Any) -> None:
    dlio(cache, tmp_path, "run", *SEVERAL, "--tiny", "--out", "out")
    out = tmp_path / "out"
    seed = str(load(next(out.glob("*/result.json")))[0]["plan"]["seed"])
    assert planned("--from", str(out)) == planned(*SEVERAL, "--tiny", "--seed", seed)  # the jobs, whole
    done = dlio(cache, tmp_path, "run", "--from", str(out), "--out", "again", "--json")
    assert [result["repeats"]["differs"] for result in json.loads(done.stdout)] == [[]] * 4
    require_same_work(out, tmp_path / "again")


@pytest.fixture
def edited(first: Path, tmp_path: Path) -> Callable[..., Path]:
    """edited(name, change) -> the result, changed, in a folder of that name."""

    def edit(name: str, change: Callable[[dict[str, Any]], object]) -> Path:
        [path] = shutil.copytree(first, tmp_path / name).glob("*/result.json")
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document | {"digest": digest(document)}))
        return tmp_path / name

    return edit


def elsewhere(document: dict[str, Any]) -> None:
    document["version"] = "0.0.9"
    document["environment"]["code_digest"] = "another"
    [host] = document["environment"]["hosts"].values()
    host["kernel"] = "1.2.3"
    document["environment"]["hosts"] = {"elsewhere": host}
    document["environment"]["rank_hosts"] = ["elsewhere"] * document["plan"]["ranks"]


def test_what_differs_now_is_told(first: Path, edited: Any, cache: Path, tmp_path: Path, planned: Any) -> None:
    other = edited("other", elsewhere)
    seed = str(load(other / "naive-1x1")[0]["plan"]["seed"])
    assert planned("--from", str(other)) == planned(*ONE, "--tiny", "--seed", seed)
    done = dlio(cache, tmp_path, "run", "--from", str(other), "--out", "again")
    require_same_work(other, tmp_path / "again")
    told = " ".join(done.stdout.partition("differs now")[2].split())
    result, _ = load(tmp_path / "again" / "naive-1x1")
    environment = result["environment"]
    [(name, host)] = environment["hosts"].items()
    assert result["repeats"]["differs"] == [
        f"version: 0.0.9; now {result['version']}",
        f"code digest: another; now {environment['code_digest']}",
        f"hosts: elsewhere; now {name}",
        f"kernel: 1.2.3; now {host['kernel']}",
    ]
    assert told.startswith("version: 0.0.9; now ")
    assert "kernel: 1.2.3; now " in told


def test_a_run_that_was_interrupted_is_repeated_as_far_as_it_came_and_says_so(
    first: Path, edited: Any, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DLIO_BENCH_CACHE", str(cache))
    command = ["dlio-bench", "run", "hepcnnb", "--nodes", "1,2"]
    part = edited("cut", lambda document: document.update(marks=[*document["marks"], "INTERRUPTED"], command=command))
    for origin in (first, part):
        assert cli.main(["run", "--from", str(origin), "--dry-run", "--json"]) == 0
        told = capsys.readouterr().err
        assert (f"'{part}' is of a run that was interrupted: it has results of 1 node alone" in told) == (
            origin == part
        )
        assert ("run its command again: dlio-bench run hepcnnb --nodes 1,2." in told) == (origin == part)


def test_tiers_of_other_readers_of_the_run_are_left_to_them(first: Path, edited: Any, planned: Any) -> None:
    beside = edited("beside", lambda document: document["options"].update(tiers={"ram": 10**6, "disk": 0}))
    assert planned("--from", str(beside)) == planned("--from", str(first))


def test_the_dataset_is_found_by_its_digest(first: Path, tmp_path: Path, planned: Any, refused: Any) -> None:
    origin = ("--from", str(first))
    [job] = planned(*origin)
    dataset, moved, other = Path(job["dataset"]), tmp_path / "moved", tmp_path / "other"
    shutil.move(dataset, moved)
    try:
        told = refused("run", *origin)
        assert f"{dataset} has no dataset" in told
        assert "--data DIR" in told
        [job] = planned(*origin, "--data", str(moved))
        assert job["dataset"] == str(moved)
        kept = shutil.copytree(moved, other / "datasets" / dataset.name)
        [job] = planned(*origin, "--cache-dir", str(other))
        assert job["dataset"] == str(kept)
        (kept / "manifest.json").write_text((kept / "manifest.json").read_text() + "\n")
        assert f"{kept} has another one, sha256:" in refused("run", *origin, "--cache-dir", str(other))
    finally:
        shutil.move(moved, dataset)


def test_what_would_not_be_a_repetition_is_refused(first: Path, edited: Any, refused: Any, tmp_path: Path) -> None:
    assert "--nodes would change it" in refused("run", "--from", str(first), "--nodes", "3")
    assert "--nodes would change it" in refused("run", "--from", str(first), "--nodes", "2,1")

    old = edited("old", lambda document: document.pop("options"))
    told = refused("run", "--from", str(old))
    assert "lacks `options`" in told
    assert "Repeat its command instead: dlio-bench run" in told
    broken = edited("broken", lambda document: document["options"].update(epochs="x"))
    assert "are not those of a run" in refused("run", "--from", str(broken), status=5)
    later = edited("later", lambda document: document["options"].update(speed="more"))
    assert "options.speed is no option of this version" in refused("run", "--from", str(later), status=5)

    altered = edited("altered", dict) / "naive-1x1" / "result.json"
    altered.write_text(altered.read_text().replace('"version": "0', '"version": "9'))
    assert "was altered" in refused("run", "--from", str(altered), status=5)

    shutil.copytree(first, tmp_path / "both" / "one")
    edited("both/other", lambda document: document["options"].update(seed=1))
    assert "results of several runs: seed is" in refused("run", "--from", str(tmp_path / "both"))
    shutil.copytree(first, tmp_path / "part" / "one")
    edited("part/other", lambda document: document["options"].update(readers=["prefetch"], nodes=[2]))
    assert "has no whole run" in refused("run", "--from", str(tmp_path / "part"))
