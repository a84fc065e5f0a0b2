"""Options for what is done to keys: masked in attention, dropped from the cache.

An option that nothing heeds is refused: who gives it believes that it does something.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from sinkscope.cli.choices import (
    CLASSES,
    CONTROLS,
    DEFAULT_RATIOS,
    DEFAULT_SCORERS,
    DETECT,
    DETECT_FROM,
    EVICTION_POINTS,
    GROUPS,
    HOW,
    REFERENCES,
    REFRESH_RULES,
    RULES,
    SCORERS,
    check_names,
    check_specs,
)
from sinkscope.cli.groups import OptionGroup, option_name
from sinkscope.cli.options import MOST, Names, many, names, numbers, positive, seed_of, whole_numbers
from sinkscope.errors import UserError

if TYPE_CHECKING:
    from sinkscope.compression import Compress
    from sinkscope.experiments.eviction import EvictionGrid
    from sinkscope.experiments.masking import MaskingGrid
    from sinkscope.interventions import MaskSinks
    from sinkscope.sinks import SinkRule

_STRONGEST, _CONTROLS = ("0,1,5,10",), ("random,equal-mass",)
_RATIOS, _SCORERS = ",".join(f"{ratio:g}" for ratio in DEFAULT_RATIOS), ",".join(DEFAULT_SCORERS)
"""Where they are left out."""
_RANDOM = "random"
_SPECS = "parameters as in snapkv:window=32,kernel=7"
_WHEN = "; ".join(f"{name}: {about}" for name, about in EVICTION_POINTS.items())


def _refuse_given(options: OptionGroup, why: str) -> None:
    """Raise `UserError`, with the first option of the group that is given, where nothing heeds them."""
    given = [one.name for one in fields(options) if vars(options)[one.name] != one.default]
    if given:
        raise UserError(f"{option_name(given[0])} {why}")


@dataclass(frozen=True, kw_only=True)
class MaskingOptions(OptionGroup):
    """Where and how keys are masked, as options."""

    panel: ClassVar[str] = "How keys are masked"

    detect: Annotated[str, typer.Option(help=f"Map of which step shows the sinks: {' or '.join(DETECT)}.")] = "previous"
    detect_from: Annotated[
        str, typer.Option(help=f"{' or '.join(DETECT_FROM)}: the run itself, or an unharmed copy of it.")
    ] = "masked"
    how: Annotated[
        str,
        typer.Option(
            help=f"{' or '.join(HOW)}: scores to -inf; values to zero, to their mean over a reference, or to those of "
            "one of its texts."
        ),
    ] = "scores"
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Texts for --how mean and resample: FILE.jsonl with prompts, another file with one text a line, or "
            f"{', '.join(REFERENCES)}.",
        ),
    ] = None
    first_step: Annotated[int, typer.Option(min=0, help="First step that is masked.")] = 1
    last_step: Annotated[int | None, typer.Option(min=0, help="Last step that is masked.")] = None
    mask_layers: Annotated[Names, many("0,5,...", "Layers to mask; all.")] = None
    mask_heads: Annotated[Names, many("0,5,...", "Heads to mask; all.")] = None
    mask_queries: Annotated[Names, many("NAME,...", f"Queries that lose the keys: {', '.join(GROUPS)}.")] = None
    mask_classes: Annotated[Names, many("NAME,...", f"Token classes that are masked: {', '.join(CLASSES)}.")] = None
    mask_seed: Annotated[int, seed_of("Seed of the controls' draws, and of the text resampled.")] = 0

    def __post_init__(self) -> None:
        check_names("--detect", [self.detect], DETECT)
        check_names("--detect-from", [self.detect_from], DETECT_FROM)
        check_names("--how", [self.how], HOW)
        check_names("group of queries", names("--mask-queries", self.mask_queries), GROUPS)
        check_names("class of tokens", names("--mask-classes", self.mask_classes), CLASSES)
        whole_numbers("--mask-layers", self.mask_layers), whole_numbers("--mask-heads", self.mask_heads)

    def masking(self, keys: SinkRule | int = 1, control: str | None = None) -> MaskSinks:
        """The intervention that masks so many keys, or the sinks of a rule, or a control in their place."""
        from sinkscope.evaluation.texts import reference_texts
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
            reference=None if self.reference is None else reference_texts(self.reference),
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

    plugins: ClassVar[bool] = True

    mask: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help=f"Mask the sinks of a rule: top-k:5, first:1, excess:epsilon=3,scale=sum; {', '.join(RULES)}.",
        ),
    ] = None
    mask_control: Annotated[
        str | None, typer.Option(help=f"Mask other keys in their place: {', '.join(CONTROLS)}.")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("control", [] if self.mask_control is None else [self.mask_control], CONTROLS)
        if self.mask is not None:
            check_specs("sink rule", [self.mask], RULES)
        else:
            _refuse_given(self, "says how to mask, but not what; add --mask top-k:5, say")

    def intervention(self) -> MaskSinks | None:
        """None where nothing is to be masked."""
        if self.mask is None:
            return None
        from sinkscope.interventions import read_keys

        masking = self.masking(read_keys(self.mask), self.mask_control)
        return None if masking.idle and self.mask_control is None else masking


@dataclass(frozen=True, kw_only=True)
class VariedMasking(OptionGroup):
    """The conditions of an ablation."""

    panel: ClassVar[str] = "What is masked"
    plugins: ClassVar[bool] = True

    strongest: Annotated[
        list[str] | None,
        typer.Option(
            "--strongest", "--top-k", metavar="0,1,...",
            help=f"So many of the strongest keys, as --rule top-k:5; {_STRONGEST[0]} where no rule is named either.",
        ),
    ] = None  # fmt: skip
    rule: Annotated[
        Names,
        many("RULE,...", f"Sinks of these rules: excess:epsilon=3,scale=sum or first:1, say; {', '.join(RULES)}."),
    ] = None
    control: Annotated[
        Names, many("NAME,...", f"Controls, or none: {', '.join(CONTROLS)}; {_CONTROLS[0]} if left out.")
    ] = None
    draws: Annotated[int | None, positive("Draws of every random control; 1 if left out.")] = None

    def __post_init__(self) -> None:
        check_names("control", self._controls, CONTROLS)
        whole_numbers("--strongest", self.strongest)
        check_specs("sink rule", self.rule or (), RULES)

    @property
    def _controls(self) -> list[str]:
        return [name for name in names("--control", self.control or _CONTROLS) if name != "none"]

    def grid(self, masking: MaskSinks, compression: Compress | None) -> MaskingGrid:
        """What is varied. Raises `UserError` for draws of nothing, and for what no model could follow."""
        from sinkscope.discovery import split_specs
        from sinkscope.evaluation import KeysCondition
        from sinkscope.experiments.masking import MaskingGrid
        from sinkscope.interventions import read_keys

        rules = [read_keys(spec) for spec in split_specs(self.rule or ())]
        strongest = whole_numbers("--strongest", self.strongest or (() if rules else _STRONGEST))
        grid = MaskingGrid(
            keys=(*strongest, *rules),
            controls=self._controls,
            draws=self.draws or 1,
            masking=masking,
            beside=KeysCondition(compression=compression),
        )
        drawn = [one for one in grid.conditions(None) if one.intervention is not None and one.intervention.draws]
        if self.draws is not None and not drawn:
            raise UserError("--draws is of random controls, and none is in --control: add random, or leave --draws out")
        return grid


@dataclass(frozen=True, kw_only=True)
class WhenOptions(OptionGroup):
    """When keys are dropped."""

    panel: ClassVar[str] = "What is dropped"

    when: Annotated[str | None, typer.Option(help=f"{_WHEN}. The first that fits.")] = None
    prune_after: Annotated[int | None, positive("Keys that may pile up before a layer is cut (--when decode).")] = None
    protect_first: Annotated[int, typer.Option(min=0, max=MOST, help="First tokens that always stay.")] = 0
    protect_recent: Annotated[int, typer.Option(min=0, max=MOST, help="Latest tokens that always stay.")] = 0

    def __post_init__(self) -> None:
        if self.when is not None and self.when not in EVICTION_POINTS:
            raise UserError(f"--when must be one of {', '.join(EVICTION_POINTS)}, got {self.when!r}")


@dataclass(frozen=True, kw_only=True)
class VariedDropping(WhenOptions):
    """The conditions of a comparison of caches."""

    plugins: ClassVar[bool] = True

    scorer: Annotated[Names, many("SCORER,...", f"{', '.join(SCORERS)}; {_SPECS}. {_SCORERS} if left out.")] = None
    ratio: Annotated[Names, many("1,0.5,...", f"Shares of the keys that stay; {_RATIOS} if left out.")] = None
    tokens: Annotated[Names, many("64,...", "Also numbers of keys that stay.")] = None
    budget: Annotated[
        Names,
        many(
            "BUDGET,...",
            "Other budgets: sinks:epsilon=3,window=32, the sinks of a rule (rule=top-k,k=2) and the last tokens, "
            "say. The ratios are then left out unless they are given.",
        ),
    ] = None
    caches: Annotated[
        Names,
        many(
            "NAME,...",
            f"Caches of a diffusion model with all keys beside one another: none, prefix, dual, "
            f"{', '.join(REFRESH_RULES)}; parameters as in dkv:refresh=4. Keys are then dropped by a --scorer that is "
            "named alone.",
        ),
    ] = None
    skip_layers: Annotated[
        Names, many("0,1|none", "A set of layers that keep all keys; repeated, each set is run.")
    ] = None
    draws: Annotated[int | None, positive("Draws of random keys; 1 if left out.")] = None
    drop_seed: Annotated[int | None, seed_of("Seed of random keys; 0 if left out.")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        named = check_specs("scorer", self.scorer or (), SCORERS)
        check_specs("cache", self.caches or (), ("none", "prefix", "dual", *REFRESH_RULES))
        for option, value in (("--draws", self.draws), ("--drop-seed", self.drop_seed)):
            if value is not None and self.scorer is not None and _RANDOM not in named:
                raise UserError(
                    f"{option} is of random keys, and none are drawn: add {_RANDOM} to --scorer, or leave it out"
                )

    def grid(self, intervention: MaskSinks | None) -> EvictionGrid:
        """What is varied. Raises `UserError` for values that no model could follow."""
        from sinkscope.compression import Ratio, Tokens, read_budget_spec, read_scorer
        from sinkscope.discovery import split_specs
        from sinkscope.evaluation import KeysCondition
        from sinkscope.experiments.eviction import EvictionGrid

        others = [read_budget_spec(spec) for spec in split_specs(self.budget or ())]
        ratios = numbers("--ratio", self.ratio or ([] if others else [_RATIOS]))
        tokens = whole_numbers("--tokens", self.tokens)
        caches = split_specs(self.caches or ())
        scorers = self.scorer or ([] if caches else [_SCORERS])
        grid = EvictionGrid(
            scorers=[read_scorer(spec) for spec in split_specs(scorers)],
            caches=caches,
            budgets=[*map(Ratio, ratios), *map(Tokens, tokens), *others],
            skips=[_skipped(text) for text in self.skip_layers or ["none"]],
            protect_first=self.protect_first,
            protect_recent=self.protect_recent,
            prune_after=self.prune_after,
            draws=1 if self.draws is None else self.draws,
            seed=self.drop_seed or 0,
            beside=KeysCondition(intervention),
        )
        if self.when is not None:
            grid.conditions(self.when)
        return grid


@dataclass(frozen=True, kw_only=True)
class OneDropping(WhenOptions):
    """One way to drop keys, or none."""

    plugins: ClassVar[bool] = True

    drop: Annotated[
        str | None, typer.Option(metavar="SCORER", help=f"Drop keys meanwhile: {', '.join(SCORERS)}; {_SPECS}.")
    ] = None
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="ratio:0.5|tokens:64|sinks:3",
            help="Keys that stay where some are dropped; ratio:0.5 if left out.",
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drop is not None:
            check_specs("scorer", [self.drop], SCORERS)
        else:
            _refuse_given(self, "says how to drop keys, but not which; add --drop key-norm, say")

    def compression(self) -> Compress | None:
        """None where nothing is to be dropped. Raises `UserError` for values that no model could follow."""
        if self.drop is None:
            return None
        from sinkscope.compression import Compress, Protect, read_budget_spec, read_scorer

        scorer = read_scorer(self.drop)
        if self.protect_first or self.protect_recent:
            scorer = Protect(scorer, first=self.protect_first, recent=self.protect_recent)
        if (self.when == "decode") != (self.prune_after is not None):
            raise UserError("--when decode and --prune-after go together; give both or neither")
        return Compress(
            scorer,
            read_budget_spec(self.budget or "ratio:0.5"),
            when="prompt" if self.prune_after is None else "decode",
            prune_after=self.prune_after,
        )


def _skipped(text: str) -> tuple[int, ...]:
    return () if text == "none" else whole_numbers("--skip-layers", [text])
