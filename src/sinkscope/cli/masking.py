"""Options for masking sinks while a model generates."""

from dataclasses import dataclass
from typing import Annotated

import typer

from sinkscope.cli.groups import OptionGroup
from sinkscope.cli.options import names, whole_numbers
from sinkscope.errors import UserError
from sinkscope.interventions import CONTROLS, DETECT, DETECT_FROM, HOW, MaskSinks
from sinkscope.sinks import CLASSES, GROUPS


@dataclass(frozen=True, kw_only=True)
class MaskingOptions(OptionGroup):
    """Where and how keys are masked, as options."""

    detect: Annotated[str, typer.Option(help=f"Map of which step shows the sinks: {' or '.join(DETECT)}.")] = "previous"
    detect_from: Annotated[
        str, typer.Option(help=f"{' or '.join(DETECT_FROM)}: the run itself, or an unharmed copy of it.")
    ] = "masked"
    how: Annotated[str, typer.Option(help=f"{' or '.join(HOW)}: to -inf, or to zero with scores kept.")] = "scores"
    first_step: Annotated[int, typer.Option(help="First step that is masked.")] = 1
    last_step: Annotated[int | None, typer.Option(help="Last step that is masked.")] = None
    mask_layers: Annotated[str | None, typer.Option(metavar="0,5,...", help="Layers to mask; all.")] = None
    mask_heads: Annotated[str | None, typer.Option(metavar="0,5,...", help="Heads to mask; all.")] = None
    mask_queries: Annotated[
        str | None, typer.Option(metavar="NAME,...", help=f"Queries that lose the keys: {', '.join(GROUPS)}.")
    ] = None
    mask_classes: Annotated[
        str | None, typer.Option(metavar="NAME,...", help=f"Token classes that are masked: {', '.join(CLASSES)}.")
    ] = None
    mask_seed: Annotated[int, typer.Option(help="Seed of the controls' draws.")] = 0

    def masking(self, keys: int = 1, control: str | None = None) -> MaskSinks:
        """The intervention that masks so many keys, or a control."""
        return MaskSinks(
            keys,
            control=control,
            detect=self.detect,
            detect_from=self.detect_from,
            how=self.how,
            first_step=self.first_step,
            last_step=self.last_step,
            layers=None if self.mask_layers is None else whole_numbers("--mask-layers", self.mask_layers),
            heads=None if self.mask_heads is None else whole_numbers("--mask-heads", self.mask_heads),
            queries=None if self.mask_queries is None else names("--mask-queries", self.mask_queries),
            classes=None if self.mask_classes is None else names("--mask-classes", self.mask_classes),
            seed=self.mask_seed,
        )


@dataclass(frozen=True, kw_only=True)
class OneMasking(MaskingOptions):
    """A single intervention, or none."""

    mask_top_k: Annotated[int, typer.Option(min=0, help="Mask so many of the strongest keys.")] = 0
    mask_control: Annotated[
        str | None, typer.Option(help=f"Mask other keys in their place: {', '.join(sorted(CONTROLS))}.")
    ] = None

    def intervention(self) -> MaskSinks | None:
        """None where nothing is to be masked. Raises `UserError` for a control without a number of keys."""
        if self.mask_control is not None and self.mask_top_k == 0:
            raise UserError(f"--mask-control {self.mask_control} needs --mask-top-k, the number of keys to replace")
        return None if self.mask_top_k == 0 else self.masking(self.mask_top_k, self.mask_control)
