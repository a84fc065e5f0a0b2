"""Sink rules on the maps of a running model: from received attention as tensors to boolean masks.

The rules of `sinkscope.sinks` work on labelled arrays, which a generation with thousands of layers and steps can't
afford for the two it needs most. Those two have a form in tensors here; every other rule is asked itself.
"""

import torch
import xarray as xr

from sinkscope.ordering import ordered
from sinkscope.sinks import First, SinkRule, TopK


def marked(rule: SinkRule, received: torch.Tensor, eligible: torch.Tensor) -> torch.Tensor:
    """Where `rule` sees a sink among the eligible keys: (batch, head, key) boolean, as `received` and `eligible`."""
    if isinstance(rule, TopK):
        order = ordered(received.masked_fill(~eligible, torch.nan))
        found = torch.zeros_like(eligible).scatter(-1, order[..., : int(rule.k)], True)
        return found & eligible
    if isinstance(rule, First):
        return eligible & (eligible.cumsum(-1) <= rule.k)
    values = received.double().masked_fill(~eligible, torch.nan).cpu().numpy()
    marks = rule.marks(xr.DataArray(values, dims=("batch", "head", "position")))
    return torch.from_numpy(marks.transpose("batch", "head", "position").values).to(received.device) & eligible
