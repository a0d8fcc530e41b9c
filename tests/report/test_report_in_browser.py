"""The built page in a real browser, where one is installed (Debian's package ``chromium``).

Without a browser it is skipped, and says so; test_report.py checks the same page as text.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hcl.report import report
from tests.support.browser import browsing, find_browser
from tests.support.made_runs import make_benchmark, studies, write_result

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> str:
    return find_browser()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with the widest parts: a table of many tasks, a trace, a latent view."""
    folder = tmp_path_factory.mktemp("browser")
    for method in ("hcl-fr", "hcl-fr-ta"):
        write_result(folder, make_benchmark(order=range(8)), method, [[(2, 0)], []])
    grid = report.Grid(benchmarks=("toy",), methods=("hcl-fr", "hcl-fr-ta"))
    results = report.read_results(folder / "scores", grid)
    report.write_report(folder / "report", results, *studies())
    return folder / "report"


LOST = """[...document.querySelectorAll('main *')].filter(e => {
  const box = e.getBoundingClientRect();
  return !e.closest('.scroll, .hidden') && box.right > innerWidth + 1;
}).map(e => e.tagName)"""

SMALL_DRAWINGS = """[...document.querySelectorAll('figure svg')].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width < 200 || box.height < 100;
}).length"""


def check_page(browser: str, built: Path, profile: Path) -> None:
    with browsing(browser, profile) as page:
        for width, scheme in ((1280, "light"), (390, "dark")):
            page.open(built / "index.html", width, 900, scheme)
            where = f"{width} px, {scheme}"

            asked = [r["request"]["url"] for r in page.named("Network.requestWillBeSent")]
            own = (built / "index.html").resolve().as_uri()
            assert [url for url in asked if not url.startswith("data:")] == [own], where
            assert page.named("Log.entryAdded") == [], where
            assert page.named("Runtime.consoleAPICalled") == [], where
            assert page.named("Runtime.exceptionThrown") == [], where

            assert page.evaluate("document.title") == "Continual learning report"
            assert page.evaluate("document.querySelectorAll('figure svg').length") >= 10, where
            assert page.evaluate(SMALL_DRAWINGS) == 0, where
            # Nothing is wider than the window but what scrolls in its own box.
            assert page.evaluate("document.documentElement.scrollWidth") == width, where
            assert page.evaluate(LOST) == [], where

            dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (dark == "rgb(21, 25, 30)") == (scheme == "dark"), where
            # The ink of a drawing follows the page.
            ink = page.evaluate("getComputedStyle(document.querySelector('svg text')).fill")
            assert ink == ("rgb(232, 236, 240)" if scheme == "dark" else "rgb(29, 35, 41)"), where


def test_page_renders_without_errors_and_without_network(
    browser: str, built: Path, tmp_path: Path
) -> None:
    check_page(browser, built, tmp_path / "profile")
