"""What bound a run: each rule, and each contradiction that leaves it undetermined."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from dlio_bench.reports.checkpoint import marks as checkpoint_marks
from dlio_bench.reports.numbers import bound, statistics
from dlio_bench.reports.run import text
from dlio_bench.reports.run.advice import advice
from tests.results import complete, drafted

STORAGE = bound.Facts(
    computes=True, emulated=True, ranks=8, elapsed=10.0, stall=0.4, worst_stall=0.5, exchange=0.05, over_bound=2.0,
    stalled=30.0, busy=0.3, iowait=0.2, cores=16.0, cpu=40.0, read=40.0, decode=0.0, resident=0.0,
    device_share=1.0,
)  # fmt: skip


PHASES = {"share_stall": 0.4, "share_compute": 0.12}


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        ("storage", {}),
        ("storage", {"busy": None, "iowait": None, "resident": None}),
        ("compute", {"stall": 0.09, "over_bound": 1.1}),
        ("storage", {"stall": 0.09, "computes": False, "over_bound": None}),  # nothing to be bound by but reading
        ("not determined", {"stall": 0.09, "over_bound": 1.5}),  # in the exchange, say
        ("CPU", {"busy": 0.86, "cpu": 80.0}),
        ("not determined", {"busy": 0.91, "cpu": 22.0}),  # 14 % of 16 cores: somebody else used them
        ("not determined", {"device_share": 0.1}),  # later epochs came from the page cache
        ("storage", {"device_share": None}),  # a network file system tells nothing
        ("CPU", {"busy": 0.6, "decode": 41.0}),
        ("storage", {"busy": 0.6, "decode": 39.0}),
        ("not determined", {"busy": 0.4, "decode": 41.0}),  # decoding on idle cores
        # 8 ranks may spin half of the time
        ("not determined", {"busy": 0.95, "exchange": 0.5, "cores": 8.0, "cpu": 60.0}),
        ("CPU", {"busy": 0.95, "exchange": 0.5, "decode": 41.0, "cpu": 120.0}),
        ("not determined", {"resident": 0.95}),
        # checkpoints are no stall, and in the no-I/O bound: what is largest is named, whatever else holds
        ("checkpoints", {"stall": 0.09, "over_bound": 1.1, "phases": PHASES | {"share_checkpoint": 0.69}}),
        ("checkpoints", {"computes": False, "phases": PHASES | {"share_checkpoint": 0.69}}),
        ("storage", {"phases": PHASES | {"share_checkpoint": 0.1}}),
        ("not determined", {"read": 14.0}),  # less than half of what was waited
    ],
)
def test_rule(expected: str, changes: dict[str, Any]) -> None:
    by, why = bound.decide(replace(STORAGE, **changes))
    assert by == expected
    assert why


def test_evidence_gives_the_numbers_and_the_caveat_of_emulation(draft_and_steps: Callable[..., Any]) -> None:
    draft, steps = draft_and_steps()
    known = drafted(draft)
    found = bound.determine(known, statistics.metrics(known, steps), steps)
    text = "; ".join(found.evidence)
    assert found.by == "storage"
    assert "44 % busy" in text
    assert "reading took 16 s" in text
    assert "leaves the CPU free" in text


def test_checkpoints_that_took_most_of_the_time_are_named_and_marked(draft_and_steps: Callable[..., Any]) -> None:
    draft, steps = draft_and_steps()
    added = 10 * steps["compute"]
    steps |= {"checkpoint": added, "loop": steps["loop"] + added.sum(axis=2)}
    steps["start"] = steps["start"] + added.cumsum(axis=2) - added
    for trial in draft["trials"]:
        trial["elapsed_seconds"] += float(added[0, 0].sum())
        trial["checkpoint_load"] = {
            "model": "llama3-8b", "fraction": 0.01, "every": 1, "bytes": 8, "seconds": [1.0] * 16, "fsyncs": 32,
            "fsync_share": 0.5, "waited_share": 0.2, "compared_bytes": 8,
        }  # fmt: skip
    result = complete(draft, steps)
    assert result.bound.by == "checkpoints"
    assert "more than anything else" in result.bound.evidence[0]
    assert any("the no-I/O bound has the checkpoints in it" in sentence for sentence in result.bound.evidence)
    assert any("write them less often" in sentence for sentence in advice(result))
    assert "checkpoints included" in " ".join(text.render([result], verbose=True).split())
    assert checkpoint_marks.of_trials(result.measured_trials) == ["FRACTION", "BYTES AWAITED"]


def test_what_could_not_be_measured_is_left_out(draft_and_steps: Callable[..., Any]) -> None:
    draft, steps = draft_and_steps()
    for trial in draft["trials"]:
        trial.update(host_cpu_busy_share=None, host_iowait_share=None, cpu_seconds=None)
        trial["cache"]["hosts"]["node01"].update(attestable=False, resident_share=None)
    known = drafted(draft)
    found = bound.determine(known, statistics.metrics(known, steps), steps)
    assert found.by == "storage"
    assert "busy" not in "; ".join(found.evidence).replace("how busy the cores were is not known", "")


def test_the_least_resident_host_tells_whether_the_storage_was_asked(draft_and_steps: Callable[..., Any]) -> None:
    draft, steps = draft_and_steps()
    for trial in draft["trials"]:
        trial["cache"]["hosts"]["node02"] = {"resident_share": 0.95, "attestable": True}
    known = drafted(draft)
    assert bound.gather(known, statistics.metrics(known, steps), steps).resident == 0
