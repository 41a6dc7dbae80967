"""Studies: every file that is shipped, every criterion of it, and how figures of results become verdicts."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec import convert
from msgspec.structs import replace

from dlio_bench.errors import DataError, UsageError
from dlio_bench.harness.cli import main, parser
from dlio_bench.harness.commands.run.asked import refusals
from dlio_bench.harness.commands.run.asked.options import Options as RunOptions
from dlio_bench.harness.commands.run.asked.request import look_up
from dlio_bench.harness.commands.run.options import RUN
from dlio_bench.harness.commands.studies import files, work
from dlio_bench.harness.streams import adios
from dlio_bench.reports.document.typed import to_json
from dlio_bench.reports.simulation import control_tree
from dlio_bench.reports.study import html as reproduce_html
from dlio_bench.reports.study import text as reproduce_text
from dlio_bench.reports.study import verdicts as reproduce
from dlio_bench.reports.study.rows import EvidenceRow, is_exact, matching, of_result
from dlio_bench.reports.study.types import (
    FAILED,
    IN_PART,
    NOT_SEEN,
    REPRODUCED,
    SEEN,
    UNDECIDED,
    UNTESTABLE,
    WITHIN,
    Answer,
    Claim,
    Compared,
    Document,
    Point,
    Skipped,
    Study,
)
from dlio_bench.units import parse_bytes, parse_seconds
from tests.browser import Browser
from tests.goldens import require_golden
from tests.needs import needs

STUDIES = files.find_studies([])
CLAIMS = [(name, number) for name, study in STUDIES.items() for number in range(len(study.claim))]


def rows_of(claim: Claim, value: float) -> dict[str, list[EvidenceRow]]:
    """Results whose figure of a claim is `value`, whatever it is made of."""

    def row(place: int, metric: float) -> EvidenceRow:
        figures = {claim.metric: np.full(3, metric)} | ({claim.per: np.ones(3)} if claim.per else {})
        return EvidenceRow({claim.along: place}, figures)

    begins = 1.0 if claim.take in reproduce.GROWTHS else value
    arms = {claim.arm: [row(1, begins), row(2, value)]}
    return arms | ({claim.over: [row(1, 1.0), row(2, 1.0)]} if claim.over else {})


def verdict(claim: Claim, value: float) -> str:
    """What is said of results with this figure."""
    return reproduce.compare(claim, rows_of(claim, value)).verdict


@pytest.mark.parametrize(("name", "number"), CLAIMS)
def test_the_criterion_of_each_claim_can_hold_and_can_fail(name: str, number: int) -> None:
    claim = STUDIES[name].claim[number]
    low, high = reproduce.band_of(claim)
    inside = [value for value in (low, high, (low + high) / 2) if np.isfinite(value)]
    effect = claim.effect
    published = next(value for value in inside if (effect.above or -np.inf) < value < (effect.below or np.inf))
    if claim.published_as == reproduce.DIRECTION:
        assert verdict(claim, published) == SEEN
    else:
        least, most = reproduce.reference(claim)
        meets = claim.published_as != "value" or least <= published <= most
        assert verdict(claim, published) == (REPRODUCED if meets else WITHIN)
    if effect.above is not None:
        assert verdict(claim, effect.above - 0.01 * abs(effect.above) - 1e-9) == NOT_SEEN
    if effect.below is not None:
        assert verdict(claim, effect.below + 0.01 * abs(effect.below) + 1e-9) == NOT_SEEN
    wrong = (effect.above if effect.above is not None else effect.below) or 0.0
    study = replaced(STUDIES[name], claim=(claim,), untestable="")
    answer = reproduce.evaluate(name, study, rows_of(claim, wrong))
    assert answer.verdict == NOT_SEEN
    assert reproduce.status_of(document(answer)) == 1


@pytest.mark.parametrize("name", STUDIES)
def test_the_file_of_each_study_holds_commands_that_are_known_and_sources(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for missing in ((adios, "require"), (refusals, "available")):  # ADIOS2 and FUSE need not be here
        monkeypatch.setattr(*missing, lambda: None)
    study = STUDIES[name]
    assert study.untestable or {"laptop"} <= set(study.size)
    for claim in study.claim:
        assert any(character.isdigit() for character in claim.source), "a page, section, table or line"
    for size in study.size.values():
        assert parse_seconds(size.time) > 0
        assert parse_bytes(size.space) > 0
        for part in work.parts(name, study, size, files.Path("out")):
            asked = parser().parse_args(part.command[1:])
            if part.run.command == "run":
                look_up(RunOptions(**RUN.given_options(asked)))


def replaced(study: Study, **changed: Any) -> Study:
    return Study(**({name: getattr(study, name) for name in Study.__struct_fields__} | changed))


def document(*answers: Answer) -> Document:
    words = ["dlio-bench", "reproduce"]
    return Document(version="1", size="laptop", command=words, kinds=reproduce.by_kind(answers), studies=list(answers))


def claim(**changed: Any) -> Claim:
    """A ratio of 2 to 3 that was published, and an effect above 1.1."""
    table = {
        "name": "longer", "kind": "measured", "metric": "elapsed_seconds", "arm": "slow", "over": "quick",
        "published": [{"value": 2.0, "at": "4 nodes"}, {"value": 3.0}], "source": "page 1", "effect": {"above": 1.1},
    }  # fmt: skip
    given = {key: value for key, value in (table | changed).items() if value is not None}
    return files.parse({**STUDY, "claim": [given]}, "a.toml").claim[0]


STUDY: dict[str, Any] = {
    "title": "t", "shows": "s", "source": "page 1", "size": {"laptop": {"time": "1min", "space": "1MB"}},
    "run": [{"name": "runs", "subject": "cdb", "options": {"reader": ["naive", "prefetch"], "tiny": True}}],
    "arm": {"slow": {"reader": "naive"}, "quick": {"reader": "prefetch"}},
    "claim": [{
        "name": "longer", "kind": "measured", "metric": "elapsed_seconds", "arm": "slow", "over": "quick",
        "published": [{"value": 2.0}], "source": "page 1", "effect": {"above": 1.1},
    }],
}  # fmt: skip


def times(*seconds: float, nodes: int = 1, **changed: Any) -> EvidenceRow:
    return replace(EvidenceRow({"nodes": nodes}, {"elapsed_seconds": np.array(seconds)}), **changed)


def test_a_verdict_needs_the_whole_interval_beyond_the_effect() -> None:
    slow, quick = [times(2.0, 2.2, 2.1)], [times(1.0, 1.0, 1.0)]
    good = reproduce.compare(claim(), {"slow": slow, "quick": quick})
    assert (good.verdict, good.value, good.low, good.high) == (REPRODUCED, 2.1, 2.0, 2.2)
    wide = reproduce.compare(claim(), {"slow": [times(1.0, 2.2, 2.1)], "quick": quick})
    assert wide.verdict == UNDECIDED
    unsure = reproduce.evaluate("a", files.parse(STUDY, "a.toml"), {"slow": [times(1.0, 2.2)], "quick": quick})
    assert (unsure.outcome, reproduce.status_of(document(unsure))) == (UNDECIDED, 6)
    assert "UNDECIDED  a: t" in reproduce_text.render(document(unsure))
    assert "Ours is 2.1 (1 to 2.2), and the effect is above 1.1." in wide.why
    edge = reproduce.compare(claim(), {"slow": [times(1.4, 2.2)], "quick": quick})
    assert edge.verdict == UNDECIDED
    assert "both in and out of what was published, 2 to 3, give or take 25 %" in edge.why
    single = reproduce.compare(claim(), {"slow": [times(2.1)], "quick": quick})
    assert (single.verdict, "one trial, which decides nothing" in single.why) == (UNDECIDED, True)
    exact = reproduce.compare(claim(), {"slow": [times(2.1, chance=False)], "quick": [times(1.0, chance=False)]})
    assert exact.verdict == REPRODUCED
    near = reproduce.compare(claim(), {"slow": [times(1.8, 1.9)], "quick": quick})
    assert (near.verdict, near.off) == (WITHIN, pytest.approx(0.1))
    assert "within 10 % of what was published: 2 to 3" in near.why
    assert [reproduce.format_verdict(WITHIN, off) for off in (0.0011461, 0.2091)] == ["within 0.12 %", "within 21 %"]
    touches = reproduce.compare(claim(), {"slow": [times(1.8, 2.0)], "quick": quick})
    assert touches.verdict == REPRODUCED
    small = reproduce.compare(claim(), {"slow": [times(1.4, 1.4)], "quick": quick})
    assert small.verdict == SEEN
    assert "below what was published: 2 to 3" in small.why
    nine = reproduce.compare(claim(over=None), {"slow": [times(1.0, *[2.0] * 7, 9.0)]})
    assert (nine.low, nine.high) == (2.0, 2.0)  # an interval, and not the range


def test_what_is_learnt_is_compared_seed_by_seed() -> None:
    """Losses of two seeds differ more than what is compared; times of two trials have nothing in common."""
    late, prompt = (
        EvidenceRow({"nodes": 1}, {"final_loss": np.array(losses)}) for losses in ([1.01, 2.02], [1.0, 2.0])
    )
    learnt = claim(metric="final_loss", published=[{"value": 1.0}], effect={"above": 0.95, "below": 1.05})
    told = reproduce.compare(learnt, {"slow": [late], "quick": [prompt]})
    assert (told.verdict, told.low, told.high) == (WITHIN, pytest.approx(1.01), pytest.approx(1.01))
    timed = reproduce.compare(claim(), {"slow": [times(2.0, 4.0)], "quick": [times(1.0, 2.0)]})
    assert (timed.low, timed.high) == (1.0, 4.0)
    more = EvidenceRow({"nodes": 1}, {"final_loss": np.array([1.0, 2.0, 3.0])})
    unequal = reproduce.compare(learnt, {"slow": [late], "quick": [more]})
    assert (unequal.low, unequal.high) == (pytest.approx(1.01 / 3), pytest.approx(2.02))


def test_kinds_of_claims_are_counted_apart_and_measured_ones_lead() -> None:
    model, timed = claim(kind="recomputed model", name="model"), claim()
    arms = {"slow": [times(2.0, 2.0)], "quick": [times(1.0, 1.0)]}
    study = files.parse(STUDY, "a.toml")
    computed = reproduce.evaluate("computed", replaced(study, claim=(model,)), arms)
    both = reproduce.evaluate("both", replaced(study, claim=(model, timed)), arms)
    told = document(computed, both)
    assert list(told.kinds.items()) == [("measured", {REPRODUCED: 1}), ("recomputed model", {REPRODUCED: 2})]
    page = reproduce_html.html(told)
    assert page.index("#study-1") < page.index("Kind: measured.") < page.index("Kind: recomputed model.")
    old = {key: value for key, value in to_json(both.claims[0]).items() if key not in ("kind", "off")}
    assert convert(old, Compared).kind is None  # of a document that did not tell it


def test_points_are_those_that_both_arms_have_and_growth_is_the_last_over_the_first() -> None:
    arms = {"slow": [times(6.0, nodes=4), times(2.0, nodes=1)], "quick": [times(1.0), times(2.0, nodes=4)]}
    both = reproduce.compare(claim(), arms)
    assert [(point.at, point.value) for point in both.points] == [("nodes 1", 2.0), ("nodes 4", 3.0)]
    assert both.value == 3.0
    grown = claim(over=None, take="growth", published=[{"value": 10.0}, {"value": 30.0}])
    answer = reproduce.compare(grown, arms)
    assert (answer.value, answer.band) == (3.0, (2.25, 3.75))
    alone = reproduce.compare(grown, {"slow": arms["slow"][:1]})
    assert alone.verdict == UNTESTABLE
    assert "two values of nodes" in alone.why


def test_what_is_no_evidence_is_not_compared() -> None:
    quick = [times(1.0)]
    for row, told in (
        (times(2.0, wrong="its result is INVALID: the clock"), "no evidence: its result is INVALID"),
        (times(2.0, sized=False), "samples were shrunk"),
    ):
        answer = reproduce.compare(claim(), {"slow": [row], "quick": quick})
        assert answer.verdict == UNTESTABLE
        assert told in answer.why.lower() or told in answer.why
    assert is_exact("bytes_device@later")
    assert not is_exact("read_seconds")
    twice = reproduce.compare(claim(), {"slow": [times(2.0, file="a"), times(3.0, file="b")], "quick": quick})
    assert "Put the one that is meant into a folder STUDY/slow" in twice.why
    partly = reproduce.evaluate(
        "a", files.parse(STUDY, "a.toml"), {"slow": [times(2.0)]}, failure="A run failed.", status=4
    )
    assert partly.why.endswith("A run failed.")
    assert "No result is of the arm 'quick'" in partly.why
    none = reproduce.evaluate("a", files.parse(STUDY, "a.toml"), {})
    assert none.verdict == UNTESTABLE
    assert reproduce.status_of(document(none)) == 0
    assert reproduce.status_of(document(replaced_status(none, 4))) == 4


def test_a_study_says_how_many_of_its_claims_were_tested() -> None:
    study = files.parse(STUDY, "a.toml")
    arms = {"slow": [times(2.0, 2.0)], "quick": [times(1.0, 1.0)]}
    untested = replaced(study, claim=(study.claim[0], claim(metric="read_seconds", over=None)))
    partly = reproduce.evaluate("a", untested, arms)
    assert (partly.outcome, partly.verdict) == (IN_PART, "reproduced in part (1 of 2 claims tested)")
    assert "reproduced in part (1 of 2 claims tested)</span>" in reproduce_html.html(document(partly))
    missed = reproduce.evaluate("a", untested, arms | {"slow": [times(1.0, 1.0)]})
    assert missed.verdict == "not seen (1 of 2 claims tested)"
    assert reproduce.status_of(document(missed)) == 1
    whole = reproduce.evaluate("a", study, arms)
    assert (whole.outcome, whole.verdict) == (REPRODUCED, REPRODUCED)


def test_a_failed_command_is_no_missing_means_and_the_gravest_status_is_that_of_the_house() -> None:
    study = files.parse(STUDY, "a.toml")
    failed = reproduce.evaluate("a", study, {}, failure="`run` ended: No <space>.", status=4)
    assert (failed.outcome, failed.failure) == (FAILED, "`run` ended: No <space>.")
    assert failed.claims[0].verdict == UNTESTABLE
    lacking = reproduce.evaluate("b", study, {}, "It has no FUSE.")
    page = reproduce_html.html(document(lacking, failed))
    assert "No &lt;space&gt;." in page
    assert page.index("#study-1") < page.index("<summary>1 not testable here</summary>")
    answers = [replaced_status(failed, status) for status in (5, 3, 4, 0)]
    for rest, gravest in ((answers, 4), (answers[:2], 3), (answers[:1], 5), (answers[3:], 0)):
        assert reproduce.status_of(document(*rest)) == gravest


def test_texts_of_studies_are_the_golden_ones() -> None:
    study, model = files.parse(STUDY, "a.toml"), claim(kind="recomputed model", name="model")
    ratio = claim(published=[{"value": 2.0, "of": 8428, "over": 4214}])
    arms = {"slow": [times(2.0, 2.0)], "quick": [times(1.0, 1.0)]}
    claims = {
        "computed": [model],
        "both": [model, claim()],
        "partly": [ratio, claim(metric="read_seconds", over=None)],
    }
    told = [reproduce.evaluate(name, replaced(study, claim=tuple(of)), arms) for name, of in claims.items()]
    failed = reproduce.evaluate("failed", study, {}, failure="`run` ended: No <space>.", status=4)
    lacking = reproduce.evaluate("lacking", study, {}, "It has no FUSE.")
    skipped = [Skipped(file="old.json", why="it is of an older version", damaged=False)]
    texts = {
        "kinds apart, and a study in part": document(*told),
        "failed before what cannot be tested here": document(lacking, failed),
        "files that were not compared": replace(document(told[0]), skipped=skipped),
    }
    require_golden("studies", {name: reproduce_text.render(of) for name, of in texts.items()})


def test_columns_of_a_printed_table_are_added_up_whatever_ran() -> None:
    tables = {"old": {"write": [2.0, 3.0]}, "new": {"write": [1.0, 1.5]}}
    printed = {**STUDY["claim"][0], "metric": "write", "arm": "old", "over": "new", "kind": "recomputed model"}
    document_ = STUDY | {"table": tables, "claim": [*STUDY["claim"], printed]}
    study = files.parse(document_, "a.toml")
    for told in ({"lacking": "It has no FUSE."}, {"failure": "A run failed.", "status": 4}):
        answer = reproduce.evaluate("a", study, {}, **told)
        assert [claim.verdict for claim in answer.claims] == [UNTESTABLE, REPRODUCED]
        assert answer.claims[1].value == 2.0
        assert answer.outcome == (FAILED if "failure" in told else IN_PART)
    with pytest.raises(UsageError, match=r"claim\[1\].metric is 'read', and table.old has no such column. Use write."):
        files.parse(document_ | {"claim": [STUDY["claim"][0], printed | {"metric": "read"}]}, "a.toml")


def test_where_published_figures_are_of_another_span_the_direction_alone_is_compared() -> None:
    wanted = claim(published_as="direction")
    same = reproduce.compare(wanted, {"slow": [times(2.5, 2.5)], "quick": [times(1.0, 1.0)]})
    assert (same.verdict, same.band) == (SEEN, None)
    assert reproduce.compare(wanted, {"slow": [times(1.0, 1.0)], "quick": [times(1.0, 1.0)]}).verdict == NOT_SEEN
    assert STUDIES["cdb-reads"].claim[0].published_as == "direction"


def test_the_least_of_several_figures_has_the_interval_of_them_all() -> None:
    points = [Point(at="1", value=2.0, low=1.9, high=2.1), Point(at="2", value=2.2, low=0.5, high=9.0)]
    assert reproduce.compared_figure(claim(take="least"), points) == (2.0, 0.5, 2.1)
    assert reproduce.compared_figure(claim(take="greatest"), points) == (2.2, 1.9, 9.0)
    steps = [
        Point(at=str(at), value=value, low=low, high=value) for at, value, low in ((1, 1, 1), (2, 2, 2), (3, 5, 1))
    ]
    assert reproduce.compared_figure(claim(take="least growth"), steps) == (2.0, 0.5, 2.0)


def replaced_status(answer: Answer, status: int) -> Answer:
    return Answer(**({name: getattr(answer, name) for name in Answer.__struct_fields__} | {"status": status}))


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        ("titel", "t", "'titel' is not known. Did you mean 'title'?"),
        ("source", 3, "source is '3'"),
        ("claim", [{}], "claim[0].name is missing"),
        ("arm", {"slow": {"readr": "naive"}}, "arm.slow.readr is nothing that results of `run` say"),
        ("arm", {"slow": {"run": "other"}}, "arm.slow.run is 'other'"),
        ("size", {"huge": {}}, "size"),
        ("size", {"laptop": {"time": "1min", "space": "1MB", "runs": ["all"]}}, "names the run 'all'"),
        ("run", [{"name": "../runs"}], "run[0].name is '../runs'"),
        ("options", {"data": "@made"}, "run[0].options.data is '@made', and there is no such run"),
        ("run", [{"name": "runs", "subject": "--help"}], "run[0].subject is '--help'"),
        ("options", {"tinny": True}, "run 'runs' at size.laptop: a study may not give '--tinny'"),
        ("options", {"help": True}, "may not give '--help'"),
        ("options", {"trials": "many"}, "run 'runs' at size.laptop: "),
        ("options", {"tau": float("nan")}, "options.tau is nan, which is no finite number"),
        ("size", {"laptop": {"time": "soon", "space": "1MB"}}, "size.laptop.time: 'soon' is not a time"),
        ("size", {"laptop": {"time": "1min", "space": "much"}}, "size.laptop.space: 'much'"),
        ("run", [], "has [[run]], [[claim]] and [size.laptop]"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_is_refused_by_key_value_and_fix(place: str, value: Any, told: str) -> None:
    with pytest.raises(UsageError) as error:
        files.parse(STUDY | {place: value}, "a.toml")
    assert str(error.value).startswith("'a.toml': ")
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"metric": "elapsed"}, "claim[0].metric is 'elapsed', which no document of `run` has"),
        ({"arm": "slower"}, "claim[0].arm is 'slower', and there is no arm of this name"),
        ({"effect": {}}, "claim[0].effect says nothing"),
        ({"effect": {"above": 9.0}}, "no result could show the effect"),
        ({"efect": {}}, "Did you mean 'effect'?"),
        ({"published": [{"value": float("nan")}]}, "claim[0].published[0].value is nan"),
        ({"effect": {"above": float("nan")}}, "claim[0].effect.above is nan"),
        ({"take": "growth", "published": [{"value": 0.0}, {"value": 2.0}]}, "claim[0].published[0].value is 0"),
        ({"published": []}, "claim[0].published is '[]'"),
    ],
)
def test_a_claim_that_says_nothing_is_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as error:
        claim(**changed)
    assert told in str(error.value)


def test_commands_take_the_options_of_study_run_and_size_in_this_order() -> None:
    study = files.parse(
        STUDY
        | {
            "options": {"trials": 3, "seed": 1},
            "run": [{"name": "made", "command": "generate", "subject": "cdb", "options": {"files": 4}},
                    {"name": "runs", "subject": "cdb", "options": {"data": "@made", "trials": 2, "tiny": False}}],
            "arm": {"slow": {"run": "runs", "reader": "naive"}, "quick": {"run": "runs", "reader": "prefetch"}},
            "size": {"laptop": {"time": "1min", "space": "1MB", "options": {"seed": 2, "nodes": [1, 2]},
                                "run": {"made": {"files": 8}}}},
        },
        "a.toml",
    )  # fmt: skip
    made, runs = work.parts("a", study, study.size["laptop"], files.Path("/out"))
    assert made.command == ["dlio-bench", "generate", "cdb", "--files", "8", "--out", "/out/a/made"]
    assert runs.command[3:] == [
        "--trials", "2", "--seed", "2", "--data", "/out/a/made", "--nodes", "1,2", "--out", "/out/a/runs",
    ]  # fmt: skip
    assert made.seconds == runs.seconds == 30


def test_a_result_says_what_it_is_and_its_figures(made: Callable[..., Any]) -> None:
    row = of_result(*made(), "result.json")
    assert row.wrong is None
    assert {"workload", "reader", "nodes", "batch", "compute"} <= set(row.attributes)
    assert len(row.figures["elapsed_seconds"]) == len(row.figures["bytes_requested@first"])
    assert matching([row], {"reader": row.attributes["reader"], "nodes": row.attributes["nodes"]}) == [row]
    assert matching([row], {"nodes": 77}) == []


def test_accesses_and_control_trees_are_rows_with_their_figures(tmp_path: files.Path, capsys: Any) -> None:
    words = ["simulate", "--scenario", "S1", "--epochs", "8", "--policy", "lower-bound", "--accesses", "0.5", "--json"]
    assert main([*words, "--out", str(tmp_path / "accesses")]) == 0
    told = json.loads(capsys.readouterr().out)["accesses"]
    (row,) = matching(work.rows_in(tmp_path)[0], {"delta": 0.5, "epochs": 8, "scenario": "S1"})
    assert row.figures["often"] == [told["often"]]
    assert row.figures["expected_often"] == [told["expected_often"]]

    assert main(["simulate", "--control-tree", "9", "--radix", "0,2,3", "--out", str(tmp_path / "tree")]) == 0
    assert "control-tree.json" in capsys.readouterr().out
    rows = {row.attributes["radix"]: row for row in work.rows_in(tmp_path / "tree")[0]}
    assert {radix: row.figures["root_in"].tolist() for radix, row in rows.items()} == {0: [8], 2: [2], 3: [3]}
    assert matching(list(rows.values()), {"ranks": 9, "shape": "tree"}) == [rows[2], rows[3]]
    words = [
        "--all-reduce",
        "175MB",
        "--system",
        "summit",
        "--compute",
        "emulate:400ms",
        "--out",
        str(tmp_path / "sums"),
    ]
    assert main(["simulate", "--control-tree", "27360", *words]) == 0
    (row,) = matching(work.rows_in(tmp_path / "sums")[0], {"way": "by node", "leaders": 4})
    assert row.figures["kept"] == [400 / (400 + 1000 * row.figures["all_reduce_seconds"][0])]
    assert row.figures["kept_lagged"] == [1]
    path = tmp_path / "tree" / control_tree.NAME
    path.write_text(path.read_text().replace('"ranks": 9', '"ranks": "many"'))
    with pytest.raises(DataError, match="does not follow dlio-bench/control-tree/1"):
        control_tree.load(path)


def test_figures_are_told_with_all_digits_before_the_point() -> None:
    told = [reproduce.format_interval(value, value, value) for value in (31612.0, 2.31449, 999.96, 0.000802)]
    assert told == ["31612", "2.314", "1000", "0.000802"]
    assert reproduce.format_interval(3826.4, 999.7, 4000.0) == "3826 (1000 to 4000)"


def test_pages_take_no_orders_from_a_file() -> None:
    study = files.parse(STUDY | {"title": "\x1b[31m<script>x</script>", "shows": "a\x07b"}, "a.toml")
    answer = reproduce.evaluate("a", study, {"slow": [times(2.0, 2.0)], "quick": [times(1.0, 1.0)]})
    text, page = reproduce_text.render(document(answer)), reproduce_html.html(document(answer))
    assert "\x1b" not in text + page
    assert "<script" not in page
    assert "&lt;script&gt;" in page


# Texts of figures that are cut, or lie on another text of theirs.
CROWDED = """[...document.querySelectorAll(".claim svg")].flatMap((figure) => {
  const frame = figure.getBoundingClientRect();
  const boxes = [...figure.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
  return boxes.filter(([, a], position) => a.left < frame.left || a.right > Math.min(frame.right, innerWidth)
    || a.bottom > frame.bottom
    || boxes.slice(position + 1).some(([, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
      && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)).map(([said]) => said); })"""


@needs("browser")
def test_figures_of_all_claims_fit_a_telephone(tmp_path: files.Path) -> None:
    answers = []
    for name, number in CLAIMS:
        claim = STUDIES[name].claim[number]
        rows = rows_of(claim, 2.5)
        answers.append(reproduce.evaluate(name, replaced(STUDIES[name], claim=(claim,), untestable=""), rows))
    page = tmp_path / "report.html"
    reproduce_html.write(document(*answers), page)
    with Browser(tmp_path / "profile") as browser:
        for width in (390, 1280):
            browser.open(page, width=width, drawn=False)
            assert browser.run("document.querySelectorAll('.claim svg').length") == len(CLAIMS)
            assert browser.run(CROWDED) == []
            assert browser.run("document.documentElement.scrollWidth") <= width
