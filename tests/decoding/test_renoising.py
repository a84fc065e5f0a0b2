"""DiffusionGemma: tokens are those of transformers' own `generate`, attention is that of the eager network."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DynamicCache
from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

from sinkscope.attention import watch
from sinkscope.compression import Compress
from sinkscope.decoding import Denoising, Renoising, Step, decode, denoise, generate
from sinkscope.errors import UserError
from sinkscope.evaluation import evaluate
from sinkscope.families import Model, load_model
from sinkscope.interventions import MaskSinks
from sinkscope.sinks import First, find_sinks, group_size, received_from
from sinkscope.trace import Recording, record

# transformers' own `generate` imports PyTorch's compiler, which is not called.
pytestmark = pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
END, PAD, CANVAS = 1, 0, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network whose layers differ as the published one's do: windows of 16, other heads in the last layer."""
    torch.manual_seed(20)
    text = {
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1,
        "max_position_embeddings": 256, "sliding_window": 16,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "num_experts": 4,
        "top_k_experts": 2, "moe_intermediate_size": 16, "pad_token_id": PAD, "eos_token_id": END, "bos_token_id": 2,
        "initializer_range": 0.25,
    }  # fmt: skip
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 8,
    }  # fmt: skip
    config: Any = DiffusionGemmaConfig
    network = DiffusionGemmaForBlockDiffusion(
        config(text_config=text, vision_config=vision, canvas_length=CANVAS, image_token_id=90, boi_token_id=91,
               eoi_token_id=92)
    )  # fmt: skip
    with torch.no_grad():
        # A softer head than random weights give, or no canvas would ever end before its last step.
        network.lm_head.weight.mul_(2.0)
    made = tmp_path_factory.mktemp("diffusion-gemma")
    network.save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load_model(folder, device="cpu")


@pytest.fixture(scope="module")
def eager(folder: Path) -> Any:
    return load_model(folder, device="cpu", attention="eager").network


def _prompt(length: int, seed: int) -> list[int]:
    return torch.randint(3, 90, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def _reference(network: Any, prompt: list[int], settings: Renoising, seed: int) -> list[int]:
    """What transformers' own `generate` writes."""
    torch.manual_seed(seed)
    names = ("t_max", "t_min", "stability_threshold", "confidence_threshold")
    made = network.generate(
        torch.tensor([prompt]),
        max_new_tokens=settings.gen_length,
        max_denoising_steps=settings.steps,
        sampler_config=EntropyBoundSamplerConfig(entropy_bound=settings.entropy_bound),
        eos_token_id=END,
        pad_token_id=PAD,
        **{name: getattr(settings, name) for name in names},
    )
    written: list[int] = made.sequences[0].tolist()
    return written


SETTINGS = {
    "default": Renoising(gen_length=20, steps=5),
    "kept": Renoising(gen_length=16, steps=6, entropy_bound=3.0),
    "early": Renoising(gen_length=24, steps=20, entropy_bound=60.0, confidence_threshold=2.0, t_max=0.3, t_min=0.1),
    "at-once": Renoising(gen_length=8, steps=9, stability_threshold=0, confidence_threshold=9.0),
    "never": Renoising(gen_length=40, steps=4, entropy_bound=9.0, t_max=0.5, t_min=0.05, stability_threshold=3),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("length", [1, 11, 37])
def test_tokens_are_those_of_transformers(model: Model, eager: Any, name: str, length: int) -> None:
    prompt, seed = _prompt(length, length), 7 * length
    steps = list(denoise(model, [prompt], SETTINGS[name], seeds=[seed]))
    assert steps[-1].canvas[0].tolist() == _reference(eager, prompt, SETTINGS[name], seed)
    assert len(steps) <= -(-SETTINGS[name].gen_length // CANVAS) * (SETTINGS[name].steps + 1)


def test_some_canvas_ends_early_and_some_text_ends(model: Model) -> None:
    """Else the cases above would say nothing of either."""
    runs = [list(denoise(model, [_prompt(11, 11)], SETTINGS[name], seeds=[77])) for name in ("early", "at-once")]
    assert any(len(run) < SETTINGS[name].steps + 1 for run, name in zip(runs, ("early", "at-once"), strict=True))


def _ending(model: Model) -> tuple[list[int], int]:
    """A prompt and a seed whose text ends in its first canvas."""
    settings = Renoising(gen_length=24, steps=2)
    for seed in range(400):
        prompt = _prompt(6, seed)
        *_, last = denoise(model, [prompt], settings, seeds=[seed])
        if last.canvas.shape[1] < 30:
            return prompt, seed
    raise AssertionError("no text ends")


def test_a_text_that_ends_is_padded_and_waits_for_the_others(model: Model, eager: Any) -> None:
    settings = Renoising(gen_length=24, steps=2)
    prompt, seed = _ending(model)
    alone = list(denoise(model, [prompt], settings, seeds=[seed]))
    assert alone[-1].canvas[0].tolist() == _reference(eager, prompt, settings, seed)
    end = alone[-1].canvas[0].tolist().index(END)
    assert alone[-1].committed[0].nonzero().flatten().tolist() == list(range(6, end + 1))
    other = _prompt(9, 1)
    together = list(denoise(model, [prompt, other], settings, seeds=[seed, 5]))
    assert [step for step in together if step.takes_part[0]][-1].canvas[0, 3:].tolist() == alone[-1].canvas[0].tolist()
    assert bool((together[-1].canvas[0, 3 + len(alone[-1].canvas[0]) :] == PAD).all())


def test_rows_of_a_batch_are_what_they_are_alone(model: Model) -> None:
    settings = SETTINGS["early"]
    prompts, seeds = [_prompt(length, length) for length in (4, 17, 29)], [3, 1, 4]
    *_, together = denoise(model, prompts, settings, seeds=seeds)
    for row, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
        *_, alone = denoise(model, [prompt], settings, seeds=[seed])
        assert together.canvas[row, 29 - len(prompt) :].tolist() == alone.canvas[0].tolist()


def test_a_seed_repeats_and_another_differs(model: Model) -> None:
    prompt, settings = _prompt(5, 0), Renoising(gen_length=16, steps=3)
    one, two = (generate(model, [prompt], settings).sequences for _ in range(2))
    other = generate(model, [prompt], Renoising(gen_length=16, steps=3, seed=1)).sequences
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


class _Maps:
    """Takes down every map of an eager network's attention, pass by pass."""

    def __init__(self, network: Any) -> None:
        self.passes: list[list[torch.Tensor]] = []
        stacks = (network.model.encoder.language_model.layers, network.model.decoder.layers)
        for layer in (layer for stack in stacks for layer in stack):
            layer.self_attn.register_forward_hook(self._take)

    def _take(self, module: nn.Module, _: object, output: tuple[torch.Tensor, torch.Tensor]) -> None:
        if module.layer_idx == 0:
            self.passes.append([])
        self.passes[-1].append(output[1])


def test_a_trace_holds_what_the_eager_network_attends_to(model: Model, folder: Path, tmp_path: Path) -> None:
    settings, prompt = Renoising(gen_length=20, steps=4, entropy_bound=8.0), _prompt(13, 2)
    trace = record(model, [prompt], settings, out=tmp_path / "trace", recording=Recording(entropy=True))
    sample = trace[0]
    network = load_model(folder, device="cpu", attention="eager").network
    maps = _Maps(network)
    assert sample["sequence"].values.tolist() == _reference(network, prompt, settings, sample.attrs["seed"])
    assert len(maps.passes) == sample.sizes["step"]
    for step, layers in enumerate(maps.passes):
        for layer, weights in enumerate(layers):
            wanted = weights[0].double().mean(1).numpy()  # (head, key)
            seen = int(sample["block_start" if sample["encoder"][step] else "block_stop"][step])
            got = sample["received"][step, layer].values
            # The keys that a sliding cache has forgotten are not there.
            assert np.isnan(got[:, : seen - wanted.shape[1]]).all()
            np.testing.assert_allclose(got[:, seen - wanted.shape[1] : seen], wanted, atol=1e-6)
            row = torch.special.entr(weights[0].double()).sum(-1).numpy()
            fed = slice(int(sample["query_start"][step]), int(sample["query_stop"][step]))
            np.testing.assert_allclose(sample["entropy"][step, layer].values[:, fed], row, atol=1e-5)


def test_a_trace_says_what_was_kept_and_what_was_changed(model: Model, tmp_path: Path) -> None:
    # So cold that what is drawn is what is likeliest.
    settings = Renoising(gen_length=16, steps=6, entropy_bound=1e-9, t_max=0.002, t_min=0.001)
    sample = record(model, [_prompt(7, 3)], settings, out=tmp_path / "trace")[0]
    encoder = sample["encoder"].values
    assert np.flatnonzero(encoder).tolist() == [0, int((sample["block"].values == 0).sum())]
    canvas, kept = sample["canvas"].values, sample["kept"].values
    assert 0 < kept.sum() < (~encoder).sum() * CANVAS
    noise: list[bool] = []
    for step in np.flatnonzero(~encoder):
        block = slice(int(sample["block_start"][step]), int(sample["block_stop"][step]))
        last = step + 1 == len(encoder) or bool(encoder[step + 1])
        assert sample["committed"].values[step, block].all() == last
        assert not np.isnan(sample["prediction_entropy"].values[step, block]).any()
        told = sample["self_conditioning"].values[step, block]
        assert (told == 0).all() if encoder[step - 1] else (told > 0).all()
        if last:
            written = sample["sequence"].values[block]
            assert written.tolist() == sample["predicted"].values[step, block].tolist()
        else:
            asked = sample["queries"].sel(group=["kept", "changed"]).values[step + 1]
            assert asked.tolist() == [kept[step, block].sum(), CANVAS - kept[step, block].sum()]
            drawn = sample["predicted"].values[step, block]
            assert (canvas[step + 1, block] == drawn)[kept[step, block]].all()
            noise += (canvas[step + 1, block] == drawn)[~kept[step, block]].tolist()
    assert noise
    assert np.mean(noise) < 0.2  # a random token is the likeliest one in 1 of 96
    whole, parts = received_from(sample, "block"), [received_from(sample, one) for one in ("kept", "changed")]
    sizes = [group_size(sample, one) for one in ("kept", "changed")]
    mean = sum((part.fillna(0) * size for part, size in zip(parts, sizes, strict=True)), start=0 * whole.fillna(0))
    np.testing.assert_allclose((mean / sum(sizes)).fillna(0), whole.fillna(0), atol=1e-7)
    assert find_sinks(sample, First(1)).dims == sample["received"].dims


def test_masking_denies_the_decoder_a_key_and_nothing_else(model: Model, eager: Any) -> None:
    """One key of the prompt is cut from the decoder's queries: the eager network with that key masked out."""
    prompt = _prompt(9, 4)
    masks = MaskSinks(First(1), detect="same", first_step=0, queries=("kept", "changed"))
    encoded, refined = denoise(model, [prompt], Renoising(gen_length=8, steps=1), seeds=[1], intervention=masks)
    cache = DynamicCache(config=eager.config.get_text_config())
    with torch.no_grad():
        eager.model.encoder(input_ids=torch.tensor([prompt]), cache=cache)
        told = torch.ones(1, len(prompt) + CANVAS, dtype=torch.bool)
        told[0, 0] = False
        logits = eager(decoder_input_ids=encoded.canvas[:, 9:], cache=cache, decoder_attention_mask=told).logits
    settings = Renoising()
    logits = logits / settings.t_max  # of a single step
    wanted = torch.special.entr(logits.double().softmax(-1)).sum(-1)
    assert refined.noise is not None
    torch.testing.assert_close(refined.noise.entropy[:, 9:].double(), wanted, atol=1e-4, rtol=0)
    assert refined.removed is not None
    assert float(refined.removed.mass) > 0


def test_the_stacks_are_watched_apart_in_the_networks_own_generate(model: Model) -> None:
    network: Any = model.network
    with watch(model) as watched:
        network.generate(torch.tensor([_prompt(5, 6)]), max_new_tokens=8, max_denoising_steps=3)
    assert watched.passes == 1 + 3
    assert watched.received.shape == (3, 1, 4, 5 + CANVAS)


def _steps(model: Model, settings: Any, **more: Any) -> Iterator[Step]:
    return denoise(model, [_prompt(5, 7)], settings, **more)


def test_what_it_cant_do_is_refused(model: Model) -> None:
    with pytest.raises(UserError, match="refines random tokens and takes Renoising settings, got Denoising"):
        _steps(model, Denoising(gen_length=8, block_length=8, steps=8))
    with pytest.raises(UserError, match="keys of its encoder, which can't be dropped"):
        _steps(model, Renoising(gen_length=8), compression=Compress("key-norm", 0.5))
    with pytest.raises(UserError, match="gen_length in whole canvases 256 make 261, the context is 256"):
        _steps(model, Renoising(gen_length=250))
    with pytest.raises(UserError, match="no tokenizer"):
        evaluate(model, "copy")
    with pytest.raises(UserError, match=r"has no likelihoods; generate from it .* or take a task with exact answers"):
        decode(model, [_prompt(5, 7)])
    with pytest.raises(UserError, match=r"t_min must be .* below t_max \(0\.3\), got 0\.4"):
        Renoising(t_max=0.3)
    for name in ("entropy_bound", "t_max", "t_min"):
        with pytest.raises(UserError, match=f"{name} must be a number, got None"):
            Renoising(**{name: None})  # type: ignore[arg-type]
    with pytest.raises(UserError, match="entropy_bound must be a number above 0, got nan"):
        Renoising(entropy_bound=float("nan"))


def test_a_damaged_generation_config_is_one_line(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"t_max": 0.3, "t_min": 0.9}')
    with pytest.raises(UserError, match="no configuration of how DiffusionGemma generates"):
        load_model(tmp_path, device="cpu")
    (tmp_path / "generation_config.json").write_text('{"max_denoising_steps": 9, "eos_token_id": [1, 5]}')
    family = load_model(tmp_path, device="cpu").family
    assert family.default_decoding["steps"] == 9
    assert family.eos_token_ids == (1, 5)


@pytest.mark.parametrize(
    ("fields", "file", "told"),
    [
        ({"canvas_length": 0}, "config.json", "canvas_length=0, wanted a whole number above 0"),
        (
            {"text_config": {"sliding_window": 1}},
            "config.json",
            "sliding_window=1, wanted a whole number of at least 2",
        ),
        ({"text_config": {"sliding_window": -3}}, "config.json", "sliding_window=-3, wanted"),
        ({"eos_token_id": [1, "x"]}, "generation_config.json", "eos_token_id=.*wanted a token id or a list of them"),
    ],
)
def test_a_wrong_field_is_one_line(folder: Path, tmp_path: Path, fields: dict[str, Any], file: str, told: str) -> None:
    for one in folder.iterdir():
        (tmp_path / one.name).write_bytes(one.read_bytes())
    stated = json.loads((tmp_path / file).read_text())
    inner = {name: {**stated[name], **value} for name, value in fields.items() if isinstance(value, dict)}
    (tmp_path / file).write_text(json.dumps({**stated, **fields, **inner}))
    with pytest.raises(UserError, match=told):
        load_model(tmp_path, device="cpu")


def test_a_canvas_of_no_stated_length_is_the_classs_own(folder: Path, tmp_path: Path) -> None:
    for one in folder.iterdir():
        (tmp_path / one.name).write_bytes(one.read_bytes())
    config: Any = DiffusionGemmaConfig
    for stated in (None, "absent"):
        fields = json.loads((folder / "config.json").read_text()) | {"canvas_length": stated}
        if stated == "absent":
            del fields["canvas_length"]
        (tmp_path / "config.json").write_text(json.dumps(fields))
        blocks = load_model(tmp_path, device="cpu").family.blocks
        assert blocks is not None
        assert blocks.length == config().canvas_length
