"""What commands that show one model take: the model, its pictures, and where a figure goes."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import typer

from sinkscope.cli.choices import CHANNELS, FORMATS, SHIPPED, check_names
from sinkscope.cli.groups import OptionGroup
from sinkscope.cli.options import MOST, finite
from sinkscope.errors import UserError
from sinkscope.files import require_place
from sinkscope.seeds import MOST_SEED

if TYPE_CHECKING:
    from sinkscope.selection.channels import Channel
    from sinkscope.selection.data import Splits
    from sinkscope.selection.saved import Trained

OneModel = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]", help=f"A folder of sinkscope select train, or {' or '.join(SHIPPED)}, which ship."
    ),
]
Part = Annotated[Literal["test", "validation"], typer.Option(help="Which part of the pictures.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists.")]


@dataclass(frozen=True, kw_only=True)
class DataOptions(OptionGroup):
    """Where pictures come from."""

    panel: ClassVar[str] = "Which pictures"

    data: Annotated[
        str | None, typer.Option(help="fashion-mnist, digits, folder:PATH or hub:NAME; what the model was trained on.")
    ] = None
    image_size: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="Scale and crop pictures to this side; for its own data the model's."),
    ] = None
    data_seed: Annotated[
        int | None,
        typer.Option(min=0, max=MOST_SEED, help="Of the parts, where the data have none; as it was in training: 0."),
    ] = None

    def splits(self, trained: Trained) -> Splits:
        """All parts, of the size that the model was trained at where these are its own data."""
        from sinkscope.selection.data import load_images

        _, rows, columns = trained.model.backbone.image_shape
        source = self.data or trained.source
        own = source == trained.source and rows == columns
        size = rows if self.image_size is None and own else self.image_size
        return load_images(source, size=size, seed=self.data_seed or 0)


def notes_on_default(*named: object) -> list[str]:
    """What to say where neither a model nor data were named; nothing otherwise."""
    from sinkscope.selection.data import about_default

    return [] if any(named) else [about_default()]


def open_selective(name: str | None, device: str | None) -> Trained:
    """The model of this name, or the one that ships; on a device."""
    from sinkscope.families.model import parse_device
    from sinkscope.selection.data import default_source
    from sinkscope.selection.saved import load_selective

    place = parse_device(device)
    trained = load_selective(name or default_source())
    trained.model.to(place)
    return trained


def read_channel(text: str) -> Channel:
    """A channel with its parameters: "erasure:loss=0.2". Raises `UserError` for what is none."""
    name, *parts = text.split(":")
    check_names("channel", [name], CHANNELS)
    from sinkscope.selection.channels import find_channel

    takes = signature(type(find_channel(name))).parameters
    given: dict[str, float] = {}
    for part in parts:
        key, _, value = part.partition("=")
        if key not in takes:
            raise UserError(f"the channel {name} has no parameter {key!r}")
        try:
            given[key] = finite(value)
        except ValueError:
            raise UserError(
                f"--channel takes parameters as name:parameter=number, erasure:loss=0.2 for example; got {text!r}"
            ) from None
    return find_channel(name, **given)


def check_figure(out: Path | None, *, overwrite: bool) -> None:
    """Raise `UserError` where a figure can't be written."""
    if out is None:
        return
    if out.suffix.removeprefix(".") not in FORMATS:
        raise UserError(f"{out.name}: figures are written as {', '.join(FORMATS)}; choose one of these endings")
    require_place(out, "the figure", overwrite=overwrite)
