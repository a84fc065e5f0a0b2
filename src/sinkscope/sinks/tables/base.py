"""What a table is: sums over one sample that add up over samples, and what to make of the sums.

A `Table` never holds samples, so a report over ten thousand costs the memory of one. `measure` returns a Dataset of
sums; the sums of two samples are added label by label, a label that one of them lacks counting as 0 there (a shorter
generation has fewer steps, another text other tokens). `finish` turns the total into means.

Weights, unless a table says otherwise: every (sample, step, layer, head) counts once, so samples with more steps weigh
more; steps at which no key exists for the group of queries (it had no query) do not count.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import xarray as xr

from sinkscope.sinks.blocks import by_step_blocks
from sinkscope.sinks.chance import chance_by_step
from sinkscope.sinks.find import EPSILONS, count_keys, named_sinks, named_tops, non_sinks_of, tops
from sinkscope.sinks.lexicon import Lexicon
from sinkscope.sinks.motion import TOP_K, Recall, recall_of_first, summed
from sinkscope.sinks.queries import received_from
from sinkscope.sinks.rules import Excess, KeyCounts, SinkRule
from sinkscope.sinks.scales import checked, existing, keys_of, mean_over

MEAN_EPSILONS = (0.0, 0.01, 0.03, 0.1, 0.3)
"""The sweep on scale "mean", where the published values could not fire."""


def sweep_of(rule: SinkRule) -> tuple[tuple[float, ...], str]:
    """The epsilons of the table `epsilon`, and their scale."""
    scale = rule.scale if isinstance(rule, Excess) else "sum"
    return (MEAN_EPSILONS if scale == "mean" else EPSILONS), scale


@dataclass(frozen=True)
class View:
    """One sample seen through one rule and one group of queries; what several tables need is worked out once."""

    sample: xr.Dataset
    rule: SinkRule
    group: str
    tables: Collection[str] = ()
    """Names of the tables to be made: what they need of every step is worked out while it is in memory"""

    @cached_property
    def received(self) -> xr.DataArray:
        """As it lies in the store: whoever goes through it reads a few steps at a time."""
        return received_from(self.sample, self.group)

    @cached_property
    def exists(self) -> xr.DataArray:
        """The result of `key_exists`."""
        return existing(self.read, self.received)

    @cached_property
    def keys(self) -> KeyCounts:
        return count_keys(self.exists, self.received)

    @cached_property
    def read(self) -> xr.Dataset:
        """What is made of every step by itself, in one reading: unpacking a recording takes longer than most of it.

        `sink` of the rule, the variables of `tops` and of `keys_of`, `mass` of `summed`, `head_mean` of `mean_over`;
        for the tables that show them `recall` of the first `TOP_K` and `non_sinks` and `cells` of `non_sinks_of`.
        """
        recall = Recall(TOP_K)

        def look(part: xr.DataArray) -> xr.Dataset:
            part = checked(part)
            marks = self.rule.marks(part).transpose(*part.dims)
            found = {**tops(part), **keys_of(part), "sink": marks, "mass": summed(part)}
            if "groups" in self.tables and "head" in part.dims:
                found["head_mean"] = mean_over(part, "head")
            if "motion" in self.tables:
                found["recall"] = recall.of(part)
            if "epsilon" in self.tables:
                found |= non_sinks_of(part, *sweep_of(self.rule))
            return xr.Dataset(found)

        return by_step_blocks(look, self.received)

    @cached_property
    def recall(self) -> xr.DataArray:
        """The result of `recall_of_first` for `TOP_K` keys, or as many as every row has."""
        fewest = self.keys.fewest
        return self.read["recall"] if fewest >= TOP_K else recall_of_first(self.received, fewest)

    @cached_property
    def sinks(self) -> xr.DataArray:
        """The result of `mark_sinks`."""
        self.rule.refuse(self.keys)
        return named_sinks(self.read["sink"], self.exists, self.received, self.rule)

    @cached_property
    def positions(self) -> xr.Dataset:
        """The result of `sink_positions`."""
        names = [name for name in self.read if str(name).startswith(("by_", "overall"))]
        return named_tops(self.read[names], self.exists, self.received)

    @cached_property
    def chance(self) -> xr.Dataset:
        """The result of `chance_by_step`, by layer where layers have other keys or heads than others."""
        heads: Any = 1  # that a row is the mean of
        if "head" not in self.received.dims:
            heads = self.sample.coords.get("layer_heads", self.sample.sizes.get("head", 1))
        keys = self.exists.any([dim for dim in ("head",) if dim in self.exists.dims]).sum("position")
        if "layer" not in keys.dims and isinstance(heads, int):
            return chance_by_step(self.sample, self.rule, self.group, keys, heads)
        layers = self.sample["layer"]
        keys, heads = keys.broadcast_like(layers), xr.zeros_like(layers) + heads
        each = [
            chance_by_step(
                self.sample, self.rule, self.group, keys.sel(layer=one, drop=True), int(heads.sel(layer=one))
            )
            for one in layers.values
        ]
        return xr.concat(each, layers)

    @property
    def finest(self) -> str:
        """Name of the finest top positions there are: by head, or by layer where the group has no heads."""
        return "by_head" if "by_head" in self.positions else "by_layer"


@dataclass
class Vocabulary:
    """The texts and special ids met so far, for tables that show tokens; it grows with the vocabulary alone."""

    texts: dict[int, str] = field(default_factory=dict)
    mask_token_id: int | None = None
    special_ids: frozenset[int] = frozenset()

    def learn(self, sample: xr.Dataset) -> None:
        lexicon = Lexicon.of(sample)
        self.texts.update(lexicon.texts)
        self.mask_token_id = lexicon.mask_token_id
        self.special_ids |= lexicon.special_ids

    def learned(self, samples: Iterable[xr.Dataset]) -> Iterator[xr.Dataset]:
        """The samples as they come, their tokens' spellings kept."""
        for sample in samples:
            self.learn(sample)
            yield sample

    def lexicon(self) -> Lexicon:
        return Lexicon(self.texts, self.mask_token_id, self.special_ids, prompt_length=0)


def always(view: View) -> str | None:  # noqa: ARG001 - a table's `missing` takes the view
    """For tables that every sample can fill."""
    return None


@dataclass(frozen=True)
class Table:
    """One table of the report.

    `missing` says in a few words why a sample can't fill the table, or gives None. `stated` gives the rule and the
    parameters that make its numbers, from the report's rule; a group of queries only where it is not the report's.
    """

    name: str
    about: str
    measure: Callable[[View], xr.Dataset]
    finish: Callable[[xr.Dataset, Vocabulary], xr.Dataset]
    missing: Callable[[View], str | None] = always
    stated: Callable[[SinkRule], Mapping[str, Any]] = SinkRule.settings


def needs(*variables: str) -> Callable[[View], str | None]:
    """A `Table.missing` that asks for recorded variables."""

    def missing(view: View) -> str | None:
        absent = [name for name in variables if name not in view.sample]
        return f"{', '.join(absent)} not recorded" if absent else None

    return missing


def add_sums(left: xr.Dataset, right: xr.Dataset) -> xr.Dataset:
    """The sums of two samples together, label by label."""
    left, right = xr.align(left, right, join="outer", fill_value=0)
    return left + right


def per(total: xr.DataArray, count: xr.DataArray) -> xr.DataArray:
    """A mean: `total / count`, NaN where nothing was counted."""
    return total / count.where(count > 0)


def by_layer(values: xr.DataArray, name: str) -> dict[str, xr.DataArray]:
    """Sum and number of the numbers that are there, by layer: `name` and `name_of`."""
    rest = [dim for dim in values.dims if dim != "layer"]
    return {name: values.sum(rest), f"{name}_of": values.notnull().sum(rest)}
