"""Options for dropping keys from the cache, and for what that is measured on.

An option that nothing heeds is refused: who gives it believes that it does something.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

import typer

from sinkscope.cli.groups import OptionGroup
from sinkscope.cli.options import names, numbers, option_name, whole_numbers
from sinkscope.compression import SCORERS, Ratio, Scorer, Tokens, make_scorer
from sinkscope.decoding.settings import CACHES
from sinkscope.errors import UserError
from sinkscope.evaluation import ROOM
from sinkscope.evaluation.compressed import (
    CONTROL,
    DEFAULT_RATIOS,
    DEFAULT_SCORERS,
    MEASURES,
    WAYS,
    Blocks,
    Choice,
    Examples,
    Grid,
    takes,
)
from sinkscope.evaluation.compressed.continuations import WINDOW
from sinkscope.families import Model

_RATIOS = ",".join(f"{ratio:g}" for ratio in DEFAULT_RATIOS)
_HEEDED: Mapping[str, str] = MappingProxyType(
    {name: name for name in ("seed", "room", "texts", "window", "lengths", "depths")}
    | {"cache": "blocks", "block_length": "blocks"}
)
"""Options by what a measure `takes`."""


@dataclass(frozen=True, kw_only=True)
class DroppingOptions(OptionGroup):
    """Which keys are dropped, how many of them and when."""

    scorer: Annotated[
        str,
        typer.Option(
            metavar="NAME,...", help=f"{', '.join(sorted(SCORERS))}; parameters as in snapkv:window=32:kernel=7."
        ),
    ] = ",".join(DEFAULT_SCORERS)
    ratio: Annotated[str, typer.Option(metavar="1,0.5,...", help="Shares of the keys that stay.")] = _RATIOS
    tokens: Annotated[str | None, typer.Option(metavar="64,...", help="Also numbers of keys that stay.")] = None
    when: Annotated[
        str | None,
        typer.Option(help=f"{'; '.join(f'{way.name}: {way.about}' for way in WAYS.values())}. The first that fits."),
    ] = None
    skip_layers: Annotated[
        list[str] | None,
        typer.Option(metavar="0,1|none", help="Layers that keep all keys. May be repeated: each set is run."),
    ] = None
    protect_first: Annotated[int, typer.Option(min=0, help="First tokens that always stay.")] = 0
    protect_recent: Annotated[int, typer.Option(min=0, help="Latest tokens that always stay.")] = 0
    prune_after: Annotated[
        int | None, typer.Option(min=1, help="Keys that may pile up before a layer is cut (--when decode).")
    ] = None
    draws: Annotated[int | None, typer.Option(min=1, help="Draws of random keys; 1 if left out.")] = None
    drop_seed: Annotated[int, typer.Option(help="Seed of random keys.")] = 0

    def grid(self) -> Grid:
        """What is varied. Raises `UserError` for values that no model could follow, and for draws of nothing."""
        scorers = [_scorer(text) for text in names("--scorer", self.scorer)]
        if self.draws is not None and not any(one.name == CONTROL for one in scorers):
            raise UserError(
                f"--draws is of random keys, and none are drawn: add {CONTROL} to --scorer, or leave it out"
            )
        tokens = () if self.tokens is None else whole_numbers("--tokens", self.tokens)
        grid = Grid(
            scorers=scorers,
            budgets=[*map(Ratio, numbers("--ratio", self.ratio)), *map(Tokens, tokens)],
            skips=[_skipped(text) for text in self.skip_layers or ["none"]],
            protect_first=self.protect_first,
            protect_recent=self.protect_recent,
            prune_after=self.prune_after,
            draws=1 if self.draws is None else self.draws,
            seed=self.drop_seed,
        )
        if self.when is not None and self.when in WAYS:
            grid.cells_for(self.when)
        return grid


@dataclass(frozen=True, kw_only=True)
class MeasuredOptions(OptionGroup):
    """Which examples, texts and places."""

    n: Annotated[int, typer.Option("--n", "--limit", min=1, help="Examples of each task.")] = 200
    seed: Annotated[int | None, typer.Option(help="Seed of the examples; 0 if left out.")] = None
    room: Annotated[
        int | None, typer.Option(min=1, help=f"Tokens that an example's text may take; {ROOM} if left out.")
    ] = None
    texts: Annotated[
        str | None, typer.Option(help="Texts of perplexity: little, prose, reactions, or a FILE with one a line.")
    ] = None
    window: Annotated[
        int | None,
        typer.Option(min=1, help=f"Tokens of a text read together; {WINDOW} if left out. 4/5 of them are compressed."),
    ] = None
    lengths: Annotated[str | None, typer.Option(metavar="256,...", help="Of needle's texts, in tokens.")] = None
    depths: Annotated[str | None, typer.Option(metavar="0,0.5,1", help="Where the needle is, 0 first.")] = None
    cache: Annotated[
        str | None,
        typer.Option(help=f"Block cache of a diffusion model: {' or '.join(CACHES)}; {Blocks.cache} if left out."),
    ] = None
    block_length: Annotated[int | None, typer.Option(min=1, help="Of a diffusion model's blocks.")] = None
    batch_size: Annotated[int, typer.Option(min=1, help="Examples run together.")] = 16

    def choice(self, when: str | None) -> Choice:
        """What is measured on. Raises `UserError` for an unknown cache, and for what are no numbers."""
        cache = Blocks.cache if self.cache is None else self.cache
        if cache not in CACHES:
            raise UserError(f"--cache must be one of {', '.join(CACHES)}, got {cache!r}")
        return Choice(
            examples=Examples(
                n=self.n,
                seed=self.seed or 0,
                room=ROOM if self.room is None else self.room,
                texts=self.texts,
                batch_size=self.batch_size,
            ),
            when=when,
            window=WINDOW if self.window is None else self.window,
            lengths=None if self.lengths is None else whole_numbers("--lengths", self.lengths),
            depths=None if self.depths is None else numbers("--depths", self.depths),
            blocks=Blocks(cache=cache, length=self.block_length),
        )

    def check_tasks(self, tasks: Sequence[str]) -> None:
        """Raise `UserError` for an option that none of these tasks, which there are, heeds."""
        for option, heeded in _HEEDED.items():
            if getattr(self, option) is not None and not any(heeded in takes(task, self.texts) for task in tasks):
                there = ", ".join(name for name in MEASURES if heeded in takes(name, self.texts))
                raise UserError(
                    f"{option_name(option)} does nothing for --task {', '.join(tasks)}: it is for {there}; leave it out"
                )

    def check_models(self, models: Sequence[Model]) -> None:
        """Raise `UserError` for an option that none of these models heeds."""
        if any(model.family.bidirectional for model in models):
            return
        for option, heeded in _HEEDED.items():
            if heeded == "blocks" and getattr(self, option) is not None:
                named = ", ".join(model.name for model in models)
                raise UserError(
                    f"{option_name(option)} is for block caches of diffusion models, and {named} has none; leave it out"
                )


def _scorer(text: str) -> Scorer:
    """A scorer with its parameters: "snapkv:window=32"."""
    name, *parts = text.split(":")
    given: dict[str, Any] = {}
    for part in parts:
        key, _, value = part.partition("=")
        try:
            given[key] = int(value)
        except ValueError:
            raise UserError(
                f"--scorer takes parameters as name:parameter=number, snapkv:window=32 for example; got {text!r}"
            ) from None
    return make_scorer(name, **given)


def _skipped(text: str) -> tuple[int, ...]:
    return () if text == "none" else whole_numbers("--skip-layers", text)
