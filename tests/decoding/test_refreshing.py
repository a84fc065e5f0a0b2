"""Caches that compute some columns anew: the plain run where they compute all, an oracle where they do not."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import sinkscope as ss
from sinkscope.attention import watch
from sinkscope.compression import Compress
from sinkscope.decoding import Denoising, Step, denoise
from sinkscope.decoding.refresh_rules import D2, DKV, REFRESH_RULES, Elastic, density, filled
from sinkscope.decoding.refreshing import (
    Canvassed,
    HeldColumns,
    LayerPass,
    RefreshingCache,
    RefreshRule,
    Rows,
    padded_columns,
)
from sinkscope.errors import UserError
from sinkscope.families import Model, load_model

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROMPTS = [[7, 3, 11, 9, 31], [5, 9, 2, 8, 1, 4, 6, 90, 41], [13, 40, 22, 3, 77, 60, 2]]
PLAIN = Denoising(gen_length=12, block_length=6, steps=None)
EVERYTHING = ("dkv:refresh=1", "dllm:prompt=1,response=1", "elastic:gamma=1.5,window=99", "d2:masks=99,rollout=1")
USUAL = ("dkv:refresh=4", "dllm:prompt=5,response=3", "elastic:window=3,gamma=0.99", "d2:masks=3,gap=1")


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    names = ("llada-tiny", "llada-gqa-tiny", "dream-tiny")
    return {name: load_model(FIXTURES / name, dtype="float64", device="cpu") for name in names}


def steps_of(model: Model, settings: Denoising, prompts: Any = PROMPTS) -> list[Step]:
    return list(denoise(model, prompts, settings))


def test_every_rule_is_tried() -> None:
    assert {spec.partition(":")[0] for spec in EVERYTHING} == {spec.partition(":")[0] for spec in USUAL}
    own = {name for name, kind in REFRESH_RULES.items() if kind.__module__.startswith("sinkscope.")}
    assert {spec.partition(":")[0] for spec in USUAL} == own  # other tests may have filed rules of their own


@pytest.mark.parametrize("cache", EVERYTHING)
@pytest.mark.parametrize(
    ("name", "more"),
    [("llada-gqa-tiny", {}), ("dream-tiny", {}), ("llada-tiny", {"cfg_scale": 0.7, "threshold": 0.4, "steps": 12})],
)
def test_computing_everything_is_the_plain_run_bit_for_bit(
    cache: str, name: str, more: dict[str, Any], models: dict[str, Model]
) -> None:
    settings = replace(PLAIN, **more)
    plain, cached = (steps_of(models[name], one) for one in (settings, replace(settings, cache=cache)))
    assert len(plain) == len(cached)
    for one, other in zip(plain, cached, strict=True):
        assert torch.equal(one.canvas, other.canvas)
        assert torch.equal(one.confidence.nan_to_num(-1), other.confidence.nan_to_num(-1))
        assert one.computed is not None and other.computed is not None
        assert torch.equal(one.computed, other.computed)


@pytest.mark.parametrize("cache", USUAL)
def test_a_row_is_computed_as_if_it_were_alone(cache: str, models: dict[str, Model]) -> None:
    settings = replace(PLAIN, cache=cache)
    together = steps_of(models["llada-gqa-tiny"], settings)
    for row, prompt in enumerate(PROMPTS):
        alone = steps_of(models["llada-gqa-tiny"], settings, [prompt])
        assert torch.equal(alone[-1].canvas[0, -12:], together[-1].canvas[row, -12:])
        for one, other in zip(alone, together, strict=True):
            assert one.computed is not None and other.computed is not None
            assert one.computed[0] == other.computed[row]


@pytest.mark.parametrize("cache", USUAL)
def test_less_is_computed_and_no_mask_is_left(cache: str, models: dict[str, Model]) -> None:
    for model in (models["llada-gqa-tiny"], models["dream-tiny"]):
        steps = steps_of(model, replace(PLAIN, cache=cache))
        whole = sum(float(one.computed.sum()) for one in steps_of(model, PLAIN) if one.computed is not None)
        assert sum(float(one.computed.sum()) for one in steps if one.computed is not None) < 0.9 * whole
        assert model.family.mask_token_id not in steps[-1].canvas
        assert steps[-1].held_bytes


@dataclass(frozen=True)
class Drawn(RefreshRule):
    """Random columns, others in each layer."""

    name = "drawn"

    def begin(self, layers: int) -> Rows:
        del layers
        return DrawnRows()


class DrawnRows(Rows):
    stale_predictions = True

    def __init__(self) -> None:
        self.draw = torch.Generator().manual_seed(3)
        self.made: list[torch.Tensor] = []

    def drawn(self, like: torch.Tensor) -> torch.Tensor:
        return torch.rand(like.shape, generator=self.draw) < 0.5

    def plan(self, canvas: Canvassed) -> torch.Tensor:
        return self.drawn(canvas.real)

    def at(
        self, layer: int, columns: torch.Tensor, values: Callable[[], torch.Tensor], held: HeldColumns
    ) -> torch.Tensor:
        del layer, values, held
        self.made.append(self.drawn(columns))
        return self.made[-1]


@torch.no_grad()
def test_random_columns_equal_whole_passes_with_the_others_put_back(models: dict[str, Model]) -> None:
    """The oracle computes every column in every layer, by hand in float64, and takes stored ones where a layer leaves
    columns out."""
    model = models["llada-gqa-tiny"]
    network: Any = model.network
    tokens = torch.randint(1, 90, (3, 2, 11))
    real = torch.ones(2, 11, dtype=torch.bool)
    real[1, :3] = False
    places = (real.long().cumsum(-1) - 1).clamp(min=0)
    cache = RefreshingCache(model, Drawn(), real)
    rows = cache.rows
    assert isinstance(rows, DrawnRows)
    stored: list[tuple[torch.Tensor, ...]] = []
    for index in range(3):
        nothing = torch.zeros_like(real)
        cache.plan(
            Canvassed(
                index=index,
                step=index,
                block=(5, 11),
                real=real,
                generated=nothing,
                masked=nothing,
                new=nothing,
                open=nothing,
                confidence=nothing.double(),
            )
        )
        rows.made.clear()
        with cache.computing():
            ours = network(
                input_ids=tokens[index], attention_mask=real.long(), position_ids=places, cache=cache, use_cache=True
            ).logits
        hidden = network.model.embed_tokens(tokens[index])
        cosine, sine = network.model.rotary_emb(hidden, places)
        for number, block in enumerate(network.model.layers):
            anew = (rows.made[number] if index else torch.ones_like(real)).unsqueeze(-1)
            normed, own = block.input_layernorm(hidden), block.self_attn
            query, key = (_rotated(one(normed), own.head_dim, cosine, sine) for one in (own.q_proj, own.k_proj))
            value = own.v_proj(normed).view(2, 11, -1, own.head_dim).transpose(1, 2)
            if index:
                key = torch.where(anew.unsqueeze(1), key, stored[number][0])
                value = torch.where(anew.unsqueeze(1), value, stored[number][1])
            groups = query.shape[1] // key.shape[1]
            scores = query @ key.repeat_interleave(groups, 1).mT * own.scaling
            mixed = scores.masked_fill(~real[:, None, None], -torch.inf).softmax(-1) @ value.repeat_interleave(
                groups, 1
            )
            attended = hidden + own.o_proj(mixed.transpose(1, 2).flatten(2))
            added = attended + block.mlp(block.post_attention_layernorm(attended)) - hidden
            if index:
                added = torch.where(anew, added, stored[number][2])
            stored[number : number + 1] = [(key, value, added)]
            hidden = hidden + added
        exact = network.lm_head(network.model.norm(hidden))
        torch.testing.assert_close(ours[real], exact[real], rtol=1e-9, atol=1e-9)


def _rotated(states: torch.Tensor, dim: int, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    states = states.view(*states.shape[:2], -1, dim).transpose(1, 2)
    half = torch.cat([-states[..., dim // 2 :], states[..., : dim // 2]], dim=-1)
    return states * cosine.unsqueeze(1) + half * sine.unsqueeze(1)


def a_canvas(**changes: Any) -> Canvassed:
    """One row of ten columns: two of prompt, then a block of four and another."""
    generated = torch.arange(10)[None] >= 2
    masked = generated & ~torch.isin(torch.arange(10), torch.tensor([3, 5]))[None]
    given: dict[str, Any] = {
        "index": 5, "step": 3, "block": (2, 6), "real": torch.ones(1, 10, dtype=torch.bool), "generated": generated,
        "masked": masked, "new": torch.arange(10)[None] == 5, "open": masked & (torch.arange(10) < 6),
        "confidence": torch.linspace(0, 0.9, 10)[None].double(),
    }  # fmt: skip
    return Canvassed(**{**given, **changes})


def numbers(columns: torch.Tensor) -> list[int]:
    return columns[0].nonzero().flatten().tolist()


def test_dkv_computes_masks_and_what_is_new() -> None:
    rows = DKV(refresh=4).begin(2)
    assert numbers(rows.plan(a_canvas())) == [2, 4, 5, 6, 7, 8, 9]
    for step in (0, 1, 4, 8):
        assert bool(rows.plan(a_canvas(step=step)).all())


def test_d2_takes_likely_masks_then_what_attention_flows_to() -> None:
    rows = D2(masks=2, rollout=0.0, gap=0).begin(1)
    query, keys = torch.zeros(1, 2, 10, 4), torch.zeros(1, 2, 10, 4)
    query[..., 0], keys[:, :, 1, 0] = 1, 9.0
    every = torch.arange(10)[None]
    real = torch.ones(1, 10, dtype=torch.bool)
    rows.after(0, LayerPass(query=query, keys=keys, keys_before=None, columns=every, scale=1.0, real=real))
    assert numbers(rows.plan(a_canvas())) == [1, 2, 4, 5], "the block's two masks, the new one, and the sink"


def test_elastic_computes_all_after_the_layer_whose_attention_drifted() -> None:
    rows = Elastic(gamma=0.9, window=2).begin(2)
    rows.first(a_canvas(index=0))
    torch.manual_seed(0)
    real, every = torch.ones(1, 10, dtype=torch.bool), torch.arange(10)[None]
    query, keys = torch.randn(1, 2, 10, 4), torch.randn(1, 2, 10, 4)
    for layer in range(2):
        rows.after(layer, LayerPass(query=query, keys=keys, keys_before=None, columns=every, scale=1.0, real=real))
    planned = rows.plan(a_canvas())
    tracked = set(numbers(planned)) - {2, 4, 5}
    assert {2, 4, 5} <= set(numbers(planned)) and len(tracked) <= 2 and tracked.isdisjoint({6, 7, 8, 9})
    held: Any = None
    columns = padded_columns(planned)
    at = columns[:, None, :, None].expand(-1, 2, -1, 4)
    same = LayerPass(query=query.gather(2, at), keys=keys, keys_before=keys, columns=columns, scale=1.0, real=real)
    rows.after(0, same)
    assert torch.equal(rows.at(1, planned, lambda: keys, held), planned), "nothing has changed"
    rows.after(0, replace(same, keys=-keys))
    assert bool(rows.at(1, planned, lambda: keys, held).all())


def test_density_and_gaps_written_out() -> None:
    masked = torch.tensor([[False, True, False, True, True]])
    generated = torch.tensor([[False, True, True, True, True]])
    expected = [1.0]
    for at in range(1, 5):
        weights = {place: 2.718281828459045 ** (-((place - at) ** 2) / 2 / 1.5**2) for place in range(-30, 40)}
        missing = sum(weights[place] for place in (1, 3, 4, 5, 6, 7, 8))  # four columns after the last, which is masked
        expected.append(1 - missing / sum(weights.values()))
    assert density(masked, generated, 1.5)[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert numbers(filled(torch.tensor([[False, True, False, True, False, False, True, False]]), 2)) == [1, 2, 3, 6]
    assert padded_columns(torch.tensor([[True, False, True], [False, True, False]])).tolist() == [[0, 2], [1, 1]]


def test_mistakes_are_named(models: dict[str, Model]) -> None:
    for cache, said in (
        ("dvk", "unknown cache 'dvk'; choose one of prefix, dual, blocks, dkv, dllm, elastic, d2"),
        ("dkv:refresh=0", "refresh of cache 'dkv' must be a whole number of at least 1, got 0"),
        ("dllm:share=2", "share of cache 'dllm' must be a share from 0 to 1"),
        ("elastic:steps=2", "cache 'elastic' has no parameter 'steps': it has gamma, window, track"),
    ):
        with pytest.raises(UserError, match=said):
            replace(PLAIN, cache=cache)
    settings, model = replace(PLAIN, cache="dkv"), models["llada-tiny"]
    with pytest.raises(UserError, match="no keys can be masked or dropped"):
        ss.generate(model, PROMPTS, settings, compression=Compress("key-norm", 0.5))
    with watch(model.network), pytest.raises(UserError, match="can't be watched or recorded"):
        steps_of(model, settings)
