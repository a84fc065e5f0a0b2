"""Options for masking sinks while a model generates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from sinkscope.cli.choices import CLASSES, CONTROLS, DETECT, DETECT_FROM, GROUPS, HOW, check_names
from sinkscope.cli.groups import OptionGroup, option_name
from sinkscope.cli.options import names, whole_numbers
from sinkscope.errors import UserError
from sinkscope.seeds import MOST_SEED

if TYPE_CHECKING:
    from sinkscope.interventions import MaskSinks
    from sinkscope.sinks import SinkRule


@dataclass(frozen=True, kw_only=True)
class MaskingOptions(OptionGroup):
    """Where and how keys are masked, as options."""

    panel: ClassVar[str] = "How keys are masked"

    detect: Annotated[str, typer.Option(help=f"Map of which step shows the sinks: {' or '.join(DETECT)}.")] = "previous"
    detect_from: Annotated[
        str, typer.Option(help=f"{' or '.join(DETECT_FROM)}: the run itself, or an unharmed copy of it.")
    ] = "masked"
    how: Annotated[str, typer.Option(help=f"{' or '.join(HOW)}: to -inf, or to zero with scores kept.")] = "scores"
    first_step: Annotated[int, typer.Option(min=0, help="First step that is masked.")] = 1
    last_step: Annotated[int | None, typer.Option(min=0, help="Last step that is masked.")] = None
    mask_layers: Annotated[list[str] | None, typer.Option(metavar="0,5,...", help="Layers to mask; all.")] = None
    mask_heads: Annotated[list[str] | None, typer.Option(metavar="0,5,...", help="Heads to mask; all.")] = None
    mask_queries: Annotated[
        list[str] | None, typer.Option(metavar="NAME,...", help=f"Queries that lose the keys: {', '.join(GROUPS)}.")
    ] = None
    mask_classes: Annotated[
        list[str] | None, typer.Option(metavar="NAME,...", help=f"Token classes that are masked: {', '.join(CLASSES)}.")
    ] = None
    mask_seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Seed of the controls' draws.")] = 0

    def __post_init__(self) -> None:
        check_names("--detect", [self.detect], DETECT)
        check_names("--detect-from", [self.detect_from], DETECT_FROM)
        check_names("--how", [self.how], HOW)
        check_names("group of queries", names("--mask-queries", self.mask_queries), GROUPS)
        check_names("class of tokens", names("--mask-classes", self.mask_classes), CLASSES)
        whole_numbers("--mask-layers", self.mask_layers), whole_numbers("--mask-heads", self.mask_heads)

    def masking(self, keys: SinkRule | int = 1, control: str | None = None) -> MaskSinks:
        """The intervention that masks so many keys, or the sinks of a rule, or a control in their place."""
        from sinkscope.interventions import MaskSinks

        return MaskSinks(
            keys,
            control=control,
            detect=self.detect,
            detect_from=self.detect_from,
            how=self.how,
            first_step=self.first_step,
            last_step=self.last_step,
            layers=whole_numbers("--mask-layers", self.mask_layers) or None,
            heads=whole_numbers("--mask-heads", self.mask_heads) or None,
            queries=names("--mask-queries", self.mask_queries) or None,
            classes=names("--mask-classes", self.mask_classes) or None,
            seed=self.mask_seed,
        )


def masked_line(removed: Mapping[str, float | None]) -> str:
    """What `MaskingStats.to_dict` says, as a sentence."""
    if removed["keys"] is None:
        return "masked: nothing"
    line = (
        f"masked: {removed['keys']:.1f} keys a layer and head with sinks, {removed['mass']:.1%} of the attention paid"
    )
    return line if not removed["mask_share"] else f"{line}; {removed['mask_share']:.0%} of them mask tokens"


@dataclass(frozen=True, kw_only=True)
class OneMasking(MaskingOptions):
    """A single intervention, or none."""

    mask_strongest: Annotated[
        int | None, typer.Option("--mask-strongest", "--mask-top-k", min=0, help="Mask so many of the strongest keys.")
    ] = None
    mask_first: Annotated[int | None, typer.Option(min=1, help="Mask so many of the first keys: a static sink.")] = None
    mask_epsilon: Annotated[float | None, typer.Option(help="Mask all keys beyond this epsilon (rule excess).")] = None
    mask_control: Annotated[
        str | None, typer.Option(help=f"Mask other keys in their place: {', '.join(CONTROLS)}.")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("control", [] if self.mask_control is None else [self.mask_control], CONTROLS)
        self._asked()

    def intervention(self) -> MaskSinks | None:
        """None where nothing is to be masked."""
        asked = self._asked()
        if asked is None:
            return None
        from sinkscope.sinks import Excess, First

        name, value = asked
        keys: SinkRule | int = int(value)
        if name != "mask_strongest":
            keys = First(int(value)) if name == "mask_first" else Excess(value)
        return self.masking(keys, self.mask_control)

    def _asked(self) -> tuple[str, float] | None:
        """What is masked. Raises `UserError` for options that say how, but not what."""
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
        [one] = asked.items()
        return one


_WHAT = ("mask_strongest", "mask_first", "mask_epsilon")
