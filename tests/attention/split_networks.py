"""What two processes of tensor parallelism see and write, and the same in one. Each run is a function of a network."""

import os
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import parallel
from transformers import GptOssForCausalLM, LlamaForCausalLM
from transformers.distributed.configuration_utils import DistributedConfig

import sinkscope as ss
from sinkscope.compression import Compress
from sinkscope.errors import UserError
from sinkscope.families import Model, load_model

PROCESSES = 2
SINKS = {f"model.layers.*.self_attn.{name}_proj": "colwise" for name in "qkv"} | {
    "model.layers.*.self_attn.o_proj": "rowwise",
    "model.layers.*.self_attn.sinks": "colwise",
    "model.layers.*.self_attn": "local_params",
}
PLANS: Mapping[str, tuple[str, Any, Any]] = {
    "llama": ("llama", LlamaForCausalLM, "auto"),
    "whole heads": ("gpt-oss", GptOssForCausalLM, "auto"),  # embeddings alone
    "learned sinks": ("gpt-oss", GptOssForCausalLM, SINKS),
}
"""Folder, class and transformers' plan of each network."""


def watched(network: Any, tokens: torch.Tensor) -> dict[str, Any]:
    """All statistics of a pass in which some keys of the second row are padding."""
    network.config._experts_implementation = "eager"  # the library's kernel for experts has no float64
    collect = ss.Collect(groups=True, norms=True, entropy=True, outputs=True, map_layers=(1,), map_heads=(4, 1, 5))
    groups = torch.randint(-1, 5, tokens.shape, generator=torch.Generator().manual_seed(7))
    mask = torch.ones_like(tokens)
    mask[1, :3] = 0
    with torch.no_grad(), ss.watch(network, collect) as seen, ss.label_queries(groups.masked_fill(mask == 0, -1)):
        logits = network(tokens, attention_mask=mask).logits
    return {"logits": logits[:, 3:], **_plain(seen.last)}


def written(model: Model, prompts: list[list[int]], interventions: Mapping[str, Any]) -> dict[str, Any]:
    """What is written, and what was taken away, under each intervention."""
    settings: Any = ss.Decoding(max_new_tokens=6)
    if model.family.bidirectional:
        settings = ss.Denoising(gen_length=8, block_length=4, steps=8)
    found = {}
    for name, one in interventions.items():
        result = ss.generate(model, prompts, settings, intervention=one)
        found[name] = {"sequences": result.sequences, **({} if result.removed is None else _plain(result.removed))}
    return found


def _plain(record: Any) -> dict[str, Any]:
    """The tensors of a record, records inside it too."""
    found: dict[str, Any] = {}
    for one in fields(record):
        value = getattr(record, one.name)
        if is_dataclass(value):
            found |= {f"{one.name}.{name}": inner for name, inner in _plain(value).items()}
        elif isinstance(value, dict):
            found |= {f"{one.name}.{name}": inner for name, inner in value.items()}
        elif value is not None:
            found[one.name] = value
    return found


def split_by_torch(network: Any) -> Any:
    """The same network with its attention split by torch's own plan."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for layer in network.model.layers:
        own: dict[str, Any] = {f"self_attn.{name}_proj": parallel.ColwiseParallel() for name in "qkv"}
        parallel.parallelize_module(layer, mesh, {**own, "self_attn.o_proj": parallel.RowwiseParallel()})
    return network


def work(rank: int, folder: Path, jobs: Mapping[str, Any]) -> None:
    """One process: runs everything and leaves what it found in a file."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(PROCESSES))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=PROCESSES)
    found: dict[str, Any] = {}
    for name, (stored, kind, plan) in PLANS.items():
        network = kind.from_pretrained(
            folder / stored,
            distributed_config=DistributedConfig(tp_plan=plan, tp_size=PROCESSES),
            attn_implementation="sinkscope",
            dtype=torch.float64,
        ).eval()
        found[name] = watched(network, jobs["tokens"])
        if name == "llama":
            model = load_model(folder / "llama", distributed_config=DistributedConfig(tp_plan=plan), dtype="float64")
            found["masked"] = written(model, jobs["prompts"], jobs["interventions"])
            found["dropping"] = _refusal(partial(Compress("key-norm", 0.5).cache, model))
    model = load_model(jobs["diffusion"], device="cpu", dtype="float64")
    split_by_torch(model.network)
    found["diffusion"] = written(model, jobs["prompts"], jobs["interventions"])
    one_key_head = split_by_torch(LlamaForCausalLM.from_pretrained(folder / "one-key-head"))
    found["uneven"] = _refusal(lambda: watched(one_key_head, jobs["tokens"]))
    torch.save(found, folder / f"found-{rank}.pt")
    distributed.destroy_process_group()


def _refusal(run: Callable[[], object]) -> str:
    try:
        run()
    except UserError as error:
        return str(error)
    return "not refused"
