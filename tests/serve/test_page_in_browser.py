"""The served page in a real browser (Debian's package ``chromium``): asking, labelling, drawing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hcl.serve.service import Service
from tests.support import served
from tests.support.browser import Page, browsing, find_browser
from tests.support.served import TOKEN, listening

pytestmark = [pytest.mark.serve, pytest.mark.slow]
pytest.importorskip("starlette", reason=served.WITHOUT)
pytest.importorskip("uvicorn", reason=served.WITHOUT)

FLAWS = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")


def until(page: Page, expression: str, wanted: Any) -> None:
    """Wait for what the page comes to show."""
    end = time.monotonic() + 60
    while (found := page.evaluate(expression)) != wanted:
        assert time.monotonic() < end, f"{expression} is {found!r}, expected {wanted!r}"
        time.sleep(0.05)


def choose(page: Page, files: list[Path]) -> None:
    document = page.call("DOM.getDocument")["root"]["nodeId"]
    field = page.call("DOM.querySelector", nodeId=document, selector="#files")["nodeId"]
    page.call("DOM.setFileInputFiles", nodeId=field, files=[str(file) for file in files])


def text(selector: str) -> str:
    return f"document.querySelector({selector!r}).textContent"


def column(number: int) -> str:
    cells = f"#answers tbody td:nth-child({number})"
    return f"[...document.querySelectorAll({cells!r})].map(e => e.textContent)"


def test_a_user_asks_labels_and_sees_the_stream(tmp_path: Path) -> None:
    browser = find_browser()
    model, weights = served.on_pictures(tmp_path)
    service = Service(model, tmp_path / "state.safetensors", str(weights), "cpu")
    files = []
    for i in range(4):
        files.append(tmp_path / f"<i>{i}.png")  # a name that is no markup
        files[-1].write_bytes(served.picture(served.SHOWN[i], 1000 + i))
    (tmp_path / "broken.png").write_text("text")
    with listening(service) as client, browsing(browser, tmp_path / "profile") as page:
        address = f"http://127.0.0.1:{client.port}/"
        page.open(address, 1280, 900)
        until(page, text("h1"), "hcl-plus-ta")
        shown = (
            "[...document.querySelectorAll('#tasks tbody td:nth-child(2)')].map(e => e.textContent)"
        )
        until(page, shown, [", ".join(served.PICTURED[:2]), ", ".join(served.PICTURED[2:])])
        assert "Changes noticed: batch" in page.evaluate(text("#changes"))

        choose(page, [*files, tmp_path / "broken.png"])
        page.evaluate("document.querySelector('#predict').click()")
        until(page, text("#said"), "5 answers.")
        assert page.evaluate(column(1)) == [*(file.name for file in files), "broken.png"]
        classes = page.evaluate(column(2))
        assert classes[:4] == list(served.PICTURED)
        assert classes[4].startswith("not one of PNG")
        # What names say is text: no element of it was made, and nothing of it was run.
        assert page.evaluate("document.querySelectorAll('img, i, table b').length") == 0
        until(
            page,
            "document.querySelectorAll('#novelty path').length > 0 || "
            "document.querySelectorAll('#novelty circle').length > 0",
            True,
        )

        # With a wrong token the service says so; with the right one it learns.
        labels = [served.PICTURED[0], served.PICTURED[1], served.PICTURED[2], served.PICTURED[2]]
        for i, label in enumerate(labels):
            page.evaluate(f"document.querySelectorAll('#answers input')[{i}].value = {label!r}")
        page.evaluate("document.querySelector('#token').value = 'wrong'")
        assert page.named("Log.entryAdded") == []
        page.evaluate("document.querySelector('#learn').click()")
        until(page, text("#said") + ".startsWith('learning needs the token')", True)
        page.events.clear()  # the browser notes the 401
        page.evaluate(f"document.querySelector('#token').value = {TOKEN!r}")
        page.evaluate("document.querySelector('#learn').click()")
        said = "Learned 4, of which 3 had been answered rightly; 4 wait for a batch."
        until(page, text("#said"), said)
        facts = "[...document.querySelectorAll('#facts b')].map(e => e.textContent)"
        until(page, f"{facts}.slice(3)", ["4", "4", "75.0 %"])
        until(page, "document.querySelectorAll('#accuracy .accuracy').length", 1)
        assert all(page.named(name) == [] for name in FLAWS)

        for width, scheme in ((1280, "light"), (390, "dark")):
            page.open(address, width, 900, scheme)
            until(page, text("h1"), "hcl-plus-ta")
            until(page, "document.querySelectorAll('#accuracy .accuracy').length", 1)
            asked = [r["request"]["url"] for r in page.named("Network.requestWillBeSent")]
            assert {url for url in asked if not url.startswith("data:")} == {
                address,
                f"{address}state",
            }
            assert all(page.named(name) == [] for name in FLAWS), scheme
            assert page.evaluate("document.documentElement.scrollWidth") == width
            dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (dark == "rgb(21, 25, 30)") == (scheme == "dark")
    assert service.state()["labelled"] == {"samples": 4, "right": 3}
