"""Losses measured in real passes: against full attention maps of passes made anew, and norms recorded there."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from norm_samples import brute_loss
from numpy.typing import NDArray

from sinkscope.attention import Collect, watch
from sinkscope.compression import (
    CachedLayer,
    Compress,
    HighKeyNorm,
    KeyNorm,
    Random,
    ReceivedAttention,
    Scorer,
    SnapKV,
    SparseDLLM,
    Streaming,
)
from sinkscope.compression.diagnostics import measure_losses
from sinkscope.decoding import Decoding, Denoising, denoise, generate
from sinkscope.errors import UserError
from sinkscope.families import Model, load_model
from sinkscope.ordering import TOLERANCE

PROMPTS = [[5, 9, 2, 8, 33, 21, 7], [7, 3, 11]]
Floats = NDArray[np.float64]


@torch.no_grad()
def whole_pass(model: Model, tokens: list[int]) -> tuple[Floats, Floats]:
    """Maps (layer, head, query, key) and key norms (layer, kv_head, key) of one pass over all tokens."""
    layers = tuple(range(model.shape.layers))
    with watch(model, Collect(norms=True, map_layers=layers)) as watched:
        model.network(input_ids=torch.tensor([tokens]))
    assert watched.last.key_norm is not None
    maps = torch.stack([watched.last.maps[layer][0] for layer in layers])
    return maps.double().numpy(), watched.last.key_norm[:, 0].double().numpy()


def loss_bounds(attention: Floats, norm: Floats) -> tuple[float, float]:
    """What dropping high norms first loses at least and at most: in layer 0 all masks have the same key but for its
    rotation, and which of their norms is the higher is a matter of rounding."""
    same = norm.round(4)
    least, most = (brute_loss(attention, -same + sign * 1e-6 * attention) for sign in (1, -1))
    return least * (1 - 1e-4) - 1e-5, most * (1 + 1e-4) + 1e-5


def check_cells(found: xr.Dataset, attention: Floats, norm: Floats) -> None:
    """One step: attention (layer, head, key) and norms (layer, kv_head, key) of the keys that may be dropped."""
    layers, kv_heads, keys = norm.shape
    shared = attention.shape[1] // kv_heads
    assert found.sizes["layer"] == layers and found.sizes["kv_head"] == kv_heads
    assert int(found["keys"]) == keys
    for layer in range(layers):
        for kv_head in range(kv_heads):
            mean = attention[layer, kv_head * shared : (kv_head + 1) * shared].mean(0)
            cell = found.sel(layer=layer, kv_head=kv_head)
            least, most = loss_bounds(mean, norm[layer, kv_head])
            assert least <= float(cell["loss"].sel(scorer="key-norm")) <= most
            assert float(cell["mass"]) == pytest.approx(mean.sum(), rel=1e-5)
            if keys > 1 and np.diff(np.sort(norm[layer, kv_head])).min() > 2 * TOLERANCE * norm[layer, kv_head].max():
                both = cell["relative"].sel(scorer="key-norm") + cell["relative"].sel(scorer="high-key-norm")
                assert float(both) == pytest.approx(2, abs=1e-6)


def test_the_next_tokens_attention_over_cached_keys(causal_folder: Path) -> None:
    model = load_model(causal_folder, dtype="float32", device="cpu")
    found = measure_losses(model, PROMPTS, Decoding(max_new_tokens=5))
    for number, prompt in enumerate(PROMPTS):
        made = generate(model, [prompt], Decoding(max_new_tokens=5))
        maps, norm = whole_pass(model, made.sequences[0].tolist())
        steps = [step for step in found["step"].values if not bool(found["keys"].sel(step=step)[number].isnull())]
        assert steps == list(range(1, made.forward_passes))
        for step in steps:
            asks = len(prompt) + int(step) - 1
            here = found.isel(prompt=number).sel(step=step)
            check_cells(here, maps[:, :, asks, :asks], norm[:, :, :asks])


@pytest.mark.parametrize("name", ["llada-gqa-tiny", "llada-tiny", "dream-tiny"])
def test_the_blocks_queries_over_all_other_keys(tiny: Callable[[str], Model], name: str) -> None:
    model, settings = tiny(name), Denoising(gen_length=6, block_length=3, steps=4)
    found = measure_losses(model, [PROMPTS[0]], settings)
    steps = list(denoise(model, [PROMPTS[0]], settings))
    assert found["step"].values.tolist() == [step.index for step in steps]
    for step in steps:
        maps, norm = whole_pass(model, step.seen[0].tolist())
        start, stop = step.block_range
        others = [key for key in range(step.seen.shape[1]) if not start <= key < stop]
        attention = maps[:, :, start:stop].mean(2)[..., others]
        check_cells(found.isel(prompt=0).sel(step=step.index), attention, norm[..., others])


def test_with_a_block_cache_keys_are_those_of_the_blocks_start(tiny: Callable[[str], Model]) -> None:
    model, settings = tiny("llada-gqa-tiny"), Denoising(gen_length=6, block_length=3, steps=6, cache="dual")
    found = measure_losses(model, [PROMPTS[0]], settings, scorers=[KeyNorm(), HighKeyNorm()])
    steps = list(denoise(model, [PROMPTS[0]], settings))
    assert found["step"].values.tolist() == [step.index for step in steps]
    assert found["keys"].values.ravel().tolist() == [10.0] * len(steps)
    full = [step for step in steps if step.queries == (0, step.seen.shape[1])]
    assert len(full) == 2
    for step in full:
        maps, norm = whole_pass(model, step.seen[0].tolist())
        start, stop = step.block_range
        others = [key for key in range(step.seen.shape[1]) if not start <= key < stop]
        attention = maps[:, :, start:stop].mean(2)[..., others]
        check_cells(found.isel(prompt=0).sel(step=step.index), attention, norm[..., others])


def noted(patch: pytest.MonkeyPatch, kind: type[Scorer], run: Callable[[], object]) -> list[CachedLayer]:
    """What scorers of a kind were shown meanwhile."""
    shown: list[CachedLayer] = []
    importance = kind.importance

    def noting(self: Scorer, cached: CachedLayer) -> torch.Tensor:
        shown.append(cached)
        return importance(self, cached)

    with patch.context() as inside:
        inside.setattr(kind, "importance", noting)
        run()
    return shown


@pytest.mark.parametrize("cache", [None, "dual"])
def test_a_scorer_is_shown_what_a_block_cache_shows_it(
    tiny: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch, cache: str | None
) -> None:
    model, plain = tiny("llada-gqa-tiny"), Denoising(gen_length=9, block_length=3, steps=9, cache=cache)
    kind, dual, half = SparseDLLM, replace(plain, cache="dual"), Compress("sparse-dllm", 0.5)
    here = noted(monkeypatch, kind, lambda: measure_losses(model, [PROMPTS[0]], plain, scorers=[SparseDLLM()]))
    there = noted(monkeypatch, kind, lambda: generate(model, [PROMPTS[0]], dual, compression=half))
    assert len(there) == 3 * model.shape.layers, "once a block"
    starts = [3 * block * model.shape.layers for block in range(3)]
    first_of_block = [one for start in starts for one in here[start : start + model.shape.layers]]
    for number, (ours, blocks) in enumerate(zip(first_of_block, there, strict=True)):
        for name in ("positions", "real", "length", "prompt_length", "query_positions", "query_real", "distance"):
            assert torch.equal(getattr(ours, name), getattr(blocks, name)), name
        for name in ("layer", "block_length", "causal", "scale"):
            assert getattr(ours, name) == getattr(blocks, name), name
        assert ours.queries is not None and blocks.queries is not None
        assert ours.queries.shape == blocks.queries.shape
        if number < model.shape.layers:  # later blocks go on from other tokens
            for name in ("keys", "values", "queries"):
                torch.testing.assert_close(getattr(ours, name), getattr(blocks, name))


def test_the_token_that_asks_is_not_among_those_before_it(causal_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, settings = load_model(causal_folder, dtype="float32", device="cpu"), Decoding(max_new_tokens=4)
    shown = noted(monkeypatch, Streaming, lambda: measure_losses(model, [PROMPTS[0]], settings, scorers=[Streaming()]))
    lengths = [int(one.length) for one in shown[:: model.shape.layers]]
    assert len(lengths) > 1
    assert lengths == list(range(7, 7 + len(lengths)))
    for one in shown:
        assert one.positions[0, 0].tolist() == list(range(int(one.length)))
        assert (one.causal, one.block_length) == (True, 0)


def test_looking_changes_nothing(tiny: Callable[[str], Model]) -> None:
    """The same tokens come out, and a prompt's losses do not depend on the prompts beside it."""
    model, settings = tiny("llada-gqa-tiny"), Denoising(gen_length=6, block_length=3, steps=6)
    before = generate(model, [PROMPTS[0]], settings).sequences
    both = measure_losses(model, PROMPTS, settings)
    assert torch.equal(before, generate(model, [PROMPTS[0]], settings).sequences)
    alone = measure_losses(model, [PROMPTS[1]], settings)
    assert both.isel(prompt=1).dropna("step", how="all").equals(alone.isel(prompt=0))


def test_guidance_looks_at_the_conditional_half(tiny: Callable[[str], Model]) -> None:
    model, settings = tiny("llada-tiny"), Denoising(gen_length=4, block_length=4, steps=2, cfg_scale=0.7)
    found = measure_losses(model, [PROMPTS[0]], settings)
    first = next(denoise(model, [PROMPTS[0]], settings))
    maps, norm = whole_pass(model, first.seen[0].tolist())
    check_cells(found.isel(prompt=0, step=0), maps[:, :, 7:].mean(2)[..., :7], norm[..., :7])


def test_random_orders_are_random_ones_on_average(tiny: Callable[[str], Model]) -> None:
    model = tiny("llada-gqa-tiny")
    settings = Denoising(gen_length=12, block_length=3, steps=None)
    found = measure_losses(model, [[token + 3 for token in PROMPTS[0]], *PROMPTS], settings, scorers=[Random()])
    assert float(found["relative"].mean()) == pytest.approx(1, abs=0.1)
    assert float(found["relative"].std()) > 0.1


def test_scorers_of_block_queries_may_be_asked_of_diffusion_models(tiny: Callable[[str], Model]) -> None:
    found = measure_losses(
        tiny("llada-gqa-tiny"), [PROMPTS[0]], Denoising(gen_length=4, block_length=2, steps=2),
        scorers=[SparseDLLM(kernel=1), Streaming()],
    )  # fmt: skip
    assert found["scorer"].values.tolist() == ["sparse-dllm", "streaming"]
    assert bool(found["relative"].notnull().all())


def test_what_can_not_be_measured_is_refused(tiny: Callable[[str], Model], causal_folder: Path) -> None:
    causal = load_model(causal_folder, dtype="float32", device="cpu")
    few = Decoding(max_new_tokens=3)
    for scorer in (SnapKV(), ReceivedAttention()):
        with pytest.raises(UserError, match=f"scorer '{scorer.name}' needs what earlier queries"):
            measure_losses(causal, PROMPTS, few, scorers=[scorer])
    with pytest.raises(UserError, match="told apart by their names, got key-norm, key-norm"):
        measure_losses(causal, PROMPTS, few, scorers=[KeyNorm(), KeyNorm()])
    with pytest.raises(UserError, match="set max_new_tokens to at least 2"):
        measure_losses(causal, PROMPTS, Decoding(max_new_tokens=1))
    model = tiny("llada-tiny")
    assert model.family.mask_token_id is not None
    masked, filling = [[5, model.family.mask_token_id, 2]], Denoising(gen_length=0, block_length=None, steps=None)
    with pytest.raises(UserError, match="gen_length 0 makes the whole text one block"):
        measure_losses(model, masked, filling)
    plain = load_model(causal_folder, dtype="float32", device="cpu", attention="sdpa")
    with pytest.raises(UserError, match="load it with attention='sinkscope'"):
        measure_losses(plain, PROMPTS, few)
