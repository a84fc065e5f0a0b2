"""Whole passes at every step, against eager attention of each step's text; the strongest key, and what is chance."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sinkscope.decoding import Decoding, Denoising
from sinkscope.families import Model, load_model
from sinkscope.sinks.whole_passes import WholePasses, strongest_key, strongest_keys, whole_passes
from sinkscope.trace import record


def eager_maps(model: Model, tokens: list[int]) -> np.ndarray:
    """(layer, head, query, position) of one text in transformers' own eager attention, float64."""
    network: Any = type(model.network)(copy.deepcopy(model.network.config))
    network.load_state_dict(model.network.state_dict())
    network = network.double().train(False)
    network.set_attn_implementation("eager")
    with torch.no_grad():
        maps = network(torch.tensor([tokens]), output_attentions=True).attentions
    return torch.stack(maps)[:, 0].numpy()


def test_a_causal_model_is_asked_as_if_each_prefix_were_passed_whole(causal_folder: Path, tmp_path: Path) -> None:
    model = load_model(causal_folder, dtype="float32", device="cpu")
    prompt = torch.randint(20, 101, (7,)).tolist()
    settings = Decoding(max_new_tokens=6, temperature=1.0, seed=int(torch.randint(1 << 20, ())))
    sample = record(model, [prompt], settings, out=tmp_path / "trace.zarr")[0]
    passes = whole_passes(model, sample)
    received = passes.received.values
    assert received.shape == (sample.sizes["step"], 2, 6, 6 + sample.sizes["step"])
    for step, length in enumerate(passes.lengths):
        assert length == 7 + step
        maps = eager_maps(model, sample["sequence"].values[:length].tolist())
        seen = length - np.arange(length)
        alpha = maps.sum(-2) / seen
        asked = 4 * seen > length
        # float32 attention of logits of some tens: 1e-5 of a weight (`sinkscope.ordering`)
        np.testing.assert_allclose(received[step][..., :length][..., asked], alpha[..., asked], rtol=1e-4, atol=1e-6)
        assert np.isnan(received[step][..., :length][..., ~asked]).all()
        assert np.isnan(received[step][..., length:]).all()


@pytest.mark.parametrize("cache", [None, "dual"])
def test_every_canvas_of_a_bidirectional_model_is_passed_whole(
    tiny: Callable[[str], Model], tmp_path: Path, cache: str | None
) -> None:
    """Also where the trace itself was made with a block cache."""
    model, settings = tiny("llada-tiny"), Denoising(gen_length=20, block_length=10, steps=None, cache=cache)
    sample = record(model, [torch.randint(5, 40, (5,)).tolist()], settings, out=tmp_path / "trace.zarr")[0]
    passes = whole_passes(model, sample)
    received = passes.received
    assert received.sizes["step"] == 20 and set(passes.lengths) == {25}
    for step in (0, 7, 19):
        canvas = sample["canvas"].values[step].tolist()
        expected = eager_maps(model, canvas).mean(-2)
        np.testing.assert_allclose(received.values[step], expected, rtol=1e-4, atol=1e-6)


def random_passes(*, causal: bool, steps: int = 5, size: int = 11, layers: int = 2, heads: int = 3) -> WholePasses:
    """Maps of sharp random weights."""
    count = 1 if causal else steps
    logits = 3 * torch.randn(count, layers, heads, size, size)
    if causal:
        logits = logits.masked_fill(torch.ones(size, size).triu(1).bool(), -torch.inf)
    lengths = np.arange(size - steps + 1, size + 1) if causal else np.full(steps, size)
    return WholePasses(maps=logits.softmax(-1).numpy(), lengths=lengths, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
def test_a_shuffle_deals_each_querys_weights_out_among_what_it_sees(causal: bool) -> None:
    passes = random_passes(causal=causal)
    shuffled = passes.shuffled(np.random.default_rng(3)).maps
    assert (shuffled != passes.maps).mean() > 0.4
    for query in range(11):
        sees = query + 1 if causal else 11
        rows, dealt = passes.maps[..., query, :sees], shuffled[..., query, :sees]
        assert (np.sort(rows, -1) == np.sort(dealt, -1)).all()
        assert (shuffled[..., query, sees:] == 0).all()


def test_a_shuffle_is_the_same_at_all_steps_and_another_for_every_query() -> None:
    places = np.broadcast_to(np.arange(9, dtype=np.float32), (4, 2, 3, 9, 9))
    dealt = WholePasses(maps=places, lengths=np.full(4, 9), causal=False).shuffled(np.random.default_rng(5)).maps
    assert (dealt == dealt[:1]).all()
    assert len({tuple(row) for row in dealt[0].reshape(-1, 9)}) == 2 * 3 * 9


def test_what_is_measured_of_the_strongest_key() -> None:
    """Two heads: one looks at the first token always, the other at another place in each step."""
    steps, size = 6, 8
    maps = np.full((steps, 1, 2, size, size), 0.2 / size, dtype=np.float32)
    maps[:, 0, 0, :, 0] += 0.8
    for step in range(steps):
        maps[step, 0, 1, :, step + 2] += 0.8
    passes = WholePasses(maps=maps, lengths=np.full(steps, size), causal=False)
    where, share = strongest_key(passes.received)
    assert where[:, 0].tolist() == [[0, step + 2] for step in range(steps)]
    np.testing.assert_allclose(share, 0.8 + 0.2 / size, rtol=1e-6)
    own = strongest_keys([passes, passes]).sel(origin="own")
    assert own.sizes["text"] == 2
    assert own["first"].values.tolist() == [0.5, 0.5]
    assert own["moved"].values.tolist() == [0.5, 0.5]
    assert own["strong"].values.tolist() == [1.0, 1.0]
    assert own["fair"].values.tolist() == [1 / size, 1 / size]


def test_chance_has_no_place_and_no_strength_of_its_own() -> None:
    """Of ten keys each is the strongest in one of ten shuffles; maps that do not change do not move by chance."""
    size, heads = 10, 40
    sharp = torch.distributions.Dirichlet(torch.full((size,), 0.3)).sample((1, 1, heads, size)).numpy()
    passes = WholePasses(maps=np.repeat(sharp, 3, 0), lengths=np.full(3, size), causal=False)
    chance = strongest_keys([passes], draws=25, seed=int(torch.randint(1 << 20, ()))).sel(origin="shuffled", text=0)
    assert float(chance["first"]) == pytest.approx(0.1, abs=5 * (0.1 * 0.9 / (25 * heads)) ** 0.5)
    assert float(chance["moved"]) == 0
    one_step = WholePasses(maps=sharp, lengths=np.full(1, size), causal=False)
    assert np.isnan(strongest_keys([one_step], draws=1)["moved"].values).all()
