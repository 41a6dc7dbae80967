"""Reports in a real browser: figures drawn, nothing fetched, the answer above the fold; narrow, dark, printed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.harness.cli import main
from dlio_bench.reports import kinds
from dlio_bench.reports.acceptance import Campaign, Place, System
from dlio_bench.reports.coupling import view as couple_view
from dlio_bench.reports.document.environment import Mount
from dlio_bench.reports.judging import limits
from dlio_bench.reports.judging.judge import judge
from dlio_bench.reports.run import html
from tests.browser import READY, Browser
from tests.needs import needs
from tests.processes import until
from tests.results import complete
from tests.unit.commands.test_couple import document as coupled

pytestmark = [pytest.mark.slow, needs("browser")]
Made = Callable[..., tuple[dict[str, Any], dict[str, Any]]]
PHONE, FOLD = 390, 800  # px: width of a telephone, and the height that a laptop shows at 1280
FIGURES = {"times", "credits", "phases", "epochs", "scaling", "steps", "bytes", "predicted"}
LIMITS = (("naive", "1 s"), ("prefetch", "1 h"))
DRAWN = """[...document.querySelectorAll(".plot")].filter((plot) => plot.querySelector(".main-svg"))
  .map((plot) => plot.id)"""
NO_CHARTS = 'document.getElementById("no-charts").getClientRects().length'
OPEN_ALL = 'document.querySelectorAll("details").forEach((fold) => { fold.open = true; })'
# Luminances of backgrounds, as WCAG 2.2 defines them, without its gamma: enough to tell dark from light.
SHADES = """["body", "section", "#times .main-svg", "pre"].map((name) => {
  const colour = getComputedStyle(document.querySelector(name)).backgroundColor;
  const [red, green, blue] = colour.match(/[0-9.]+/g).map(Number);
  return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255; })"""
# Texts of a figure that lie on one another, or outside it; and elements that are wider than their place.
CROWDED = """(() => {
  const faults = [];
  for (const plot of document.querySelectorAll(".plot")) {
    if (!plot.querySelector(".main-svg")) continue;
    const frame = plot.getBoundingClientRect();
    const texts = [...plot.querySelectorAll(".xtick text, .x2tick text, .ytick text, .y2tick text, .xtitle, .ytitle, "
      + ".legendtext, .annotation-text, .cbaxis text")]
      .filter((text) => text.textContent && !/INVALID|TINY/.test(text.textContent))
      .map((text) => [text.textContent, text.getBoundingClientRect()]);
    for (const [said, box] of texts) {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1) {
        faults.push(`${plot.id}: '${said}' is cut`);
      }
    }
    texts.forEach(([one, a], position) => texts.slice(position + 1).forEach(([other, b]) => {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      if (across > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3) {
        faults.push(`${plot.id}: '${one}' lies on '${other}'`);
      }
    }));
  }
  for (const part of document.querySelectorAll("h1, h2, h3, p, li, td, th, dd, dt, pre, figcaption, summary")) {
    if (part.getClientRects().length && part.scrollWidth > part.clientWidth + 1) {
      faults.push(`'${part.textContent.slice(0, 40)}' is wider than its place`);
    }
  }
  return faults; })()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def page(draft_and_steps: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of three readers on one, two and four nodes, with predictions."""
    pairs = []
    for nodes in (1, 2, 4):
        for reader in ("naive", "shuffled", "prefetch"):
            draft, steps = draft_and_steps(reader, nodes, 5)
            draft["prediction"] = {
                "system": "deck", "epoch_seconds": [4.0, 3.0], "first_epoch_seconds": 4.0, "later_epochs_seconds": 3.0,
                "elapsed_seconds": 7.0, "reason": None, "notes": [],
            }  # fmt: skip
            pairs.append((complete(draft, steps), steps))
    path = tmp_path_factory.mktemp("page") / "report.html"
    html.write(pairs, path)
    return path


def fetched(browser: Browser, page: Path) -> list[str]:
    """What the page asked for, but itself and pictures that it made."""
    return [address for address in browser.requests if not address.startswith(("data:", "blob:", page.as_uri()))]


def test_the_answer_and_its_chart_stand_above_the_fold(browser: Browser, page: Path) -> None:
    browser.open(page, width=1280, height=FOLD)
    assert set(browser.run(DRAWN)) == FIGURES | {f"map{number}" for number in (6, 7, 8, 3)}
    assert browser.complaints == []
    assert fetched(browser, page) == []
    assert browser.run(NO_CHARTS) == 0
    bottoms = browser.run(
        '[".badge", ".answer", ".plot"].map((name) => document.querySelector(name).getBoundingClientRect().bottom)'
    )
    assert bottoms == sorted(bottoms)
    assert bottoms[-1] <= FOLD
    assert browser.run('document.querySelector(".plot").id') == "times"
    assert browser.run('document.querySelectorAll("#times .errorbar").length') == 9
    assert browser.run(CROWDED) == []
    # what is folded is drawn when it is opened
    browser.run(OPEN_ALL)
    assert browser.run(READY) is True
    assert len(browser.run(DRAWN)) == 17
    assert browser.complaints == []


def test_nothing_overlaps_on_a_telephone(browser: Browser, page: Path) -> None:
    browser.open(page, width=PHONE)
    assert browser.run("document.documentElement.scrollWidth") <= PHONE
    assert browser.run(CROWDED) == []
    browser.run(OPEN_ALL)
    assert browser.run(READY) is True
    assert browser.run("document.documentElement.scrollWidth") <= PHONE
    assert browser.run(CROWDED) == []
    assert browser.complaints == []


def test_dark_is_dark_changes_while_open_and_prints_light(browser: Browser, page: Path) -> None:
    browser.open(page, dark=True)
    assert max(browser.run(SHADES)) < 0.15
    ink = 'getComputedStyle(document.querySelector("#times .ytick text")).fill.match(/[0-9]+/g).map(Number)'
    assert min(browser.run(ink)) > 180
    browser.run('dispatchEvent(new Event("beforeprint"))')
    assert min(browser.run(SHADES)) > 0.9
    assert browser.run('document.querySelectorAll("details:not([open])").length') == 0
    assert len(browser.run(DRAWN)) == 17
    browser.run('dispatchEvent(new Event("afterprint"))')
    assert max(browser.run(SHADES)) < 0.15
    assert browser.run('document.querySelectorAll("details[open]").length') == 0
    browser.prefer(dark=False)
    until(lambda: min(browser.run(SHADES)) > 0.9)
    assert browser.complaints == []


def test_one_result_has_its_verdict_five_numbers_and_a_chart_above_the_fold(
    browser: Browser, draft_and_steps: Made, tmp_path: Path
) -> None:
    draft, steps = draft_and_steps("prefetch", 4, 5)
    draft["policy"]["alias"] = "<b>a reader</b> with a name that <i>goes on</i> and on and on and on"
    html.write([(complete(draft, steps), steps)], tmp_path / "one.html")
    browser.open(tmp_path / "one.html", height=FOLD)
    assert browser.run('document.querySelectorAll(".card").length') == 5
    assert browser.run('document.querySelector(".plot").getBoundingClientRect().bottom') <= FOLD
    assert "<b>a reader</b>" in browser.run('document.querySelector("#times .ytick text").textContent')
    browser.open(tmp_path / "one.html", width=PHONE)
    assert browser.run("document.documentElement.scrollWidth") <= PHONE
    assert browser.run(CROWDED) == []
    assert browser.complaints == []


def test_an_acceptance_is_signed_below_verdicts_in_colours_of_their_own(
    browser: Browser, draft_and_steps: Made, tmp_path: Path
) -> None:
    (tmp_path / "limits.toml").write_text(
        "".join(f'[cdb.{reader}."*"]\nelapsed_seconds = {{ at_most = "{most}" }}\n' for reader, most in LIMITS)
    )
    pairs = []
    for reader in ("naive", "prefetch"):
        draft, steps = draft_and_steps(reader, 4, 5)
        pairs.append((complete(draft, steps), steps))
    place = Place("/scratch/data", Mount("/scratch", "lustre", "mds@tcp:/scratch", []))
    campaign = Campaign(system=System(name="north", contact="a desk"), places=[place])
    html.write(
        pairs, tmp_path / "page.html", judge(kinds.all_measured(pairs), limits.load(tmp_path / "limits.toml")), campaign
    )
    for width in (PHONE, 1280):
        browser.open(tmp_path / "page.html", width=width)
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run(CROWDED) == []
        assert browser.complaints == []
    said = browser.run('document.querySelector("main").innerText')
    parts = ["north", "EXPLORE, FAIL", "a desk", "MISSED", "holds", "/scratch/data: lustre", "For the customer"]
    assert sorted(parts, key=said.index) == parts
    assert said.count("north") == 1
    colours = """[...document.querySelectorAll(".limits .badge")].map((badge) =>
      [badge.textContent, getComputedStyle(badge).backgroundColor])"""
    shades = dict(browser.run(colours))
    assert set(shades) == {"EXPLORE, FAIL", "EXPLORE, PASS"}
    assert len({*shades.values(), browser.run('getComputedStyle(document.querySelector(".tick.held")).color')}) == 3


def test_a_coupled_workflow_fits_every_width_and_tiny_is_red(browser: Browser, tmp_path: Path) -> None:
    path, ways = tmp_path / "couple.html", ("files", "bp", "sst")
    cut = """[...document.querySelectorAll(".wide")].filter((box) => box.scrollWidth > box.clientWidth + 1).length"""
    shared, tiny = (5, ("SHARED CORES",), {"slowdowns", "trials"}), (1, ("TINY",), {"trials"})
    for (trials, marks, drawn), widths in ((shared, (PHONE, 1280)), (tiny, (1280,))):
        couple_view.view(coupled(trials, ways, marks=marks)).write(path)
        for width in widths:
            browser.open(path, width=width)
            assert set(browser.run(DRAWN)) == drawn
            assert browser.run("document.documentElement.scrollWidth") <= width
            assert browser.run(cut) == 0
            assert browser.run(CROWDED) == []
            assert browser.complaints == []
    assert browser.run('document.querySelector(".mark.grave").textContent') == "TINY"
    assert "no comparison of speed: TINY" in browser.run('document.querySelector(".answer").textContent')


def test_checkpoints_fit_every_width(browser: Browser, tmp_path: Path) -> None:
    words = ["checkpoint", "hepcnn", "--fraction", "1%", "--trials", "2", "--folder", str(tmp_path)]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    page = tmp_path / "out" / "report.html"
    for width in (PHONE, 1280):
        browser.open(page, width=width)
        assert set(browser.run(DRAWN)) == {"rates", "ranks"}
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run(CROWDED) == []
        assert browser.complaints == []
    assert fetched(browser, page) == []


def test_every_map_of_a_grid_is_drawn(browser: Browser, tmp_path: Path) -> None:
    words = ["simulate", "--scenario", "S1", "--epochs", "1", "--policy", "shuffled,lbann-preload"]
    assert main([*words, "--vary", "ram=0GB,1GB", "--vary", "nodes=2,4", "--out", str(tmp_path / "out")]) == 0
    page = tmp_path / "out" / "report.html"
    browser.open(page, dark=True)
    assert set(browser.run(DRAWN)) == {"map0", "map1", "map2"}
    assert max(browser.run(SHADES.replace("#times", "#map0"))) < 0.15
    assert browser.complaints == []
    assert fetched(browser, page) == []


def test_a_browser_that_cannot_unpack_the_charts_is_told(browser: Browser, page: Path) -> None:
    script = browser.ask("Page.addScriptToEvaluateOnNewDocument", source="delete window.DecompressionStream")
    try:
        browser.open(page, drawn=False)
        assert browser.run(NO_CHARTS) == 1
        assert browser.complaints == []
    finally:
        browser.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])
