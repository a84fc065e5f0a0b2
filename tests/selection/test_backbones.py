"""Networks in pieces: put together again they are the networks they were."""

import copy
import re
from typing import Any

import pytest
import torch
from tiny_vits import (
    BACKBONES,
    CHANNELS,
    CLASSES,
    STOCK,
    WIDTH,
    chained,
    dinov2,
    logits_of,
    pictures,
    selective,
)
from torch import nn

from sinkscope.errors import UserError
from sinkscope.selection import wrap

each_backbone = pytest.mark.parametrize("name", BACKBONES)


@each_backbone
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@torch.no_grad()
def test_the_pieces_one_after_the_other_are_the_network(name: str, dtype: torch.dtype, tolerance: float) -> None:
    backbone = BACKBONES[name]().to(dtype)
    images = pictures(backbone, 3, dtype)
    expected = logits_of(backbone.network, images)
    assert expected.shape == (3, CLASSES) and float(expected.std()) > 0.1
    torch.testing.assert_close(chained(backbone, images), expected, rtol=0, atol=tolerance)


@each_backbone
def test_what_a_backbone_says_of_itself_is_so(name: str) -> None:
    backbone = BACKBONES[name]()
    tokens = backbone.embed(pictures(backbone, 2))
    assert tokens.shape == (2, backbone.prefix + backbone.patches, backbone.width)
    assert backbone.patches == backbone.grid[0] * backbone.grid[1]
    assert backbone.classes == CLASSES and backbone.prefix == {
        "deit": 2,
        "taught deit": 2,
        "dinov2 with registers": 4,
    }.get(name, 1)


@pytest.mark.parametrize("name", [name for name in BACKBONES if "dinov2" not in name])
def test_patches_are_counted_row_by_row(name: str) -> None:
    """A change in the last patch of the first row moves token 6 of 35 (5 rows of 7)."""
    backbone = BACKBONES[name]()
    images = pictures(backbone, 1)
    before = backbone.embed(images)
    images[:, :, 0, -1] += 1
    moved = (backbone.embed(images) != before).any(-1)[0]
    assert moved.nonzero().flatten().tolist() == [backbone.prefix + 6]


@each_backbone
@torch.no_grad()
def test_a_hidden_token_is_a_key_for_nobody(name: str) -> None:
    """Minus infinity in the mask and the token being gone are the same to all others: exact softmax zeros."""
    backbone = BACKBONES[name]().double()
    tokens = torch.randn(3, 11, WIDTH, dtype=torch.float64)
    there = torch.ones(11, dtype=torch.bool)
    there[[2, 7]] = False
    bias = torch.zeros(11, dtype=torch.float64).masked_fill(~there, -torch.inf).expand(3, 1, 11, 11)
    masked = backbone.block(1, tokens, bias)[:, there]
    torch.testing.assert_close(masked, backbone.block(1, tokens[:, there], None), rtol=0, atol=1e-12)
    assert not torch.allclose(masked, backbone.block(1, tokens, None)[:, there], atol=1e-3)


@each_backbone
@pytest.mark.parametrize("gradients", [True, False])
def test_a_weight_in_the_mask_is_that_many_copies_of_a_token(name: str, gradients: bool) -> None:
    """log 2 added to a key's score is that key twice, with gradients and without: PyTorch's fused layer, used without,
    hides every key whose mask isn't 0."""
    backbone = BACKBONES[name]().double()
    tokens = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    bias = torch.tensor([0, 0, 2, 0, 0], dtype=torch.float64).clamp(min=1).log().expand(2, 1, 5, 5)
    with torch.set_grad_enabled(gradients):
        weighted = backbone.block(0, tokens, bias)
        twice = backbone.block(0, torch.cat([tokens, tokens[:, 2:3]], dim=1), None)[:, :5]
    torch.testing.assert_close(weighted, twice, rtol=0, atol=1e-12)
    assert torch.backends.mha.get_fastpath_enabled()


@torch.no_grad()
def test_dinov2_averages_the_patches_that_are_left() -> None:
    network: Any = dinov2().double()
    backbone = wrap(network)
    tokens = torch.randn(2, 1 + 9, WIDTH, dtype=torch.float64)
    keep = torch.zeros(2, 9, dtype=torch.bool)
    keep[0, [1, 4, 8]] = True  # the second picture has none left
    logits = backbone.classify(tokens, keep)
    normed = nn.functional.layer_norm(tokens, (WIDTH,), network.dinov2.layernorm.weight, network.dinov2.layernorm.bias,
                                      eps=network.config.layer_norm_eps)  # fmt: skip
    for row, mean in enumerate([normed[0, [2, 5, 9]].mean(0), torch.zeros(WIDTH, dtype=torch.float64)]):
        expected = network.classifier(torch.cat([normed[row, 0], mean]))
        torch.testing.assert_close(logits[row], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", STOCK)
def test_wrapping_changes_nothing_in_a_network(name: str) -> None:
    network = STOCK[name]()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    images = torch.randn(2, CHANNELS, *network.config.image_size)
    expected, attention = logits_of(network, images), network.config._attn_implementation
    backbone = wrap(network)
    assert backbone.network is network
    chained(backbone, images)
    assert network.config._attn_implementation == attention
    assert torch.equal(logits_of(network, images), expected)
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())


@each_backbone
def test_no_weight_is_saved_twice(name: str) -> None:
    model = selective(name)
    saved = model.state_dict()
    assert len({value.data_ptr() for value in saved.values()}) == len(saved)
    own = {key: value for key, value in saved.items() if key.startswith("backbone.")}
    assert {key.removeprefix("backbone.network.") for key in own} == set(model.backbone.network.state_dict())
    assert len(list(model.parameters())) == len({id(one) for one in model.parameters()})


@each_backbone
def test_a_copy_stands_on_its_own(name: str) -> None:
    backbone = BACKBONES[name]()
    images = pictures(backbone, 2)
    expected = chained(backbone, images)
    twin = copy.deepcopy(backbone)
    for parameter in backbone.parameters():
        parameter.data.zero_()
    assert torch.equal(chained(twin, images), expected)


@each_backbone
def test_pictures_of_another_size_are_refused(name: str) -> None:
    model = selective(name)
    channels, rows, columns = model.backbone.image_shape
    wrong = [(2, channels, rows, columns + 4), (2, channels + 1, rows, columns), (channels, rows, columns)]
    for shape in wrong:
        wanted = re.escape(
            f"= {channels} x {rows} x {columns}, got {' x '.join(map(str, shape[1:]))}; resize them (--image-size"
        )
        with pytest.raises(UserError, match=f"^the model takes images of .channel, row, column. {wanted}"):
            model(torch.randn(shape), 0.5)
