"""Logits of the reference implementations, met by stock transformers (`forward.safetensors` of every fixture)."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import sinkscope.attention  # noqa: F401  registers the attention function that loading asks for by default
from sinkscope.families import load_model
from sinkscope.families.model import Float32Rotation

FIXTURES = Path(__file__).parents[1] / "fixtures"
NAMES = sorted(path.parent.name for path in FIXTURES.glob("*/forward.safetensors"))
PADDED = [name for name in NAMES if "padded_logits" in load_file(FIXTURES / name / "forward.safetensors")]
HALF = [name for name in NAMES if "bf16_logits" in load_file(FIXTURES / name / "forward.safetensors")]
ATOL = 5e-4  # of every fixture's README, on logits up to 20


def test_there_is_something_to_meet() -> None:
    assert len(NAMES) >= 4
    assert {"llada-tiny", "dream-tiny"} <= {*PADDED} & {*HALF}


@pytest.mark.parametrize("attention", ["sinkscope", "sdpa", "eager"])
@pytest.mark.parametrize("name", NAMES)
def test_logits(name: str, attention: str) -> None:
    reference = load_file(FIXTURES / name / "forward.safetensors")
    model = load_model(FIXTURES / name, attention=attention, device="cpu")
    assert model.dtype == torch.float32
    logits = model.network(reference["input_ids"]).logits
    torch.testing.assert_close(logits, reference["logits"], atol=ATOL, rtol=0)


@pytest.mark.parametrize("attention", ["sinkscope", "sdpa", "eager"])
@pytest.mark.parametrize("name", PADDED)
def test_padded_logits_on_real_rows(name: str, attention: str) -> None:
    reference = load_file(FIXTURES / name / "forward.safetensors")
    mask = reference["padded_attention_mask"]
    assert int((mask == 0).sum()) > 0
    model = load_model(FIXTURES / name, attention=attention, device="cpu")
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
