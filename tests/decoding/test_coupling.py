"""Rows do not influence one another, and a text has the passes of transformers' own `generate`: else it is refused."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BambaConfig,
    BambaForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
    PreTrainedModel,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
)
from transformers.models.diffllama import DiffLlamaConfig, DiffLlamaForCausalLM
from transformers.models.doge import DogeConfig, DogeForCausalLM

from sinkscope import Compress, MaskSinks, generate, open_trace, record
from sinkscope.decoding import Decoding, Denoising, decode
from sinkscope.decoding.coupling import takes_padding
from sinkscope.errors import UserError
from sinkscope.evaluation.inputs import padded_batches
from sinkscope.families import Family, Model

LIMIT, NEW = 24, 16
SIZES: dict[str, Any] = {
    **{"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 6},
    **{"num_key_value_heads": 2, "vocab_size": 101, "initializer_range": 0.3, "pad_token_id": 0, "eos_token_id": None},
}
LONG: dict[str, Any] = {
    **{"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": LIMIT, "factor": 4.0},
    **{"short_factor": [1.0] * 4, "long_factor": [3.0, 5.0, 7.0, 9.0]},
}
DYNAMIC: dict[str, Any] = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
PHI: dict[str, Any] = {**SIZES, "max_position_embeddings": 96, "original_max_position_embeddings": LIMIT}
MOE: dict[str, Any] = {"num_local_experts": 4, "experts_implementation": "eager"}

ROTATING: dict[str, Callable[[], PreTrainedModel]] = {
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**PHI, rope_parameters=dict(LONG))),
    "phimoe": lambda: PhimoeForCausalLM(
        PhimoeConfig(**PHI, **MOE, rope_parameters={**LONG, "short_mscale": 1.1, "long_mscale": 1.2})
    ),
    "llama longrope": lambda: LlamaForCausalLM(
        LlamaConfig(**SIZES, max_position_embeddings=96, rope_parameters=dict(LONG))
    ),
    "llama dynamic": lambda: LlamaForCausalLM(
        LlamaConfig(**SIZES, max_position_embeddings=LIMIT, rope_parameters=dict(DYNAMIC))
    ),
}
CARRYING: dict[str, Callable[[], PreTrainedModel]] = {
    "recurrent gemma": lambda: RecurrentGemmaForCausalLM(
        RecurrentGemmaConfig(
            **{**SIZES, "head_dim": 8},
            lru_width=48,
            attention_window_size=16,
            block_types=["recurrent", "attention"],
        )
    ),
    "lfm2": lambda: Lfm2ForCausalLM(Lfm2Config(**SIZES, layer_types=["conv", "full_attention", "conv"])),
    "bamba": lambda: BambaForCausalLM(
        BambaConfig(
            **SIZES,
            attn_layer_indices=[1],
            mamba_n_heads=6,
            mamba_d_head=16,
            mamba_d_state=8,
            mamba_expand=2,
            mamba_n_groups=1,
        )
    ),
}


COUNTING: dict[str, Callable[[], PreTrainedModel]] = {
    "llama 4": lambda: Llama4ForCausalLM(
        Llama4TextConfig(
            **SIZES, head_dim=8, intermediate_size_mlp=64, num_local_experts=2, no_rope_layers=[1, 1, 0], floor_scale=4
        )
    ),
    "doge": lambda: DogeForCausalLM(DogeConfig(**SIZES, keep_window_size=8)),
}


def loaded(make: Callable[[], PreTrainedModel]) -> Model:
    network: Any = make()
    network.eval().requires_grad_(False)
    network.set_attn_implementation("sinkscope" if network._supports_attention_backend else "eager")
    family = Family(
        name="causal-lm",
        bidirectional=False,
        logit_shift=False,
        mask_token_id=None,
        special_ids=(),
        eos_token_ids=(),
        pad_token_id=0,
        position_offset=0,
        max_length=96,
        default_decoding={},
    )
    return Model(network, None, family, "tiny", None)


def prompts(*lengths: int) -> list[list[int]]:
    return [torch.randint(3, 101, (length,)).tolist() for length in lengths]


def by_transformers(model: Model, prompt: list[int], new: int = NEW) -> list[int]:
    """As a network that has seen nothing before generates alone."""
    fresh: Any = deepcopy(model.network)
    given = torch.tensor([prompt])
    done = fresh.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=new, do_sample=False)
    return [int(token) for token in done[0]]


def ours(model: Model, some: list[list[int]], new: int = NEW) -> list[list[int]]:
    return generate(model, some, Decoding(max_new_tokens=new)).sequences.tolist()


@pytest.mark.parametrize("name", [*ROTATING, *CARRYING])
def test_a_text_is_that_of_transformers_generate(name: str) -> None:
    """Short of the change of rotation, across it and past it; one after the other, longest first; two of a length."""
    model = loaded({**ROTATING, **CARRYING}[name])
    for lengths in ((LIMIT + 6,), (19,), (LIMIT,), (LIMIT + 1,), (4,), (12, 12)):
        some = prompts(*lengths)
        assert ours(model, some) == [by_transformers(model, prompt) for prompt in some], lengths


@pytest.mark.parametrize("name", [*ROTATING, *CARRYING])
def test_rows_of_unequal_length_are_refused_where_one_would_change_the_other(name: str, tmp_path: Path) -> None:
    model, some = loaded({**ROTATING, **CARRYING}[name]), prompts(7, 19)
    with pytest.raises(UserError, match=r"unequal length together.*one by one"):
        ours(model, some)
    with pytest.raises(UserError, match="unequal length together"):
        record(model, some, Decoding(max_new_tokens=NEW), out=tmp_path / "trace.zarr", batch_size=2)
    assert not (tmp_path / "trace.zarr").exists()
    assert not takes_padding(model)
    assert sorted(padded_batches(model, [7, 19, 7], 3)) == [[0, 2], [1]]


@pytest.mark.parametrize("name", ROTATING)
def test_short_texts_share_a_batch_as_ever(name: str) -> None:
    model, some = loaded(ROTATING[name]), prompts(3, 8)
    rows = ours(model, some, LIMIT - 8)
    assert rows[1] == by_transformers(model, some[1], LIMIT - 8)
    assert rows[0][5:] == by_transformers(model, some[0], LIMIT - 8)


def test_reading_anew_is_one_step_whose_newest_token_asks() -> None:
    model = loaded(ROTATING["phi3"])
    steps = list(decode(model, prompts(LIMIT - 2), Decoding(max_new_tokens=6)))
    assert [step.queries for step in steps] == [(0, 22), (22, 23), (23, 24), (0, 25), (25, 26), (26, 27)]
    assert [int((step.groups >= 0).sum()) for step in steps] == [22, 1, 1, 1, 1, 1]


def test_what_keeps_keys_cannot_follow_a_change_of_rotation(tiny: Callable[[str], Model]) -> None:
    model, some = loaded(ROTATING["phi3"]), prompts(19)
    across, within = Decoding(max_new_tokens=NEW), Decoding(max_new_tokens=LIMIT - 19)
    for more in ({"compression": Compress("key-norm", 0.5)}, {"intervention": MaskSinks(1)}):
        with pytest.raises(UserError, match=f"after {LIMIT} tokens"):
            generate(model, some, across, **more)
        generate(model, some, within, **more)
    blocks = tiny("llada-tiny")
    blocks = replace(blocks, network=deepcopy(blocks.network))
    blocks.network.config.rope_parameters = {**LONG, "original_max_position_embeddings": 9}
    with pytest.raises(UserError, match="after 9 tokens"):
        generate(blocks, [[1, 2, 3]], Denoising(gen_length=8, block_length=4, steps=8, cache="dual"))


@pytest.mark.parametrize(
    ("way", "names"),
    [
        ({"gen_length": 8, "block_length": 8, "steps": 10**6}, "steps 1000000 for 8 masks"),
        ({"gen_length": 8, "block_length": 8, "steps": 10**6, "schedule": "dream"}, "steps 1000000 for 8 masks"),
        ({"gen_length": 10**12, "block_length": None, "steps": None}, "gen_length"),
        ({"gen_length": 0, "block_length": None, "steps": None}, "write the mask token"),
    ],
)
def test_what_would_never_end_is_refused_before_work(
    tiny: Callable[[str], Model], tmp_path: Path, way: dict[str, Any], names: str
) -> None:
    for run in (generate, lambda *given: record(*given, out=tmp_path / "trace.zarr")):
        with pytest.raises(UserError, match=names):
            run(tiny("llada-tiny"), [[1, 2, 3]], Denoising(**way))
    unlimited = replace(loaded(ROTATING["phi3"]), family=replace(loaded(ROTATING["phi3"]).family, max_length=1 << 30))
    with pytest.raises(UserError, match="max_new_tokens"):
        generate(unlimited, [[1, 2, 3]], Decoding(max_new_tokens=10**9))


def test_numbers_out_of_range_stop_the_loop_and_keep_the_steps(tiny: Callable[[str], Model], tmp_path: Path) -> None:
    """Half precision overflows in the middle of a sample: the complete one and the steps before stay."""
    good = tiny("llada-tiny")
    half: Any = deepcopy(good.network)
    model = replace(good, network=half.to(torch.float16))
    layer = model.network.model.layers[1].mlp.down_proj
    passes = 0

    def overflow(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        nonlocal passes
        passes += 1
        return output * 1e5 if passes > 1 + 8 + 1 + 5 else output  # the probe, a sample, its final pass, five steps

    hook = layer.register_forward_hook(overflow)
    settings, some = Denoising(gen_length=8, block_length=8, steps=8), [[1, 2, 3], [4, 5, 6]]
    with pytest.raises(UserError, match=r"float16.*layer 2.*bfloat16"):
        record(model, some, settings, out=tmp_path / "trace.zarr")
    trace = open_trace(tmp_path / "trace.zarr")
    assert trace[0].sizes["step"] == 8
    assert trace[1].sizes["step"] == 5
    assert not any(bool(trace[number].received.isnull().any()) for number in (0, 1))
    with pytest.raises(UserError, match=r"float16.*model\.layers\.1\.mlp\.down_proj|float16.*bfloat16"):
        generate(model, some, settings)
    hook.remove()
    generate(model, some, settings)
    with pytest.raises(UserError, match="cfg_scale"):
        generate(model, some, replace(settings, cfg_scale=9e3))


@pytest.mark.parametrize("name", COUNTING)
def test_columns_that_are_counted_are_no_company_for_padding(name: str) -> None:
    model = loaded(COUNTING[name])
    with pytest.raises(UserError, match="unequal length together"):
        ours(model, prompts(7, 19))
    assert len(ours(model, prompts(7), new=2)[0]) == 9


def test_layers_of_two_maps_lose_no_keys() -> None:
    """A number of keys a layer would mean half of a layer, and the layers after it by the wrong numbers."""
    model = loaded(lambda: DiffLlamaForCausalLM(DiffLlamaConfig(**SIZES)))
    with pytest.raises(UserError, match="maps of attention"):
        generate(model, prompts(9), Decoding(max_new_tokens=3), intervention=MaskSinks(1))
