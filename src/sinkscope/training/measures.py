"""What a twin can do and where its attention goes, at one point of its training: one row of the log.

Task accuracy comes from generated answers to held-out problems. Sink measures come from whole passes over fixed
held-out documents: Gu et al.'s Sink_k (arXiv:2410.10781, eq. 8, epsilon 0.3) and the strongest key's received
attention, layer by layer. A diffusion twin is measured twice: on finished documents and with all answers masked.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
import xarray as xr

from sinkscope.attention import watch
from sinkscope.evaluation import LITTLE, evaluate
from sinkscope.families import Model
from sinkscope.language.documents import document
from sinkscope.sinks.ar import GU_EPSILON, causal_alpha
from sinkscope.training.corpus import WEIGHTS, Batch

DOCUMENTS, LENGTH = 32, 64


def measure(model: Model, *, problems: int) -> dict[str, Any]:
    """Accuracy on `problems` held-out problems of every task, and the sink measures of each pass."""
    accuracy = {task: evaluate(model, task, n=problems).score for task in LITTLE}
    return {"accuracy": accuracy, "sinks": sink_measures(model)}


def sink_measures(model: Model) -> dict[str, dict[str, list[float]]]:
    """Pass -> measure -> one number a layer."""
    held_out = _held_out()
    passes = {"finished": held_out.tokens}
    mask = model.family.mask_token_id
    if mask is not None:
        passes["answers masked"] = held_out.tokens.masked_fill(held_out.answer, mask)
    return {name: _of_pass(model, tokens) for name, tokens in passes.items()}


def _held_out() -> Batch:
    random = Random("held out")
    rows = [document(random, LENGTH, split="test", weights=WEIGHTS) for _ in range(DOCUMENTS)]
    return Batch(torch.tensor([row.tokens for row in rows]), torch.tensor([row.answer for row in rows]))


def _of_pass(model: Model, tokens: torch.Tensor) -> dict[str, list[float]]:
    with torch.no_grad(), watch(model) as watched:
        model.network(tokens.to(model.device), use_cache=False)
    received = xr.DataArray(watched.received.cpu().numpy(), dims=("layer", "sample", "head", "position"))
    alpha = received if model.family.bidirectional else causal_alpha(received)
    if not model.family.bidirectional:
        # The last keys are seen by so few queries that any of them would do for a sink.
        alpha = alpha.isel(position=slice(LENGTH * 3 // 4))
    sink = (alpha > GU_EPSILON).mean(["sample", "head"])
    return {
        "sink_first": _rounded(sink.isel(position=0)),
        "sink_most": _rounded(sink.max("position")),
        "sink_most_at": [int(place) for place in sink.argmax("position").values],
        "top_received": _rounded(received.max("position").mean(["sample", "head"])),
        "first_received": _rounded(received.isel(position=0).mean(["sample", "head"])),
    }


def _rounded(numbers: xr.DataArray) -> list[float]:
    return [round(float(number), 4) for number in numbers.values]
