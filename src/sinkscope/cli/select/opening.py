"""What commands that show one model take: the model, its pictures, and where a figure goes."""

from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Annotated, Literal

import typer

from sinkscope.cli.groups import OptionGroup
from sinkscope.errors import UserError
from sinkscope.families.model import parse_device
from sinkscope.report.figures import FORMATS
from sinkscope.report.outputs import require_place
from sinkscope.seeds import MOST_SEED
from sinkscope.selection.channels import Channel, find_channel
from sinkscope.selection.data import Splits, default_source, load_images
from sinkscope.selection.saved import SHIPPED, Trained, load_selective

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

    data: Annotated[
        str | None, typer.Option(help="fashion-mnist, digits, folder:PATH or hub:NAME; what the model was trained on.")
    ] = None
    image_size: Annotated[
        int | None, typer.Option(min=1, help="Scale and crop pictures to this side; for its own data the model's.")
    ] = None
    data_seed: Annotated[
        int | None,
        typer.Option(min=0, max=MOST_SEED, help="Of the parts, where the data have none; as it was in training: 0."),
    ] = None

    def splits(self, trained: Trained) -> Splits:
        """All parts, of the size that the model was trained at where these are its own data."""
        _, rows, columns = trained.model.backbone.image_shape
        source = self.data or trained.source
        own = source == trained.source and rows == columns
        size = rows if self.image_size is None and own else self.image_size
        return load_images(source, size=size, seed=self.data_seed or 0)


def open_selective(name: str | None, device: str | None) -> Trained:
    """The model of this name, or the one that ships; on a device."""
    place = parse_device(device)
    trained = load_selective(name or default_source())
    trained.model.to(place)
    return trained


def read_channel(text: str) -> Channel:
    """A channel with its parameters: "erasure:loss=0.2". Raises `UserError` for what is none."""
    name, *parts = text.split(":")
    takes = signature(type(find_channel(name))).parameters
    given: dict[str, float] = {}
    for part in parts:
        key, _, value = part.partition("=")
        if key not in takes:
            raise UserError(f"the channel {name} has no parameter {key!r}")
        try:
            given[key] = float(value)
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
