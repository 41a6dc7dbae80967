"""Text, CSV and HTML of results, and when results are put side by side."""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plotly.offline import get_plotlyjs

from dlio_bench.errors import DataError
from dlio_bench.reports.comparing import comparable, comparison
from dlio_bench.reports.document import result
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.numbers.metrics import METRICS
from dlio_bench.reports.run import byte_figures, figures, html, step_figures, text
from dlio_bench.reports.traces import trainers
from dlio_bench.reports.view import formatting
from dlio_bench.reports.view.drawing import log_axis
from dlio_bench.wrapping import WIDTH
from tests.goldens import require_golden
from tests.pages import Page
from tests.results import Complete, complete

Drafted = tuple[dict[str, Any], dict[str, Any]]


def fail_content(draft: dict[str, Any]) -> None:
    draft["checks"][1].update(ok=False, found="3 fields differ <script>alert('x')</script> & more")


def tiny(draft: dict[str, Any]) -> None:
    draft["marks"] = ["TINY", "VIRTUAL NODES"]


def emulated(draft: dict[str, Any]) -> None:
    draft["marks"] = ["EMULATED PFS"]
    draft["environment"]["emulated_pfs"] = {"says": "400 MB/s shared by all nodes"}
    for trial in draft["trials"]:
        trial["bytes_device"] //= 4  # caches served the most


def of_caches(draft: dict[str, Any]) -> None:
    """What is read after the first epoch comes from caches."""
    draft["plan"]["cache"] = "first-epoch-cold"
    for trial in draft["trials"]:
        trial["epochs"][1]["bytes_device"] = 0
        trial["bytes_device"] = trial["epochs"][0]["bytes_device"]


def cluster(draft: dict[str, Any]) -> None:
    """Six hosts with a network, clocks that are off, and a job that was begun again."""
    environment = draft["environment"]
    hosts = {f"node{number:02}": environment["hosts"]["node01"] for number in range(1, 7)}
    hosts["node02"] = hosts["node02"] | {"clock_offset_seconds": -2.0}
    hosts["node03"] = hosts["node03"] | {"clock_offset_seconds": 0.05}
    launcher = {"name": "mpirun", "argv": [], "retries": 1}
    environment |= {"hosts": hosts, "interfaces": {"node01": "ib0 10.0.0.1"}, "restarts": 2, "launcher": launcher}


CASES: dict[str, Callable[[Complete], list[Result]]] = {
    "one": lambda made: [made()[0]],
    "five-trials": lambda made: [made(trials=5)[0]],
    "invalid": lambda made: [made(change=fail_content)[0]],
    "readers": lambda made: [made(reader, change=of_caches)[0] for reader in ("naive", "shuffled", "prefetch")],
    "scaling": lambda made: [made(reader, nodes)[0] for reader in ("naive", "prefetch") for nodes in (1, 4)],
    "cluster": lambda made: [made(change=cluster)[0]],
    "tiny": lambda made: [made(reader, change=tiny)[0] for reader in ("naive", "prefetch")],
}


def test_texts_are_the_golden_ones(made: Complete) -> None:
    results = {case: make(made) for case, make in CASES.items()}
    require_golden("report", {case: text.render(of) for case, of in results.items()})
    require_golden("detail", {case: text.render(of, verbose=True) for case, of in results.items()})


@pytest.mark.parametrize(
    ("change", "storage", "other"), [(emulated, "emulated PFS", "device"), (None, "device", "PFS")]
)
def test_what_delivered_the_bytes_is_called_by_its_name(made: Complete, change: Any, storage: str, other: str) -> None:
    pair = made(change=lambda draft: [of_caches(draft), change and change(draft)])
    page = html.page([pair])
    page = re.sub(r"(?s)<script.*?</script>|<style.*?</style>|<meta[^>]*>", "", page)
    assert f"from the {storage}" in page
    assert f"bytes that the {storage} delivered" in page
    assert not re.search(rf"\b{other}\b", page)
    named = [bar["name"] for bar in byte_figures.bytes_by_epoch([pair[0]])["data"]]
    assert named == [storage, "caches", "useful", "requested"]
    assert not re.search(rf"\b{other}\b", text.render([pair[0]], verbose=True))


def test_long_names_still_fit(made: Complete) -> None:
    def lengthen(draft: dict[str, Any]) -> None:
        draft["policy"]["alias"] = "a-reader-whose-name-goes-on-and-on"
        draft["checks"][0]["found"] = "x" * 200

    for results in ([made(change=lengthen)[0]], [made("naive")[0], made(change=lengthen)[0]]):
        assert max(map(len, text.render(results, verbose=True).splitlines())) <= WIDTH


def test_what_the_harness_adds_stands_beside_where_the_time_goes(draft_and_steps: Callable[..., Drafted]) -> None:
    pairs = []
    for reader in ("naive", "prefetch"):
        draft, steps = draft_and_steps(reader)
        steps["barrier"] = 0.05 * steps["loop"]
        pairs.append((complete(draft, steps), steps))
    shares = [found.metrics["harness_share"] for found, _ in pairs]
    alone, most = formatting.number(shares[0]), formatting.number(max(shares, key=lambda share: share.value or 0))
    assert f"harness: {alone}" in re.sub(r"\s+", " ", text.render([pairs[0][0]], verbose=True))
    assert f"harness: at most {most}" in text.render([found for found, _ in pairs], verbose=True)
    assert f"harness: at most {most}" in html.page(pairs)


def test_ratio_is_to_the_first_reader(made: Complete) -> None:
    rows = comparison.compare([made("naive")[0], made("prefetch")[0]]).rows
    assert rows[0].ratio == 1.0
    assert rows[1].ratio == pytest.approx(rows[1].elapsed / rows[0].elapsed)
    assert rows[1].ratio < 0.9


def load(draft: dict[str, Any], **asked: Any) -> None:
    """Checkpoints beside the input of every trial."""
    written = {"bytes": 8, "seconds": [1.0], "fsyncs": 2, "fsync_share": 0.5, "waited_share": 0.0, "compared_bytes": 8}
    for trial in draft["trials"]:
        trial["checkpoint_load"] = written | asked


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda draft: draft["plan"].update(comparable=False, steps=8), "8 steps, where 16 steps are needed"),
        (lambda draft: draft["plan"].update(comparable=False, min_seconds=40.0, min_steps=64), "40 s and 64 steps"),
        (tiny, "TINY"),
        (fail_content, "INVALID"),
        (lambda draft: draft["dataset"].update(digest="sha256:other"), "differ in dataset"),
        (lambda draft: draft["plan"].update(batch=2), "differ in batch (1 and 2)"),
        (lambda draft: draft["plan"].update(steps=32), "differ in steps"),
        (lambda draft: draft["compute"].update(asked_step_seconds=0.3), "differ in compute"),
        (lambda draft: draft["plan"].update(cache="warm"), "differ in cache regime"),
        (
            lambda draft: load(draft, model="llama3-8b", every=2, fraction=1e-5),
            "beside the input (none and llama3-8b, 0.001 % of its bytes after every 2 steps)",
        ),
    ],
)
def test_comparison_is_refused(made: Complete, change: Any, says: str) -> None:
    pairs = [made("naive"), made("prefetch", change=change)]
    [why] = comparable.refusals([found for found, _ in pairs])
    assert says in why
    assert comparison.comparisons([found for found, _ in pairs]) == []
    said = text.render([found for found, _ in pairs])
    assert "no comparison" in said
    assert "× first" not in said
    page = html.page(pairs)
    assert "No comparison" in page
    assert "times" not in drawn_on(page)


def test_the_page_compares_what_is_whole_beside_an_invalid_result(made: Complete) -> None:
    pairs = [made(reader, nodes) for nodes in (1, 4) for reader in ("naive", "shuffled")]
    pairs += [made("prefetch", 1), made("prefetch", 4, change=fail_content)]
    page = html.page(pairs)
    drawn, said = drawn_on(page), Page(page).text
    assert said.count("Not compared: prefetch, 4 nodes is INVALID (content)") == 1
    assert "At 4 nodes shuffled takes 0.83 × the time of naive" in said
    assert "At 1 node prefetch takes 0.63 × the time of naive" in said
    assert [len(drawn[name]["data"][0]["x"]) for name in ("times", "phases")] == [5, 6]
    assert "INVALID" not in json.dumps(drawn["times"])
    assert json.dumps(drawn["phases"]).count("INVALID") == 1
    assert drawn["phases"]["layout"]["yaxis"]["ticktext"][-1] == "prefetch · INVALID"


def test_one_reader_has_nothing_to_be_compared_with(made: Complete) -> None:
    assert comparison.comparisons([made()[0]]) == []
    assert comparable.refusals([made()[0]]) == []


def drawn_on(page: str) -> dict[str, Any]:
    return dict(json.loads(Page(page).scripts[0]))


def test_page_fetches_nothing_and_holds_plotly_once(made: Complete) -> None:
    page = html.page([made()])
    parsed = Page(page)
    assert parsed.fetched == []
    assert "@import" not in page[: page.index("</style>")]
    assert "url(" not in page[: page.index("</style>")]
    assert "default-src 'none'" in page
    assert len(parsed.scripts) == 3
    library = gzip.decompress(base64.b64decode(parsed.scripts[1])).decode()
    assert library == get_plotlyjs()
    assert len(page) < 3_000_000


def test_no_script_runs_but_those_that_the_policy_names(made: Complete) -> None:
    page = html.page([made()])
    allowed = re.search("script-src ([^;]*);", page)
    assert allowed is not None
    digests = [hashlib.sha256(script.encode()).digest() for script in (Page(page).scripts[2], get_plotlyjs())]
    assert allowed[1] == " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def test_text_of_a_result_cannot_become_markup(made: Complete) -> None:
    def attack(draft: dict[str, Any]) -> None:
        fail_content(draft)
        draft["policy"]["alias"] = "</script><script>alert('y')</script>"

    page = html.page([made(change=attack)])
    assert "<script>alert" not in page
    assert len(Page(page).scripts) == 3
    assert "3 fields differ <script>alert('x')</script> & more" in Page(page).text
    # plotly.js takes the texts of a figure for markup
    shown = json.dumps(drawn_on(page))
    assert "alert('y')" in shown
    assert not re.search("<(?!br>|b>|/b>|extra>|/extra>)", shown)


def test_every_metric_stands_in_the_page_as_in_the_words(made: Complete) -> None:
    found = made(trials=5)
    said = Page(html.page([found])).text
    for name, metric in found[0].metrics.items():
        if not name.startswith("share_"):
            assert re.search(rf"{name}\s*{re.escape(formatting.number(metric))}", said), name


def test_figures_of_a_comparison_and_of_scaling(made: Complete) -> None:
    drawn = drawn_on(html.page([made(reader, nodes) for reader in ("naive", "prefetch") for nodes in (1, 4)]))
    assert list(drawn)[:5] == ["times", "phases", "epochs", "scaling", "steps"]
    assert set(list(drawn)[5:]) == {"map0", "map1", "map2", "map3", "bytes"}
    stacked = [sum(trace["x"][row] for trace in drawn["phases"]["data"]) for row in range(4)]
    assert stacked == pytest.approx([100.0] * 4, abs=1e-3)


def test_every_figure_says_its_numbers_in_words(made: Complete) -> None:
    readers = ("naive", "shuffled", "prefetch")
    pairs = [made(reader, nodes, 5, of_caches) for nodes in (1, 4) for reader in readers]
    plots = Page(html.page(pairs)).plots
    words = {name: str(plot["aria-label"]) for name, plot in plots.items()}
    assert all(plot["role"] == "img" for plot in plots.values())
    slow = pairs[3][0].metrics["elapsed_seconds"]
    assert f"naive, 4 nodes: {formatting.number(slow)} a trial, 94 % {formatting.interval(slow)}" in words["times"]
    assert "4 nodes, delivery (on demand → ahead): 0.7" in words["credits"]
    assert "naive, 4 nodes, epoch 1: useful 1.13 GB" in words["bytes"]
    assert re.search(r"stall of 4 ranks in 16 steps .* rank 3 in step 0\. Rank 3 waits longest", words["map3"])
    assert all(re.search(r"\d", said) for said in words.values())


def test_heat_map_is_the_stall_of_the_median_trial(made: Complete) -> None:
    found, steps = made()
    page = html.page([(found, steps)])
    drawn = drawn_on(page)
    assert drawn["map0"]["data"][0]["z"] == [
        [float(f"{cell:.6g}") for cell in row] for row in steps["stall"][2].tolist()
    ]
    assert "Trial 3 of 4, the median one" in Page(page).text  # from 1, as `trace` and the progress line count
    assert "  trial 3 of 4: " in trainers.render(found, steps, 2)
    assert [curve["hovertemplate"].partition(":")[0] for curve in drawn["steps"]["data"]] == [
        "trial 2", "trial 3", "trial 4",
    ]  # fmt: skip


@pytest.mark.parametrize(("change", "word"), [(tiny, "TINY"), (fail_content, "INVALID")])
def test_every_figure_of_no_measurement_is_watermarked(made: Complete, change: Any, word: str) -> None:
    page = html.page([made(change=change)])
    assert all(word in figure["layout"]["annotations"][0]["text"] for figure in drawn_on(page).values())
    assert word in Page(page).text
    assert all("annotations" not in figure["layout"] for figure in drawn_on(html.page([made()])).values())


def test_large_runs_are_thinned_and_keep_their_worst_stall(made: Complete) -> None:
    stall = np.zeros((2, 700, 900))  # of a warm-up trial, and one that counts
    stall[1, 613, 777] = 9.0
    (trace,) = step_figures.stall_map(made(trials=1)[0], {"stall": stall, "epoch": np.zeros(900, dtype=np.int64)}, 9.0)[
        "data"
    ]
    cells = np.array(trace["z"])
    assert cells.size <= 20_000
    assert cells[613 // trace["dy"], 777 // trace["dx"]] == 9.0
    assert cells.sum() == 9.0


def test_ticks_of_a_logarithmic_axis_are_numbers_that_can_be_read(made: Complete) -> None:
    drawn = figures.scaling([made("prefetch", nodes)[0] for nodes in (1, 4)])
    values = [value for line in drawn["data"] for value in line["y"]]
    axis = drawn["layout"]["yaxis"]
    assert [float(said.replace(",", "")) for said in axis["ticktext"]] == axis["tickvals"]
    assert 10 ** axis["range"][0] < axis["tickvals"][0] <= min(values)
    assert max(values) <= axis["tickvals"][-1] < 10 ** axis["range"][1]
    assert log_axis("", [18, 60, 1300])["ticktext"] == ["10", "20", "50", "100", "200", "500", "1,000", "2,000"]


@pytest.mark.parametrize("placement", ["none", "stage-partition"])
def test_stall_that_au_leaves_out_is_explained(draft_and_steps: Callable[..., Drafted], placement: str) -> None:
    draft, steps = draft_and_steps("naive", 1, 5)
    draft["policy"]["placement"] = placement
    steps["stall"][:] = 0.0
    steps["stall"][:, :, 0] = 1.0  # of the first epoch
    steps["exchange"][:] = steps["check"][:] = 1e-4
    whole = steps["stall"] + steps["check"] + steps["compute"] + steps["exchange"]
    steps["start"], steps["loop"] = np.cumsum(whole, axis=2) - whole, whole.sum(axis=2) + 1e-3
    found = complete(draft, steps)
    where = "most of the stall" if placement == "none" else "the copying to node-local storage"
    said = f"of stall: AU leaves the first step of each epoch out, and {where} lies there"
    assert said in " ".join(text.render([found]).split())
    assert said in Page(html.page([(found, steps)])).text
    plain, _ = complete(*draft_and_steps("naive", 1, 5)), None
    assert "AU leaves" not in text.render([plain], verbose=True)


def test_metrics_without_a_value_are_refused_or_told_as_unknown(made: Complete, tmp_path: Path) -> None:
    """Whoever edits a result can remake its digest too."""
    found, steps = made()
    whole = json.loads(result.save(found, steps, tmp_path).read_text())

    def without(*names: str) -> Result:
        metrics = whole["metrics"] | {name: whole["metrics"][name] | {"value": None, "ci": None} for name in names}
        document = whole | {"metrics": metrics}
        (tmp_path / "result.json").write_text(json.dumps(document | {"digest": result.digest(document)}))
        return result.load(tmp_path)[0]

    optional = [name for name, metric in METRICS.items() if metric.optional]
    for name in METRICS:
        if name in optional:
            assert text.render([without(name)]) != text.render([without(name)], verbose=True)
        else:
            with pytest.raises(DataError, match=name):
                without(name)
    nothing = without(*optional)
    assert "EXPLORE" in text.render([nothing, found])
    assert "EXPLORE" in text.render([nothing, found], verbose=True)
    assert html.page([(nothing, steps), (found, steps)])
