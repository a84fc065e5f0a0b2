"""Tensor parallelism: two processes that have half the heads each see and write what one process does with all."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from split_networks import PLANS, PROCESSES, watched, work, written
from torch import nn
from transformers import GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM

import sinkscope as ss
from sinkscope.attention.spread import split_heads
from sinkscope.errors import UserError
from sinkscope.families import load_model

SIZES: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 101, "initializer_range": 0.3, "eos_token_id": None,
}  # fmt: skip
# Between processes sums of float64 are made in another order.
CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-10}


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Any:
    """What each process found, and the jobs that it was given."""
    folder = tmp_path_factory.mktemp("split")
    LlamaForCausalLM(LlamaConfig(**SIZES)).double().save_pretrained(folder / "llama")
    LlamaForCausalLM(LlamaConfig(**SIZES | {"num_key_value_heads": 1})).save_pretrained(folder / "one-key-head")
    sinks = GptOssConfig(**SIZES, num_local_experts=2, num_experts_per_tok=1, layer_types=["full_attention"] * 3)
    GptOssForCausalLM(sinks).double().save_pretrained(folder / "gpt-oss")
    prompts = torch.randint(0, 101, (2, 9)).tolist()
    jobs = {
        "tokens": torch.randint(0, 101, (2, 13)),
        "prompts": prompts,
        "diffusion": str(fixtures / "llada-gqa-tiny"),
        "interventions": {
            "nothing": None,
            "top": ss.MaskSinks(2),
            "some heads": ss.MaskSinks(1, heads=(1, 2), detect="same"),
            "rule": ss.MaskSinks(ss.Excess(0.1, scale="mean")),
            "random": ss.MaskSinks(2, control="random", seed=3),
            "equal mass": ss.MaskSinks(1, control="equal-mass-at-step", how="values"),
            "mean": ss.MaskSinks(1, how="mean", reference=[prompts[0][:5], prompts[1]]),
        },
    }
    processes: Any = torch.multiprocessing
    running = processes.start_processes(work, args=(folder, jobs), nprocs=PROCESSES, join=False, start_method="spawn")
    try:
        deadline = time.monotonic() + 240
        while not running.join(timeout=5):
            assert time.monotonic() < deadline, "the processes wait for each other"
    finally:
        for process in running.processes:
            process.kill()
    found = [torch.load(folder / f"found-{rank}.pt") for rank in range(PROCESSES)]
    return SimpleNamespace(folder=folder, found=found, **jobs)


@pytest.mark.parametrize("name", PLANS)
def test_every_process_sees_all_heads(split: Any, name: str) -> None:
    stored, kind, _ = PLANS[name]
    whole = kind.from_pretrained(split.folder / stored, attn_implementation="sinkscope")
    expected = watched(whole.double().eval(), split.tokens)
    assert {"received", "by_group", "key_norm", "entropy", "outputs.rank", "maps.1"} < expected.keys()
    assert (stored == "gpt-oss") == ("no_key" in expected)
    for found in split.found:
        assert found[name].keys() == expected.keys()
        for one, value in expected.items():
            torch.testing.assert_close(found[name][one], value, **CLOSE, equal_nan=True)


@pytest.mark.parametrize("name", ["masked", "diffusion"])
def test_every_process_masks_the_same_keys(split: Any, name: str) -> None:
    folder = split.folder / "llama" if name == "masked" else split.diffusion
    expected = written(load_model(folder, device="cpu", dtype="float64"), split.prompts, split.interventions)
    assert not torch.equal(expected["nothing"]["sequences"], expected["top"]["sequences"])
    for found in split.found:
        for intervention, values in expected.items():
            for one, value in values.items():
                torch.testing.assert_close(found[name][intervention][one], value, **CLOSE)


def test_what_can_not_be_gathered_is_refused(split: Any) -> None:
    for found in split.found:
        assert "keys can't be dropped" in found["dropping"]
        assert "1 key heads" in found["uneven"]
        assert "a number of processes that divides both" in found["uneven"]


def test_networks_split_in_other_ways() -> None:
    own = nn.Sequential(nn.Linear(3, 4))
    own.attention = nn.Linear(3, 4)
    assert split_heads(own) is None
    weight: Any = own.attention.weight
    weight.placements, weight.device_mesh = (SimpleNamespace(is_shard=lambda: False),), None
    assert split_heads(own) is None
    weight.placements = (SimpleNamespace(is_shard=lambda: True),)
    with pytest.raises(UserError, match=r"split over processes.*tensor parallelism alone.*device_map"):
        split_heads(own)
    # Full sharding gathers its weights for every pass.
    own.append(type("FSDPLinear", (nn.Linear,), {})(3, 4))
    assert split_heads(own) is None


def test_layers_split_over_processes_are_refused() -> None:
    network: Any = LlamaForCausalLM(LlamaConfig(**SIZES))
    network._device_mesh = {"pp": SimpleNamespace(size=lambda: 2)}
    with pytest.raises(UserError, match="split over processes by layers"), ss.watch(network):
        pass
    network._device_mesh = {"pp": SimpleNamespace(size=lambda: 1)}
    with ss.watch(network):
        pass
