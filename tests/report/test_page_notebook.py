"""The page in a notebook: in a frame that can do nothing but show."""

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from page_reading import LITTLE_PAGE, check_close, read_array, read_page

import sinkscope as ss
from sinkscope.families import Model
from sinkscope.report.page import writing


@pytest.fixture
def trace(tiny: Callable[[str], Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ss.Trace:
    """Two samples; and a little page in place of the built one."""
    (tmp_path / "page.html").write_text(LITTLE_PAGE, encoding="utf-8")
    monkeypatch.setattr(writing, "PAGE", tmp_path / "page.html")
    settings = ss.Denoising(gen_length=4, block_length=4, steps=4)
    return ss.record(tiny("llada-tiny"), [[5, 9, 2], [7, 3]], settings, out=tmp_path / "t.zarr")


class Frame(HTMLParser):
    """The one element that a notebook is given."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes |= dict(attrs)


def test_a_trace_is_shown_in_a_frame(trace: ss.Trace) -> None:
    page = ss.show(trace, samples=["1"], heads=[2], title='"><script>', height=500)
    frame = Frame(page._repr_html_())
    assert frame.names == ["iframe"]
    assert frame.attributes["sandbox"] == "allow-scripts allow-downloads"
    assert frame.attributes["title"] == '"><script>'
    assert "height: 500px" in str(frame.attributes["style"])
    assert frame.attributes["srcdoc"] == page.html
    document = read_page(page.html)
    assert document["title"] == '"><script>'
    [sample] = document["traces"][0]["samples"]
    received = sample["arrays"]["received"]
    check_close(read_array(received), trace["1"]["received"].values[:, :, [2]], received["encoding"])
    assert "MB: a notebook shows it" in repr(page)


def test_paths_do_too_and_much_is_refused(trace: ss.Trace) -> None:
    page = ss.show(str(trace.path))
    assert page.title == "sinkscope: llada-tiny"
    assert len(read_page(page.html)["traces"][0]["samples"]) == 2
    with pytest.raises(ss.UserError, match=r"would be larger than 0.001 MB: .*most_megabytes.*sinkscope report.*view"):
        ss.show(trace, most_megabytes=0.001)
    for wrong, name in ((trace[0], "Dataset"), ([trace], "list"), (None, "NoneType")):
        with pytest.raises(ss.UserError, match=rf"show takes traces or their folders.*got {name}: show\(trace"):
            ss.show(wrong)  # type: ignore[arg-type]
    with pytest.raises(ss.UserError, match="no trace was given"):
        ss.show()
    with pytest.raises(ss.UserError, match="there is no trace at"):
        ss.show(trace.path / "no.zarr")
