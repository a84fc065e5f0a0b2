"""Words in figures: tokens and names as the font can show them, and the line that says how numbers were made.

A token may be a line break, a piece of a character, or in a script that the font lacks. What can't be drawn as it is
is written as an escape: `\\n`, `\\u{1f600}`; a space at either end as "␣", a backslash doubled. Nothing is drawn that
would make matplotlib warn of a missing glyph.
"""

import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TypeVar

import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.image import AxesImage

from sinkscope.report.figures import style
from sinkscope.report.figures.style import CHARACTER_WIDTH, FONT, POINTS, SOFT
from sinkscope.report.traces import masking_of, model_name, token_text
from sinkscope.sinks import SinkRule
from sinkscope.sinks.lexicon import Lexicon, model_attributes

T = TypeVar("T")
LONGEST_TOKEN = 16
LONGEST_NAME = 48
ELLIPSIS = "…"
SPACE = "␣"
SCORES = {
    "sum": "n r (1 = a fair share)",
    "percent": "100 r (percent of the attention)",
    "mean": "r (share of the attention)",
}
"""What a score is, by scale; r is received attention, n the number of keys."""

_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
_TITLE, _SMALL, _LINE, _GAP = 7.5, 6.3, 1.5, 4.0
"""Points: title and small print; the latter's line height in letters; the room above the axes in points."""


def printable(text: str) -> str:
    """The text with everything that the figures' font can't show as an escape."""
    shown = [_shown(letter) for letter in text]
    if text and unicodedata.category(text[0]).startswith("M"):  # an accent that has nothing to stand on
        shown[0] = _escape(text[0])
    return "".join(shown)


def _shown(letter: str) -> str:
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    kind = unicodedata.category(letter)
    invisible = kind[0] == "C" or (kind[0] == "Z" and letter != " ")
    return _escape(letter) if invisible or ord(letter) not in _glyphs() else letter


def _escape(letter: str) -> str:
    return f"\\u{{{ord(letter):x}}}"


@cache
def _glyphs() -> frozenset[int]:
    """Characters that the figures' font has."""
    return frozenset(get_font(findfont(FontProperties(family=FONT))).get_charmap())


def shortened(text: str, most: int) -> str:
    """At most so many characters, cut at the end."""
    return text if len(text) <= most else text[: most - 1] + ELLIPSIS


def token_label(lexicon: Lexicon, token: int) -> str:
    """A token as a label: its text with escapes, at most 16 characters; a lone byte as the tokenizer spells it."""
    text = token_text(lexicon, token)
    bare = text.strip(" ")
    if not bare:
        return shortened(SPACE * len(text), LONGEST_TOKEN) or "(empty)"
    start, end = text.index(bare), len(text) - len(bare) - text.index(bare)
    return shortened(SPACE * start + printable(bare) + SPACE * end, LONGEST_TOKEN)


def model_label(sample: xr.Dataset) -> str:
    """The model's name, of a folder the last part; and what was masked while it generated."""
    return printable(shortened(model_name(sample), LONGEST_NAME)) + masking_of(sample)


def sample_label(sample: xr.Dataset) -> str:
    """Model and sample, and whether the recording has not ended."""
    name = printable(shortened(str(sample.attrs.get("id", "a sample")), LONGEST_NAME))
    steps = sample.sizes["step"]
    unfinished = "" if sample.attrs.get("complete", True) else f" (unfinished, {steps} step{'s' * (steps != 1)} so far)"
    return f"{model_label(sample)}: {name}{unfinished}"


def rule_line(rule: SinkRule) -> str:
    """The rule with its parameters: "excess, epsilon 3, scale sum"."""
    name, *parameters = rule.settings().items()
    values = (f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in parameters)
    return ", ".join([str(name[1]), *values])


def made_by(rule: SinkRule | str, scale: str | None, group: str, *more: str) -> str:
    """How numbers were made: rule (or what stands in its place), scale of scores, queries, and what else there is."""
    which = rule if isinstance(rule, str) else rule_line(rule)
    named = "" if scale is None or f"scale {scale}" in which else f"; scale {scale}"
    return "; ".join([f"rule: {which}{named}", f"queries: {group}", *more])


UNLIKE = (
    "a step of an autoregressive model is one query's attention, of a diffusion model a mean over many: don't compare "
    "the two"
)


def unlike_steps(samples: Iterable[xr.Dataset]) -> tuple[str, ...]:
    """A warning for samples that are drawn on the same axes, where models of both kinds are among them."""
    kinds = {model_attributes(sample).get("bidirectional") for sample in samples}
    return (UNLIKE,) if {True, False} <= kinds else ()


def entitle(ax: Axes, title: str, settings: str = "", *, lift: float = 0.0) -> None:
    """Title of the axes; below it, in lines as wide as the axes, how its numbers were made; `lift` points higher."""
    width = style.inches(ax)[0]
    below = wrapped(settings, width, _SMALL)
    room = _GAP + lift + len(below) * _SMALL * _LINE
    ax.set_title("\n".join(wrapped(title, width, _TITLE)), loc="left", pad=room, parse_math=False)
    if below:
        ax.annotate(
            "\n".join(below), (0, 1), xytext=(0, _GAP + lift), xycoords="axes fraction", textcoords="offset points",
            va="bottom", fontsize=_SMALL, color=SOFT, in_layout=False, parse_math=False, gid="settings",
        )  # fmt: skip


def caption(figure: Figure, text: str) -> None:
    """A line below all panels, that says how their numbers were made."""
    lines = wrapped(text, figure.get_figwidth() - 0.2, _SMALL)
    figure.supxlabel("\n".join(lines), x=0.012, ha="left", fontsize=_SMALL, color=SOFT, parse_math=False)


def name_places(ax: Axes, names: Sequence[str]) -> None:
    """Name the places 0, 1, 2 ... of the horizontal axis, in lines that do not run into each other."""
    room = 0.9 * style.inches(ax)[0] / max(1, len(names))
    lines = ["\n".join(wrapped(name, room, style.TICK, least=5)) for name in names]
    ax.set_xticks(range(len(names)), lines, parse_math=False)


def wrapped(text: str, inches: float, size: float, least: int = 20) -> list[str]:
    """The text in lines that fit a width, in letters of `size` points, but have room for `least`; line breaks stay."""
    most = max(least, int(inches * POINTS / (size * CHARACTER_WIDTH)))
    return [line for part in text.split("\n") for line in textwrap.wrap(part, most)]


def image_panels(
    found: Sequence[T],
    titles: Iterable[str],
    paint: Callable[[Axes, T], AxesImage],
    *,
    height: float,
    bar: str,
    y: str,
    apart: float = 0.015,
) -> tuple[Figure, list[Axes]]:
    """Images side by side with their titles; bar: name of their scale of colours, y: of the vertical axis; apart: room
    before the bar, in widths of the panels."""
    drawn, axes = style.panels(len(found), height=height, share=False)
    images = [paint(ax, one) for ax, one in zip(axes, found, strict=True)]
    for ax, title in zip(axes, titles, strict=True):
        entitle(ax, title)
        ax.set_ylabel(y)
    style.only_outer_labels(axes)
    style.color_bar(axes, images[-1], bar, apart=apart)
    return drawn, axes
