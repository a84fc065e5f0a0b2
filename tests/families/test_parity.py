"""Logits of the reference implementations, met by stock transformers (`forward.safetensors` of every fixture)."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import sinkscope.attention  # noqa: F401  registers the attention function that loading asks for by default
from sinkscope.attention import Collect
from sinkscope.attention.watching import watch
from sinkscope.decoding.blockwise import Visible
from sinkscope.decoding.canvas import Canvas
from sinkscope.families import Model, load_model
from sinkscope.families.model import Float32Rotation

FIXTURES = Path(__file__).parents[1] / "fixtures"
TOLD: dict[str, dict[str, Any]] = {
    "a2d-bd3lm-tiny": {"mask_token_id": 252, "block_length": 8},
    "a2d-mdlm-tiny": {"mask_token_id": 252},
    "fast-dllm-v2-tiny": {"mask_token_id": 251, "block_length": 8},
    "llada2-tiny": {"mask_token_id": 255, "block_length": 8},
}
"""What files do not say."""
BLOCKWISE = ["a2d-bd3lm-tiny", "fast-dllm-v2-tiny", "llada2-tiny", "sdar-tiny"]
CAUSAL_CONTEXT = "nemotron-diffusion-tiny"
NAMES = sorted(
    {path.parent.name for path in FIXTURES.glob("*/forward.safetensors")} - {*BLOCKWISE, CAUSAL_CONTEXT},
)
PADDED = [name for name in NAMES if "padded_logits" in load_file(FIXTURES / name / "forward.safetensors")]
HALF = [name for name in NAMES if "bf16_logits" in load_file(FIXTURES / name / "forward.safetensors")]
ATOL = 5e-4  # of every fixture's README, on logits up to 20


def test_there_is_something_to_meet() -> None:
    assert len(NAMES) >= 5
    assert {"llada-tiny", "dream-tiny"} <= {*PADDED} & {*HALF}


def _load(name: str, attention: str = "sinkscope") -> Model:
    return load_model(FIXTURES / name, attention=attention, device="cpu", **TOLD.get(name, {}))


@pytest.mark.parametrize("attention", ["sinkscope", "sdpa", "eager"])
@pytest.mark.parametrize("name", NAMES)
def test_logits(name: str, attention: str) -> None:
    reference = load_file(FIXTURES / name / "forward.safetensors")
    model = _load(name, attention)
    assert model.dtype == torch.float32
    logits = model.network(reference["input_ids"]).logits
    torch.testing.assert_close(logits, reference["logits"], atol=ATOL, rtol=0)


@pytest.mark.parametrize("attention", ["sinkscope", "sdpa", "eager"])
@pytest.mark.parametrize("name", PADDED)
def test_padded_logits_on_real_rows(name: str, attention: str) -> None:
    reference = load_file(FIXTURES / name / "forward.safetensors")
    mask = reference["padded_attention_mask"]
    assert int((mask == 0).sum()) > 0
    model = _load(name, attention)
    logits = model.network(reference["padded_input_ids"], attention_mask=mask).logits
    real = mask.bool()
    torch.testing.assert_close(logits[real], reference["padded_logits"][real], atol=ATOL, rtol=0)


@pytest.mark.parametrize("name", HALF)
def test_bfloat16_logits(name: str) -> None:
    """Equal but for the rounding of other CPUs' kernels, which is far below that of bfloat16 itself (1 to 3 here)."""
    reference = load_file(FIXTURES / name / "forward.safetensors")
    model = load_model(FIXTURES / name, dtype="bfloat16", device="cpu")
    assert model.dtype == torch.bfloat16
    logits = model.network(reference["input_ids"]).logits
    wanted = reference["bf16_logits"]
    torch.testing.assert_close(logits.float(), wanted.float(), atol=0.25, rtol=0)
    assert (logits == wanted).float().mean() > 0.8


def test_bfloat16_rotation_is_what_makes_llada_equal() -> None:
    """The control: with the library's own rotation in bfloat16 the same weights miss the reference by far."""
    reference = load_file(FIXTURES / "llada-tiny" / "forward.safetensors")
    model = load_model(FIXTURES / "llada-tiny", dtype="bfloat16", device="cpu")
    ours = model.network.model.rotary_emb
    assert isinstance(ours, Float32Rotation)
    model.network.model.rotary_emb = ours.rotation
    logits = model.network(reference["input_ids"]).logits
    assert (logits.float() - reference["bf16_logits"].float()).abs().max() > 0.5


def test_rotary_frequencies_stay_float32_in_half_precision() -> None:
    model = load_model(FIXTURES / "dream-tiny", dtype="bfloat16", device="cpu")
    frequencies = model.network.model.rotary_emb.inv_freq
    assert frequencies.dtype == torch.float32
    exact = 1e6 ** -(torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    torch.testing.assert_close(frequencies.double(), exact, rtol=1e-6, atol=0)


def _mask(model: Model, tokens: torch.Tensor, prompt_length: int, *, finished: bool = False) -> torch.Tensor:
    """The mask of a whole pass, (batch, 1, query, key)."""
    assert model.family.blocks is not None
    canvas = Canvas(tokens=tokens, real=torch.ones_like(tokens, dtype=torch.bool), prompt_length=prompt_length)
    return Visible(model, canvas, model.family.blocks).mask((0, tokens.shape[1]), finished=finished)


@pytest.mark.parametrize("attention", ["sinkscope", "sdpa", "eager"])
@pytest.mark.parametrize("name", BLOCKWISE)
def test_block_causal_logits(name: str, attention: str) -> None:
    """The mask is the reference's, and under it the logits are."""
    reference, model = load_file(FIXTURES / name / "forward.safetensors"), _load(name, attention)
    tokens = reference["input_ids"]
    mask = _mask(model, tokens, 8)  # the end of a block, wherever blocks are counted from
    visible = mask == 0 if attention == "eager" else mask
    assert torch.equal(visible[0, 0], reference["allowed"].bool())
    logits = model.network(tokens, attention_mask=mask).logits
    torch.testing.assert_close(logits, reference["logits"], atol=2e-4, rtol=0)


@pytest.mark.parametrize("name", [*BLOCKWISE, "a2d-mdlm-tiny"])
def test_attention(name: str) -> None:
    """What is watched is the reference's attention, to the rounding of its float16."""
    reference, model = load_file(FIXTURES / name / "forward.safetensors"), _load(name)
    tokens, wanted = reference["input_ids"], reference["attention"].float()
    mask = None if model.family.blocks is None else _mask(model, tokens, 8)
    with watch(model, Collect(map_layers=tuple(range(len(wanted))))) as watched:
        model.network(tokens, attention_mask=mask)
    seen = torch.stack([watched.last.maps[layer] for layer in range(len(wanted))])
    torch.testing.assert_close(seen, wanted, atol=5e-4, rtol=0)


def test_left_padded_block_causal_logits() -> None:
    """Rows of BD3LM's sampler: blocks counted over columns, positions from the first real token."""
    reference, model = load_file(FIXTURES / "a2d-bd3lm-tiny" / "forward.safetensors"), _load("a2d-bd3lm-tiny")
    tokens, places = reference["padded_input_ids"], reference["padded_position_ids"]
    real = torch.diagonal(reference["padded_allowed"].bool(), dim1=1, dim2=2)  # padding does not see itself
    canvas = Canvas(tokens=tokens, real=real, prompt_length=8)
    assert model.family.blocks is not None
    mask = Visible(model, canvas, model.family.blocks).mask((0, tokens.shape[1]), finished=False)
    assert torch.equal(mask[:, 0][real], reference["padded_allowed"].bool()[real])
    assert torch.equal(canvas.positions()[real], places[real])
    logits = model.network(tokens, attention_mask=mask, position_ids=canvas.positions()).logits
    torch.testing.assert_close(logits[real], reference["padded_logits"][real], atol=2e-4, rtol=0)


@pytest.mark.parametrize("attention", ["sinkscope", "sdpa", "eager"])
def test_a_block_over_a_causal_context(attention: str) -> None:
    """Nemotron: the prompt sees no token behind its own, the block sees all of itself. Finished, all is causal."""
    reference = load_file(FIXTURES / CAUSAL_CONTEXT / "forward.safetensors")
    model = _load(CAUSAL_CONTEXT, attention)
    tokens = reference["input_ids"]
    finished = _mask(model, tokens, tokens.shape[1] - 8, finished=True)
    logits = model.network(tokens, attention_mask=finished).logits
    torch.testing.assert_close(logits, reference["causal_logits"], atol=2e-4, rtol=0)
    logits = model.network(tokens, attention_mask=_mask(model, tokens, tokens.shape[1] - 8)).logits
    torch.testing.assert_close(logits[:, -8:], reference["block_logits"], atol=2e-4, rtol=0)
