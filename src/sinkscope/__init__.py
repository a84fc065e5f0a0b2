"""sinkscope: watch, test and use attention sinks in diffusion and autoregressive language models.

import sinkscope as ss

model = ss.load_model("GSAI-ML/LLaDA-8B-Instruct", dtype="bfloat16", device="cuda")
trace = ss.record(model, "Why is the sky blue?", ss.Denoising(gen_length=64, steps=64), out="runs/sky.zarr")
sinks = ss.find_sinks(trace[0], ss.Excess(epsilon=3.0, scale="sum"))    # (step, layer, head, position)
"""

from sinkscope.attention import Collect, asking, watch
from sinkscope.decoding import Decoding, Denoising, Generation, Step, decode, denoise, generate
from sinkscope.errors import UserError
from sinkscope.families import Family, Model, describe_model, load_model
from sinkscope.sinks import (
    Excess,
    Threshold,
    TopK,
    ZScore,
    find_sinks,
    received_from,
    sink_motion,
    sink_positions,
    sink_tokens,
    sinks_per_layer,
    summarise,
    sweep_epsilon,
)
from sinkscope.trace import Maps, Prompt, Recording, Trace, open_trace, read_prompts, record

__all__ = [
    "Collect",
    "Decoding",
    "Denoising",
    "Excess",
    "Family",
    "Generation",
    "Maps",
    "Model",
    "Prompt",
    "Recording",
    "Step",
    "Threshold",
    "TopK",
    "Trace",
    "UserError",
    "ZScore",
    "asking",
    "decode",
    "denoise",
    "describe_model",
    "find_sinks",
    "generate",
    "load_model",
    "open_trace",
    "read_prompts",
    "received_from",
    "record",
    "sink_motion",
    "sink_positions",
    "sink_tokens",
    "sinks_per_layer",
    "summarise",
    "sweep_epsilon",
    "watch",
]
