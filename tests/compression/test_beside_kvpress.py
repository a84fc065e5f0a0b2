"""The keys that stay, against those of kvpress 0.5.5 on the same text (`tests/fixtures/kvpress/make.py`)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

import sinkscope as ss
from sinkscope.compression import (
    AdaKV,
    Budget,
    Compress,
    CompressedCache,
    PyramidKV,
    as_budget,
    compress_prefix,
    read_budget_spec,
)
from sinkscope.compression.budgets import read_budget
from sinkscope.compression.contents import EMPTY
from sinkscope.compression.networks import rotation_of
from sinkscope.errors import UserError
from sinkscope.families import Model

FOLDER = Path(__file__).parents[1] / "fixtures" / "kvpress"
THEIRS = json.loads((FOLDER / "kept.json").read_text(encoding="utf-8"))
SNAPKV = "snapkv:window=16,kernel=5"
OURS: dict[str, tuple[Any, Budget | float]] = {
    "knorm": ("key-norm", 0.5),
    "streaming": ("streaming:first=4", 0.5),
    "key-diff": ("key-diff", 0.5),
    "snapkv": (SNAPKV, 0.5),
    "expected-attention": ("expected-attention:ahead=32,first=4", 0.5),
    "tova": ("tova", 0.5),
    "lagkv": ("lagkv:first=4,lag=16", 0.5),
    "pyramidkv": (SNAPKV, PyramidKV(0.5, steepness=3, window=16)),
    "adakv": (SNAPKV, AdaKV(0.5)),
    "adakv-knorm": ("key-norm", AdaKV(0.5)),
    "chunkkv": ("chunk-kv:of=key-diff,length=10", 0.5),
    "block": ("block-wise:of=key-diff,block=16", 0.5),
    "rerotated": ("rerotated", 0.5),
    "rerotated-key-diff": ("rerotated:of=key-diff", 0.5),
    "kvzip": ("kvzip", AdaKV(0.5, least=0.0)),
}


@pytest.fixture(scope="module")
def model() -> Model:
    return ss.load_model(FOLDER, dtype="float32", device="cpu")


def kept(model: Model, name: str) -> CompressedCache:
    scorer, budget = OURS[name]
    return compress_prefix(model, [THEIRS["tokens"]], Compress(scorer, budget)).kept


def test_every_press_has_its_match() -> None:
    assert OURS.keys() == THEIRS["kept"].keys()


@pytest.mark.parametrize("name", OURS)
def test_the_same_keys_stay(name: str, model: Model) -> None:
    for layer, theirs in zip(kept(model, name).dropping, THEIRS["kept"][name], strict=True):
        assert layer.holding.contents is not None
        ours = layer.holding.contents.columns_by_head()[0]
        assert [head[head != EMPTY].tolist() for head in ours] == theirs


@pytest.mark.parametrize("name", ["rerotated", "rerotated-key-diff"])
def test_keys_are_rotated_to_places_without_gaps(name: str, model: Model) -> None:
    """Theirs to 0, 1, ..., ours to the places right before the next token; both are float32."""
    theirs, width = load_file(FOLDER / "rerotated.safetensors"), len(THEIRS["tokens"])
    for number, layer in enumerate(kept(model, name).dropping):
        assert layer.keys is not None
        ranks = torch.arange(layer.keys.shape[2]).expand(layer.keys.shape[:3])
        moved = rotation_of(model).moved(layer.keys, ranks + width - layer.keys.shape[2], ranks)
        torch.testing.assert_close(moved[0], theirs[f"{name}.{number}"], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_what_follows_sees_distances_inside_the_cache(model: Model) -> None:
    """Their keys and positions 60, 61, ..., against ours and the positions of the text."""
    theirs, ids = load_file(FOLDER / "rerotated.safetensors"), torch.tensor([THEIRS["tokens"]])
    plain, closed = DynamicCache(), DynamicCache()
    model.network(input_ids=ids, cache=plain)
    for number, (layer, heads) in enumerate(zip(plain.layers, THEIRS["kept"]["rerotated"], strict=True)):
        assert isinstance(layer, DynamicLayer) and layer.values is not None
        values = torch.stack([layer.values[0, head, kept] for head, kept in enumerate(heads)])
        closed.update(theirs[f"rerotated.{number}"][None], values[None], number)
    asked = torch.tensor([[7, 100, 33]])
    expected = model.network(input_ids=asked, cache=closed).logits
    ours = compress_prefix(model, [THEIRS["tokens"]], Compress("rerotated", 0.5)).cache(model)
    torch.testing.assert_close(model.network(input_ids=asked, cache=ours).logits, expected, rtol=1e-3, atol=1e-3)


def test_refusals_say_what_to_do(model: Model) -> None:
    with pytest.raises(UserError, match="reads a context twice before any question: use compress_prefix"):
        ss.generate(model, [[3, 4]], ss.Decoding(max_new_tokens=1), compression=Compress("kvzip"))
    with pytest.raises(UserError, match="use when='prompt'"):
        Compress("kvzip", when="both", prune_after=9)
    with pytest.raises(UserError, match="a block has keys on both sides"):
        Compress("rerotated").for_blocks(model)
    with pytest.raises(UserError, match="shares out a ratio or a number of tokens"):
        AdaKV(PyramidKV())


def test_budgets_are_read_and_written() -> None:
    for spec, budget in (("ada-kv:0.25,least=0.5", AdaKV(0.25, 0.5)), ("pyramid-kv:64", PyramidKV(64))):
        assert read_budget_spec(spec) == budget == read_budget(json.loads(json.dumps(budget.to_plain())))


@pytest.mark.parametrize("budget", [PyramidKV(0.4, steepness=4, window=3), PyramidKV(0.5), PyramidKV(30, window=2)])
@pytest.mark.parametrize("layers", [1, 2, 7])
def test_a_pyramid_keeps_what_it_was_given_on_average(budget: PyramidKV, layers: int) -> None:
    kept = [budget.of_layers(layers).kept(100, layer) for layer in range(layers)]
    assert kept == sorted(kept, reverse=True)
    assert layers == 1 or abs(sum(kept) / layers - as_budget(budget.budget).kept(100, 0)) <= 0.5
