"""Record passes of a module of one's own: any module whose attention `watch` can see.

    # vit.py
    def network():
        return timm.create_model("vit_tiny_patch16_224", pretrained=True).eval(), images     # (batch, 3, 224, 224)

    own = open_module("vit.py:network")
    trace = record_passes(own, out="runs/vit.zarr")

The function gives the module and what to call it with: a tensor, a tuple of positional arguments, a dictionary of named
ones, or a list of such calls, each of them a pass. A row of the batch is a sample, a pass is a step. Where the first
tensor of whole numbers in a call (`input_ids` before others) is (batch, key), positions are its tokens. Else they are
the keys, numbered from 0, and all passes need the same number of them. A third thing, a list of texts, names tokens by
id, or keys.

The module is called as it is, without gradients: whether it drops out, and where it lies, is the function's. Nothing is
generated: nothing is committed, no query belongs to a group, and there is no final pass. Costs: the statistics of a
pass. Misleads: rows of padding count like others unless the call's own mask hides all keys from them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention import Collect, PassStatistics, watch
from sinkscope.decoding import Step
from sinkscope.discovery import call_function
from sinkscope.errors import UserError, refusing
from sinkscope.families import LayerShape
from sinkscope.families.describe import digest_of
from sinkscope.trace.attributes import WRITTEN_BY
from sinkscope.trace.layout import Counts, Layout, Statistics, plan_layout
from sinkscope.trace.planning import Recording
from sinkscope.trace.prompts import check_text
from sinkscope.trace.reading import Trace, open_trace
from sinkscope.trace.rows import BatchRow, heads_by_layer, step_arrays
from sinkscope.trace.store import TraceStore, check_output
from sinkscope.versions import versions_now

_CAUSAL_ENTROPY = 1e-6
"""Nats of a query that sees one key, rounding included."""


@dataclass(frozen=True, kw_only=True)
class OwnModule:
    """A module, the calls that are its passes, and what its tokens or keys are called."""

    name: str
    module: nn.Module
    calls: tuple[tuple[tuple[Any, ...], Mapping[str, Any]], ...]
    texts: tuple[str, ...] = ()


def open_module(spec: str) -> OwnModule:
    """What a function of a Python file gives: `FILE.py:function`. Raises `UserError` as `call_function` does, and for
    what it gives being no module and calls of it."""
    return own_module(call_function(spec), spec)


def own_module(made: object, name: str) -> OwnModule:
    """The module and calls of `(module, calls)` or `(module, calls, texts)`. Raises `UserError` for anything else."""
    match made:
        case (nn.Module() as module, calls, *more) if len(more) <= 1:
            given = calls if isinstance(calls, list) else [calls]
            texts = more[0] if more else ()
        case _:
            raise UserError(
                f"{name} gives {_told(made)}; wanted a torch module and what to call it with: (module, inputs)"
            )
    if not given:
        raise UserError(f"{name} gives a list of no calls; give inputs, or a list of them")
    if not isinstance(texts, Sequence) or isinstance(texts, str) or not all(isinstance(one, str) for one in texts):
        raise UserError(f"{name}: texts are a list of strings, the text of each token id or key; got {_told(texts)}")
    for number, text in enumerate(texts):
        check_text(text, f"{name}: text {number}")
    return OwnModule(name=name, module=module, calls=tuple(_call(one, name) for one in given), texts=tuple(texts))


def _call(inputs: object, name: str) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    match inputs:
        case Tensor():
            return (inputs,), {}
        case tuple():
            return inputs, {}
        case {} if all(isinstance(one, str) for one in inputs):
            return (), inputs
    raise UserError(
        f"{name}: inputs are a tensor, a tuple of arguments, a dictionary of named ones, or a list of such calls; got "
        f"{_told(inputs)}"
    )


def _told(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(one).__name__ for one in value)})"
    return "None" if value is None else f"a {type(value).__name__}"


@torch.no_grad()
def record_passes(
    own: OwnModule, *, out: str | Path, recording: Recording | None = None, overwrite: bool = False
) -> Trace:
    """Make the passes and write a trace at `out`; returns it opened.

    recording: precision, norms, entropy and kernel are heeded. Raises `UserError` for passes that fail or can't be
    seen, and for those of one trace that differ in rows, or in keys where these are no tokens.
    """
    asked = recording or Recording()
    check_output(out, resume=False, overwrite=overwrite)
    first = Collect(norms=True, entropy=True)
    with watch(own.module, first, kernel=asked.kernel) as watched:
        _pass(own, 0)
        plan = _Plan.of(own, watched.last, asked)
        attributes = plan.attributes(list(watched.names))
        with TraceStore.create(out, attributes, overwrite=overwrite) as store:
            writers = [store.sample(row, str(row), plan.layout(), plan.sample) for row in range(plan.rows)]
            watched.collect = Collect(norms=asked.norms, entropy=asked.entropy)
            for number in range(len(own.calls)):
                if number:
                    _pass(own, number)
                step = plan.step(number, watched.last)
                for row, writer in enumerate(writers):
                    place = BatchRow(number=row, padding=0)
                    writer.append(step_arrays(step, number, watched.last, place, plan.kept))
            for row, writer in enumerate(writers):
                passes = [ids[row] for ids in plan.tokens or (step.canvas,)]
                there = set(torch.cat(passes).tolist())
                texts = {str(one): own.texts[one] for one in there if 0 <= one < len(own.texts)}
                # The last of the longest passes: no key of another one lies beyond it.
                sequence = max(reversed(passes), key=len).to(torch.int32).numpy()
                writer.finish({"sequence": sequence}, {"tokens": texts, "text": None}, positions=len(sequence))
    return open_trace(out)


def _pass(own: OwnModule, number: int) -> None:
    given, named = own.calls[number]
    what = f"{own.name}: pass {number + 1} of {len(own.calls)} through {type(own.module).__name__} fails"
    with refusing(what, "mend the module or its inputs"):
        own.module(*given, **named)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What the first pass tells of all of them."""

    own: OwnModule
    recording: Recording
    kept: Statistics
    counts: Counts
    rows: int
    bidirectional: bool
    tokens: tuple[Tensor, ...] | None  # (batch, key) of each pass; None where positions are keys

    @staticmethod
    def of(own: OwnModule, seen: PassStatistics, recording: Recording) -> _Plan:
        layers, rows, heads, keys = seen.received.shape
        assert seen.key_norm is not None
        assert seen.entropy is not None
        ids = [_token_ids(call) for call in own.calls]
        given = tuple(one for one in ids if one is not None)
        tokens = given if len(given) == len(ids) and tuple(given[0].shape) == (rows, keys) else None
        return _Plan(
            own=own,
            recording=recording,
            kept=Statistics(
                precision=recording.precision,
                norms=recording.norms,
                entropy=recording.entropy,
                no_key=seen.no_key is not None,
            ),
            counts=Counts(
                max_steps=len(own.calls),
                layers=layers,
                heads=heads,
                kv_heads=seen.key_norm.shape[2],
                positions=keys if tokens is None else max(one.shape[1] for one in tokens),
                attending=_differing(seen),
            ),
            rows=rows,
            bidirectional=bool((seen.entropy[..., 0] > _CAUSAL_ENTROPY).any()),
            tokens=tokens,
        )

    def layout(self) -> Layout:
        return plan_layout(self.counts, self.kept)

    @property
    def sample(self) -> dict[str, Any]:
        """Attributes of a sample: what was given is all there is."""
        return {"prompt_length": 0 if self.tokens is None else self.tokens[0].shape[1], "seed": 0}

    def step(self, number: int, seen: PassStatistics) -> Step:
        """The pass as a step in which nothing is committed."""
        rows, keys = seen.received.shape[1], seen.received.shape[-1]
        heads, wanted_heads = heads_by_layer(seen.received), [one.heads for one in self.counts.each]
        if heads != wanted_heads:
            raise UserError(
                f"{self.own.name}: pass {number + 1} attends with {heads} heads by layer, the first with "
                f"{wanted_heads}; record such passes apart"
            )
        ids = torch.arange(keys).expand(rows, keys) if self.tokens is None else self.tokens[number]
        if rows != self.rows or tuple(ids.shape) != (rows, keys) or keys > self.counts.positions:
            wanted = "its tokens" if self.tokens is not None else f"the {self.counts.positions} keys of the first"
            raise UserError(
                f"{self.own.name}: pass {number + 1} has {rows} rows of {keys} keys, wanted {self.rows} rows of "
                f"{wanted}; record such passes apart"
            )
        queries = int(seen.queries.sum(-1).max()) if seen.entropy is None else seen.entropy.shape[-1]
        return Step(
            index=number,
            block=0,
            block_range=(0, keys),
            queries=(max(0, keys - queries), keys),
            seen=ids,
            canvas=ids,
            committed=torch.zeros(rows, keys, dtype=torch.bool),
            confidence=torch.full((rows, keys), torch.nan),
            groups=torch.zeros(rows, queries, dtype=torch.long),
            takes_part=torch.ones(rows, dtype=torch.bool),
        )

    def attributes(self, layer_names: list[str]) -> dict[str, Any]:
        """The attributes of the trace."""
        module, counts, asked = self.own.module, self.counts, self.recording
        weight = next(module.parameters(), torch.empty(0))
        kind = type(module).__name__
        calls = hashlib.sha256()
        for given, named in self.own.calls:
            for one in (*given, *named.values()):
                bits = one.detach().cpu().flatten().contiguous() if isinstance(one, Tensor) else None
                told = type(one) if bits is None else bits.view(torch.uint8).numpy()
                calls.update(repr(told).encode() if isinstance(told, type) else told.tobytes())
        return {
            "model": {
                "name": self.own.name,
                "revision": None,
                "weights": digest_of(module, {}),
                "family": "module",
                "model_type": kind,
                "network": kind,
                "dtype": str(weight.dtype).removeprefix("torch."),
                "device": weight.device.type,
                "bidirectional": self.bidirectional,
                "mask_token_id": None,
                "special_ids": [],
                "layers": counts.layers,
                "heads": counts.heads,
                "kv_heads": counts.kv_heads,
                "layer_names": layer_names,
            },
            "decoding": {"kind": "passes", "positions": "keys" if self.tokens is None else "tokens"},
            "recording": {name: getattr(asked, name) for name in ("precision", "norms", "entropy", "kernel")},
            "prompts": f"{len(self.own.calls)}, sha256 {calls.hexdigest()[:16]}",
            "versions": versions_now(WRITTEN_BY),
        }


def _differing(seen: PassStatistics) -> tuple[LayerShape, ...]:
    """The layers' heads; nothing where all have the same."""
    assert seen.key_norm is not None
    each = [*zip(heads_by_layer(seen.received), heads_by_layer(seen.key_norm), strict=True)]
    return tuple(LayerShape(number, *had) for number, had in enumerate(each)) if len(set(each)) > 1 else ()


def _token_ids(call: tuple[tuple[Any, ...], Mapping[str, Any]]) -> Tensor | None:
    """The first tensor of whole numbers among the arguments, (batch, token); `input_ids` before all others."""
    positional, named = call
    for one in (named.get("input_ids"), *positional, *named.values()):
        if isinstance(one, Tensor) and one.ndim == 2 and not one.is_floating_point() and not one.is_complex():
            return None if one.dtype == torch.bool else one.detach().cpu()
    return None
