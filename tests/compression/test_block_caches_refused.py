"""What can't be done in a block cache is said in one line, before any pass."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from block_caches import BLOCKS, PROMPTS, load_tiny

import sinkscope as ss
from sinkscope.compression import Compress, Protect, SkipLayers, compress_prefix
from sinkscope.decoding import Denoising
from sinkscope.errors import UserError
from sinkscope.families import Model, load_model


@pytest.fixture(scope="module")
def llada() -> Model:
    return load_tiny("llada-tiny", "float32")


def refused(
    model: Model, match: str, compress: Any, settings: Denoising = BLOCKS, prompts: Any = PROMPTS, **more: Any
) -> None:
    """`generate`, `denoise` and `record` say so before a pass is made."""
    passes = 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    hook = model.network.register_forward_pre_hook(count)
    try:
        for way in (ss.generate, ss.denoise):
            with pytest.raises(UserError, match=match) as caught:
                way(model, prompts, settings, compression=compress, **more)
    finally:
        hook.remove()
    assert passes == 0
    assert "\n" not in str(caught.value)


def test_without_a_block_cache(llada: Model) -> None:
    refused(
        llada,
        r"sees in both directions: keys are dropped from a block cache only, so set cache='dual' or cache='prefix'",
        Compress(),
        replace(BLOCKS, cache=None),
    )


def test_masked_language_models() -> None:
    model = load_model("rxnmapper", device="cpu")
    mask = model.family.mask_token_id
    settings = Denoising(gen_length=0, block_length=None, steps=None)
    refused(model, "is a masked language model without a key-value cache, so there are no keys to drop", Compress(),
            settings, [[3, mask, 5]])  # fmt: skip


def test_pruning_while_it_writes(llada: Model) -> None:
    for when in ("decode", "both"):
        compress = Compress("key-norm", 0.5, when=when, prune_after=9)
        refused(llada, "a block cache drops keys after each block's first pass, not by prune_after", compress)


def test_a_prefix_of_an_autoregressive_model(llada: Model) -> None:
    twin = load_model("twin-ar", device="cpu")
    prefix = compress_prefix(twin, "Ann has 3 old cups .", Compress("key-norm", 0.5))
    refused(llada, "the prefix was made by twin-ar with family twin, not llada", prefix)
    with pytest.raises(UserError, match=r"a prefix holds keys of an autoregressive model, .* sees in both directions"):
        prefix.for_blocks(llada)


def test_a_budget_smaller_than_what_is_protected(llada: Model) -> None:
    # The shortest prompt has 5 tokens: 5 keys of context in a prefix cache, 11 in a dual one.
    dual, prefix = BLOCKS, replace(BLOCKS, cache="prefix")
    compress = Compress(Protect(first=2, recent=2), 0.5)
    refused(llada, "3 of 5 keys would stay, 4 are protected; keep more or protect fewer", compress, prefix)
    assert ss.generate(llada, PROMPTS, dual, compression=compress).forward_passes > 0
    ends = Protect(first=4, recent=4, prompt_end=4)
    refused(llada, "6 of 11 keys would stay, 8 are protected", Compress(ends, SkipLayers(0.5, (1,))), dual)


def test_layers_that_are_not_there(llada: Model) -> None:
    refused(llada, "no layer 3 to skip: the model has layers 0 to 2", Compress("key-norm", SkipLayers(0.5, (3,))))


def test_a_scorer_that_needs_attention_on_a_model_that_is_not_watched(llada: Model) -> None:
    compress = Compress("received-attention", 0.5)
    refused(llada, r"needs attention statistics and .* is not watched: run it inside `with ss\.watch", compress)
    with ss.watch(llada):
        steps = ss.denoise(llada, PROMPTS, BLOCKS, compression=compress)
    with pytest.raises(UserError, match=r"needs attention statistics: run it inside `with ss\.watch"):
        next(steps)


def test_what_is_no_compression(llada: Model) -> None:
    refused(llada, "a compression is None, Compress", "key-norm")


def test_interventions_that_do_not_fit(llada: Model) -> None:
    clean = ss.MaskSinks(1, detect_from="clean")
    refused(llada, "a clean copy beside a compressed cache would lose keys as well", Compress(), intervention=clean)
    # A quarter of 11 keys and a block of 3.
    quarter, six, five = Compress("key-norm", 0.25), ss.MaskSinks(6), ss.MaskSinks(5)
    refused(llada, "6 keys can't be masked where there are 6", quarter, intervention=six)
    assert ss.generate(llada, PROMPTS, BLOCKS, compression=quarter, intervention=five).forward_passes > 0


def test_another_attention_function() -> None:
    model = load_tiny("llada-tiny", "float32", attention="sdpa")
    refused(model, "was loaded with another attention function; load it with attention='sinkscope'", Compress())


def test_an_attention_function_that_is_changed_later() -> None:
    model = load_tiny("llada-tiny", "float32")
    steps = ss.denoise(model, PROMPTS, BLOCKS, compression=Compress())
    model.network.set_attn_implementation("sdpa")
    with pytest.raises(UserError, match="does not go through sinkscope's attention function"):
        next(steps)


def test_recording_names_the_prompt(llada: Model, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"prompt '0': .* keys are dropped from a block cache only"):
        ss.record(llada, PROMPTS, replace(BLOCKS, cache=None), out=tmp_path / "t", compression=Compress())
    assert not (tmp_path / "t").exists()
