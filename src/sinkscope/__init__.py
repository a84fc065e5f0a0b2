"""sinkscope: watch, test and use attention sinks in diffusion and autoregressive language models.

    import sinkscope as ss

    model = ss.load_model("GSAI-ML/LLaDA-8B-Instruct", dtype="bfloat16", device="cuda")
    trace = ss.record(model, "Why is the sky blue?", ss.Denoising(gen_length=64, steps=64), out="runs/sky.zarr")
    sinks = ss.find_sinks(trace[0], ss.Excess(epsilon=3.0, scale="sum"))    # (step, layer, head, position)

Names are looked up when they are first used, so that importing the package does not import torch and transformers: the
command line can tell those to be quiet first.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sinkscope.attention import Collect as Collect
    from sinkscope.attention import label_queries as label_queries
    from sinkscope.attention import watch as watch
    from sinkscope.compression import Compress as Compress
    from sinkscope.compression import Prefix as Prefix
    from sinkscope.compression import Protect as Protect
    from sinkscope.compression import SkipLayers as SkipLayers
    from sinkscope.compression import compress_prefix as compress_prefix
    from sinkscope.compression import load_prefix as load_prefix
    from sinkscope.compression import save_prefix as save_prefix
    from sinkscope.decoding import Decoding as Decoding
    from sinkscope.decoding import Denoising as Denoising
    from sinkscope.decoding import Generation as Generation
    from sinkscope.decoding import Renoising as Renoising
    from sinkscope.decoding import Step as Step
    from sinkscope.decoding import decode as decode
    from sinkscope.decoding import denoise as denoise
    from sinkscope.decoding import generate as generate
    from sinkscope.errors import NothingMaskedWarning as NothingMaskedWarning
    from sinkscope.errors import TrainedLengthWarning as TrainedLengthWarning
    from sinkscope.errors import UserError as UserError
    from sinkscope.evaluation import Score as Score
    from sinkscope.evaluation import evaluate as evaluate
    from sinkscope.experiments import record_shards as record_shards
    from sinkscope.experiments import sweep as sweep
    from sinkscope.families import Family as Family
    from sinkscope.families import Model as Model
    from sinkscope.families import describe_model as describe_model
    from sinkscope.families import load_model as load_model
    from sinkscope.interventions import Hooks as Hooks
    from sinkscope.interventions import MaskSinks as MaskSinks
    from sinkscope.report import show as show
    from sinkscope.report import widget as widget
    from sinkscope.sinks import Excess as Excess
    from sinkscope.sinks import First as First
    from sinkscope.sinks import Threshold as Threshold
    from sinkscope.sinks import TopK as TopK
    from sinkscope.sinks import ZScore as ZScore
    from sinkscope.sinks import find_sinks as find_sinks
    from sinkscope.sinks import received_from as received_from
    from sinkscope.sinks import sink_kinds as sink_kinds
    from sinkscope.sinks import sink_motion as sink_motion
    from sinkscope.sinks import sink_positions as sink_positions
    from sinkscope.sinks import sink_tokens as sink_tokens
    from sinkscope.sinks import sinks_per_layer as sinks_per_layer
    from sinkscope.sinks import summarise as summarise
    from sinkscope.sinks import sweep_epsilon as sweep_epsilon
    from sinkscope.trace import Maps as Maps
    from sinkscope.trace import Prompt as Prompt
    from sinkscope.trace import Recording as Recording
    from sinkscope.trace import Trace as Trace
    from sinkscope.trace import open_trace as open_trace
    from sinkscope.trace import read_prompts as read_prompts
    from sinkscope.trace import record as record

_NAMES = {
    "attention": ("Collect", "label_queries", "watch"),
    "compression": (
        "Compress", "Prefix", "Protect", "SkipLayers", "compress_prefix", "load_prefix", "save_prefix",
    ),
    "decoding": ("Decoding", "Denoising", "Generation", "Renoising", "Step", "decode", "denoise", "generate"),
    "errors": ("NothingMaskedWarning", "TrainedLengthWarning", "UserError"),
    "evaluation": ("Score", "evaluate"),
    "experiments": ("record_shards", "sweep"),
    "families": ("Family", "Model", "describe_model", "load_model"),
    "interventions": ("Hooks", "MaskSinks"),
    "report": ("show", "widget"),
    "sinks": (
        "Excess", "First", "Threshold", "TopK", "ZScore", "find_sinks", "received_from", "sink_kinds",
        "sink_motion", "sink_positions", "sink_tokens", "sinks_per_layer", "summarise", "sweep_epsilon",
    ),
    "trace": ("Maps", "Prompt", "Recording", "Trace", "open_trace", "read_prompts", "record"),
}  # fmt: skip
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'sinkscope' has no attribute {name!r}")
    value: object = getattr(import_module(f"sinkscope.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
