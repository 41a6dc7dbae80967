"""A result: completed from a draft, saved, loaded, and refused when it is not whole; its class and exit status."""

import errno
import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from dlio_bench.errors import DataError, EnvironmentFailure, UsageError
from dlio_bench.reports.document import result
from dlio_bench.reports.document.schema import DOCUMENTS, schema
from dlio_bench.reports.document.typed import to_json
from dlio_bench.reports.document.types import Check, Draft
from dlio_bench.reports.judging import judge
from dlio_bench.reports.numbers.metrics import METRICS
from dlio_bench.reports.run import text
from tests.results import complete, drafted

Make = Callable[..., tuple[dict[str, Any], dict[str, Any]]]


@pytest.fixture
def saved(draft_and_steps: Make, tmp_path: Path) -> Path:
    draft, steps = draft_and_steps()
    return result.save(complete(draft, steps), steps, tmp_path / "run" / "cdb")


def edit(path: Path, change: Callable[[dict[str, Any]], None], *, redigest: bool = False) -> None:
    content = json.loads(path.read_text())
    change(content)
    if redigest:
        content["digest"] = result.digest(content)
    path.write_text(json.dumps(content))


def test_complete_adds_only_what_is_promised(draft_and_steps: Make) -> None:
    draft, steps = draft_and_steps()
    found = complete(draft, steps)
    assert {name: getattr(found, name) for name in Draft.__struct_fields__} == structs.asdict(drafted(draft))
    assert (found.class_, found.verdict) == ("EXPLORE", "none")


@pytest.mark.parametrize("by_folder", [True, False])
def test_round_trip(draft_and_steps: Make, saved: Path, by_folder: bool) -> None:
    draft, steps = draft_and_steps()
    found, arrays = result.load(saved.parent if by_folder else saved)
    assert found == complete(draft, steps)
    assert set(arrays) == set(steps)
    assert all(np.array_equal(arrays[name], steps[name]) for name in steps)
    assert sorted(path.name for path in saved.parent.iterdir()) == ["result.json", "steps.npz"]


def test_numpy_numbers_of_the_harness_survive(draft_and_steps: Make, tmp_path: Path) -> None:
    draft, steps = draft_and_steps()
    typed = drafted(draft)
    typed.trials[1].samples = np.int64(128)  # type: ignore[assignment] - what harnesses may do
    typed.trials[1].read_seconds = np.float32(0.1)  # type: ignore[assignment]
    found = result.complete(typed, steps)
    result.save(found, steps, tmp_path)
    assert result.load(tmp_path)[0] == found


def test_a_result_of_schema_1_is_read_with_its_metrics_worked_out_again(draft_and_steps: Make, saved: Path) -> None:
    def older(written: dict[str, Any]) -> None:
        written["schema"] = "dlio-bench/result/1"
        value = {"value": 0.8, "unit": "share", "ci": None}
        written["metrics"] = {"au": value, "stall_share": value, "stall_share_worst_rank": value}
        written["trials"][1]["bytes_spared"] = -7  # less was delivered than had been brought to tiers
        written["trials"][1]["epochs"][0]["bytes_spared"] = 5

    edit(saved, older, redigest=True)
    found, _ = result.load(saved)
    new = complete(*draft_and_steps())
    assert (found.schema, found.metrics, found.bound) == (new.schema, new.metrics, new.bound)
    trial = found.trials[1]
    assert (trial.bytes_spared, trial.bytes_kept) == (0, 7)
    assert (trial.epochs[0].bytes_spared, trial.epochs[0].bytes_kept) == (5, 0)
    edit(saved, lambda r: r["metrics"]["au"].update(value=0.9))
    with pytest.raises(DataError, match="was altered"):
        result.load(saved)


def test_a_stored_result_of_schema_2_is_read_with_the_same_numbers() -> None:
    stored = Path(__file__).parents[2] / "golden" / "result-2"
    found, _ = result.load(stored)
    before = json.loads((stored / "result.json").read_text())
    renamed = {"requested_bytes": "bytes_requested", "device_bytes": "bytes_device"}
    values = {renamed.get(name, name): metric["value"] for name, metric in before["metrics"].items()}
    values["pfs_bandwidth"] = 741903.9543237105  # what the device delivered, and no longer what was requested
    assert {name: found.metrics[name].value for name in values} == values
    assert to_json(found)["bound"] == before["bound"]
    assert found.trials[1].epochs[1].validation is not None
    assert "RAM tier" in text.render([found], verbose=True)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_schema_is_made_from_the_types(name: str) -> None:
    made = json.dumps(schema(name))
    assert '"additionalProperties": false' in made or name != "result"
    assert '"minimum": 0' in made
    kind = json.loads(made)["$ref"].removeprefix("#/$defs/")
    top = json.loads(made)["$defs"][kind]
    assert set(top["required"]) <= set(top["properties"])
    if name == "result":
        metrics = top["properties"]["metrics"]
        assert metrics["properties"].keys() == METRICS.keys() > set(metrics["required"]) > {"elapsed_seconds"}
        assert top["properties"]["class"]["enum"] == ["ACCEPTANCE", "EXPLORE", "INVALID"]
        assert {"bytes_requested", "seconds"} <= set(json.loads(made)["$defs"]["Epoch"]["required"])


def test_a_file_that_breaks_the_types_is_refused_at_its_place(saved: Path) -> None:
    for change, place in (
        (lambda r: r["plan"].update(batch=0), r"\$\.plan\.batch"),
        (lambda r: r["plan"].pop("ranks"), r"\$\.plan: .*`ranks`"),
        (lambda r: r["plan"].update(sync="sometimes"), r"\$\.plan\.sync"),
        (lambda r: r["trials"][1]["epochs"][0].update(bytes_requested=-1), r"epochs\[0\]\.bytes_requested"),
        (lambda r: r["trials"][1]["epochs"][0].pop("bytes_useful"), r"trials\[1\]\.epochs\[0\]: .*`bytes_useful`"),
        (lambda r: r["checks"][0].update(more=1), r"checks\[0\]: .*`more`"),
        (lambda r: r["metrics"].update(more=r["metrics"]["au"]), "metrics.more"),
        (lambda r: r["metrics"]["au"].update(unit="s"), "metrics.au"),
        (lambda r: r["steps_file"].update(name="../steps.npz"), r"steps_file\.name"),
        (lambda r: [trial.update(warmup=True) for trial in r["trials"]], "not a warm-up"),
    ):
        whole = saved.read_text()
        edit(saved, change, redigest=True)
        with pytest.raises(DataError, match=place):
            result.load(saved)
        saved.write_text(whole)


def test_digest_is_the_sha256_of_the_canonical_json_without_it(saved: Path) -> None:
    content = json.loads(saved.read_text())
    said = content.pop("digest")
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert said == "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
    steps = (saved.parent / "steps.npz").read_bytes()
    assert content["steps_file"]["sha256"] == hashlib.sha256(steps).hexdigest()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.write_text(path.read_text()[:-20]), "not JSON"),
        (lambda path: path.write_text(path.read_text().replace('"seed": 1,', '"seed": NaN,')), "NaN"),
        (lambda path: path.write_text("[]"), "schema None"),
        (
            lambda path: edit(path, lambda r: r.update(schema="dlio-bench/result/9")),
            "'dlio-bench/result/9'; this version",
        ),
        (lambda path: edit(path, lambda r: r["metrics"]["au"].update(value=0.99)), "was altered"),
        (lambda path: edit(path, lambda r: r.pop("digest")), "was altered"),
        (lambda path: edit(path, lambda r: r.update(surprise=1), redigest=True), "surprise"),
        (lambda path: edit(path, lambda r: r.update({"class": "GREAT"}), redigest=True), r"\$\.class"),
        (lambda path: (path.parent / "steps.npz").unlink(), "is missing"),
        (lambda path: flip(path.parent / "steps.npz"), "sha256 differs"),
    ],
)
def test_damage_is_found(saved: Path, damage: Callable[[Path], Any], says: str) -> None:
    damage(saved)
    with pytest.raises(DataError, match=says):
        result.load(saved)


def test_an_altered_result_is_marked_where_that_is_asked_for(saved: Path) -> None:
    whole = saved.read_text()
    assert result.ALTERED not in result.load(saved, mark_altered=True)[0].marks
    edit(saved, lambda r: r["metrics"]["au"].update(value=0.99))
    found, _ = result.load(saved, mark_altered=True)
    assert result.ALTERED in found.marks
    assert found.metrics["au"].value == 0.99
    saved.write_text(whole)
    with np.load(saved.with_name("steps.npz")) as arrays:
        slower = {name: arrays[name] for name in arrays.files} | {"stall": 2 * arrays["stall"]}
    np.savez(saved.with_name("steps.npz"), **slower)
    assert result.ALTERED in result.load(saved, mark_altered=True)[0].marks
    flip(saved.with_name("steps.npz"))  # what nobody can read is refused still
    with pytest.raises(DataError):
        result.load(saved, mark_altered=True)


def test_steps_of_another_shape_are_refused_even_when_their_digest_is_right(saved: Path) -> None:
    steps = saved.parent / "steps.npz"
    with np.load(io.BytesIO(steps.read_bytes())) as arrays:
        shorter = {name: arrays[name] for name in arrays.files} | {"epoch": np.zeros(3, dtype=np.int64)}
    np.savez(steps, **shorter)
    sha = hashlib.sha256(steps.read_bytes()).hexdigest()
    edit(saved, lambda r: r["steps_file"].update(sha256=sha), redigest=True)
    with pytest.raises(DataError, match="shape"):
        result.load(saved)


def test_nothing_at_the_path_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        result.load(tmp_path)


def test_full_disk_leaves_the_earlier_result_and_no_scrap(
    draft_and_steps: Make, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    draft, steps = draft_and_steps()
    with pytest.raises(EnvironmentFailure, match="No space left"):
        result.save(complete(draft, steps), steps, saved.parent)
    assert saved.read_bytes() == before
    assert sorted(path.name for path in saved.parent.iterdir()) == ["result.json", "steps.npz"]


def test_folder_that_is_a_file_is_an_environment_failure(draft_and_steps: Make, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    draft, steps = draft_and_steps()
    with pytest.raises(EnvironmentFailure, match="could not be written"):
        result.save(complete(draft, steps), steps, tmp_path / "taken" / "run")


def test_steps_that_are_not_the_results_own_are_not_saved(draft_and_steps: Make, tmp_path: Path) -> None:
    draft, steps = draft_and_steps()
    found = complete(draft, steps)
    with pytest.raises(ValueError, match="not the ones"):
        result.save(found, steps | {"stall": steps["stall"] + 1}, tmp_path)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda _, steps: steps.update(loop=steps["loop"][:, :1]), "loop"),
        (lambda _, steps: steps["stall"].fill(np.nan), "not finite"),
        (lambda _, steps: steps["loop"].fill(0.0), "loop time"),
        (lambda draft, _: draft["plan"].pop("batch"), "batch"),
        (lambda draft, _: draft.update(checks=[]), "checks"),
    ],
)
def test_a_draft_that_breaks_the_contract_is_refused(
    draft_and_steps: Make, spoil: Callable[..., Any], says: str
) -> None:
    draft, steps = draft_and_steps()
    spoil(draft, steps)
    with pytest.raises(ValueError, match=says):
        complete(draft, steps)


def judged(*failed: str, verdict: str = "none", marks: tuple[str, ...] = ()) -> Any:
    checks = [Check(name, name not in failed, "", "") for name in ("content", "exactly once", "cold cache")]
    return SimpleNamespace(checks=checks, verdict=verdict, class_=judge.classify(checks), marks=list(marks))


@pytest.mark.parametrize(
    ("results", "status"),
    [
        ([judged()], 0),
        ([judged(verdict="fail")], 1),
        ([judged("content")], 5),
        ([judged("cold cache")], 3),
        ([judged("content", "cold cache")], 3),
        ([judged("content"), judged(verdict="fail")], 5),
        ([judged("content"), judged("exactly once"), judged()], 3),
        ([], 4),
    ],
)
def test_exit_status_is_the_gravest(results: list[Any], status: int) -> None:
    assert judge.exit_status(results) == status


def test_class_follows_the_checks() -> None:
    assert judged("content").class_ == "INVALID"
    assert judged(marks=("TINY",)).class_ == "EXPLORE"
