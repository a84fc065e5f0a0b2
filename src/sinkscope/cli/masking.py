"""Options for masking sinks while a model generates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from sinkscope.cli.groups import OptionGroup
from sinkscope.cli.options import names, option_name, whole_numbers
from sinkscope.errors import UserError
from sinkscope.interventions import CONTROLS, DETECT, DETECT_FROM, HOW, MaskSinks
from sinkscope.sinks import CLASSES, GROUPS, Excess, First, SinkRule


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

    def masking(self, keys: SinkRule | int = 1, control: str | None = None) -> MaskSinks:
        """The intervention that masks so many keys, or the sinks of a rule, or a control in their place."""
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


def masked_line(removed: Mapping[str, float | None]) -> str:
    """What `Removed.to_dict` says, as a sentence."""
    if removed["keys"] is None:
        return "masked: nothing"
    line = (
        f"masked: {removed['keys']:.1f} keys a layer and head with sinks, {removed['mass']:.1%} of the attention paid"
    )
    return line if not removed["mask_share"] else f"{line}; {removed['mask_share']:.0%} of them mask tokens"


@dataclass(frozen=True, kw_only=True)
class OneMasking(MaskingOptions):
    """A single intervention, or none."""

    mask_top_k: Annotated[int | None, typer.Option(min=0, help="Mask so many of the strongest keys.")] = None
    mask_first: Annotated[int | None, typer.Option(min=1, help="Mask so many of the first keys: a static sink.")] = None
    mask_epsilon: Annotated[float | None, typer.Option(help="Mask all keys beyond this epsilon (rule excess).")] = None
    mask_control: Annotated[
        str | None, typer.Option(help=f"Mask other keys in their place: {', '.join(sorted(CONTROLS))}.")
    ] = None

    def intervention(self) -> MaskSinks | None:
        """None where nothing is to be masked. Raises `UserError` for options that say how, but not what."""
        asked = {name: vars(self)[name] for name in _WHAT if vars(self)[name] is not None}
        if len(asked) > 1:
            raise UserError(f"give one of {', '.join(map(option_name, asked))}, not {len(asked)}")
        if not asked:
            said = [one.name for one in fields(self) if vars(self)[one.name] != one.default]
            if said:
                raise UserError(
                    f"{option_name(said[0])} says how to mask, but not what; "
                    f"add one of {', '.join(map(option_name, _WHAT))}"
                )
            return None
        [(name, value)] = asked.items()
        return self.masking(_WHAT[name](value), self.mask_control)


_WHAT: Mapping[str, Callable[[Any], SinkRule | int]] = {"mask_top_k": int, "mask_first": First, "mask_epsilon": Excess}
