"""Block-causal models under watch, under masking, with dropped keys, and through their caches, against whole passes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from sinkscope.attention.watching import watch
from sinkscope.compression import Compress
from sinkscope.decoding import Denoising, Run, default_settings, generate
from sinkscope.errors import UserError
from sinkscope.evaluation import log_likelihood
from sinkscope.families import Model, load_model
from sinkscope.interventions import MaskSinks
from sinkscope.trace import record

FIXTURES = Path(__file__).parent.parent / "fixtures"
TOLD = {"a2d-bd3lm-tiny": 252, "fast-dllm-v2-tiny": 251, "llada2-tiny": 255, "sdar-tiny": 253}
NEMOTRON = "nemotron-diffusion-tiny"
EVERY = [*TOLD, NEMOTRON]
PROMPT = [17, 5, 140, 33, 99, 61, 8, 203, 44, 71, 12]  # no multiple of a block


def way(model: Model, **change: Any) -> Denoising:
    """The family's own settings with these changed."""
    own = default_settings(model)
    assert isinstance(own, Denoising)
    return replace(own, **change)


def load(name: str, block_length: int = 8, dtype: str = "float32") -> Model:
    told = TOLD.get(name)
    return load_model(FIXTURES / name, device="cpu", dtype=dtype, mask_token_id=told, block_length=block_length)


@pytest.mark.parametrize("name", list(TOLD))
def test_caches_are_exact(name: str) -> None:
    """No cache, one that is made anew with each block and one that is kept give the same, step by step."""
    model = load(name, dtype="float64")
    runs = [
        generate(model, PROMPT, way(model, gen_length=24, cache=cache, stop=None), history=True)
        for cache in (None, "prefix", "blocks")
    ]
    plain, *cached = runs
    for run in cached:
        assert run.sequences.tolist() == plain.sequences.tolist()


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("block_length", [1, 5])
def test_what_a_step_watches_is_a_whole_pass(name: str, block_length: int) -> None:
    """Received attention of a step over its cache: the mean of its rows of the map of all columns, cached ones too."""
    model = load(name, block_length, dtype="float64")
    settings = way(model, gen_length=12, stop=None)
    with watch(model) as watched:
        seen = [(step, watched.last.received) for step in Run(model, settings).steps(PROMPT)]
    assert len(seen) >= 12 // block_length
    model.network.set_attn_implementation("eager")
    for step, received in seen:
        (start, stop), end = step.queries, step.canvas.shape[1]
        visible = _by_hand(model, block_length, stop, start if stop == end else stop)
        added = torch.zeros_like(visible, dtype=torch.float64).masked_fill(~visible, torch.finfo(torch.float64).min)
        maps = model.network(step.seen, attention_mask=added, output_attentions=True).attentions
        whole = torch.stack([one[:, :, start:stop].mean(2) for one in maps])
        torch.testing.assert_close(received.double(), whole.double(), atol=1e-6, rtol=0)


def _by_hand(model: Model, length: int, width: int, context: int) -> torch.Tensor:
    """Who sees whom, (1, 1, query, key); in Nemotron the first `context` positions see none behind their own."""
    assert model.family.blocks is not None
    origin = len(PROMPT) % length if model.family.blocks.from_prompt else 0
    blocks = [0 if place < origin else 1 + (place - origin) // length for place in range(width)]
    causal = context if model.family.blocks.causal_context else 0
    rows = [
        [key <= row if row < causal else blocks[key] <= blocks[row] for key in range(width)] for row in range(width)
    ]
    return torch.tensor(rows)[None, None]


@pytest.mark.parametrize("name", EVERY)
def test_rows_of_a_batch_do_not_change_one_another(name: str) -> None:
    model = load(name)
    settings = way(model, gen_length=16)
    prompts = [PROMPT, [9, 9, 31, 150, 7, 66, 20, 111, 3, 58, 40]]
    if model.family.blocks is not None and model.family.blocks.from_prompt:
        prompts[1] = prompts[1][:6]
    together = generate(model, prompts, settings).sequences
    for row, prompt in enumerate(prompts):
        alone = generate(model, prompt, settings).sequences[0, len(prompt) :].tolist()
        assert together[row, len(PROMPT) :][: len(alone)].tolist() == alone


@pytest.mark.parametrize("name", EVERY)
def test_masking_takes_attention_and_nothing_else(name: str) -> None:
    model = load(name)
    settings = way(model, gen_length=16, stop=None)
    plain = generate(model, PROMPT, settings)
    masked = generate(model, PROMPT, settings, intervention=MaskSinks(2))
    assert masked.removed is not None
    assert float(masked.removed.mass.sum()) > 0
    assert generate(model, PROMPT, settings, intervention=MaskSinks(0)).sequences.equal(plain.sequences)


@pytest.mark.parametrize("name", list(TOLD))
def test_dropping_keys_of_the_prefix(name: str) -> None:
    model = load(name)
    settings = way(model, gen_length=16, stop=None, cache="prefix")
    whole = generate(model, PROMPT, settings, compression=Compress("key-norm", 1.0))
    assert whole.sequences.equal(generate(model, PROMPT, settings).sequences)
    dropped = generate(model, PROMPT, settings, compression=Compress("key-norm", 0.3))
    assert dropped.sequences.shape == whole.sequences.shape
    assert not dropped.sequences.equal(whole.sequences)
    with pytest.raises(UserError, match="cache='prefix'"):
        generate(model, PROMPT, replace(settings, cache="blocks"), compression=Compress("key-norm", 0.5))


@pytest.mark.parametrize("name", EVERY)
def test_likelihood_goes_block_by_block(name: str) -> None:
    """An answer's bound is the sum of its blocks', each after the whole blocks before it."""
    model = load(name)
    answer = [3, 77, 120, 41, 9, 188, 54, 2, 33, 91]
    found = log_likelihood(model, PROMPT, answer, mc_num=8, seed=3)
    assert model.family.blocks is not None
    first = 8 if model.family.blocks.from_prompt else 5  # 11 tokens of the prompt leave 5 of its last block
    parts = [
        log_likelihood(model, PROMPT, answer[:first], mc_num=8, seed=3),
        log_likelihood(model, [*PROMPT, *answer[:first]], answer[first:], mc_num=8, seed=3),
    ]
    assert found.value == pytest.approx(sum(one.value for one in parts), abs=1e-4)
    assert found.passes == sum(one.passes for one in parts)


@pytest.mark.parametrize("name", EVERY)
def test_a_likelihood_of_one_token_is_the_first_pass(name: str) -> None:
    """In blocks of one token a draw is exact: what an autoregressive pass says, in the family's own shift."""
    model = load(name, 1, dtype="float64")
    tokens = [*PROMPT, 3]
    masked = torch.tensor([[*PROMPT, model.family.mask_token_id]])
    length = masked.shape[1]
    causal = torch.ones(length, length).tril().bool()[None, None]
    logits = model.network(masked, attention_mask=causal).logits[0]
    row = length - 2 if model.family.logit_shift else length - 1
    expected = float(logits[row].log_softmax(-1)[tokens[-1]])
    assert log_likelihood(model, PROMPT, [3], mc_num=1).value == pytest.approx(expected, abs=1e-6)


def test_a_trace_grows_by_blocks(tmp_path: Path) -> None:
    model = load("sdar-tiny")
    settings = way(model, gen_length=16, stop=None)
    trace = record(model, [PROMPT], settings, out=tmp_path / "run.zarr")
    sample = trace[0]
    assert sample.attrs["steps"] == generate(model, PROMPT, settings).forward_passes
    sums = sample.received.fillna(0).sum("position")
    assert float(abs(sums - 1).max()) < 1e-3
    first, last = sample.received.isel(step=0), sample.received.isel(step=-1)
    assert int(first.notnull().sum("position").max()) == 8  # the one complete block of the prompt
    assert int(last.notnull().sum("position").max()) == 32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_length": 4, "gen_length": 16}, "attends in blocks of 8, block_length is 4"),
        ({"cache": "dual"}, "no key lies after a block"),
        ({"gen_length": 0, "cache": None}, "fills the masks after a prompt alone"),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    model = load("sdar-tiny")
    with pytest.raises(UserError, match=message):
        generate(model, PROMPT, way(model, **change))


def test_what_whole_canvases_refuse() -> None:
    model = load_model(FIXTURES / "llada-tiny", device="cpu")
    for change in ({"cache": "blocks"}, {"stop": "block"}):
        with pytest.raises(UserError, match="block-causal models"):
            generate(model, PROMPT, Denoising(gen_length=8, block_length=8, steps=8, **change))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="unequal length"):
        generate(load("sdar-tiny"), [PROMPT, PROMPT[:5]])
    with pytest.raises(UserError, match="use cache='blocks'"):
        generate(load(NEMOTRON), PROMPT, Denoising(gen_length=8, block_length=8, steps=8))


def _folder(tmp_path: Path, name: str, **change: object) -> Path:
    """A copy of a fixture with another config."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(FIXTURES / name / "model.safetensors")
    config = {**json.loads((FIXTURES / name / "config.json").read_text()), **change}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("llada2-tiny", {"model_type": "llada21_moe"}, "edits tokens that were committed"),
        ("llada2-tiny", {"num_experts_per_tok": 1}, "num_experts_per_tok=1"),
        ("llada2-tiny", {"use_bias": True}, "use_bias=True"),
        ("llada2-tiny", {"score_function": "softmax"}, "score_function='softmax'"),
        ("sdar-tiny", {"use_sliding_window": True}, "use_sliding_window=True"),
        ("sdar-tiny", {"mask_token_id": None}, "--mask-token-id"),
        ("fast-dllm-v2-tiny", {}, r"mask_token_id=\), --mask-token-id"),
        ("fast-dllm-v2-tiny", {"alibi": True}, "alibi=True"),
        ("nemotron-diffusion-tiny", {"mlp_bias": True}, "mlp_bias=True"),
        ("nemotron-diffusion-tiny", {"dlm_paradigm": "sedd"}, "dlm_paradigm='sedd'"),
        ("a2d-bd3lm-tiny", {"_name_or_path": "dllm/a2d-bd3lm"}, r"block_length=32\), --attention-block-length"),
    ],
)
def test_configs_that_are_refused(tmp_path: Path, name: str, change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_model(_folder(tmp_path, name, **change), device="cpu")
    assert "\n" not in str(caught.value)


def test_what_is_told_must_fit_the_model() -> None:
    with pytest.raises(UserError, match="mask_token_id=7 was given, the files say 253"):
        load_model(FIXTURES / "sdar-tiny", mask_token_id=7)
    with pytest.raises(UserError, match="mask_token_id=999 lies outside the vocabulary"):
        load_model(FIXTURES / "a2d-mdlm-tiny", mask_token_id=999)
    with pytest.raises(UserError, match="has no blocks in its attention"):
        load_model(FIXTURES / "llada-tiny", block_length=8)
    with pytest.raises(UserError, match="has no mask token"):
        load_model("twin-ar", mask_token_id=3)
    with pytest.raises(UserError, match="block_length must be a whole number of at least 1"):
        load_model(FIXTURES / "sdar-tiny", block_length=0)


def test_published_blocks_are_the_default() -> None:
    found = load_model(FIXTURES / "sdar-tiny", device="cpu").family
    assert found.blocks is not None
    assert (found.blocks.length, found.mask_token_id) == (4, 253)


def test_the_mixture_of_sdar_is_the_stock_one(tmp_path: Path) -> None:
    """Experts are stored one by one, and stacked by the library: a random network comes back from its files."""
    torch.manual_seed(5)
    config_class: Any = Qwen3MoeConfig
    stock: Any = Qwen3MoeForCausalLM(
        config_class(
            vocab_size=97, hidden_size=48, intermediate_size=40, moe_intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=5, num_experts_per_tok=2,
            norm_topk_prob=True, max_position_embeddings=256, initializer_range=0.3,
        )
    )  # fmt: skip
    stock.train(False)
    stock.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["num_experts"] = config.pop("num_local_experts")  # the hub's spelling
    config = {**config, "model_type": "sdar_moe", "block_size": 4, "mask_token_id": 96, "eos_token_id": 95}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load_model(tmp_path, device="cpu")
    assert model.family.blocks is not None
    assert model.family.blocks.length == 4
    tokens = torch.randint(96, (2, 11))
    visible = torch.ones(11, 11).tril().bool()[None, None]
    with torch.no_grad():
        wanted = stock(tokens, attention_mask=visible).logits
    torch.testing.assert_close(model.network(tokens, attention_mask=visible).logits, wanted, atol=1e-4, rtol=0)
    done = generate(model, [[5, 6, 7, 8, 9]], way(model, gen_length=8, stop=None))
    assert done.sequences.shape == (1, 16)
    assert 96 not in done.sequences
