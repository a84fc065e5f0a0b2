"""Names of what a report shows: a trace's model, what was masked, a token's text.

Texts come as they are: any letter may be among them. Whoever draws or prints them says what can't be shown.
"""

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

import xarray as xr

from sinkscope.sinks import make_rule
from sinkscope.sinks.lexicon import Lexicon, model_attributes


def model_name(sample: xr.Dataset) -> str:
    """The model's name, of a folder the last part."""
    name = str(model_attributes(sample).get("name", "an unnamed model"))
    return PurePath(name).name or name if name.startswith((".", "/", "~")) else name


def masking_of(sample: xr.Dataset) -> str:
    """What was masked while the sample was generated, as what follows the model's name: ", top-5 masked" or nothing."""
    intervention = (sample.attrs.get("sinkscope") or {}).get("intervention")
    return "" if intervention is None else f", {masked_label(intervention)}"


def masked_label(intervention: dict[str, Any]) -> str:
    """What an intervention masks, in a few characters: "top-5 masked", "random for top-5 masked"."""
    keys, control = rule_label(intervention.get("keys", 0)), intervention.get("control")
    return f"{keys} masked" if control is None else f"{control} for {keys} masked"


def rule_label(keys: int | dict[str, Any]) -> str:
    """The rule of an intervention's record in a few characters: "top-5", "excess (epsilon 3, sum)"."""
    if isinstance(keys, int):
        return f"top-{keys}"
    settings = dict(keys)
    return make_rule(str(settings.pop("rule")), **settings).label


def token_text(lexicon: Lexicon, token: int) -> str:
    """A token's text as it reads; a lone byte that is no letter by itself as the tokenizer spells it."""
    spelling, text = lexicon.texts.get(token, ""), lexicon.text(token)
    lone_byte = spelling.startswith("<0x") and len(text) == 1 and not text.isascii()
    return spelling if lone_byte else text


def distinct(labels: Sequence[str], others: Sequence[str]) -> list[str]:
    """The labels, each that stands twice with its other name in parentheses."""
    return [
        f"{label} ({other})" if labels.count(label) > 1 else label for label, other in zip(labels, others, strict=True)
    ]


def distinct_labels(labels: Sequence[str], paths: Sequence[Path]) -> list[str]:
    """The labels of the traces at these paths, each that stands twice with its folder's name, or its whole path."""
    return distinct(distinct(labels, [path.name for path in paths]), [str(path) for path in paths])
