"""The page as a widget: its traits in Python, and what crosses between a notebook's model and the frame."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browsing import Visit, browser, visiting
from page_traces import Made

import sinkscope as ss
from sinkscope.report.page import notebook

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# As the notebook's side of anywidget: traits that are read and set, and listeners of changes.
HARNESS = """<!doctype html><meta charset="utf-8"><div id="here"></div><script type="module">
SCRIPT
const heard = [];
window.saved = [];
window.model = {
  state: STATE,
  get(name) { return this.state[name]; },
  set(name, value) {
    if (JSON.stringify(this.state[name]) === JSON.stringify(value)) return;
    this.state[name] = value;
    for (const [names, call] of heard) if (names.split(" ").includes(`change:${name}`)) call();
  },
  on(names, call) { heard.push([names, call]); },
  off() {},
  save_changes() { window.saved.push(structuredClone(this.state)); },
};
widget.render({ model: window.model, el: document.getElementById("here") });
</script>"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return Made(heads_alike=False, seed=4).write(tmp_path / "made.zarr")


def test_traits_are_checked_and_observed(trace: Path) -> None:
    traitlets = pytest.importorskip("traitlets", reason="the widget needs anywidget: pip install 'sinkscope[page]'")
    pytest.importorskip("anywidget")
    view = ss.widget(trace, step=3, layer=1, selected=[2, 5], title="Made")
    assert (view.step, view.layer, view.head, view.selected) == (3, 1, None, [2, 5])
    assert view.html == ss.show(trace, title="Made").html and repr(view).startswith("<PageWidget 'Made', 0.")
    assert sorted(view.given) == ["head", "layer", "selected", "step"]
    heard: list[int] = []
    view.observe(lambda change: heard.append(change["new"]), "step")
    view.step = 6
    assert heard == [6]
    with pytest.raises(traitlets.TraitError):
        view.step = -1
    free = ss.widget(str(trace))
    assert (free.step, free.layer, free.given, free.selected) == (None, None, [], [])
    with pytest.raises(ss.UserError, match="is not in this trace"):
        ss.widget(trace, layers=[17])


def test_without_anywidget_it_says_what_to_install(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    notebook._widget_class.cache_clear()
    with pytest.raises(ss.UserError, match=r"pip install 'sinkscope\[page\]'.*ss\.show"):
        ss.widget(trace)
    notebook._widget_class.cache_clear()
    assert "iframe" in ss.show(trace)._repr_html_()


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    with browser() as running:
        yield running


@pytest.fixture
def visit(chromium: "Browser") -> Iterator[Visit]:
    with visiting(chromium) as one:
        yield one


def open_widget(visit: Visit, trace: Path, **given: object) -> None:
    state = {
        "html": ss.show(trace).html, "title": "t", "height": 700, "step": None, "layer": None, "head": None,
        "selected": [], "given": list(given), "opened": False, **given,
    }  # fmt: skip
    script = notebook.SCRIPT.read_text(encoding="utf-8").replace("export default", "const widget =")
    page = HARNESS.replace("SCRIPT", script, 1).replace(
        "STATE,", f"{json.dumps(state).replace('<', chr(92) + 'u003c')},", 1
    )
    file = trace.parent / "harness.html"
    file.write_text(page, encoding="utf-8")
    visit.page.goto(file.as_uri())
    visit.page.wait_for_function("() => window.model.state.opened")


def test_the_notebook_hears_where_the_page_opened_and_moved(visit: Visit, trace: Path) -> None:
    open_widget(visit, trace)
    state = visit.page.evaluate("() => ({ ...window.model.state, html: '' })")
    assert (state["layer"], state["head"], state["selected"]) == (2, 1, [1])
    frame = visit.page.frame_locator("iframe")
    frame.locator("#step").fill("4")
    frame.locator("select[name=head]").select_option("mean")
    visit.page.wait_for_function("() => window.model.state.step === 4 && window.model.state.head === null")
    frame.locator(".tokens li[role=option]").nth(7).click()
    visit.page.wait_for_function("() => window.model.state.selected.includes(7)")
    assert visit.page.evaluate("() => window.saved.at(-1).selected") == [1, 7]


def test_the_page_hears_what_the_notebook_sets(visit: Visit, trace: Path) -> None:
    open_widget(visit, trace, step=5, layer=0, head=None)
    frame = visit.page.frame_locator("iframe")
    frame.locator("#step-line", has_text="step 5 of 6").wait_for()
    assert frame.locator("select[name=layer]").input_value() == "0"
    assert frame.locator("select[name=head]").input_value() == "mean"
    visit.page.evaluate("() => { window.model.set('step', 2); window.model.set('selected', [3, 8]); }")
    frame.locator("#step-line", has_text="step 2 of 6").wait_for()
    frame.locator(".pins li").nth(1).wait_for()
    # A step, layer or position that the sample lacks is answered by what is shown.
    visit.page.evaluate("() => { window.model.set('layer', 99); window.model.set('step', 77); }")
    visit.page.wait_for_function("() => window.model.state.layer === 0 && window.model.state.step === 6")
