"""Decoding loops that yield a `Step` after every forward pass.

`denoise` for diffusion models, `decode` for autoregressive ones.
"""

from sinkscope.decoding.autoregressive import decode
from sinkscope.decoding.canvas import Prompts, encode_prompts
from sinkscope.decoding.confidence import CONFIDENCE
from sinkscope.decoding.denoising import denoise
from sinkscope.decoding.generation import Generation, default_settings, generate, run
from sinkscope.decoding.schedules import SCHEDULES
from sinkscope.decoding.settings import CACHES, Decoding, Denoising
from sinkscope.decoding.step import Step

__all__ = [
    "CACHES",
    "CONFIDENCE",
    "SCHEDULES",
    "Decoding",
    "Denoising",
    "Generation",
    "Prompts",
    "Step",
    "decode",
    "default_settings",
    "denoise",
    "encode_prompts",
    "generate",
    "run",
]
