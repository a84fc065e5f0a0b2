"""Words in figures: escapes where the font lacks a letter, names of models and samples, and what made the numbers."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from report_samples import made

from sinkscope.report import figures
from sinkscope.report.figures.labels import (
    made_by,
    model_label,
    printable,
    sample_label,
    shortened,
    token_label,
    wrapped,
)
from sinkscope.report.traces import distinct, masked_label
from sinkscope.sinks import Excess, First, Threshold, TopK
from sinkscope.sinks.lexicon import Lexicon

GLYPHS = frozenset(get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap())


def lexicon(*texts: str) -> Lexicon:
    return Lexicon(dict(enumerate(texts)), mask_token_id=None, special_ids=frozenset(), prompt_length=0)


@pytest.mark.parametrize(
    ("spelling", "shown"),
    [
        ("Ġthe", "␣the"),
        ("▁cat▁", "␣cat␣"),
        ("##ing", "ing"),
        ("Ċ", "\\n"),
        ("<0x0A>", "\\n"),
        ("<0x41>", "A"),
        ("<0xE2>", "<0xE2>"),
        ("a\tb\rc", "a\\tb\\rc"),
        ("\\n", "\\\\n"),
        (" ", "␣"),
        ("", "(empty)"),
        ("$x^2$", "$x^2$"),
        ("<script>", "<script>"),
        ("שלום", "שלום"),
        ("مرحبا", "مرحبا"),
        ("😀", "😀"),
        ("🧿", "\\u{1f9ff}"),
        ("漢字", "\\u{6f22}\\u{5b57}"),
        ("e\u0301", "e\u0301"),
        ("\u0301", "\\u{301}"),
        ("\u200d", "\\u{200d}"),
        ("\u00a0x", "\\u{a0}x"),
        ("\x00", "\\u{0}"),
        ("x" * 40, "x" * 15 + "…"),
    ],
)
def test_tokens_as_labels(spelling: str, shown: str) -> None:
    assert token_label(lexicon(spelling), 0) == shown


def test_a_token_without_text_is_its_number() -> None:
    assert token_label(lexicon(), 42) == "<42>"


@given(st.text(max_size=30))
def test_what_is_shown_has_a_glyph_for_every_letter(text: str) -> None:
    shown = printable(text)
    assert {ord(letter) for letter in shown} <= GLYPHS
    assert "\n" not in shown and "\t" not in shown
    if text.isascii() and text.isprintable() and "\\" not in text:
        assert shown == text


@given(st.text(alphabet="ab\\\n\t\u6f22\U0001f9ff{}u", max_size=8), st.text(alphabet="ab\\\n\t\u6f22{}u", max_size=8))
def test_different_texts_are_shown_differently(one: str, other: str) -> None:
    assert (printable(one) == printable(other)) == (one == other)


def test_nothing_makes_matplotlib_warn_or_read_formulas() -> None:
    """Warnings are errors here."""
    names = ["$a_b$ \\frac{1}{2}", "\n🧿漢", "שלום", "नमस्ते", "100%", "a&b<c>", "$"]
    sample = made()
    sample.attrs = sample.attrs | {"id": "$\\undefined$ \n 漢 🧿", "tokens": dict(zip("0123457", names, strict=True))}
    sample.attrs["sinkscope"]["model"]["name"] = "org/$model_{x}$"
    labels = {"$\\undefined$ one": sample, "$\\undefined$ other": sample}
    for ax in (figures.heat_map(sample), figures.token_bars([sample]), figures.top_positions(labels)):
        figure = ax.get_figure(root=True)
        assert isinstance(figure, Figure)
        for ending in ("svg", "pdf", "png"):
            figure.savefig(io.BytesIO(), format=ending)
    assert figures.heat_map(sample).get_title("left") == ("org/$model_{x}$: $\\\\undefined$ \\n \\u{6f22} \\u{1f9ff}")


def test_models_are_named_shortly() -> None:
    sample = made()
    record = sample.attrs["sinkscope"]["model"]
    for name, shown in [
        ("GSAI-ML/LLaDA-8B-Instruct", "GSAI-ML/LLaDA-8B-Instruct"),
        ("/data/checkpoints/llada", "llada"),
        ("./llada/", "llada"),
        ("m" * 80, "m" * 47 + "…"),
    ]:
        record["name"] = name
        assert model_label(sample) == shown
    sample.attrs["sinkscope"] = {}
    assert model_label(sample) == "an unnamed model"


def test_what_was_masked_is_said() -> None:
    sample = made()
    sample.attrs["sinkscope"]["intervention"] = {"keys": 5, "control": None}
    assert model_label(sample) == "model-a, top-5 masked"
    assert masked_label({"keys": 1, "control": "random"}) == "random for top-1 masked"
    rule = {"rule": "excess", "epsilon": 3.0, "scale": "sum"}
    assert masked_label({"keys": rule, "control": None}) == "excess (epsilon 3, sum) masked"


def test_an_unfinished_sample_says_so() -> None:
    sample = made()
    sample.attrs = sample.attrs | {"complete": False}
    assert sample_label(sample) == "model-a: made (unfinished, 7 steps so far)"
    assert sample_label(sample.isel(step=slice(1))).endswith("(unfinished, 1 step so far)")


def test_the_line_that_says_what_made_the_numbers() -> None:
    assert made_by(Excess(2.5, "percent"), "percent", "all") == "rule: excess, epsilon 2.5, scale percent; queries: all"
    assert made_by(Threshold(0.3), "sum", "masked", "more") == (
        "rule: threshold, value 0.3; scale sum; queries: masked; more"
    )
    assert made_by(TopK(2), None, "all") == "rule: top-k, k 2; queries: all"
    assert made_by(First(1), None, "all") == "rule: first, k 1; queries: all"
    assert made_by("the strongest key", "mean", "all") == "rule: the strongest key; scale mean; queries: all"


def test_lines_fit_their_width() -> None:
    text = "word " * 60
    lines = wrapped(text, 3.0, 6.3)
    assert max(map(len, lines)) <= 3.0 * 72 / (6.3 * 0.54)
    assert " ".join(lines) == text.strip()
    assert wrapped("one\ntwo", 3.0, 6.3) == ["one", "two"]
    assert wrapped("", 3.0, 6.3) == []
    assert shortened("abc", 3) == "abc"
    assert shortened("abcd", 3) == "ab…"


def test_only_names_that_stand_twice_are_told_apart() -> None:
    assert distinct(["a", "b", "a"], ["1", "2", "3"]) == ["a (1)", "b", "a (3)"]
