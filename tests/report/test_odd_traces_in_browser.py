"""Traces at the edge of what there is, in a real Chromium: the page shows them, and nothing in them is ever markup."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from browsing import NARROW, Visit, browser, visiting
from page_traces import MASK, Made

from sinkscope.report.page import choose, read_template, write_report
from sinkscope.report.page.writing import PLACEHOLDER
from sinkscope.sinks import Excess, find_sinks
from sinkscope.trace import open_trace

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    with browser() as running:
        yield running


@pytest.fixture
def visit(chromium: "Browser") -> Iterator[Visit]:
    with visiting(chromium) as one:
        yield one


@pytest.fixture
def reported(tmp_path: Path) -> Callable[..., Path]:
    """The report of traces made like this."""

    def report(*traces: Made) -> Path:
        paths = [trace.write(tmp_path / f"trace-{index}.zarr") for index, trace in enumerate(traces)]
        write_report(choose(paths)[0], tmp_path / "report.html")
        return tmp_path / "report.html"

    return report


def test_one_step_and_one_head(visit: Visit, reported: Callable[..., Path], tmp_path: Path) -> None:
    visit.open(reported(Made(steps=1, layers=1, heads=1)), "pin=1")
    assert visit.page.locator("#play").is_disabled()
    sinks = find_sinks(open_trace(tmp_path / "trace-0.zarr")[0], Excess(3.0))
    assert visit.sinks() == int(sinks.sum()) > 0
    assert visit.page.locator(".card.pinned circle.dot").count() == 2
    visit.page.keyboard.press("ArrowRight")
    visit.frames()
    assert visit.step() == 0
    box = visit.page.locator(".map .cells").bounding_box()
    assert box is not None and box["width"] > 100


def test_two_positions(visit: Visit, reported: Callable[..., Path]) -> None:
    visit.open(reported(Made(steps=1, positions=2, prompt=1)))
    assert "with 2 keys scores differ by at most 2" in (visit.page.locator("#refusal").text_content() or "")
    visit.page.locator("#setting").fill("0.1")
    visit.settle()
    assert visit.page.locator("#refusal").is_hidden()
    assert visit.sinks() > 0


def test_an_unfinished_sample(visit: Visit, reported: Callable[..., Path]) -> None:
    # Of the 17 steps that were recorded 16 are safely on disk.
    visit.open(reported(Made(complete=False, steps=19, positions=47)))
    assert "unfinished: 16 steps so far" in (visit.page.locator(".status").text_content() or "")
    assert visit.page.locator("#step").get_attribute("max") == "15"
    assert "(unfinished)" in (visit.page.locator("select[name=sample]").text_content() or "")


def test_a_trace_without_token_texts(visit: Visit, reported: Callable[..., Path]) -> None:
    visit.open(reported(Made(texts=None)))
    assert {text for text in visit.texts() if text} <= {"#31", "#37", "#41"}
    assert "no token texts" in (visit.page.locator(".status").text_content() or "")


HOSTILE = '<img src=x onerror="window.intruder=1"><script>window.intruder=1</script></script><!--'
TEXTS = {
    MASK: "[MASK]", 100: HOSTILE, 101: "שלום", 102: " مرحبا", 103: "👩‍🔬", 104: "\n", 105: "a\tb", 106: "", 107: "   ",
    108: "\u202eevil", 109: "<0xE2>", 110: "\x00", 111: "x" * 300, 112: "'\"&amp;", 113: "</script>", 114: "e\u0301",
}  # fmt: skip
SHOWN = {
    104: "↵", 105: "a⇥b", 106: "∅", 107: "␣␣␣", 108: "⟨202E⟩evil", 110: "␀",
}  # fmt: skip


@pytest.mark.parametrize("size", [(1440, 900), NARROW])
def test_any_text_is_shown_as_text(chromium: "Browser", reported: Callable[..., Path], size: tuple[int, int]) -> None:
    made = Made(texts=TEXTS, positions=61, prompt=53)
    report = reported(made)
    with visiting(chromium, size) as visit:
        visit.open(report, "pin=0,1,2,3")
        final = np.random.default_rng(0).choice(made.ids, made.positions)
        expected = [SHOWN.get(int(token), TEXTS[int(token)]) for token in final[: made.prompt]]
        assert set(made.ids) == {int(token) for token in final[: made.prompt]}
        assert visit.texts()[: made.prompt] == expected
        assert visit.page.evaluate("() => window.intruder") is None
        assert visit.page.locator("img").count() == 0
        assert visit.page.locator(".tokens script, .tables script").count() == 0
        for position in range(20):
            visit.page.locator(".tokens li[role=option]").nth(position).hover()
        visit.page.locator(".table button", has_text="Show all").first.click()
        assert visit.page.evaluate("() => window.intruder") is None
        assert visit.page.evaluate("() => document.documentElement.scrollWidth") <= size[0]
        breaks = visit.page.locator(".tokens .break").count()
        assert breaks == int((final == 104).sum())
        # Boxes go from left to right whatever they hold.
        hebrew = int(np.flatnonzero(final == 101)[0])
        first, second = (
            visit.page.locator(".tokens li[role=option]").nth(at).bounding_box() for at in (hebrew, hebrew + 1)
        )
        assert first is not None and second is not None
        assert second["x"] > first["x"] or second["y"] > first["y"]


def test_a_title_and_names_with_markup(visit: Visit, tmp_path: Path) -> None:
    trace = Made().write(tmp_path / "trace.zarr")
    write_report(choose([trace])[0], tmp_path / "report.html", title=HOSTILE)
    visit.open(tmp_path / "report.html")
    assert visit.page.locator("h1").text_content() == HOSTILE
    assert visit.page.evaluate("() => window.intruder") is None


def test_a_group_that_never_asks(visit: Visit, reported: Callable[..., Path]) -> None:
    visit.open(reported(Made()), "queries=block-committed")
    refusal = "no received attention by queries 'block-committed' at any step: choose another group or other steps"
    assert visit.page.locator("#refusal").text_content() == refusal
    assert visit.cells("absent") == []


def test_a_group_that_asks_at_some_steps(visit: Visit, reported: Callable[..., Path]) -> None:
    visit.open(reported(Made()), "queries=later&step=5")
    assert visit.page.locator("#refusal").is_hidden()
    assert visit.cells("absent") == [] and visit.cells("sink") == []
    assert visit.page.locator(".statistics dd").first.text_content() == "–"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "This page carries no trace."),
        ({"version": 1, "title": "", "traces": []}, "This page carries no trace."),
        ({"version": 99, "title": "", "traces": [{"name": "", "samples": [{}]}]}, "this one has version 99"),
    ],
)
def test_a_page_without_a_trace_says_so(visit: Visit, tmp_path: Path, document: object, message: str) -> None:
    page = read_template()
    text = b"".join(page.around([json.dumps(document)]))
    assert PLACEHOLDER.encode() not in text or document is None
    (tmp_path / "page.html").write_bytes(text)
    visit.page.goto((tmp_path / "page.html").as_uri())
    assert message in (visit.page.locator("[role=alert].failure").text_content() or "")


def test_a_damaged_array_is_told(visit: Visit, reported: Callable[..., Path]) -> None:
    report = reported(Made())
    text = report.read_text(encoding="utf-8")
    start = text.index('"data":"', text.index('"received":')) + 8
    report.write_text(text[:start] + "AAAA" + text[start + 4 :], encoding="utf-8")
    visit.page.goto(report.as_uri())
    visit.page.locator("[role=alert].failure").wait_for()
