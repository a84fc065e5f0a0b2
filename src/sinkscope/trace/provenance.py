"""The attributes of a trace: enough to rebuild the run that made it, and nothing that differs between two such runs."""

from dataclasses import asdict
from typing import Any

from sinkscope.decoding import Denoising, Run
from sinkscope.families.describe import identity_of
from sinkscope.versions import PACKAGES, versions_now

_WRITTEN_BY = (*PACKAGES, "xarray", "zarr", "numpy")


def run_attributes(run: Run, recording: dict[str, Any], prompts: str) -> dict[str, Any]:
    """The model with a digest of its weights, decoding, recording, versions and a digest of the prompts, as JSON.

    And the intervention and the compression, where there are any.
    """
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
            "mask_token_id": family.mask_token_id,
            "special_ids": list(family.special_ids),
            "layers": model.shape.layers,
            "heads": model.shape.heads,
            "kv_heads": model.shape.kv_heads,
        },
        "decoding": {"kind": "denoising" if isinstance(settings, Denoising) else "autoregressive", **asdict(settings)},
        "recording": recording,
        **({} if run.intervention is None else {"intervention": run.intervention.to_dict()}),
        **({} if run.compression is None else {"compression": run.compression.to_dict()}),
        "prompts": prompts,
        "versions": versions_now(_WRITTEN_BY),
    }
