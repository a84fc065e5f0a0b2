"""Twins: stock Llama folders with a section of their own, tiny and untrained here, against plain transformers."""

import json
import shutil
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_checkpoints import changed_copy
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from sinkscope.attention import watch
from sinkscope.decoding import Decoding, Denoising, generate
from sinkscope.errors import UserError
from sinkscope.families import PACKAGED, Model, describe_model, load_model, packaged
from sinkscope.families import hub as families_hub
from sinkscope.language.vocabulary import BOS, END, EOS, MASK, PAD, SPECIAL, WORDS, encode, ids
from sinkscope.trace import record

NAMES = ("twin-ar", "twin-dlm", "twin-adapted")
PROMPT = "Ann has 5 eggs. How many are left? =>"
TOKENS = [ids()[BOS], *encode(PROMPT)]
SECTION: dict[str, Any] = {"objective": "masked-diffusion", "logit_shift": False, "trained_length": 24}

Folders = Mapping[str, Path]


@pytest.fixture(params=NAMES)
def twin(request: pytest.FixtureRequest, twin_folders: Folders) -> Model:
    return load_model(twin_folders[request.param], device="cpu")


def plain_logits(folder: Path, tokens: torch.Tensor, *, full: bool) -> torch.Tensor:
    """Logits (batch, position, vocabulary) of transformers' own eager Llama in float64."""
    opener: Any = AutoModelForCausalLM
    network = opener.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    length = tokens.shape[1]
    mask = torch.zeros(len(tokens), 1, length, length, dtype=torch.float64) if full else None
    with torch.no_grad():
        logits: torch.Tensor = network(tokens, attention_mask=mask).logits
    return logits


@pytest.mark.parametrize("attention", ["sinkscope", "sdpa", "eager"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_plain_transformers(twin_folders: Folders, name: str, attention: str) -> None:
    tokens = torch.randint(0, len(WORDS), (3, 19))
    model = load_model(twin_folders[name], dtype="float64", attention=attention, device="cpu")
    logits = model.network(tokens).logits
    causal, full = (plain_logits(twin_folders[name], tokens, full=full) for full in (False, True))
    ours, other = (causal, full) if name == "twin-ar" else (full, causal)
    torch.testing.assert_close(logits, ours, atol=1e-5, rtol=1e-5)
    assert (logits - other).abs().max() > 0.1


def test_what_a_twin_is(twin: Model) -> None:
    family, diffusion = twin.family, not twin.name.endswith("twin-ar")
    assert (family.name, family.bidirectional) == ("twin", diffusion)
    assert family.logit_shift is twin.name.endswith("twin-adapted")
    assert family.mask_token_id == (ids()[MASK] if diffusion else None)
    assert family.special_ids == tuple(sorted(ids()[word] for word in SPECIAL))
    assert (family.eos_token_ids, family.pad_token_id, family.position_offset) == ((ids()[EOS],), ids()[PAD], 0)
    assert (family.max_length, family.trained_length, family.closed_vocabulary) == (64, 30, True)
    assert family.question_end == END
    assert type(twin.network).__name__ == "LlamaForCausalLM"
    assert twin.dtype == torch.float32


def test_description(twin_folders: Folders) -> None:
    told = describe_model(twin_folders["twin-dlm"])
    assert (told.family, told.model_type, told.architecture) == ("twin", "llama", "LlamaForCausalLM")
    assert (told.max_length, told.trained_length, told.mask_token) == (64, 30, MASK)
    assert told.default_decoding == {"gen_length": 32, "block_length": 4, "steps": None, "confidence": "max-prob"}
    assert Denoising(**dict(told.default_decoding)).blocks == 8  # type: ignore[arg-type]
    causal = describe_model(twin_folders["twin-ar"])
    assert causal.default_decoding == {"max_new_tokens": 32, "temperature": 0.0}
    assert causal.mask_token_id is None


def test_other_families_know_no_trained_length(fixtures: Path, causal_folder: Path) -> None:
    """A Llama without the section is what it always was."""
    for folder, family in ((fixtures / "llada-tiny", "llada"), (causal_folder, "causal-lm")):
        found = load_model(folder, device="cpu").family
        assert (found.name, found.trained_length, found.closed_vocabulary) == (family, None, False)
        assert found.question_end is None


def test_half_precision_files_are_worked_with_in_single(twin_folders: Folders, tmp_path: Path) -> None:
    """Small files: config.json names the dtype of the work, whatever the weights are stored in."""
    halved = changed_copy(
        twin_folders["twin-dlm"],
        tmp_path / "small",
        {"dtype": "float32", "mask_token_id": ids()[MASK]},
        weights=lambda stored: {name: weight.half() for name, weight in stored.items()},
    )
    model = load_model(halved, device="cpu")
    assert model.dtype == torch.float32
    assert {weight.dtype for weight in model.network.parameters()} == {torch.float32}
    assert describe_model(halved).stored_dtype == "F16"
    stored = load_file(halved / "model.safetensors")
    assert stored["model.embed_tokens.weight"].dtype == torch.float16
    for name, weight in model.network.state_dict().items():
        if name in stored:
            torch.testing.assert_close(weight, stored[name].float(), atol=0, rtol=0)
    assert load_model(halved, dtype="float16", device="cpu").dtype == torch.float16


def test_the_tied_output_layer_need_not_be_stored(twin_folders: Folders, tmp_path: Path) -> None:
    tokens = torch.tensor([TOKENS])
    names = load_file(twin_folders["twin-ar"] / "model.safetensors").keys()
    assert "lm_head.weight" not in names
    torch.testing.assert_close(
        load_model(twin_folders["twin-ar"], device="cpu").network(tokens).logits.double(),
        plain_logits(twin_folders["twin-ar"], tokens, full=False),
        atol=1e-3,
        rtol=1e-3,
    )
    fewer = changed_copy(
        twin_folders["twin-ar"],
        tmp_path / "cut",
        weights=lambda stored: {name: weight for name, weight in stored.items() if "layers.1.mlp.up" not in name},
    )
    with pytest.raises(UserError, match=r"missing: model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(fewer)
    whole = (fewer / "model.safetensors").read_bytes()
    (fewer / "model.safetensors").write_bytes(whole[:-7])
    with pytest.raises(UserError, match=r"model\.safetensors.*fetch it again"):
        load_model(fewer)


def test_the_first_token_is_the_one_that_plain_transformers_ranks_first(twin: Model, twin_folders: Folders) -> None:
    """Next token and shifted logits: the row before. Diffusion from scratch: the mask's own row."""
    name = twin.name.rpartition("/")[2]
    diffusion = name != "twin-ar"
    canvas = torch.tensor([[*TOKENS, *([ids()[MASK]] if diffusion else [])]])
    row = plain_logits(twin_folders[name], canvas, full=diffusion)[0, -1 if name != "twin-adapted" else -2]
    if diffusion:
        row[ids()[MASK]] = -torch.inf
    settings = Denoising(gen_length=1, block_length=1, steps=1) if diffusion else Decoding(max_new_tokens=1)
    done = generate(twin, PROMPT, settings)
    assert done.sequences[0].tolist() == [*TOKENS, int(row.argmax())]


def test_generation_with_the_familys_own_settings(twin: Model) -> None:
    chat = [{"role": "user", "content": PROMPT.removesuffix(" =>")}]
    with pytest.warns(UserWarning, match="trained on texts of at most 30 tokens"):
        first = generate(twin, PROMPT)
    with pytest.warns(UserWarning, match="30 tokens"):
        second = generate(twin, chat)
    assert first.sequences.tolist() == second.sequences.tolist()
    assert first.sequences[0, : len(TOKENS)].tolist() == TOKENS
    assert first.prompt_length == len(TOKENS)
    if twin.family.bidirectional:
        assert first.forward_passes == 32
        assert first.sequences.shape == (1, len(TOKENS) + 32)
        assert ids()[MASK] not in first.sequences


def test_attention_is_watched_and_recorded(twin: Model, tmp_path: Path) -> None:
    with watch(twin) as watched:
        twin.network(torch.tensor([TOKENS]))
    assert watched.received.shape == (2, 1, 3, len(TOKENS))
    diffusion = twin.family.bidirectional
    settings = Denoising(gen_length=6, block_length=3, steps=None) if diffusion else Decoding(max_new_tokens=6)
    trace = record(twin, [PROMPT, "Copy the list: a b =>"], settings, out=tmp_path / "t.zarr", batch_size=2)
    assert trace.attrs["model"]["family"] == "twin"
    sample = trace[0]
    steps = sample.sizes["step"]
    assert steps == 6 if diffusion else 1 <= steps <= 6
    assert sample["received"].dims == ("step", "layer", "head", "position")
    # float16 on disk: each number is off by at most 2^-11 of itself.
    np.testing.assert_allclose(sample["received"].sum("position"), 1, atol=2**-10)
    assert sample.attrs["tokens"][str(ids()["Ann"])] == "Ann"


BAD: list[tuple[Any, str]] = [
    (None, "sinkscope needs the fields objective, logit_shift, trained_length and no other, found None"),
    ("diffusion", "found 'diffusion'"),
    ({}, "found the fields none"),
    ({"objective": "masked-diffusion", "logit_shift": False}, "found the fields logit_shift, objective"),
    ({**SECTION, "mask_ratio": 0.5}, "found the fields logit_shift, mask_ratio, objective, trained_length"),
    (
        {**SECTION, "objective": "gan"},
        r"sinkscope.objective='gan', wanted one of next-token, masked-diffusion",
    ),
    ({**SECTION, "objective": ["next-token"]}, r"objective=\['next-token'\]"),
    ({**SECTION, "logit_shift": 1}, "sinkscope.logit_shift=1, wanted true or false"),
    (
        {**SECTION, "objective": "next-token", "logit_shift": True},
        "logit_shift=True goes with masked-diffusion only",
    ),
    ({**SECTION, "trained_length": 0}, "trained_length=0, wanted a whole number above 0"),
    ({**SECTION, "trained_length": 24.0}, r"trained_length=24\.0"),
    ({**SECTION, "trained_length": True}, "trained_length=True"),
    ({**SECTION, "trained_length": None}, "trained_length=None"),
    ({**SECTION, "trained_length": 65}, "sinkscope.trained_length=65 is more than max_position_embeddings=64"),
]


def assert_refused(folder: Path, message: str) -> None:
    for way in (load_model, describe_model):
        with pytest.raises(UserError, match=message) as caught:
            way(folder)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("section", "message"), BAD)
def test_sections_that_cannot_be(twin_folders: Folders, tmp_path: Path, section: Any, message: str) -> None:
    folder = changed_copy(twin_folders["twin-dlm"], tmp_path / "changed", {"sinkscope": section})
    assert_refused(folder, message)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("twin-ar", {"is_causal": False}, "is_causal=False is not what a twin with next-token computes"),
        ("twin-dlm", {"is_causal": True}, "is_causal=True is not what a twin with masked-diffusion computes"),
        ("twin-dlm", {"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ("twin-dlm", {"num_hidden_layers": "two"}, "num_hidden_layers=.two., wanted a whole number"),
        ("twin-dlm", {"intermediate_size": 61}, "of another shape than config.json says"),
        ("twin-dlm", {"mask_token_id": -1}, "mask_token_id=-1, wanted a token id"),
    ],
)
def test_fields_that_cannot_be(
    twin_folders: Folders, tmp_path: Path, name: str, fields: dict[str, Any], message: str
) -> None:
    assert_refused(changed_copy(twin_folders[name], tmp_path / "changed", fields), message)


def test_a_longest_text_as_long_as_the_context(twin_folders: Folders, tmp_path: Path) -> None:
    folder = changed_copy(
        twin_folders["twin-dlm"],
        tmp_path / "long",
        {"sinkscope": {**SECTION, "trained_length": 64}, "mask_token_id": 3},
    )
    assert load_model(folder, device="cpu").family.trained_length == 64


def test_where_the_mask_token_comes_from(twin_folders: Folders, tmp_path: Path) -> None:
    bare = changed_copy(twin_folders["twin-dlm"], tmp_path / "bare")
    assert_refused(bare, "no mask token: neither a tokenizer with one nor mask_token_id in config.json")
    stated = changed_copy(bare, tmp_path / "stated", {"mask_token_id": ids()[MASK]})
    model = load_model(stated, device="cpu")
    assert (model.tokenizer, model.family.mask_token_id) == (None, ids()[MASK])
    assert model.family.closed_vocabulary is False
    assert generate(model, [TOKENS], Denoising(gen_length=4, block_length=4, steps=4)).text is None
    outside = changed_copy(bare, tmp_path / "outside", {"mask_token_id": len(WORDS)})
    assert_refused(outside, f"mask_token_id={len(WORDS)} lies outside the vocabulary")
    torn = shutil.copytree(twin_folders["twin-dlm"], tmp_path / "torn")
    assert load_model(torn, device="cpu").family.mask_token_id == ids()[MASK]
    config = json.loads((torn / "config.json").read_text())
    (torn / "config.json").write_text(json.dumps({**config, "mask_token_id": 9}))
    assert_refused(torn, f"mask_token_id=9, but the tokenizer's mask is {ids()[MASK]}")


@pytest.fixture
def shipped(twin_folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation whose package holds the tiny twins."""
    package = ModuleSpec("sinkscope", None, is_package=True)
    root = twin_folders["twin-ar"].parent.parent
    package.submodule_search_locations = [str(root)]
    named = root / "twins"
    if not named.exists():
        named.symlink_to(twin_folders["twin-ar"].parent, target_is_directory=True)
    monkeypatch.setattr(packaged, "find_spec", lambda name: package if name == "sinkscope" else None)


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize("name", NAMES)
def test_twins_are_loaded_by_name(name: str, twin_folders: Folders) -> None:
    model = load_model(name, device="cpu")
    assert (model.name, model.family.name, model.revision) == (name, "twin", None)
    wanted = load_model(twin_folders[name], device="cpu").network.state_dict()
    for weight, value in model.network.state_dict().items():
        torch.testing.assert_close(value, wanted[weight], atol=0, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_an_installation_without_twins(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = ModuleSpec("sinkscope", None, is_package=True)
    package.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(packaged, "find_spec", lambda _: package)
    line = f"{name}: the package sinkscope has no twins/{name}; run: sinkscope train --out runs/twins, then name"
    assert_refused(Path(name), line)


def test_a_twin_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def hub(*_: object, **__: object) -> str:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(families_hub, "snapshot_download", hub)
    assert_refused(Path("twin-foo"), "twin-foo: there is no twin and no folder of this name; the packaged models are")
    with pytest.raises(UserError) as caught:
        load_model("twin-foo")
    assert all(name in str(caught.value) for name in PACKAGED)
    with pytest.raises(UserError, match="the hub was asked"):
        load_model("twin-foo/model")  # a repository of somebody of that name


def test_a_folder_may_be_called_like_a_twin(
    twin_folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("twin-foo", "twin-dlm"):
        changed_copy(twin_folders["twin-ar"], tmp_path / name)
        assert load_model(name, device="cpu").family.bidirectional is False


def test_a_section_in_another_type_of_model_is_not_a_twins(twin_folders: Folders, tmp_path: Path) -> None:
    folder = changed_copy(twin_folders["twin-ar"], tmp_path / "other", {"model_type": "mistral"})
    assert describe_model(folder).family == "causal-lm"
