"""Options for dropping keys from the cache, and for what that is measured on."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from sinkscope.cli.groups import OptionGroup
from sinkscope.cli.options import names, numbers, whole_numbers
from sinkscope.compression import SCORERS, Scorer, make_scorer
from sinkscope.decoding.settings import CACHES
from sinkscope.errors import UserError
from sinkscope.evaluation import ROOM
from sinkscope.evaluation.compressed import DEFAULT_RATIOS, DEFAULT_SCORERS, WAYS, Blocks, Choice, Examples, Grid
from sinkscope.evaluation.compressed.continuations import WINDOW

_RATIOS = ",".join(f"{ratio:g}" for ratio in DEFAULT_RATIOS)


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
    draws: Annotated[int, typer.Option(min=1, help="Draws of random keys.")] = 1
    drop_seed: Annotated[int, typer.Option(help="Seed of random keys.")] = 0

    def grid(self) -> Grid:
        """What is varied. Raises `UserError` for values that no model could follow."""
        grid = Grid(
            scorers=[_scorer(text) for text in names("--scorer", self.scorer)],
            budgets=[
                *numbers("--ratio", self.ratio),
                *(whole_numbers("--tokens", self.tokens) if self.tokens is not None else ()),
            ],
            skips=[_skipped(text) for text in self.skip_layers or ["none"]],
            protect_first=self.protect_first,
            protect_recent=self.protect_recent,
            prune_after=self.prune_after,
            draws=self.draws,
            seed=self.drop_seed,
        )
        if self.when is not None and self.when in WAYS:
            grid.cells_for(self.when)
        return grid


@dataclass(frozen=True, kw_only=True)
class MeasuredOptions(OptionGroup):
    """Which examples, texts and places."""

    n: Annotated[int, typer.Option("--n", "--limit", min=1, help="Examples of each task.")] = 200
    seed: Annotated[int, typer.Option(help="Seed of the examples.")] = 0
    room: Annotated[int, typer.Option(min=1, help="Tokens that an example's text may take.")] = ROOM
    texts: Annotated[
        str | None, typer.Option(help="Texts of perplexity: little, prose, reactions, or a FILE with one a line.")
    ] = None
    window: Annotated[int, typer.Option(min=1, help="Tokens of a text read together; 4/5 are compressed.")] = WINDOW
    lengths: Annotated[str | None, typer.Option(metavar="256,...", help="Of needle's texts, in tokens.")] = None
    depths: Annotated[str | None, typer.Option(metavar="0,0.5,1", help="Where the needle is, 0 first.")] = None
    cache: Annotated[str, typer.Option(help=f"Block cache of a diffusion model: {' or '.join(CACHES)}.")] = "dual"
    block_length: Annotated[int | None, typer.Option(min=1, help="Of a diffusion model's blocks.")] = None
    batch_size: Annotated[int, typer.Option(min=1, help="Examples run together.")] = 16

    def choice(self, when: str | None) -> Choice:
        """What is measured on. Raises `UserError` for an unknown cache, and for what are no numbers."""
        if self.cache not in CACHES:
            raise UserError(f"--cache must be one of {', '.join(CACHES)}, got {self.cache!r}")
        return Choice(
            examples=Examples(n=self.n, seed=self.seed, room=self.room, texts=self.texts, batch_size=self.batch_size),
            when=when,
            window=self.window,
            lengths=None if self.lengths is None else whole_numbers("--lengths", self.lengths),
            depths=None if self.depths is None else numbers("--depths", self.depths),
            blocks=Blocks(cache=self.cache, length=self.block_length),
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
