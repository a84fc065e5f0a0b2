"""What a trace says of the run that made it, as JSON.

    run_attributes(Run(model, settings), {"norms": False}, "2, sha256 1f0a")["decoding"]["kind"]

Two runs with the same attributes make the same trace: `resume` goes on where they are equal, and refuses where they are
not.
"""

import json
from dataclasses import asdict
from typing import Any

from sinkscope.decoding import Decoding, Denoising, Renoising, Run
from sinkscope.families.describe import identity_of
from sinkscope.versions import PACKAGES, versions_now

WRITTEN_BY = (*PACKAGES, "xarray", "zarr", "numpy")
_KINDS = {Denoising: "denoising", Renoising: "renoising", Decoding: "autoregressive"}


def run_attributes(run: Run, recording: dict[str, Any], prompts: str) -> dict[str, Any]:
    """The attributes of a trace, as JSON: enough to rebuild the run that made it, and nothing that differs between two
    such runs."""
    model, family, settings = run.model, run.model.family, run.settings
    return {
        "model": {
            "name": model.name,
            "revision": model.revision,
            "weights": identity_of(model).weights,
            "family": family.name,
            "model_type": model.network.config.model_type,
            "network": type(model.network).__name__,
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": model.device.type,
            "bidirectional": family.bidirectional,
            "logit_shift": family.logit_shift,
            "block_length": None if family.blocks is None else family.blocks.length,
            "blocks_from_prompt": family.blocks is not None and family.blocks.from_prompt,
            "causal_context": family.blocks is not None and family.blocks.causal_context,
            "mask_token_id": family.mask_token_id,
            "special_ids": list(family.special_ids),
            "layers": model.shape.layers,
            "heads": model.shape.heads,
            "kv_heads": model.shape.kv_heads,
        },
        "decoding": {"kind": _KINDS[type(settings)], **asdict(settings)},
        "recording": recording,
        **({} if run.intervention is None else {"intervention": run.intervention.to_dict()}),
        **({} if run.compression is None else {"compression": run.compression.to_dict()}),
        "prompts": prompts,
        "versions": versions_now(WRITTEN_BY),
    }


def first_difference(
    stored: object, asked: object, name: str = "", *, there: str = "the trace has", here: str = "asked"
) -> str | None:
    """The first field in which two JSON values differ, as "decoding.steps: the trace has 32, asked 64", or None."""
    if isinstance(stored, dict) and isinstance(asked, dict):
        for key in [*stored, *(key for key in asked if key not in stored)]:
            field = f"{name}.{key}" if name else key
            difference = first_difference(stored.get(key), asked.get(key), field, there=there, here=here)
            if difference is not None:
                return difference
        return None
    # NaN is equal to itself as text.
    if stored == asked or json.dumps(stored) == json.dumps(asked):
        return None
    return f"{name}: {there} {_shown(stored)}, {here} {_shown(asked)}"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
