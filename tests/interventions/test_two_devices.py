"""Layers on two devices in turn: what is watched, masked and dropped is what one device gives."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from two_devices import DEVICES, devices, spread

import sinkscope as ss
from sinkscope.compression import Compress
from sinkscope.families import Model, load_model

PROMPTS = (9, 7)
"""Tokens of each prompt: the shorter one is padded."""
LONG = 40
WAYS: dict[str, Any] = {
    "autoregressive": ss.Decoding(max_new_tokens=4),
    "diffusion": ss.Denoising(gen_length=4, block_length=4, steps=3),
    "block cache": ss.Denoising(gen_length=4, block_length=2, steps=4, cache="dual"),
}


@pytest.fixture(scope="module")
def pair(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """By paradigm a model on the CPU, and the same one on two devices."""
    folder = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(
        hidden_size=48, intermediate_size=72, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
        vocab_size=101, initializer_range=0.3, eos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    found = {}
    for name, stored in (("autoregressive", folder), ("diffusion", fixtures / "llada-gqa-tiny")):
        plain, other = (load_model(stored, device="cpu", dtype="float64") for _ in range(2))
        with devices():
            spread(other.network)
        found[name] = plain, other
    return found


@pytest.mark.parametrize("kernel", ["one-pass", "two-pass"])
@pytest.mark.parametrize("name", ["autoregressive", "diffusion"])
def test_all_layers_are_seen_on_one_device(pair: Any, name: str, kernel: str) -> None:
    plain, other = pair[name]
    tokens, mask = torch.randint(0, 101, (2, 13)), torch.ones(2, 13, dtype=torch.long)
    mask[1, :3] = 0
    collect = ss.Collect(norms=True, entropy=True, outputs=True, map_layers=(0, 1), map_heads=(1,))
    with torch.no_grad(), ss.watch(plain, collect, kernel=kernel) as expected:
        plain.network(tokens, attention_mask=mask)
    with devices():
        there = [one.to(DEVICES[0]) for one in (tokens, mask)]
        with ss.watch(other, collect, kernel=kernel) as seen:
            other.network(there[0], attention_mask=there[1])
        for one in ("received", "key_norm", "entropy", "finite", "queries"):
            _check(getattr(seen.last, one), getattr(expected.last, one))
        for layer in (0, 1):
            _check(seen.last.maps[layer], expected.last.maps[layer])
        assert seen.last.outputs is not None
        assert expected.last.outputs is not None
        _check(seen.last.outputs.output_share, expected.last.outputs.output_share)


def _check(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.device == DEVICES[0]
    torch.testing.assert_close(found.cpu(), expected, equal_nan=True)


def _plans() -> dict[str, Any]:
    texts = torch.randint(0, 101, (2, LONG)).tolist()
    return {
        "nothing": {},
        "some heads": {"intervention": ss.MaskSinks(2, heads=(1, 2), detect="same")},
        "rule": {"intervention": ss.MaskSinks(ss.Excess(0.1, scale="mean"))},
        "clean": {"intervention": ss.MaskSinks(1, detect_from="clean")},
        "equal mass": {"intervention": ss.MaskSinks(1, control="equal-mass-at-step", how="values")},
        "mean": {"intervention": ss.MaskSinks(1, how="mean", reference=texts)},
        "resample": {"intervention": ss.MaskSinks(1, how="resample", reference=texts)},
        "dropped": {"compression": Compress("snapkv", 0.5), "intervention": ss.MaskSinks(1)},
        "turned": {"compression": Compress("expected-attention", 0.5)},
        "received": {"compression": Compress("received-attention", 0.5)},
    }


@pytest.mark.parametrize(
    ("way", "plan"),
    [(way, plan) for way in WAYS for plan in _plans() if way != "diffusion" or plan in ("nothing", "rule", "clean")],
)
def test_the_same_is_written_and_masked(pair: Any, way: str, plan: str) -> None:
    given = _plans()[plan]
    plain, other = pair["autoregressive" if way == "autoregressive" else "diffusion"]
    prompts = [torch.randint(0, 101, (length,)).tolist() for length in PROMPTS]
    expected = _written(plain, prompts, way, given)
    with devices():
        found = _written(other, prompts, way, given)
        assert torch.equal(found.sequences.cpu(), expected.sequences)
        assert (found.removed is None) == (expected.removed is None) == ("intervention" not in given)
        if found.removed is not None and expected.removed is not None:
            for one in ("units", "keys", "mass", "wanted_mass", "repeated_keys"):
                torch.testing.assert_close(getattr(found.removed, one).cpu(), getattr(expected.removed, one))


def _written(model: Model, prompts: list[list[int]], way: str, given: dict[str, Any]) -> ss.Generation:
    with ss.watch(model):  # for scorers by what is received
        return ss.generate(model, prompts, WAYS[way], **given)
