"""The page of `trace` in a real browser: figures drawn, nothing fetched, no text cut or on another, narrow and dark."""

from pathlib import Path
from typing import Any

from dlio_bench.reports.traces import page as traced_page
from dlio_bench.reports.traces import scaling as traced
from tests.browser import Browser
from tests.needs import needs
from tests.results import Complete
from tests.unit.reports.test_report_in_browser import CROWDED, DRAWN, OPEN_ALL

pytestmark = needs("browser")


# Words across figures that reach out of their drawing.
CUT = """[...document.querySelectorAll(".annotation-text")].filter((word) => {
  const [box, whole] = [word, word.closest(".plot")].map((part) => part.getBoundingClientRect());
  return box.left < whole.left || box.right > whole.right;
}).map((word) => word.textContent)"""


def tiny(draft: dict[str, Any]) -> None:
    draft["marks"] = ["TINY"]


def test_the_page_is_drawn_on_a_laptop_and_on_a_telephone(made: Complete, tmp_path: Path) -> None:
    cases = [
        traced.case(f"{reader}, {nodes} nodes", *made(reader, nodes, change=tiny), 1, None)
        for reader in ("naive", "prefetch")
        for nodes in (1, 4, 16)
    ]
    page = tmp_path / "page.html"
    traced_page.write(traced.scalings(cases), page)
    with Browser(tmp_path / "profile") as browser:
        for width, dark in ((1280, False), (390, True)):
            browser.open(page, width=width, dark=dark)
            assert set(browser.run(DRAWN)) == {"nodes0", "epochs0", "bandwidth0", "ideal0", "critical0"}
            browser.run(OPEN_ALL)
            assert browser.run(CROWDED) == []
            assert browser.run("document.querySelectorAll('.annotation-text').length") >= 5
            assert browser.run(CUT) == []
            assert browser.run("document.documentElement.scrollWidth") <= width
            assert not browser.complaints
            assert browser.requests == [page.as_uri()]
