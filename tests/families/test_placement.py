"""Where weights go: devices and maps that can't hold them get one line, offloaded ones are computed with."""

from pathlib import Path
from typing import Any

import pytest

from sinkscope import Denoising, MaskSinks, generate, load_model
from sinkscope.errors import UserError

FOLDER = "llada-tiny"


@pytest.mark.parametrize("device", ["meta", "hpu", "privateuseone", "cuda:99", "xyz", "opencl", "cuda:-1", "", [], 3.5])
def test_devices_that_hold_nothing(fixtures: Path, device: Any) -> None:
    with pytest.raises(UserError, match=r"device=.*try device='cpu'") as error:
        load_model(fixtures / FOLDER, device=device)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "device_map",
    ["meta", "disk", "nonsense", "cuda:99", 99, {"": "meta"}, {"": "cuda:99"}, {}, {"": None}, {1: 2}, [], 3.5],
)
def test_maps_to_nowhere(fixtures: Path, device_map: Any) -> None:
    with pytest.raises(UserError, match="device") as error:
        load_model(fixtures / FOLDER, device_map=device_map)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("offloaded", [[""], ["model.embed_tokens"]], ids=["all", "embeddings"])
def test_offloaded_embeddings_compute_as_ever(fixtures: Path, offloaded: list[str]) -> None:
    settings = Denoising(gen_length=4, block_length=4, steps=4)
    plain = load_model(fixtures / FOLDER, device="cpu")
    parts = ["model.embed_tokens", "model.layers", "model.norm", "model.rotary_emb", "lm_head"]
    places = {"": "disk"} if offloaded == [""] else {part: "disk" if part in offloaded else "cpu" for part in parts}
    model = load_model(fixtures / FOLDER, device_map=places)
    assert model.device.type == "cpu"
    for masking in (None, MaskSinks(1), MaskSinks(1, how="mean", reference=[[5, 6, 7, 8]])):
        expected = generate(plain, [[7, 8, 9]], settings, intervention=masking)
        found = generate(model, [[7, 8, 9]], settings, intervention=masking)
        assert found.sequences.equal(expected.sequences)
        if found.removed is not None and expected.removed is not None:
            assert found.removed.mass.equal(expected.removed.mass)
