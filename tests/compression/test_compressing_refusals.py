"""What can't be done is said in one line, before any pass."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from compression_models import feed, left_padded, load_kind
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, DynamicCache, QuantizedCache, StaticCache
from transformers.cache_utils import DynamicLayer

import sinkscope as ss
from sinkscope.attention import evicting
from sinkscope.compression import Compress, Protect, SkipLayers, compress_cache, make_scorer
from sinkscope.compression.settings import read_compress
from sinkscope.errors import UserError
from sinkscope.families import Model

PROMPT = [[20, 21, 22, 23, 24, 25, 26, 27, 28, 29]]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_kind("llama", tmp_path_factory.mktemp("kinds"))


def refused(model: Model, compress: Compress, match: str, prompts: list[list[int]] = PROMPT) -> None:
    """`decode` and `generate` say so before a pass is made."""
    passes = 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    hook = model.network.register_forward_pre_hook(count)
    try:
        with pytest.raises(UserError, match=match) as caught:
            ss.decode(model, prompts, ss.Decoding(max_new_tokens=3), compression=compress)
        with pytest.raises(UserError, match=match):
            ss.generate(model, prompts, ss.Decoding(max_new_tokens=3), compression=compress)
    finally:
        hook.remove()
    assert passes == 0
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Compress("key-norm", 0.0), ("ratio", "above 0", "at most 1", "0.0")),
        (lambda: Compress("key-norm", 1.5), ("ratio", "at most 1", "1.5")),
        (lambda: Compress("norm"), ("scorer 'norm'", "use one of")),
        (lambda: Compress(3), ("scorer", "got 3")),  # type: ignore[arg-type]
        (lambda: Compress("key-norm", 0.5, when="later"), ("when 'later'", "prompt, decode, both")),
        (lambda: Compress("key-norm", 0.5, when="decode"), ("when='decode'", "needs prune_after")),
        (lambda: Compress("key-norm", 0.5, prune_after=9), ("when='prompt'", "without prune_after", "9")),
        (lambda: Compress("key-norm", 0.5, when="both", prune_after=0), ("prune_after", "at least 1", "got 0")),
        (lambda: Protect(Protect(first=1), recent=1), ("Protect", "one scorer")),
        (lambda: Protect(recent=-1), ("recent of Protect", "at least 0")),
    ],
)
def test_settings_are_refused_in_one_line(make: Callable[[], object], words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value)


def test_a_budget_smaller_than_what_is_protected(llama: Model) -> None:
    ends = Protect(first=4, recent=4)
    refused(llama, Compress(ends, 0.5), "5 of 10 keys would stay, 8 are protected; keep more or protect fewer")
    refused(llama, Compress(ends, 7), "7 of 10 keys would stay, 8 are protected")
    pruned = Compress(ends, 0.5, when="decode", prune_after=11)
    refused(llama, pruned, "6 of 12 keys would stay, 8 are protected")
    whole = Protect(prompt_end=1000)
    refused(llama, Compress(whole, 9), "9 of 10 keys would stay, 10 are protected")
    cache = Compress(ends, 7).cache(llama)
    with pytest.raises(UserError, match="7 of 10 keys would stay, 8 are protected"):
        feed(llama.network, cache, torch.tensor(PROMPT), torch.ones(1, 10, dtype=torch.long), 0, 10)


def test_a_scorer_that_needs_attention_on_a_model_that_is_not_watched(llama: Model) -> None:
    compress = Compress("received-attention", 0.5)
    refused(llama, compress, r"needs attention statistics and .* is not watched: run it inside `with ss\.watch")
    with pytest.raises(UserError, match="is not watched"):
        compress.cache(llama)
    with ss.watch(llama):
        assert ss.generate(llama, PROMPT, ss.Decoding(max_new_tokens=3), compression=compress).forward_passes > 0


def test_attention_statistics_that_end_too_early(llama: Model) -> None:
    with ss.watch(llama):
        cache = Compress("received-attention", 0.5).cache(llama)
    with pytest.raises(UserError, match=r"needs attention statistics: run it inside `with ss\.watch"):
        feed(llama.network, cache, torch.tensor(PROMPT), torch.ones(1, 10, dtype=torch.long), 0, 10)


def test_a_prompt_longer_than_the_context(llama: Model) -> None:
    refused(llama, Compress(), "a prompt of 127 tokens and max_new_tokens 3 make 130, the context is 128", [[20] * 127])


def test_layers_that_are_not_there(llama: Model) -> None:
    refused(llama, Compress("key-norm", SkipLayers(0.5, (3,))), "no layer 3 to skip: the model has layers 0 to 2")
    refused(llama, Compress("key-norm", SkipLayers(0.5, (0, 1, 2))), "all 3 layers are skipped")


def test_what_is_no_compression(llama: Model) -> None:
    refused(llama, "key-norm", "a compression is None, Compress", PROMPT)  # type: ignore[arg-type]


def test_models_that_see_in_both_directions() -> None:
    model = ss.load_model("twin-dlm")
    with pytest.raises(UserError, match="sees in both directions"):
        ss.generate(model, [[5, 6]], ss.Denoising(gen_length=4, block_length=4, steps=4), compression=Compress())


def test_another_attention_function(tmp_path: Path) -> None:
    model = load_kind("llama", tmp_path, attention="sdpa")
    refused(model, Compress(), "was loaded with another attention function; load it with attention='sinkscope'")


def test_an_attention_function_that_is_changed_later(tmp_path: Path) -> None:
    model = load_kind("llama", tmp_path)
    cache = Compress().cache(model)
    model.network.set_attn_implementation("sdpa")
    tokens, mask = left_padded((12,))
    with pytest.raises(UserError, match="does not go through sinkscope's attention function"):
        feed(model.network, cache, tokens, mask, 0, 10)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_network_that_caches_something_else_than_keys(tmp_path: Path, layers: int) -> None:
    """Latent attention: what comes out of the cache is made into keys, so no key is ever dropped."""
    config = DeepseekV3Config(
        vocab_size=101, hidden_size=48, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=10,
        first_k_dense_replace=layers, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2,
        eos_token_id=17, pad_token_id=0, max_position_embeddings=128,
    )  # fmt: skip
    DeepseekV3ForCausalLM(config).save_pretrained(tmp_path / "latent")
    model = ss.load_model(tmp_path / "latent", dtype="float32", device="cpu")
    fault = r"with the keys that it caches, so none can be dropped: it caches something else \(latent attention"
    with pytest.raises(UserError, match=fault) as caught:
        ss.generate(model, PROMPT, ss.Decoding(max_new_tokens=3), compression=Compress())
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=fault):
        ss.compress_prefix(model, PROMPT, Compress())


def test_rotations_that_differ_by_layer(tmp_path: Path) -> None:
    model = load_kind("gemma3", tmp_path)
    refused(model, Compress("expected-attention"), "needs rotary positions that are the same in all layers")


def test_a_cache_can_not_be_cropped(llama: Model) -> None:
    cache = Compress().cache(llama)
    with pytest.raises(UserError, match="this cache can't be cropped"):
        cache.crop(-1)


def test_rows_that_the_cache_was_not_made_for(llama: Model) -> None:
    cache = Compress().cache(llama, seeds=(1, 2))
    tokens, mask = left_padded((9, 9, 9))
    with pytest.raises(UserError, match="the cache was made for 2 prompts, 3 came"):
        feed(llama.network, cache, tokens, mask, 0, 9)
    with pytest.raises(UserError, match="the cache was made for 0 prompts, 3 came"):
        feed(llama.network, Compress().cache(llama, seeds=()), tokens, mask, 0, 9)
    cache = Compress().cache(llama)
    feed(llama.network, cache, tokens[:1], mask[:1], 0, 7)
    with pytest.raises(UserError, match="the cache holds 1 rows, 3 came; make one with as many seeds, one a row"):
        feed(llama.network, cache, tokens, mask, 7, 9)


def test_other_caches_are_left_alone(llama: Model) -> None:
    config = llama.network.config
    static = StaticCache(config=config, max_cache_len=16)
    quantised = object.__new__(QuantizedCache)  # its backends are not installed; only its kind matters
    quantised.layers = static.layers
    for cache in (static, quantised):
        with pytest.raises(UserError, match=r"keys can't be dropped from a (Static|Quantized)Cache: quantised, static"):
            compress_cache(llama, cache, Compress())
    pairs = ((torch.zeros(1, 2, 3, 8),) * 2,) * 3
    for thing, name in ((None, "NoneType"), (pairs, "tuple")):
        with pytest.raises(UserError, match=f"keys can't be dropped from a {name}: quantised, static"):
            compress_cache(llama, thing, Compress())  # type: ignore[arg-type]


def test_a_cache_of_a_model_with_other_layers(llama: Model) -> None:
    tokens, mask = left_padded((12,))
    whole = DynamicCache(config=llama.network.config)
    feed(llama.network, whole, tokens, mask, 0, 12)
    shorter = DynamicCache()
    for number, layer in enumerate(whole.layers[:2]):
        assert isinstance(layer, DynamicLayer)
        assert layer.keys is not None
        assert layer.values is not None
        shorter.update(layer.keys, layer.values, number)
    with pytest.raises(UserError, match=r"the cache holds 2 layers, .*llama has 3; give a cache of this model"):
        compress_cache(llama, shorter, Compress())


def test_a_filled_cache_keeps_no_queries(llama: Model) -> None:
    cache = DynamicCache(config=llama.network.config)
    for empty in (cache, DynamicCache()):
        with pytest.raises(UserError, match="the cache is empty"):
            compress_cache(llama, empty, Compress())
    tokens, mask = left_padded((12, 7))
    feed(llama.network, cache, tokens, mask, 0, 12)
    with pytest.raises(UserError, match="scorer 'snapkv' needs queries, and a filled cache keeps none"):
        compress_cache(llama, cache, Compress("snapkv"))
    with (
        ss.watch(llama),
        pytest.raises(UserError, match="scorer 'received-attention' needs attention statistics, and a filled cache"),
    ):
        compress_cache(llama, cache, Compress("received-attention"))
    with pytest.raises(UserError, match=r"attention_mask has the shape \(2, 3\), the cache holds \(2, 12\)"):
        compress_cache(llama, cache, Compress(), mask[:, :3])
    with pytest.raises(UserError, match="4 of 7 keys would stay, 6 are protected"):
        compress_cache(llama, cache, Compress(Protect(first=6), 0.5), mask)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_filled_cache_is_compressed_as_after_a_first_pass(kind: str, tmp_path: Path) -> None:
    model = load_kind(kind, tmp_path)
    tokens, mask = left_padded((20, 14))
    plain, first = DynamicCache(config=model.network.config), Compress("key-diff", 0.4).cache(model)
    feed(model.network, plain, tokens, mask, 0, 16)
    feed(model.network, first, tokens, mask, 0, 16)
    filled = compress_cache(model, plain, Compress("key-diff", 0.4), mask[:, :16])
    assert filled.lengths == first.lengths
    ours = feed(model.network, filled, tokens, mask, 16, 20)
    torch.testing.assert_close(ours, feed(model.network, first, tokens, mask, 16, 20), rtol=1e-9, atol=1e-9)
    assert plain.get_seq_length() == 16


def test_settings_go_through_json() -> None:
    scorer = Protect(make_scorer("snapkv", window=9), first=1, recent=2, prompt_end=3)
    for compress in (
        Compress(),
        Compress("streaming", 77, when="both", prune_after=100, seed=6),
        Compress(scorer, SkipLayers(0.3, (1,)), when="decode", prune_after=40),
        Compress(Protect("random", first=2), 0.5),
    ):
        assert read_compress(compress.to_dict()) == compress


def test_keys_that_attention_never_came_for_are_not_kept_alive(tmp_path: Path) -> None:
    model = load_kind("llama", tmp_path)
    tokens, mask = left_padded((9,))
    cache = Compress().cache(model)
    feed(model.network, cache, tokens, mask, 0, 9)
    assert evicting._waiting == {}
    cache = Compress().cache(model)
    cache.update(torch.zeros(1, 2, 9, 8), torch.zeros(1, 2, 9, 8), 0)
    assert len(evicting._waiting) == 1
    del cache
    gc.collect()
    assert evicting._waiting == {}
