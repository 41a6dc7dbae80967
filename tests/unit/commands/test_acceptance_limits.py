"""The limits of an acceptance: within its plan or beside it, and only on what the plan can answer."""

import hashlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.acceptance import contract, outlook
from dlio_bench.harness.commands.acceptance.plan import CampaignPlan
from dlio_bench.harness.ground.user_files import to_toml
from dlio_bench.reports.judging.limits import JUDGED
from tests.plans import BASIC, SMALL, plan_of, planned, run_of


def test_limits_within_the_plan_become_the_same_file(tmp_path: Path) -> None:
    document = {
        "version": 'a "b" \\ \x7f é', "trials": 5, "min_seconds": 1.5, "allow_marks": ["VIRTUAL NODES"],
        "cdb": {"*": {"*": {"au": {"at_least": "9 %", "statistic": "x"}}}, "naive": {"8x4": {"au": {"at_most": 1}}}},
    }  # fmt: skip
    assert tomllib.loads(to_toml(document)) == document
    asked, content = contract.limits_of(plan_of(), tmp_path / "plan.toml")
    assert [(limit.table, limit.metric) for limit in asked.limits] == [("cdb.naive.1x1", "stall_share")]
    assert asked.sha256 == hashlib.sha256(content).hexdigest()
    (tmp_path / "own.toml").write_bytes(content)
    beside, same = contract.limits_of(plan_of(limits="own.toml"), tmp_path / "plan.toml")
    assert (beside, same) == (asked, content)  # the name, too: both parties' judgements are equal in every byte


def test_wrong_limits_within_the_plan_are_told_by_the_plan(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"plan.toml': limits: there is no metric .*'stall_shar'"):
        contract.limits_of(
            plan_of(limits={"cdb": {"naive": {"1x1": {"stall_shar": {"at_most": "1 %"}}}}}), tmp_path / "plan.toml"
        )


def refused_limits(plan: CampaignPlan, folder: Path) -> str:
    """Why the limits of a plan are refused."""
    path = folder / "plan.toml"
    asked, _ = contract.limits_of(plan, path)
    runs = [outlook.foresee(plan, part, SMALL, folder) for part in planned(plan, folder) if part.kind == "run"]
    with pytest.raises(UsageError) as caught:
        contract.require_answerable(plan, path, asked, runs)
    return str(caught.value)


def limit_on(metric: str, reader: str = "naive", scale: str = "1x1") -> dict[str, Any]:
    bound = {"samples": 1, "s": "1 s", "B": "1 GB", "ratio": 1}.get(JUDGED[metric].unit, "1 %")
    return {"cdb": {reader: {scale: {metric: {"at_least": bound}}}}}


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            limit_on("au", scale="2x1"),
            r"""'.*plan.toml': limits: \[cdb.naive."2x1"\] au: .* runs cdb 1x1. Add a \[\[run""",
        ),
        (limit_on("au", reader="staged", scale="*"), r"""\[cdb.staged."\*"\] au: '.*plan.toml' does not measure it"""),
        ({"trials": 7, **BASIC["limits"]}, "limits: trials is 7, but '.*plan.toml' has trials = 5.*Write trials = 7"),
        ({"cache": "warm", **BASIC["limits"]}, """cache is "warm", but '.*plan.toml' has cache = "cold"""),
        ({"min_seconds": 60, **BASIC["limits"]}, "min_seconds is 60, but '.*plan.toml' has min_seconds = 0"),
        ({"min_steps": 17, **BASIC["limits"]}, r"min_steps is 17, .*cdb-1x1 .* 16 steps .*epochs = 2 or more into run"),
    ],
)
def test_limits_that_the_plan_cannot_answer_are_refused(limits: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert re.search(message, refused_limits(plan_of(limits=limits), tmp_path))


@pytest.mark.parametrize(
    ("metric", "keys", "why"),
    [
        ("au", {"compute": "none"}, 'run[0].compute is "none"'),
        ("over_bound", {"compute": "none"}, 'run[0].compute is "none"'),
        ("compute_overrun", {"compute": "none"}, 'run[0].compute is "none"'),
        ("allreduce_seconds", {}, 'run[0].compute is "emulate": no gradients'),
        ("validation_seconds", {}, "run[0] has no validation passes"),
        ("steady_stall_share", {"epochs": 1}, "one epoch. Write epochs = 2 or more into run[0]"),
        ("steady_au", {"steps": 8}, "one epoch"),
        ("harness_share", {"sync": "epoch"}, 'run[0].sync is "epoch"'),
        ("bytes_client_cache", {}, "run[0] has none"),
        ("ceiling_share", {}, "does not measure the storage. Add a table [storage]"),
    ],
)
def test_limits_on_metrics_that_a_run_cannot_have_are_refused(
    metric: str, keys: dict[str, Any], why: str, tmp_path: Path
) -> None:
    (tmp_path / "limits.toml").write_text(to_toml(limit_on(metric)))
    message = refused_limits(plan_of(limits="limits.toml", run=run_of(**keys)), tmp_path)
    for text in (f"'{tmp_path / 'limits.toml'}': [cdb.naive.\"1x1\"] {metric}: cdb-1x1 of", why, "take the limit out"):
        assert text in message


def test_a_metric_is_refused_by_the_run_that_lacks_it_alone(tmp_path: Path) -> None:
    runs = [*run_of(epochs=2), *run_of(nodes=[2], compute="none")]
    path = tmp_path / "plan.toml"
    plan = plan_of(run=runs, limits=limit_on("steady_au"))
    asked, _ = contract.limits_of(plan, path)
    foreseen = [outlook.foresee(plan, part, SMALL, tmp_path) for part in planned(plan, tmp_path) if part.kind == "run"]
    contract.require_answerable(plan, path, asked, foreseen)
    assert 'run[1].compute is "none"' in refused_limits(plan_of(run=runs, limits=limit_on("au", scale="*")), tmp_path)
