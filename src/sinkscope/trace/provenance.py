"""The attributes of a trace: enough to rebuild the run that made it, and nothing that differs between two such runs."""

from dataclasses import asdict
from typing import Any

from sinkscope.decoding import Denoising
from sinkscope.decoding.compressing import Compression
from sinkscope.decoding.generation import Settings
from sinkscope.decoding.intervening import Intervention
from sinkscope.families import Model
from sinkscope.families.identity import identity_of
from sinkscope.versions import PACKAGES, versions_now

_WRITTEN_BY = (*PACKAGES, "xarray", "zarr", "numpy")


def run_attributes(
    model: Model,
    settings: Settings,
    recording: dict[str, Any],
    prompts: str,
    intervention: Intervention | None = None,
    compression: Compression | None = None,
) -> dict[str, Any]:
    """The model with a digest of its weights, decoding, recording, versions and a digest of the prompts, as JSON.

    And the intervention and the compression, where there are any.
    """
    family = model.family
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
            "mask_token_id": family.mask_token_id,
            "special_ids": list(family.special_ids),
            "layers": model.shape.layers,
            "heads": model.shape.heads,
            "kv_heads": model.shape.kv_heads,
        },
        "decoding": {"kind": "denoising" if isinstance(settings, Denoising) else "autoregressive", **asdict(settings)},
        "recording": recording,
        **({} if intervention is None else {"intervention": intervention.to_dict()}),
        **({} if compression is None else {"compression": compression.to_dict()}),
        "prompts": prompts,
        "versions": versions_now(_WRITTEN_BY),
    }
