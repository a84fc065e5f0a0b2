"""Decoding loops that yield a `Step` after every forward pass.

`denoise` for diffusion models, `decode` for autoregressive ones; `Run` for either, with what is masked and dropped.
"""

from sinkscope.decoding.canvas import Prompts, encode_prompts
from sinkscope.decoding.choice import CONFIDENCE, SCHEDULES
from sinkscope.decoding.generation import Generation, decode, denoise, generate
from sinkscope.decoding.protocols import Step
from sinkscope.decoding.running import Run, default_settings, settings_with
from sinkscope.decoding.settings import CACHES, Decoding, Denoising, Renoising, Settings

__all__ = [
    "CACHES",
    "CONFIDENCE",
    "SCHEDULES",
    "Decoding",
    "Denoising",
    "Generation",
    "Prompts",
    "Renoising",
    "Run",
    "Settings",
    "Step",
    "decode",
    "default_settings",
    "denoise",
    "encode_prompts",
    "generate",
    "settings_with",
]
