"""The page in a real Chromium: what a reader does with it, and what it must never do."""

import struct
import threading
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import xarray as xr
from browsing import NARROW, Visit, browser, visiting
from page_reading import read_array, read_page
from page_traces import MASK, WORDS, Made

from sinkscope.attention import GROUPS
from sinkscope.errors import UserError
from sinkscope.report.page import Live, PageServer, choose, read_template, show, write_report
from sinkscope.sinks import Excess, SinkRule, find_sinks, make_rule, received_from
from sinkscope.trace import open_trace

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Download

STEPS, LAYERS, HEADS, POSITIONS, PROMPT = 7, 3, 5, 23, 5


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A diffusion trace with two samples, and an autoregressive one of fewer steps and other layers."""
    root = tmp_path_factory.mktemp("traces")
    diffusion = Made(samples=2).write(root / "diffusion.zarr")
    causal = Made(seed=9, steps=4, layers=2, heads=2, positions=11, causal=True).write(root / "causal.zarr")
    return [diffusion, causal]


@pytest.fixture(scope="module")
def report(traces: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    write_report(choose(traces)[0], file, title="A <b>title</b>")
    return file


@pytest.fixture
def visit(chromium: "Browser") -> Iterator[Visit]:
    with visiting(chromium) as one:
        yield one


def carried(report: Path, trace: int = 0, sample: int = 0) -> xr.Dataset:
    """A sample as the page has it, its numbers rounded as they are there."""
    spec = read_page(report.read_text(encoding="utf-8"))["traces"][trace]["samples"][sample]
    arrays = {name: read_array(array) for name, array in spec["arrays"].items()}
    single = {name: arrays[name].astype(np.float32).astype(np.float64) for name in ("received", "received_by_group")}
    return xr.Dataset(
        {
            "received": (("step", "layer", "head", "position"), single["received"]),
            "received_by_group": (("step", "layer", "group", "position"), single["received_by_group"]),
            "queries": (("step", "group"), arrays["queries"]),
            "canvas": (("step", "position"), arrays["canvas"]),
            "committed": (("step", "position"), arrays["committed"]),
            "sequence": ("position", spec["final_sequence"]),
        },
        coords={"group": list(GROUPS), **{name: np.arange(len(arrays["received"])) for name in ["step"]}},
    )


def word(token: int) -> str:
    """What a cell of the canvas holds."""
    return "" if token in (MASK, -1) else WORDS[token - 100]


def words(sample: xr.Dataset, step: int) -> list[str]:
    """What the canvas holds at a step: what the model saw, and what is committed then."""
    tokens = np.where(sample["committed"][step], sample["sequence"], sample["canvas"][step])
    return [word(token) for token in tokens]


def test_loads_without_a_problem_and_shows_the_canvas(visit: Visit, report: Path) -> None:
    visit.open(report)
    assert visit.page.title() == "A <b>title</b>"
    assert visit.page.locator("h1").text_content() == "A <b>title</b>"
    sample = carried(report)
    assert visit.texts() == words(sample, 0)
    assert visit.cells("mask") == np.flatnonzero(sample["canvas"].values[0] == MASK).tolist()
    assert visit.cells("commits") == [PROMPT, PROMPT + 1]
    # The text of the document is let go once it is read: it may be large.
    assert visit.page.locator("#sinkscope-data").count() == 0


def test_the_slider_moves_all_charts(visit: Visit, report: Path) -> None:
    visit.open(report)
    before = visit.page.locator(".cursor").evaluate_all("(lines) => lines.map((line) => line.getAttribute('x1'))")
    visit.step_to(4)
    assert visit.texts() == words(carried(report), 4)
    after = visit.page.locator(".cursor").evaluate_all("(lines) => lines.map((line) => line.getAttribute('x1'))")
    assert len(after) == 5
    assert all(x > y for x, y in zip(map(float, after), map(float, before), strict=True))
    assert visit.page.locator("#step-line").text_content() == "step 4 of 6"


def test_plays_to_the_end_and_stops(visit: Visit, report: Path) -> None:
    visit.open(report)
    visit.page.locator("#speed").select_option("30")
    visit.page.locator("#play").click()
    assert visit.page.locator("#play").get_attribute("aria-label") == "Pause"
    visit.page.wait_for_function("() => document.querySelector('#step').value === '6'")
    visit.page.wait_for_selector("#play[aria-pressed=false]")
    visit.page.locator("#play").click()
    visit.page.wait_for_function("() => Number(document.querySelector('#step').value) < 6")


RULES: list[tuple[str, dict[str, float | int | str]]] = [
    ("excess", {"epsilon": 3.0, "scale": "sum"}),
    ("excess", {"epsilon": 0.0, "scale": "sum"}),
    ("excess", {"epsilon": 1.25, "scale": "sum"}),
    ("excess", {"epsilon": 12.5, "scale": "percent"}),
    ("excess", {"epsilon": 0.05, "scale": "mean"}),
    ("threshold", {"value": 0.07}),
    ("top-k", {"k": 3}),
    ("zscore", {"k": 2.5}),
    ("first", {"k": 2}),
]


def set_rule(visit: Visit, rule: SinkRule) -> None:
    settings = rule.settings()
    visit.page.locator("#rule").select_option(str(settings["rule"]))
    visit.page.locator("#scale").select_option(str(settings.get("scale", "sum")))
    [number] = [value for name, value in settings.items() if name not in ("rule", "scale")]
    visit.frames()  # until the rule's own field is there, what is typed would be added to the last one's
    visit.page.locator("#setting").fill(f"{number:g}")
    visit.settle()


@pytest.mark.parametrize("trace", [0, 1])
def test_rules_count_as_in_python(visit: Visit, report: Path, trace: int) -> None:
    visit.open(report, f"trace={trace}")
    sample = carried(report, trace)
    for name, settings in RULES:
        rule = make_rule(name, **settings)
        set_rule(visit, rule)
        sinks = find_sinks(sample, rule)
        assert visit.sinks() == int(sinks.sum()), rule
        assert int(visit.numbers()["stepSinks"]) == int(sinks.isel(step=0).sum()), rule


@pytest.mark.parametrize("group", ["masked", "all-committed", "prompt", "block-masked", "later"])
def test_groups_count_as_in_python(visit: Visit, report: Path, group: str) -> None:
    visit.open(report)
    visit.page.locator("select[name=queries]").select_option(group)
    sample = carried(report)
    for rule in (Excess(1.5), make_rule("zscore", k=1.5), make_rule("top-k", k=2)):
        set_rule(visit, rule)
        assert visit.sinks() == int(find_sinks(sample, rule, received=received_from(sample, group)).sum()), rule
    assert visit.page.locator("select[name=head]").is_disabled()


def margins(received: xr.DataArray) -> xr.DataArray:
    """Score on scale `sum` minus the mean score of the other keys."""
    keys = received.count("position")
    return keys * (keys * received - received.sum("position")) / (keys - 1)


def test_counts_are_those_of_the_trace_up_to_rounding(visit: Visit, report: Path, traces: list[Path]) -> None:
    visit.open(report)
    sample = open_trace(traces[0])[0]
    error = read_page(report.read_text(encoding="utf-8"))["traces"][0]["samples"][0]["arrays"]["received"]["encoding"]
    margin = margins(sample["received"].astype(np.float64))
    # Rounding moves a key's score and the others' mean, each by its own share.
    slack = 2 * error["worst_relative_error"] * (sample["received"] * POSITIONS + 1)
    for epsilon in (1.0, 3.0, 4.5):
        set_rule(visit, Excess(epsilon))
        low, high = int((margin > epsilon + slack).sum()), int((margin > epsilon - slack).sum())
        assert low <= visit.sinks() <= high
        assert high - low < 0.1 * high


def test_layer_and_head_are_picked(visit: Visit, report: Path) -> None:
    visit.open(report)
    sample = carried(report)
    rule = Excess(2.0)
    set_rule(visit, rule)
    sinks = find_sinks(sample, rule)
    visit.page.locator("select[name=layer]").select_option("2")
    visit.settle()
    assert visit.sinks() == int(sinks.isel(layer=2).sum())
    visit.page.locator("select[name=head]").select_option("4")
    visit.settle()
    assert visit.sinks() == int(sinks.isel(layer=2, head=4).sum())
    visit.step_to(3)
    assert visit.cells("sink") == np.flatnonzero(sinks.isel(layer=2, head=4, step=3)).tolist()


@pytest.mark.parametrize(
    ("rule", "scale", "number", "settings"),
    [
        ("excess", "mean", "3", {"epsilon": 3.0, "scale": "mean"}),
        ("excess", "sum", "23", {"epsilon": 23.0, "scale": "sum"}),
        ("excess", "sum", "-1", {"epsilon": -1.0, "scale": "sum"}),
        ("zscore", "sum", "9", {"k": 9.0}),
        ("top-k", "sum", "24", {"k": 24}),
        ("top-k", "sum", "0", {"k": 0}),
        ("threshold", "sum", "1", {"value": 1.0}),
        ("first", "sum", "24", {"k": 24}),
    ],
)
def test_refusals_are_those_of_python(
    visit: Visit, report: Path, rule: str, scale: str, number: str, settings: dict[str, float | int | str]
) -> None:
    with pytest.raises(UserError) as refused:
        find_sinks(carried(report), make_rule(rule, **settings))
    visit.open(report)
    visit.page.locator("#rule").select_option(rule)
    visit.page.locator("#scale").select_option(scale)
    visit.frames()  # until the rule's own field is there
    visit.page.locator("#setting").fill(number)
    visit.settle()
    assert visit.page.locator("#refusal").text_content() == str(refused.value)
    assert visit.page.locator("#refusal").is_visible()
    assert visit.numbers()["sinks"] == ""
    assert visit.cells("sink") == []
    assert visit.page.locator("#setting").input_value() == number


def test_tables_follow_the_rule(visit: Visit, report: Path) -> None:
    visit.open(report)
    rule = Excess(2.0)
    set_rule(visit, rule)
    sample = carried(report)
    sinks = find_sinks(sample, rule)
    shown = sinks.any(["layer", "head"]).sum("step")
    # The mean of all maps, over the steps at which one of them holds the key as a sink.
    held_at = sinks.any(["layer", "head"])
    score = (sample["received"].mean(["layer", "head"]).where(held_at).mean("step") * POSITIONS).values
    rows = visit.page.locator(".tables .table").nth(0).locator("tbody tr").all()
    assert rows
    for row in rows:
        position, _, steps, maps, mean = row.locator("td").all_text_contents()
        at = int(position)
        assert steps == f"{int(shown[at])} of {STEPS}"
        assert float(maps.split()[0]) == pytest.approx(100 * float(sinks[..., at].mean()), rel=0.01)
        assert float(mean) == pytest.approx(score[at], rel=0.01)
    held = sinks.sum(["layer", "head"]).values
    of_mask = held[sample["canvas"].values == MASK].sum() / held.sum()
    tokens = visit.page.locator(".tables .table").nth(1).locator("tbody tr").filter(has_text="blank")
    assert float(tokens.locator("td").nth(1).inner_text().split()[0]) == pytest.approx(100 * of_mask, rel=0.01)


def test_a_click_pins_a_token_and_plots_it(visit: Visit, report: Path) -> None:
    visit.open(report, "step=2")
    assert visit.page.locator(".pinned .line").count() == 0
    visit.page.locator(".tokens li[role=option]").nth(1).click()
    visit.page.locator(".tokens li[role=option]").nth(8).click()
    visit.frames()
    assert visit.cells("pinned") == [1, 8]
    assert visit.page.locator(".card.pinned path.line:not(.cut)").count() == 2 + 2
    score = float(carried(report)["received"][2, ..., 8].mean()) * POSITIONS
    assert float(visit.page.locator(".pins li").nth(1).locator("b").inner_text()) == pytest.approx(score, rel=0.01)
    visit.page.locator(".pins button").first.click()
    visit.frames()
    assert visit.cells("pinned") == [8]


def test_hovering_shows_numbers(visit: Visit, report: Path) -> None:
    visit.open(report, "step=2")
    visit.page.locator(".tokens li[role=option]").nth(1).hover()
    score = float(carried(report)["received"][2, ..., 1].mean()) * POSITIONS
    assert visit.tip().startswith("1: “")
    assert f"score {float(f'{score:.3g}'):g}" in visit.tip()
    visit.page.mouse.move(700, 5)
    assert visit.tip() == ""


def test_a_click_in_one_map_moves_the_others(visit: Visit, report: Path) -> None:
    visit.open(report)
    chart = visit.page.locator(".map svg.over-steps")
    box = chart.bounding_box()
    assert box is not None
    # Margins of 46 and 14 beside the cells, of 10 and 24 above and below.
    x = 46 + (box["width"] - 60) * (5 + 0.5) / STEPS
    y = 10 + (box["height"] - 34) * (9 + 0.5) / POSITIONS
    chart.click(position={"x": x, "y": y})
    visit.frames()
    assert visit.step() == 5
    assert visit.cells("pinned") == [9]
    layers = visit.page.locator("svg.layer-heads")
    around = layers.bounding_box()
    assert around is not None
    cell = (around["width"] - 60) / HEADS, (around["height"] - 40) / LAYERS
    layers.click(position={"x": 46 + cell[0] * 3.5, "y": 6 + cell[1] * 1.5})
    visit.settle()
    assert visit.page.locator("select[name=layer]").input_value() == "1"
    assert visit.page.locator("select[name=head]").input_value() == "3"
    track = visit.page.locator(".track svg.over-steps")
    wide = track.bounding_box()
    assert wide is not None
    track.click(position={"x": 46 + (wide["width"] - 60) * 1.5 / STEPS, "y": 60})
    visit.frames()
    assert visit.step() == 1


def test_dragging_over_the_map_pins_nothing(visit: Visit, report: Path) -> None:
    visit.open(report)
    visit.page.locator(".map svg.over-steps").scroll_into_view_if_needed()
    box = visit.page.locator(".map svg.over-steps").bounding_box()
    assert box is not None
    x, y = box["x"] + 60, box["y"] + 60
    visit.page.mouse.move(x, y)
    visit.page.mouse.down()
    visit.page.mouse.move(box["x"] + box["width"] - 16, y + 30, steps=5)
    visit.page.mouse.up()
    visit.frames()
    assert visit.step() == STEPS - 1
    assert visit.cells("pinned") == []


def test_swiping_over_the_map_pins_nothing(chromium: "Browser", report: Path) -> None:
    with visiting(chromium, NARROW, has_touch=True) as visit:
        visit.open(report)
        chart = visit.page.locator(".map svg.over-steps")
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        assert box is not None
        x, y = box["x"] + 200, box["y"] + 100
        touch = visit.page.context.new_cdp_session(visit.page)
        for kind, at in [("Start", y), ("Move", y - 20), ("Move", y - 60), ("End", None)]:
            points = [] if at is None else [{"x": x, "y": at}]
            touch.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})
        visit.frames()
        assert visit.step() == 0
        assert visit.cells("pinned") == []
        chart.tap(position={"x": 200, "y": 100})
        visit.frames()
        assert visit.step() > 0
        assert len(visit.cells("pinned")) == 1


def test_where_no_query_of_the_group_asks(visit: Visit, report: Path) -> None:
    visit.open(report, "step=5&queries=later")
    assert "no query of this group" in (visit.page.locator(".card.map .note").text_content() or "")
    visit.page.locator(".tokens li[role=option]").nth(1).hover()
    assert visit.tip().endswith("no query of this group at this step")


def test_an_emptied_number_is_asked_for(visit: Visit, report: Path) -> None:
    visit.open(report)
    visit.page.locator("#setting").fill("")
    visit.settle()
    assert visit.page.locator("#refusal").text_content() == "type a number for epsilon"


def test_two_traces_stand_side_by_side(visit: Visit, report: Path) -> None:
    visit.open(report)
    visit.page.locator("#compare").click()
    visit.settle()
    assert visit.page.locator(".pane").count() == 2
    assert visit.page.locator("#step").get_attribute("max") == "6"
    visit.step_to(6)
    assert visit.texts(0) == words(carried(report), 6)
    # The shorter one, of 4 steps, holds its last.
    assert visit.texts(1) == words(carried(report, 1), 3)
    assert "ended at step 3" in (visit.page.locator(".status").nth(1).text_content() or "")
    rule = Excess(2.0)
    set_rule(visit, rule)
    assert visit.sinks(0) == int(find_sinks(carried(report), rule).sum())
    assert visit.sinks(1) == int(find_sinks(carried(report, 1), rule).sum())
    visit.page.locator("#compare").click()
    visit.frames()
    assert visit.page.locator(".pane").count() == 1


def test_a_row_is_not_compared_with_a_mean(visit: Visit, report: Path) -> None:
    warning, difference = visit.page.locator(".unlike"), visit.page.locator(".differences")
    visit.open(report, "trace2=1")
    assert "can't be compared" in warning.inner_text() and not difference.is_visible()
    assert "one query's row" in visit.page.locator(".status").nth(1).inner_text()
    assert visit.page.locator(".status").nth(0).inner_text() == ""
    visit.open(report, "trace2=0&sample2=1")
    assert not warning.is_visible() and difference.is_visible()
    named = "diffusion, sample q1 less diffusion, sample q0."
    assert [note.startswith(named) for note in difference.locator(".note").all_text_contents()] == [True, True]


def test_the_legend_explains_what_is_in_view(visit: Visit, report: Path) -> None:
    def marks(view: str) -> str:
        visit.open(report, view)
        return visit.page.locator("#legend .marks").inner_text()

    assert "half of the maps" in marks("step=1") and "not written" not in marks("step=1")
    alone = marks("trace=1&layer=1&head=1")
    assert "a sink in the map in view" in alone and "twenty" not in alone
    assert "not written yet" in alone and "still masked" not in alone


def test_what_a_sink_is(visit: Visit, report: Path) -> None:
    visit.open(report, "epsilon=2.5")
    visit.page.locator("#what").click()
    text = visit.page.locator("#drawer p").inner_text()
    assert "fair share" in text and "excess (epsilon 2.5" in text and text.count(". ") == 1


def test_another_sample_of_the_same_name_is_drawn_anew(visit: Visit, tmp_path: Path) -> None:
    # Small traces of one prompt: equal ids, steps and positions, other numbers.
    made = [Made(seed=seed).write(tmp_path / f"seed{seed}.zarr") for seed in (0, 5)]
    file = tmp_path / "report.html"
    write_report(choose(made)[0], file)

    def shown() -> list[str | None]:
        charts = visit.page.locator(".map svg, .track svg, .counts svg, svg.layer-heads").all()
        lines = visit.page.locator(".counts path.line").get_attribute("d")
        cells = visit.page.locator(".map canvas.cells").evaluate("(canvas) => canvas.toDataURL()")
        return [lines, cells, *(chart.get_attribute("aria-label") for chart in charts)]

    visit.open(file, at_mean=False)
    first = shown()
    visit.page.locator("select[name=sample]").select_option("1/0")
    visit.settle()
    second = shown()
    visit.page.goto("about:blank")
    visit.open(file, "trace=1", at_mean=False)
    assert second == shown()
    assert second[1] != first[1]


def png_pixels(data: bytes) -> tuple[int, int, bytes]:
    """Width, height and the unpacked rows of a PNG."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    packed, at = b"", 8
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        packed += data[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    return width, height, zlib.decompress(packed)


@pytest.mark.parametrize("name", ["canvas", "map", "track", "counts", "each", "pinned", "layers-heads"])
def test_charts_are_saved(visit: Visit, report: Path, name: str) -> None:
    visit.open(report, "step=3&pin=1,8")
    saved: dict[str, Download] = {}
    for format in ("PNG", "SVG"):
        with visit.page.expect_download() as waiting:
            visit.page.locator(f".card.{name} .save button", has_text=format).click()
        saved[format] = waiting.value
        assert saved[format].suggested_filename == f"sinkscope_diffusion_q0_{name}_step3.{format.lower()}"
    width, height, pixels = png_pixels(Path(saved["PNG"].path()).read_bytes())
    assert width > 200 and height > 60
    assert len(set(pixels)) > 10
    text = Path(saved["SVG"].path()).read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert abs(2 * float(root.attrib["width"]) - width) <= 1 and abs(2 * float(root.attrib["height"]) - height) <= 1
    assert not [link for element in root.iter() for link in (element.get("href"),) if link and "data:image" not in link]
    assert "var(" not in text
    told = " ".join(element.text or "" for element in root.iter() if element.get("class") == "caption")
    for part in ("diffusion, sample q0; mean of all layers, mean of all heads; step 3 of 6", "rule excess (epsilon 3"):
        assert part in told
    assert f"prompt: “{''.join(visit.texts()[:PROMPT])}”" in told
    assert ("sum: 1 is a fair share" in told) and ("<image" in text) == (name in ("canvas", "map", "layers-heads"))
    if name == "canvas":
        there = [word for word in visit.texts() if word]
        assert [element.text for element in root.iter() if element.tag.endswith("text")][: len(there)] == there


def test_keyboard_alone(visit: Visit, report: Path) -> None:
    visit.open(report)
    press = visit.page.keyboard.press
    for key, step in [("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 6), ("Home", 0)]:
        press(key)
        visit.frames()
        assert visit.step() == step
    visit.page.locator("#speed").select_option("60")
    visit.page.evaluate("() => document.activeElement.blur()")
    press(" ")
    visit.page.wait_for_function("() => document.querySelector('#step').value === '6'")
    reached = reach(visit, ".tokens")
    assert reached < 30
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        press(key)
    visit.frames()
    assert visit.cells("pinned") == [1]
    assert visit.tip().startswith("1: “")
    press("ArrowLeft")
    visit.frames()
    assert visit.step() == 5
    reach(visit, ".map svg")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "Enter"):
        press(key)
    visit.frames()
    assert visit.cells("pinned") == [1, 2]
    reach(visit, "svg.layer-heads")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
        press(key)
    visit.settle()
    assert visit.page.locator("select[name=layer]").input_value() == "1"
    assert visit.page.locator("select[name=head]").input_value() == "2"
    assert visit.step() == 5


def reach(visit: Visit, selector: str) -> int:
    """Press Tab until something has the focus, and see that its focus shows; gives how often it took."""
    for count in range(1, 60):
        visit.page.keyboard.press("Tab")
        if visit.page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            outline = visit.page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid"
            return count
    raise AssertionError(f"{selector} can't be reached by Tab")


def test_a_link_shows_the_same_view(visit: Visit, chromium: "Browser", report: Path) -> None:
    visit.open(report)
    set_rule(visit, make_rule("threshold", value=0.07))
    visit.page.locator("#scale").select_option("percent")
    visit.page.locator("select[name=layer]").select_option("1")
    visit.page.locator("#compare").click()
    visit.page.locator(".tokens").nth(0).locator("li[role=option]").nth(3).click()
    visit.step_to(2)
    visit.settle()
    view = visit.view()
    assert view == "step=2&layer=1&pin=3&trace2=1&layer2=1&rule=threshold&value=0.07&scale=percent"
    with visiting(chromium) as other:
        other.open(report, view)
        assert other.view() == view
        for pane in (0, 1):
            assert other.numbers(pane) == visit.numbers(pane)
            assert other.texts(pane) == visit.texts(pane)
        assert other.cells("pinned") == [3]
        other.page.evaluate("() => { location.hash = 'step=4'; }")
        other.settle()
        assert other.step() == 4
        assert other.page.locator(".pane").count() == 1


@pytest.mark.parametrize("width", [360, NARROW[0], 768, 1024, 2560])
def test_no_width_scrolls_sideways(chromium: "Browser", report: Path, width: int) -> None:
    for view in ("step=3&pin=1,8", "step=3&trace2=1"):
        with visiting(chromium, (width, 800)) as visit:
            visit.open(report, view)
            wide = visit.page.evaluate("() => document.documentElement.scrollWidth")
            assert wide <= width
            for chart in visit.page.locator("svg.over-steps:visible").all():
                box = chart.bounding_box()
                assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_can_be_read(chromium: "Browser", report: Path, scheme: str) -> None:
    with visiting(chromium, color_scheme=scheme) as visit:
        visit.open(report, "step=3&pin=1")
        assert visit.page.evaluate("() => document.documentElement.dataset.theme") == scheme
        for selector in ("body", ".note", ".statistics dt", "th", "label", ".save button", "#tip"):
            visit.page.locator(".tokens li[role=option]").nth(2).hover()
            assert contrast(visit, selector) >= 4.5, selector
        cells = visit.page.locator(".tokens li[role=option].word")
        for cell in range(cells.count()):
            assert contrast(visit, f".tokens li.word >> nth={cell}") >= 4.5
        other = {"light": "dark", "dark": "light"}[scheme]
        for _ in range(2):
            if visit.page.evaluate("() => document.documentElement.dataset.theme") != other:
                visit.page.locator("#theme").click()
                visit.frames()
        assert visit.page.evaluate("() => document.documentElement.dataset.theme") == other


def contrast(visit: Visit, selector: str) -> float:
    """WCAG contrast of an element's text with what is behind it."""
    colours = visit.page.locator(selector).first.evaluate(
        """(element) => {
          const ink = getComputedStyle(element).color;
          for (let at = element; at; at = at.parentElement) {
            const paper = getComputedStyle(at).backgroundColor;
            if (paper !== 'rgba(0, 0, 0, 0)') return [ink, paper];
          }
          return [ink, 'rgb(255, 255, 255)'];
        }"""
    )
    light, dark = sorted((luminance(colour) for colour in colours), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    channels = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_everything_has_a_name_and_a_role(visit: Visit, report: Path) -> None:
    visit.open(report, "step=2&pin=1&trace2=0&sample2=1")
    nameless = visit.page.evaluate(
        """() => [...document.querySelectorAll('button, select, input, [role=img], [role=listbox], dialog, section')]
          .filter((element) => !(element.getAttribute('aria-label') || element.getAttribute('aria-labelledby')
            || element.textContent.trim() || element.labels?.length))
          .map((element) => element.outerHTML)"""
    )
    assert nameless == []
    charts = visit.page.locator("svg[role=img][tabindex]")
    assert charts.count() == 2 * 7 + 2
    for chart in charts.all():
        assert chart.get_attribute("tabindex") == "0"
        assert len(chart.get_attribute("aria-label") or "") > 20
    ids = visit.page.evaluate("() => [...document.querySelectorAll('[id]')].map((element) => element.id)")
    assert len(ids) == len(set(ids))
    assert visit.page.locator("html").get_attribute("lang") == "en"
    visit.page.keyboard.press("ArrowRight")
    visit.page.wait_for_function("() => document.querySelector('#live').textContent.startsWith('step 3; ')")


def test_the_drawer_holds_settings_and_provenance(visit: Visit, report: Path) -> None:
    visit.open(report)
    visit.page.locator("#about").click()
    text = visit.page.locator("#drawer").text_content() or ""
    for part in ("diffusion", "denoising", "0.1.0", "rounding in this page", "bidirectional"):
        assert part in text
    visit.page.keyboard.press("ArrowRight")
    assert visit.step() == 0
    visit.page.keyboard.press("Escape")
    assert not visit.page.locator("#drawer").is_visible()
    visit.page.locator("#help").click()
    assert visit.page.locator("#keys").is_visible()
    visit.page.locator("#keys .close").click()
    assert not visit.page.locator("#keys").is_visible()


def test_in_a_notebook_frame(visit: Visit, traces: list[Path], tmp_path: Path) -> None:
    page = show(*traces)
    html = page._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<!doctype html><meta charset=utf-8>{html}", encoding="utf-8")
    visit.page.goto((tmp_path / "notebook.html").as_uri())
    frame = visit.page.frame_locator("iframe")
    frame.locator(".statistics[data-complete=true]").wait_for()
    frame.locator("#step").fill("3")
    visit.page.wait_for_timeout(500)
    assert frame.locator("#step-line").text_content() == "step 3 of 6"


def test_served_the_page_counts_the_same(chromium: "Browser", traces: list[Path]) -> None:
    template = read_template()
    server = PageServer(Live(lambda: choose(traces)[0], template, "served"), template)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    context = chromium.new_context()
    asked: list[str] = []
    try:
        page = context.new_page()
        visit = Visit(page)
        page.on("pageerror", lambda error: visit.problems.append(str(error)))
        page.on("console", lambda message: visit.problems.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{server.url}#layer=mean")
        visit.settle()
        sample = open_trace(traces[0])[0]
        # One step is fetched at a time, here too the numbers are rounded to codes.
        found = visit.sinks()
        margin = margins(sample["received"].astype(np.float64))
        assert int((margin > 3.2).sum()) <= found <= int((margin > 2.8).sum())
        visit.step_to(4)
        assert visit.texts() == words(sample, 4)
        assert visit.problems == []
    finally:
        context.close()
        server.shutdown()
        server.server_close()
    assert all(url.startswith((server.url, "data:", "blob:")) for url in asked)
    steps = [url.rsplit("/", 1)[1] for url in asked if "/received/" in url]
    assert sorted(map(int, steps)) == list(range(STEPS))


def test_a_step_that_could_not_be_read_is_asked_for_again(chromium: "Browser", traces: list[Path]) -> None:
    template = read_template()
    server = PageServer(Live(lambda: choose(traces)[0], template, "served"), template)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    context = chromium.new_context()
    context.set_default_timeout(60_000)
    try:
        page = context.new_page()
        visit = Visit(page)
        page.on("pageerror", lambda error: visit.problems.append(str(error)))
        gone = "the trace is being moved"
        page.route("**/received/3", lambda route: route.fulfill(status=503, content_type="text/plain", body=gone))
        page.goto(server.url)
        alert = page.locator("#failure")
        alert.wait_for()
        assert (alert.text_content() or "").endswith(f"/received/3 could not be read: {gone}")
        page.locator("#compare").click()
        page.locator(".pane").nth(1).wait_for()
        page.locator("#compare").click()
        page.wait_for_function("() => document.querySelectorAll('.pane').length === 1")
        # Another sample, of which nothing can be read: no map of the first one under its name.
        page.route("**/received/*", lambda route: route.fulfill(status=503, content_type="text/plain", body=gone))
        page.locator("select[name=sample]").select_option("0/1")
        page.wait_for_function("() => document.querySelector('.layers-heads .note').textContent === 'reading …'")
        alert.wait_for()
        assert not page.locator("svg.layer-heads").is_visible()
        page.unroute("**/received/*")
        page.unroute("**/received/3")
        visit.step_to(1)
        visit.settle()
        assert not alert.is_visible()
        assert page.locator("svg.layer-heads").is_visible()
        assert visit.problems == []
    finally:
        context.close()
        server.shutdown()
        server.server_close()


def test_the_policy_lets_nothing_else_run(visit: Visit, report: Path) -> None:
    visit.open(report)
    ran = visit.page.evaluate(
        """() => {
          const script = document.createElement('script');
          script.textContent = 'window.intruder = true';
          document.body.append(script);
          return Boolean(window.intruder);
        }"""
    )
    assert ran is False
    assert [problem for problem in visit.problems if "Content Security Policy" in problem]
    visit.problems.clear()
