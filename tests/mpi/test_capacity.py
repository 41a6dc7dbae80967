"""`dlio-bench capacity` with real ranks."""

import json
import signal
from pathlib import Path

from dlio_bench.reports.result import load
from tests.mpi.conftest import complaint, dlio, start
from tests.processes import PATIENCE, until


def test_the_answer_rests_on_results_that_stay(cache: Path, tmp_path: Path) -> None:
    done = dlio(
        cache, tmp_path, "capacity", "cosmoflow", "--tiny", "--ranks-per-node", "1", "--compute", "emulate:5ms",
        "--au", "1%", "--at-least", "1", "--trials", "2", "--out", "out", "--json",
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert json.loads((tmp_path / "out" / "capacity.json").read_text()) == answer
    assert (answer["accelerators"], answer["nodes"], answer["limited_by"]) == (1, 1, "ranks asked")
    probe, confirmed = answer["probes"]
    assert (probe["confirmed"], confirmed["confirmed"]) == (False, True)
    assert confirmed["null"] == probe["null"]
    for folder, cache_mode, trials in (
        ("1x1", "cold-epochs", 1),
        ("1x1-null", "warm", 1),
        ("1x1-confirmed", "cold-epochs", 2),
    ):
        result, _ = load(tmp_path / "out" / folder / "double-buffer-1x1")
        assert (result.plan.cache, result.plan.trials, result.plan.steps) == (cache_mode, trials, answer["steps"])
    assert len(confirmed["runs"]["au"]) == 2
    assert result.metrics["au"].value == sum(confirmed["runs"]["au"]) / 2


def test_a_storage_that_limits_is_found_and_the_next_scale_is_shown_to_fail(cache: Path, tmp_path: Path) -> None:
    done = dlio(
        cache, tmp_path, "capacity", "cdb", "--tiny", "--ranks-per-node", "2", "--compute", "emulate:200ms",
        "--batch", "1", "--staging", "140kB", "--emulate-pfs", "bandwidth=400kB/s", "--au", "65%", "--at-least", "2",
        "--trials", "1", "--out", "out", "--json", status=1,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert (answer["accelerators"], answer["limited_by"]) == (1, "storage")  # each asks for 335 kB/s
    holds, fails, confirmed = answer["probes"]
    assert [probe["ranks_per_node"] for probe in answer["probes"]] == [1, 2, 1]
    assert confirmed["confirmed"]
    assert max(fails["runs"]["au"]) < 0.65 <= min(holds["runs"]["au"] + confirmed["runs"]["au"] + fails["null"]["au"])
    assert fails["runs"]["delivered_bandwidth"] < 0.45e6  # what the first batches and the rate give
    assert fails["null"]["delivered_bandwidth"] > fails["runs"]["delivered_bandwidth"]


def test_a_search_that_was_stopped_goes_on(cache: Path, tmp_path: Path) -> None:
    asked = (
        "capacity", "cosmoflow", "--tiny", "--ranks-per-node", "1", "--compute", "emulate:5ms", "--au", "1%",
        "--trials", "2", "--out", "out",
    )  # fmt: skip
    first = tmp_path / "out" / "1x1" / "double-buffer-1x1"
    process = start(cache, tmp_path, *asked)
    until((first.parent / "finished.json").exists, process, "no probe came to its end")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4
    assert f"Go on with: dlio-bench {' '.join(asked)}" in err
    before = (first / "result.json").read_bytes()

    late = complaint(dlio(cache, tmp_path, *asked, "--walltime", "61s", status=4))
    assert "The time of this job does not suffice: the search at 1x1" in late
    other = complaint(dlio(cache, tmp_path, *asked, "--trials", "3", status=2))
    assert "trials was 2 and is 3" in other
    done = dlio(cache, tmp_path, *asked, "--json")
    assert json.loads(done.stdout)["accelerators"] == 1
    assert (first / "result.json").read_bytes() == before
    assert not (tmp_path / "out" / "unfinished.json").exists()
    again = dlio(cache, tmp_path, *asked, "--json")
    assert json.loads(again.stdout) == json.loads(done.stdout)
    assert "nothing is measured" in again.stderr
