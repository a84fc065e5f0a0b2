"""The page on its subject: where it opens, what it says of maps, norms and tokens, and what two panes share."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from browsing import NARROW, Visit, browser, visiting
from page_reading import read_array, read_page
from page_traces import Made

from sinkscope.report.page import choose, write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser

AXE = Path(__file__).parents[2] / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
MADE = Made(whole=True, heads_alike=False, seed=3)
LAST, HEAD = MADE.layers - 1, 1


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One head of one layer with a sink, beside a trace of fewer steps and positions."""
    root = tmp_path_factory.mktemp("page")
    other = Made(seed=8, steps=4, layers=3, heads=5, positions=17)
    paths = [MADE.write(root / "sinks.zarr"), other.write(root / "other.zarr")]
    write_report(choose(paths)[0], root / "report.html")
    return root / "report.html"


@pytest.fixture
def visit(chromium: "Browser") -> Iterator[Visit]:
    with visiting(chromium) as one:
        yield one


def test_opens_at_the_head_that_has_the_sink(visit: Visit, report: Path) -> None:
    visit.open(report, at_mean=False)
    assert visit.page.locator("select[name=layer]").input_value() == str(LAST)
    assert visit.page.locator("select[name=head]").input_value() == str(HEAD)
    assert 1 in visit.cells("sink") and visit.cells("pinned") == [1]
    alone = visit.sinks()
    # At the mean, which has none, the same sinks are marked as those of some maps.
    visit.open(report)
    assert visit.sinks() >= alone > 0
    assert visit.cells("some") == visit.cells("sink") != []
    steps = visit.page.locator(".tables .table").first.locator("tbody tr td:nth-child(3)").all_text_contents()
    assert steps and not [text for text in steps if text.startswith("0 of")]


def test_full_maps_norms_and_entropy_are_told(visit: Visit, report: Path) -> None:
    arrays = read_page(report.read_text(encoding="utf-8"))["traces"][0]["samples"][0]["arrays"]
    visit.open(report, f"step=5&layer={LAST}&head={HEAD}")
    # The last map up to step 5 is that of step 4, the second; layer 2 is the second of those that were kept.
    assert "Full map of step 4" in (visit.page.locator(".card.attention .note").text_content() or "")
    chart = visit.page.locator("svg.query-keys")
    cell = 24 if (chart.bounding_box() or {"width": 0})["width"] > 46 + 23 * 24 else None
    assert cell is not None
    chart.hover(position={"x": 46 + cell * 1.5, "y": 6 + min(cell, 420 / MADE.positions) * 9.5})
    paid = read_array(arrays["attention"])[1, 1, HEAD, 9, 1]
    told = re.search(r"query 9 .* key 1 .*\| ([\d.]+) % of its attention at step 4", visit.tip())
    assert told and float(told[1]) == pytest.approx(100 * paid, rel=0.01)
    visit.page.locator(".tokens li[role=option]").nth(6).hover()
    tip = visit.tip()
    for name, words in (("key_norm", "norm of the key"), ("entropy", "entropy of attention, in nats")):
        value = read_array(arrays[name])[5, LAST, HEAD, 6]
        found = re.search(rf"{words}: ([\d.]+)", tip)
        assert found and float(found[1]) == pytest.approx(value, rel=0.01)
    visit.page.locator(".card.each select").select_option("value_norm")
    visit.frames(4)
    chart = visit.page.locator(".card.each svg.over-steps")
    top = float(np.nanmax(np.nanmean(read_array(arrays["value_norm"])[:, LAST, HEAD], axis=-1)))
    shown = re.search(r"at most ([\d.]+\d)", chart.get_attribute("aria-label") or "")
    assert shown and float(shown[1]) == pytest.approx(top, rel=0.01)
    assert "quantity=value_norm" in visit.view()
    # Layers of which no map was kept say so.
    visit.page.locator("select[name=layer]").select_option("1")
    visit.frames()
    assert (
        visit.page.locator(".card.attention .note").text_content()
        == "maps were recorded of layers 0, 2: pick one of them"
    )


def test_tokens_are_found_by_their_text(visit: Visit, report: Path) -> None:
    visit.open(report, "step=6")
    wanted = visit.texts()[0]
    visit.page.locator(".search input").fill(wanted.upper())
    visit.frames()
    holding = [at for at, text in enumerate(visit.texts()) if wanted.strip().lower() in text.lower()]
    assert visit.cells("found") == holding
    assert visit.page.locator(".found-count").text_content() == f"{len(holding)} found"
    for expected in [*holding[:2]]:
        visit.page.keyboard.press("Enter")
        visit.frames()
        assert visit.tip().startswith(f"{expected}: ")


def test_two_panes_have_the_same_axes_and_stand_row_by_row(visit: Visit, report: Path) -> None:
    visit.open(report, "step=2&trace2=1")
    for name in ("map", "layers-heads", "each", "track", "counts"):
        first, second = (visit.page.locator(f".card.{name}").nth(at) for at in (0, 1))
        boxes = [first.bounding_box(), second.bounding_box()]
        assert boxes[0] is not None and boxes[1] is not None
        assert boxes[0]["y"] == pytest.approx(boxes[1]["y"], abs=1)
        assert boxes[0]["height"] == pytest.approx(boxes[1]["height"], abs=1)
        if name in ("map", "each", "track", "counts"):
            ticks = [card.locator("svg.over-steps .axis text").all_text_contents() for card in (first, second)]
            assert ticks[0] == ticks[1] and "6" in ticks[0]
    bars = visit.page.locator(".card.layers-heads .colour-bar, .card.map .colour-bar")
    labels = [bar.get_attribute("aria-label") for bar in bars.all()]
    assert len(labels) == 4 and len(set(labels)) == 2
    # Where both have a number, the difference is that of the scores.
    chart = visit.page.locator(".card.difference svg.over-steps")
    box = chart.bounding_box()
    assert box is not None
    x = 46 + (box["width"] - 60) * (2 + 0.5) / 4
    y = 10 + (box["height"] - 34) * (1 + 0.5) / 17
    chart.hover(position={"x": x, "y": y})
    scores = []
    for trace, positions in ((0, MADE.positions), (1, 17)):
        spec = read_page(report.read_text(encoding="utf-8"))["traces"][trace]["samples"][0]
        scores.append(float(read_array(spec["arrays"]["received"])[2, ..., 1].mean()) * positions)
    told = re.search(r"step 2, position 1 \| score: ([+-]?[\d.]+)", visit.tip())
    assert told and float(told[1]) == pytest.approx(scores[1] - scores[0], rel=0.02)


def test_a_second_pane_pins_its_own_sink(visit: Visit, report: Path) -> None:
    visit.open(report, f"layer={LAST}&head={HEAD}&pin=4")
    visit.page.locator("#compare").click()
    visit.settle()
    visit.frames(3)
    assert visit.cells("pinned") == [4]
    received = read_array(read_page(report.read_text("utf-8"))["traces"][1]["samples"][0]["arrays"]["received"])
    row = received[:, LAST, HEAD].astype(float)
    others = (row.sum(-1, keepdims=True) - row) / (row.shape[-1] - 1)
    held = (row.shape[-1] * (row - others) > 3).sum(0)
    assert visit.cells("pinned", 1) == [int(held.argmax())]
    # What the reader took out stays out.
    visit.page.locator(".pins").nth(1).locator("button").click()
    visit.settle()
    visit.frames(3)
    assert visit.cells("pinned", 1) == []


def test_colours_of_layers_and_heads_are_those_of_all_steps(visit: Visit, report: Path) -> None:
    received = read_array(read_page(report.read_text("utf-8"))["traces"][0]["samples"][0]["arrays"]["received"])
    last = MADE.steps - 1
    # The highest is at a step that the reader has not seen.
    assert float(received[last].max()) < float(received.max())
    visit.open(report, f"step={last}&shading=linear")
    peak = f"{float(f'{received.max() * MADE.positions:.3g}'):g}"
    for step in (last, 3, 0):
        visit.step_to(step)
        visit.page.wait_for_function(
            "(end) => document.querySelector('.layers-heads .colour-bar').getAttribute('aria-label').endsWith(end)",
            arg=f" to {peak}",
        )


def test_scores_of_sinks_pass_what_a_sink_has_to(visit: Visit, report: Path) -> None:
    visit.open(report, f"layer={LAST}&head={HEAD}")
    scores = visit.page.locator(".tables .table").first.locator("tbody tr td:nth-child(5)").all_text_contents()
    # By the rule, more than the mean of the others by 3.
    assert scores and min(map(float, scores)) > 3
    notes = visit.page.locator(".tables .note").all_text_contents()
    assert "finished sequence" in notes[0] and "at the step" in notes[1]


def test_selects_of_cards_are_not_cut_on_a_tablet(chromium: "Browser", report: Path) -> None:
    with visiting(chromium, (820, 900)) as visit:
        visit.open(report, "step=4&trace2=1")
        for select in visit.page.locator(".chosen-here select:visible").all():
            shown, wanted = select.evaluate(
                """(select) => {
                  const shown = select.getBoundingClientRect().width;
                  select.style.maxWidth = 'none';
                  const copy = select.cloneNode(true);
                  copy.style.position = 'absolute';
                  document.body.append(copy);
                  return [shown, copy.getBoundingClientRect().width];
                }"""
            )
            assert shown > 0.85 * wanted


def test_on_a_phone_panes_alternate(chromium: "Browser", report: Path) -> None:
    with visiting(chromium, NARROW) as visit:
        visit.open(report, "step=2&trace2=1")
        panes = visit.page.locator(".pane")
        assert [pane.is_visible() for pane in panes.all()] == [True, False]
        visit.page.locator(".tabs button").nth(1).click()
        visit.frames()
        assert [pane.is_visible() for pane in panes.all()] == [False, True]
        controls = visit.page.locator("button:visible, select:visible, input:visible")
        for control in controls.all():
            box = control.bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= NARROW[0], control


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("size", "view"), [((1440, 900), "step=3&trace2=1"), (NARROW, "step=3&pin=1")])
def test_axe_finds_nothing_serious(
    chromium: "Browser", report: Path, scheme: str, size: tuple[int, int], view: str
) -> None:
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: npm ci in frontend/")
    with visiting(chromium, size, color_scheme=scheme) as visit:
        visit.open(report, view)
        for dialog in (None, "#about", "#help"):
            if dialog:
                visit.page.locator(dialog).click()
            visit.page.evaluate(AXE.read_text(encoding="utf-8"))
            found = visit.page.evaluate("() => axe.run()")
            grave = [
                (each["id"], [node["html"][:200] for node in each["nodes"]])
                for each in found["violations"]
                if each["impact"] in ("serious", "critical")
            ]
            assert grave == [] and found["passes"]
            visit.page.keyboard.press("Escape")


def test_on_paper_controls_are_left_out(visit: Visit, report: Path) -> None:
    visit.open(report, "step=3")
    visit.page.emulate_media(media="print")
    for selector in ("#play", "#rule", ".save", ".search", "nav"):
        assert not visit.page.locator(selector).first.is_visible(), selector
    for selector in (".tokens", ".map canvas.cells", ".statistics", ".colour-bar"):
        assert visit.page.locator(selector).first.is_visible(), selector
