"""A generation as it is made, in the terminal: the canvas with its masks, what was just written, and its sinks.

    with live_view(model, shown=True) as view:
        generate(model, prompt, settings, on_step=view.look)
    view.speed.told       # "24 tokens in 0.31 s, 77 tokens a second"

Tokens of the prompt are dim, masks are dots, what the latest pass wrote is bold. Brackets ring a key that is a sink by
the excess rule (scale sum, epsilon 3) in at least an eighth of all layers and heads, bold ones in at least a third.
Colour is an addition. Where nobody watches nothing is drawn and nothing is looked at.

Misleads: what is ringed is what the pass just made received. Of an autoregressive model that is one query's attention,
the newest one's, after the first pass. Steps of small models are slowed down, so that they can be seen; the speed that
is told is that of the model alone, watched.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live as Display
from rich.text import Text

from sinkscope.cli import console

if TYPE_CHECKING:
    import torch

    from sinkscope.attention.watching import Watched
    from sinkscope.decoding import Step
    from sinkscope.families import Model

Live = Annotated[bool, typer.Option("--live", help="Draw the canvas and its sinks, pass by pass; on a terminal alone.")]

LEAST_SECONDS = 0.06
"""That a step is shown."""
RINGED, RINGED_STRONGLY = 1 / 8, 1 / 3
"""Shares of layers and heads from which on a key is ringed."""
_EPSILON = 3.0
_PROMPT, _MASK, _NEW, _SINK, _STRONG = "dim", "dim cyan", "bold green", "color(202)", "bold color(202)"
_SPACED = "Ġ", "▁"
"""How tokens are spelled that hold the space before them."""


class Speed:
    """Tokens written and seconds that the passes took; what is drawn between them does not count."""

    def __init__(self) -> None:
        self.tokens, self.seconds = 0, 0.0
        self.go_on()

    def go_on(self) -> None:
        """The next pass begins now."""
        self._since = time.perf_counter()

    def count(self, step: Step) -> None:
        """A pass has ended."""
        self.tokens += int((step.committed & step.takes_part.unsqueeze(-1)).sum())
        self.seconds += time.perf_counter() - self._since

    @property
    def rate(self) -> float:
        """Tokens a second; 0 before the first pass."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def told(self) -> str:
        return f"{console.counted(self.tokens, 'token')} in {self.seconds:.2f} s, {self.rate:.3g} tokens a second"

    def to_dict(self) -> dict[str, float]:
        return {"tokens": self.tokens, "seconds": self.seconds, "tokens_per_second": self.rate}


class CanvasView:
    """What `generate` tells of each step."""

    def __init__(self, model: Model, watched: Watched | None, live: Display | None) -> None:
        self._model = model
        self._watched = watched
        self._live = live
        self._padding: list[int] | None = None  # columns left of each row's text
        self._given: torch.Tensor | None = None  # (batch, position) what stood there before the first pass
        self._texts: dict[int, str] = {}
        self._separator = _separator(model)
        self.speed = Speed()

    def begin(self) -> None:
        """Other texts come now."""
        self._padding = self._given = None
        self.speed.go_on()

    def look(self, step: Step) -> None:
        """Take a step, and show it where somebody watches."""
        self.speed.count(step)
        if self._live is not None and self._watched is not None:
            began = time.perf_counter()
            self._live.update(self.picture(step), refresh=True)
            time.sleep(max(0.0, LEAST_SECONDS - (time.perf_counter() - began)))
        self.speed.go_on()

    def picture(self, step: Step) -> Group:
        """The canvas of every row after a step, the sinks of its pass, and what the letters mean."""
        shares, rows = self._shares(step), list[Text]()
        if self._given is None:
            mask = self._model.family.mask_token_id
            self._given = step.seen != (-1 if mask is None else mask)
        given = self._given.tolist()
        for row, (tokens, committed, share) in enumerate(zip(step.canvas, step.committed, shares, strict=True)):
            line, padding = Text(), 0 if self._padding is None else self._padding[row]
            for column in range(padding, step.canvas.shape[1]):
                written = self._written(int(tokens[column]))
                prompt = column < len(given[row]) and given[row][column]
                style = _NEW if committed[column] else _MASK if written == "·" else _PROMPT if prompt else ""
                line.append_text(_ringed(written, float(share[column]), style)).append(self._separator)
            rows.append(line)
        status = f"pass {step.index + 1}, block {step.block}, {self.speed.told}"
        return Group(*rows, Text(status, style="dim"), legend())

    def _shares(self, step: Step) -> Any:
        """Of each column, the share of layers and heads in which it is a sink: (batch, position)."""
        import numpy as np
        import xarray as xr

        from sinkscope.sinks import Excess

        assert self._watched is not None
        received = self._watched.received.transpose(0, 1).double().cpu().numpy()[: len(step.canvas)]
        there: Any = (received > 0).any((1, 2))  # (row, key): padding receives nothing, nor what was forgotten
        if self._padding is None:  # all rows take part in the first pass
            self._padding = there.argmax(1).tolist()
        values = np.where(there[:, None, None], received, np.nan)
        marks = Excess(epsilon=_EPSILON, scale="sum").marks(
            xr.DataArray(values, dims=("row", "layer", "head", "position"))
        )
        shares = np.zeros(tuple(step.canvas.shape))
        last, keys = step.seen.shape[1], received.shape[-1]
        shares[:, last - keys : last] = marks.mean(("layer", "head")).transpose("row", "position").values
        return shares

    def _written(self, token: int) -> str:
        """A token as it reads; a mask as a dot."""
        if token == self._model.family.mask_token_id:
            return "·"
        if token not in self._texts:
            self._texts[token] = _text(self._model, token)
        return self._texts[token]


def _text(model: Model, token: int) -> str:
    from sinkscope.sinks.lexicon import plain_text

    spelled = None if model.tokenizer is None else model.tokenizer.convert_ids_to_tokens(token)
    text = str(token) if spelled is None else plain_text(str(spelled))
    return text.replace("\n", "⏎")


def _separator(model: Model) -> str:
    """What stands between tokens: nothing where they hold their spaces."""
    vocabulary = () if model.tokenizer is None else model.tokenizer.get_vocab()
    return "" if any(token.startswith(_SPACED) for token in vocabulary) else " "


def _ringed(text: str, share: float, style: str) -> Text:
    """A token, in brackets where it is a sink; a space before it stays outside."""
    if share < RINGED:
        return Text(text, style=style)
    space = " " if text.startswith(" ") and text.strip() else ""
    ring = _STRONG if share >= RINGED_STRONGLY else _SINK
    return Text.assemble(space, ("(", ring), (text.removeprefix(space), style or ring), (")", ring))


def legend() -> Text:
    """What the letters mean, in a line."""
    return Text.assemble(
        ("prompt ", _PROMPT), ("· mask ", _MASK), ("just written ", _NEW),
        ("(sink) ", _SINK), ("in an eighth of layers and heads, ", "dim"), ("(sink) ", _STRONG), ("in a third", "dim"),
    )  # fmt: skip


@contextmanager
def live_view(model: Model, *, shown: bool) -> Iterator[CanvasView]:
    """What to give each step of a generation to. shown: draw it on standard error, if that is a terminal."""
    if not (shown and console.err.is_terminal):
        yield CanvasView(model, None, None)
        return
    from sinkscope.attention import watch

    with watch(model) as watched, Display(console=console.err, auto_refresh=False, vertical_overflow="crop") as live:
        yield CanvasView(model, watched, live)
