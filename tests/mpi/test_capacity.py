"""`dlio-bench capacity` with real ranks; which scale holds is made up where it matters, as a machine may be busy."""

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlio_bench.harness.cli import main
from dlio_bench.harness.commands.capacity import command
from dlio_bench.harness.ground.parts import PartRunner
from dlio_bench.reports.capacity import Runs
from dlio_bench.reports.document.result import load
from tests.mpi.conftest import Gate, complaint, dlio, start
from tests.processes import PATIENCE, until


def after(words: Sequence[str], flag: str) -> str:
    return words[words.index(flag) + 1]


@pytest.mark.parametrize(("in_memory", "limit"), [(0.95, "storage"), (0.35, "this client's CPU")])
def test_what_limits_is_found_and_the_next_scale_is_shown_to_fail(
    in_memory: float, limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, Sequence[str]] = {}

    def run(words: Sequence[str], _: PartRunner) -> tuple[Any, Runs]:
        name, ranks = Path(after(words, "--out")).name, int(after(words, "--ranks-per-node"))
        asked[name] = words
        au = in_memory if name.endswith("-null") else 0.9 / ranks
        return SimpleNamespace(marks=["TINY"]), Runs(
            folder=name, au=[au] * int(after(words, "--trials")), delivered_bandwidth=1e6, host_cpu_busy_share=0.3,
            client_bound=False,
        )  # fmt: skip

    monkeypatch.setattr(command, "_run_probe", run)
    status = main((
        "capacity", "cdb", "--tiny", "--ranks-per-node", "4", "--compute", "emulate:200ms", "--staging", "140kB",
        "--emulate-pfs", "bandwidth=400kB/s", "--au", "40%", "--at-least", "3", "--trials", "3", "--cache-dir",
        str(tmp_path / "cache"), "--out", str(tmp_path / "out"), "--json",
    ))  # fmt: skip
    assert status == 1  # below what was asked
    answer = json.loads(capsys.readouterr().out)
    assert (answer["accelerators"], answer["limited_by"]) == (2, limit)
    assert [(probe["ranks_per_node"], probe["confirmed"]) for probe in answer["probes"]] == [
        (1, False), (2, False), (4, False), (3, False), (2, True),
    ]  # fmt: skip
    assert answer["probes"][-1]["runs"]["au"] == [0.45] * 3
    for name, words in asked.items():  # only what is measured meets the storage
        assert (name.endswith("-null"), after(words, "--cache")) in ((True, "warm"), (False, "cold-epochs"))
        assert ("--emulate-pfs" in words) == (not name.endswith("-null"))
    assert list(asked) == ["1x1", "1x1-null", "1x2", "1x2-null", "1x4", "1x4-null", "1x3", "1x3-null", "1x2-confirmed"]


def test_a_search_that_was_stopped_goes_on_and_its_answer_rests_on_results_that_stay(
    cache: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    asked = (
        "capacity", "cosmoflow", "--tiny", "--ranks-per-node", "1", "--compute", "emulate:5ms", "--au", "0.01%",
        "--emulate-pfs", "bandwidth=200MB/s", "--at-least", "1", "--trials", "2", "--out", "out",
    )  # fmt: skip
    out = tmp_path / "out"
    first, gate = out / "1x1" / "double-buffer-1x1", Gate(tmp_path / "gate", "1x1-null")
    process = start(cache, tmp_path, *asked, **gate.env)
    until((first.parent / "finished.json").exists, process, "no probe came to its end")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4
    assert f"Go on with: dlio-bench {' '.join(asked)}" in err
    before = (first / "result.json").read_bytes()

    late = complaint(dlio(cache, tmp_path, *asked, "--walltime", "61s", status=4))
    assert "The time of this job does not suffice: the search at 1x1" in late
    assert "trials was 2 and is 3" in refused(*asked, "--trials", "3")
    done = dlio(cache, tmp_path, *asked, "--json")
    answer = json.loads(done.stdout)
    assert (first / "result.json").read_bytes() == before
    assert not (out / "unfinished.json").exists()
    again = dlio(cache, tmp_path, *asked, "--json")
    assert json.loads(again.stdout) == json.loads((out / "capacity.json").read_text()) == answer
    assert "nothing is measured" in again.stderr

    assert (answer["accelerators"], answer["nodes"], answer["limited_by"]) == (1, 1, "ranks asked")
    probe, confirmed = answer["probes"]
    assert (probe["confirmed"], confirmed["confirmed"]) == (False, True)
    assert confirmed["null"] == probe["null"]
    for folder, cache_mode, trials in (
        ("1x1", "cold-epochs", 1),
        ("1x1-null", "warm", 1),
        ("1x1-confirmed", "cold-epochs", 2),
    ):
        result, _ = load(out / folder / "double-buffer-1x1")
        assert (result.plan.cache, result.plan.trials, result.plan.steps) == (cache_mode, trials, answer["steps"])
        assert ("EMULATED PFS" in result.marks) == (cache_mode != "warm")
    assert len(confirmed["runs"]["au"]) == 2
    assert result.metrics["au"].value == sum(confirmed["runs"]["au"]) / 2
