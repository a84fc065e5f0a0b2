"""How a notebook shows a trace: facts and texts, none of which is markup."""

import shutil
from html.parser import HTMLParser
from pathlib import Path

from sinkscope.trace import Counts, Statistics, TraceStore, open_trace, plan_layout

ODD = "<script>alert(1)</script> שלום \ud83d 😀 &amp;"
ATTRIBUTES = {
    "model": {"name": "<b>odd</b>", "family": "llada", "revision": None, "layers": 2, "heads": 3},
    "decoding": {"kind": "denoising", "steps": 7, "threshold": None, "confidence": "<i>"},
}


class Elements(HTMLParser):
    """Names of all elements, and the texts between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, _: object) -> None:
        self.names.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def write(path: Path, samples: int) -> Path:
    """A trace of samples without steps, the first complete."""
    layout = plan_layout(Counts(max_steps=1, layers=1, heads=1, kv_heads=1, positions=1), Statistics())
    with TraceStore.create(path, ATTRIBUTES) as store:
        for number in range(samples):
            writer = store.sample(number, f"<{number}>", layout, {"prompt_length": 1})
            if number == 0:
                writer.finish({"sequence": [3]}, {"text": ODD * 20})
    return path


def test_samples_and_settings_are_text(tmp_path: Path) -> None:
    shown = Elements(open_trace(write(tmp_path / "<u>.zarr", 2))._repr_html_())
    assert set(shown.names) == {"b", "code", "br", "small", "table", "tr", "th", "td"}
    texts = " | ".join(shown.texts)
    assert "<u>.zarr" in texts
    assert "2 samples of <b>odd</b>, 1 complete" in texts
    assert "family llada, 2 layers of 3 heads" in texts
    assert "denoising: steps 7, confidence <i>" in texts
    assert "sample | steps | state | text" in texts
    cut = (ODD * 20)[:199] + "…"
    assert f"<0> | 0 | complete | {cut} | <1> | 0 | unfinished | " in texts
    assert "sinkscope.show(trace)" in texts


def test_many_samples_and_none(tmp_path: Path) -> None:
    many = Elements(open_trace(write(tmp_path / "many", 12))._repr_html_())
    assert many.names.count("tr") == 11
    assert "the first 10 of 12 samples" in many.texts
    none = Elements(open_trace(write(tmp_path / "none", 0))._repr_html_())
    assert "table" not in none.names
    assert "0 samples of <b>odd</b>, 0 complete" in none.texts


def test_a_sample_that_is_gone_has_no_text(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "t", 1))
    shutil.rmtree(tmp_path / "t" / "samples" / "000000")
    assert "<0>" in Elements(trace._repr_html_()).texts
