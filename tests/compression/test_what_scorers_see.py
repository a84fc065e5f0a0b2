"""What a scorer is shown in the middle of a run: queries and positions, of this pass and of those remembered."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from compression_models import feed, left_padded, load_kind
from transformers import GlmConfig, GlmForCausalLM
from transformers.models.glm import modeling_glm
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from sinkscope.compression import CachedLayer, Compress, ExpectedAttention, make_scorer
from sinkscope.compression.networks import rotation_of
from sinkscope.families import Model, load_model

PASSES = ((0, 17), (17, 21), (21, 22), (22, 26))
LENGTHS, WIDTH = (26, 21), 26


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_kind("llama", tmp_path_factory.mktemp("kinds"))


def shown_by(model: Model, compress: Compress, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, CachedLayer]]:
    """Everything that the scorer was shown, with the columns so far; rows are padded on the left."""
    shown: list[tuple[int, CachedLayer]] = []
    kind = type(compress.how)
    importance, now = kind.importance, 0

    def spied(self: Any, cached: CachedLayer) -> torch.Tensor:
        shown.append((now, cached))
        return importance(self, cached)

    monkeypatch.setattr(kind, "importance", spied)
    tokens, mask = left_padded(LENGTHS)
    cache = compress.cache(model, seeds=(1, 2))
    for start, stop in PASSES:
        now = stop
        feed(model.network, cache, tokens, mask, start, stop)
    return shown


@pytest.mark.parametrize("remembered", [3, 64])
def test_queries_and_their_positions(llama: Model, monkeypatch: pytest.MonkeyPatch, remembered: int) -> None:
    """Queries before rotation are what the projections gave, column by column."""
    projected: dict[int, list[torch.Tensor]] = {layer: [] for layer in range(3)}
    hooks = [
        block.self_attn.q_proj.register_forward_hook(lambda _, __, output, at=at: projected[at].append(output))
        for at, block in enumerate(llama.network.model.layers)
    ]
    compress = Compress(make_scorer("snapkv", window=remembered), 6, when="both", prune_after=9)
    try:
        shown = shown_by(llama, compress, monkeypatch)
    finally:
        for hook in hooks:
            hook.remove()
    assert [stop for stop, _ in shown] == [17] * 3 + [21] * 3 + [26] * 3
    for stop, cached in shown:
        assert cached.queries is not None
        assert cached.query_positions is not None
        assert cached.query_real is not None
        count = cached.queries.shape[2]
        # All of this pass, and before it what was remembered.
        fed = {17: 17, 21: 4, 26: 4}[stop]
        assert count == min(stop, fed + (0 if stop == 17 else remembered))
        of_layer = torch.cat(projected[cached.layer], dim=1)  # (batch, column, head * dim)
        plain = of_layer.view(2, WIDTH, 6, 8).transpose(1, 2)[:, :, stop - count : stop]
        undone = rotation_of(llama).undone(cached.queries, cached.query_positions)
        for row, length in enumerate(LENGTHS):
            columns = torch.arange(stop - count, stop) - (WIDTH - length)
            real = columns >= 0
            assert cached.query_real[row].tolist() == real.tolist()
            assert cached.query_positions[row][real].tolist() == columns[real].tolist()
            torch.testing.assert_close(undone[row, :, real], plain[row, :, real], rtol=1e-9, atol=1e-9)
            assert int(cached.length[row]) == stop - (WIDTH - length)
            assert int(cached.prompt_length[row]) == 17 - (WIDTH - length)


def test_the_mean_rotation_of_positions_to_come(llama: Model) -> None:
    """By the network's own rotation, position after position."""
    vectors, first, count = torch.randn(2, 6, 3, 8, dtype=torch.float64), torch.tensor([5, 11]), 7
    found = rotation_of(llama).averaged(vectors, first, count)
    expected = torch.zeros_like(vectors)
    for ahead in range(count):
        cosine, sine = llama.network.model.rotary_emb(vectors, (first + ahead).unsqueeze(1))
        turned, _ = apply_rotary_pos_emb(vectors, vectors, cosine.double(), sine.double())
        expected += turned / count
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_networks_that_pair_neighbouring_dimensions(tmp_path: Path, share: float) -> None:
    """GLM turns dimensions 0 and 1 together, 2 and 3, ..., of a part of each head."""
    sizes: dict[str, Any] = {
        "hidden_size": 48, "intermediate_size": 31, "num_hidden_layers": 1, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 101, "pad_token_id": 0, "partial_rotary_factor": share,
    }  # fmt: skip
    config = GlmConfig(**sizes)
    GlmForCausalLM(config).save_pretrained(tmp_path)
    model = load_model(tmp_path, dtype="float64", device="cpu")
    plain, positions = torch.randn(2, 6, 5, 8, dtype=torch.float64), torch.randint(0, 90, (2, 5))
    cosine, sine = model.network.model.rotary_emb(plain, positions)
    rotate: Any = modeling_glm.apply_rotary_pos_emb
    turned, _ = rotate(plain, plain, cosine, sine)
    rotation = rotation_of(model)
    torch.testing.assert_close(rotation.undone(turned, positions), plain, rtol=1e-9, atol=1e-9)
    one = rotation.averaged(plain[:, :, :1], positions[:, 0], 1)
    torch.testing.assert_close(one, turned[:, :, :1], rtol=1e-9, atol=1e-9)


def test_expected_attention_by_sampled_queries(llama: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The closed form against 20,000 queries drawn from the normal distribution that it assumes."""
    compress = Compress(ExpectedAttention(first=2, ahead=5), 0.5)
    _, cached = shown_by(llama, compress, monkeypatch)[1]
    assert cached.queries is not None
    assert cached.query_positions is not None
    rotation, positions = cached.rotation, cached.query_positions
    assert rotation is not None
    cached = replace(cached, queries=cached.queries / 4)  # else a few rare queries would decide the sampled mean
    row, kv_head, length = 0, 1, 17
    queries = cached.queries
    assert queries is not None
    plain = rotation.undone(queries.float(), positions)[row, :, 2:]
    keys, values = cached.keys[row, kv_head].float(), cached.values[row, kv_head].float()
    total = torch.zeros(length - 2)
    for head in range(3 * kv_head, 3 * kv_head + 3):
        spread = torch.cov(plain[head].T, correction=0) + 1e-6 * torch.eye(8)
        drawn = torch.distributions.MultivariateNormal(plain[head].mean(0), spread).sample((20_000,))
        turned = rotation.averaged(drawn[None, None], torch.tensor([length]), 5)[0, 0]
        logits = turned @ keys[2:].T * cached.scale
        expected = logits.double().exp().mean(0)
        total += (expected / expected.sum()).float() / 3
    found = ExpectedAttention(first=2, ahead=5).importance(cached)[row, kv_head, 2:]
    torch.testing.assert_close(found, total * values[2:].norm(dim=-1), rtol=0.05, atol=0.005)
