"""Options for dropping keys from the cache, and for what that is measured on.

An option that nothing heeds is refused: who gives it believes that it does something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from sinkscope.cli.choices import (
    CACHES,
    COMPRESSED,
    DEFAULT_RATIOS,
    DEFAULT_SCORERS,
    ROOM,
    SCORERS,
    WAYS,
    WINDOW,
    check_names,
)
from sinkscope.cli.groups import OptionGroup, option_name
from sinkscope.cli.options import MOST, BatchSize, names, numbers, whole_numbers
from sinkscope.cli.options import Examples as NumberOfExamples
from sinkscope.errors import UserError
from sinkscope.seeds import MOST_SEED

if TYPE_CHECKING:
    from sinkscope.evaluation.compressed import Choice, Grid
    from sinkscope.families import Model

_RATIOS = ",".join(f"{ratio:g}" for ratio in DEFAULT_RATIOS)
_SCORERS = ",".join(DEFAULT_SCORERS)
_CONTROL, _CACHE = "random", "dual"
_HEEDED: Mapping[str, str] = MappingProxyType(
    {name: name for name in ("seed", "room", "texts", "window", "lengths", "depths")}
    | {"cache": "blocks", "block_length": "blocks"}
)
"""Options by what a measure `takes`."""


@dataclass(frozen=True, kw_only=True)
class DroppingOptions(OptionGroup):
    """Which keys are dropped, how many of them and when."""

    panel: ClassVar[str] = "What is dropped"

    scorer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,...",
            help=f"{', '.join(SCORERS)}; parameters as in snapkv:window=32:kernel=7. {_SCORERS} if left out.",
        ),
    ] = None
    ratio: Annotated[
        list[str] | None,
        typer.Option(metavar="1,0.5,...", help=f"Shares of the keys that stay; {_RATIOS} if left out."),
    ] = None
    tokens: Annotated[list[str] | None, typer.Option(metavar="64,...", help="Also numbers of keys that stay.")] = None
    when: Annotated[
        str | None,
        typer.Option(help=f"{'; '.join(f'{name}: {about}' for name, about in WAYS.items())}. The first that fits."),
    ] = None
    skip_layers: Annotated[
        list[str] | None,
        typer.Option(metavar="0,1|none", help="A set of layers that keep all keys; repeated, each set is run."),
    ] = None
    protect_first: Annotated[int, typer.Option(min=0, max=MOST, help="First tokens that always stay.")] = 0
    protect_recent: Annotated[int, typer.Option(min=0, max=MOST, help="Latest tokens that always stay.")] = 0
    prune_after: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Keys that may pile up before a layer is cut (--when decode).")
    ] = None
    draws: Annotated[int | None, typer.Option(min=1, max=MOST, help="Draws of random keys; 1 if left out.")] = None
    drop_seed: Annotated[int | None, typer.Option(min=0, max=MOST_SEED, help="Seed of random keys; 0 if left out.")] = (
        None
    )

    def __post_init__(self) -> None:
        names_and_settings = [_parted(text) for text in names("--scorer", self.scorer)]
        check_names("scorer", [name for name, _ in names_and_settings], SCORERS)
        drawn = self.scorer is None or any(name == _CONTROL for name, _ in names_and_settings)
        for option, value in (("--draws", self.draws), ("--drop-seed", self.drop_seed)):
            if value is not None and not drawn:
                raise UserError(
                    f"{option} is of random keys, and none are drawn: add {_CONTROL} to --scorer, or leave it out"
                )
        if self.when is not None and self.when not in WAYS:
            raise UserError(f"--when must be one of {', '.join(WAYS)}, got {self.when!r}")

    def grid(self) -> Grid:
        """What is varied. Raises `UserError` for values that no model could follow."""
        from sinkscope.compression import Ratio, Tokens, make_scorer
        from sinkscope.evaluation.compressed import Grid

        given = [_parted(text) for text in names("--scorer", self.scorer or [_SCORERS])]
        ratios, tokens = numbers("--ratio", self.ratio or [_RATIOS]), whole_numbers("--tokens", self.tokens)
        grid = Grid(
            scorers=[make_scorer(name, **settings) for name, settings in given],
            budgets=[*map(Ratio, ratios), *map(Tokens, tokens)],
            skips=[_skipped(text) for text in self.skip_layers or ["none"]],
            protect_first=self.protect_first,
            protect_recent=self.protect_recent,
            prune_after=self.prune_after,
            draws=1 if self.draws is None else self.draws,
            seed=self.drop_seed or 0,
        )
        if self.when is not None:
            grid.cells_for(self.when)
        return grid


@dataclass(frozen=True, kw_only=True)
class MeasuredOptions(OptionGroup):
    """Which examples, texts and places."""

    panel: ClassVar[str] = "What is measured"

    limit: NumberOfExamples = 200
    seed: Annotated[int | None, typer.Option(min=0, max=MOST_SEED, help="Seed of the examples; 0 if left out.")] = None
    room: Annotated[
        int | None, typer.Option(min=1, max=MOST, help=f"Tokens that an example's text may take; {ROOM} if left out.")
    ] = None
    texts: Annotated[
        str | None, typer.Option(help="Texts of perplexity: little, prose, reactions, or a FILE with one a line.")
    ] = None
    window: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST, help=f"Tokens of a text read together; {WINDOW} if left out. 4/5 of them are compressed."
        ),
    ] = None
    lengths: Annotated[list[str] | None, typer.Option(metavar="256,...", help="Of needle's texts, in tokens.")] = None
    depths: Annotated[list[str] | None, typer.Option(metavar="0,0.5,1", help="Where the needle is, 0 first.")] = None
    cache: Annotated[
        str | None,
        typer.Option(help=f"Block cache of a diffusion model: {' or '.join(CACHES)}; {_CACHE} if left out."),
    ] = None
    block_length: Annotated[int | None, typer.Option(min=1, max=MOST, help="Of a diffusion model's blocks.")] = None
    batch_size: BatchSize = 16

    def __post_init__(self) -> None:
        if self.cache is not None and self.cache not in CACHES:
            raise UserError(f"--cache must be one of {', '.join(CACHES)}, got {self.cache!r}")
        whole_numbers("--lengths", self.lengths), numbers("--depths", self.depths)

    def choice(self, when: str | None) -> Choice:
        """What is measured on."""
        from sinkscope.evaluation.compressed import Blocks, Choice, Examples

        return Choice(
            examples=Examples(
                n=self.limit,
                seed=self.seed or 0,
                room=ROOM if self.room is None else self.room,
                texts=self.texts,
                batch_size=self.batch_size,
            ),
            when=when,
            window=WINDOW if self.window is None else self.window,
            lengths=whole_numbers("--lengths", self.lengths) or None,
            depths=numbers("--depths", self.depths) or None,
            blocks=Blocks(cache=_CACHE if self.cache is None else self.cache, length=self.block_length),
        )

    def check_tasks(self, tasks: Sequence[str]) -> None:
        """Raise `UserError` for an option that none of these tasks, which there are, heeds."""
        from sinkscope.evaluation.compressed import takes

        for option, heeded in _HEEDED.items():
            if getattr(self, option) not in (None, []) and not any(heeded in takes(task, self.texts) for task in tasks):
                there = ", ".join(name for name in COMPRESSED if heeded in takes(name, self.texts))
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


def _parted(text: str) -> tuple[str, dict[str, Any]]:
    """A scorer's name and its parameters: "snapkv:window=32"."""
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
    return name, given


def _skipped(text: str) -> tuple[int, ...]:
    return () if text == "none" else whole_numbers("--skip-layers", [text])
