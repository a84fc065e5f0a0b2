"""Hub names, without a network: a cache folder as `huggingface_hub` lays it out, and the offline switch."""

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from family_checkpoints import changed_copy, sharded_copy
from huggingface_hub import constants
from huggingface_hub.errors import HFValidationError, RevisionNotFoundError
from huggingface_hub.utils._paths import filter_repo_objects
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

import sinkscope.attention  # noqa: F401  registers the attention function that loading asks for by default
from sinkscope.errors import UserError
from sinkscope.families import checkpoint, describe_model, hub, load_model
from sinkscope.families.packaged import find_packaged

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLDER = "f" * 40


@pytest.fixture(autouse=True)
def cache(fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One repository in the cache, with two commits, and no way to the network."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--someone--llada-tiny"
    for commit, name in ((COMMIT, "llada-tiny"), (OLDER, "llada-gqa-tiny")):
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for file in ("config.json", "model.safetensors"):
            shutil.copy(fixtures / name / file, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "refs" / "older").write_text(OLDER)
    return repository


@pytest.mark.parametrize(
    ("revision", "commit", "name"),
    [(None, COMMIT, "llada-tiny"), ("main", COMMIT, "llada-tiny"), ("older", OLDER, "llada-gqa-tiny"),
     (OLDER, OLDER, "llada-gqa-tiny")],
)  # fmt: skip
def test_a_hub_name_is_its_cached_snapshot(fixtures: Path, revision: str | None, commit: str, name: str) -> None:
    model = load_model("someone/llada-tiny", revision=revision, device="cpu")
    reference = load_file(fixtures / name / "forward.safetensors")
    torch.testing.assert_close(model.network(reference["input_ids"]).logits, reference["logits"], atol=5e-4, rtol=0)
    assert (model.name, model.revision) == ("someone/llada-tiny", commit)


def test_description_needs_no_weights(cache: Path) -> None:
    told = describe_model("someone/llada-tiny")
    assert (told.revision, told.stored_dtype) == (COMMIT, "F32")
    (cache / "snapshots" / COMMIT / "model.safetensors").unlink()
    without = describe_model("someone/llada-tiny")
    assert without.parameters == told.parameters
    assert (without.stored_dtype, without.files) == ("unknown", {})
    with pytest.raises(UserError, match="no weights in"):
        load_model("someone/llada-tiny")


def test_pickle_of_a_hub_model_is_never_read(cache: Path) -> None:
    snapshot = cache / "snapshots" / COMMIT
    weights = load_file(snapshot / "model.safetensors")
    torch.save(weights, snapshot / "pytorch_model.bin")
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no weights in"):
        load_model("someone/llada-tiny")


def test_adapters_are_refused(cache: Path, fixtures: Path, tmp_path: Path) -> None:
    (cache / "snapshots" / COMMIT / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="holds an adapter"):
        load_model("someone/llada-tiny")
    shutil.copytree(fixtures / "llada-tiny", tmp_path / "local")
    (tmp_path / "local" / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="merge the two first"):
        load_model(tmp_path / "local")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("someone/other", "the hub cannot be reached"),
        (
            "rxnmaper",
            r"not a packaged model \(twin-ar, twin-dlm, .*chain-adapted, chain-joint, smollm2-135m, rxnmapper\)",
        ),
        ("some one/bad name", "possible name on the hub"),
        ("/no/folder", "no such folder"),
        ("./relative", "no such folder"),
        ("a/b/c", "no such folder"),
    ],
)
def test_what_cannot_be_had(name: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        load_model(name)
    assert "\n" not in str(caught.value)
    assert name.strip("./") in str(caught.value)


def test_revision_that_is_not_there() -> None:
    with pytest.raises(UserError, match="at revision v9"):
        load_model("someone/llada-tiny", revision="v9")


def test_a_folder_has_no_revision(fixtures: Path) -> None:
    with pytest.raises(UserError, match="no revision 'main'"):
        load_model(fixtures / "llada-tiny", revision="main")


def test_only_data_is_asked_for(monkeypatch: pytest.MonkeyPatch, fixtures: Path) -> None:
    """What the download is told to fetch: never code or pickle, and nothing below the root."""
    asked: list[dict[str, Any]] = []

    def download(name: str, **options: Any) -> str:
        asked.append(options | {"name": name})
        return str(fixtures / "llada-tiny")

    monkeypatch.setattr(hub, "snapshot_download", download)
    checkpoint.resolve("someone/model", revision="v2")
    checkpoint.resolve("someone/model", weights=False)
    files = ["config.json", "tokenizer.json", "merges.txt", "tokenizer.model", "model-00001-of-00002.safetensors"]
    refused = ["modeling_llada.py", "pytorch_model.bin", "model.ckpt", "original/model.safetensors", "onnx/config.json"]
    kept = filter_repo_objects(
        [*files, *refused],
        allow_patterns=asked[0]["allow_patterns"],
        ignore_patterns=asked[0]["ignore_patterns"],
    )
    assert [*kept] == files
    assert asked[0]["revision"] == "v2"
    assert not [pattern for pattern in asked[1]["allow_patterns"] if "safetensors" in pattern]


@pytest.mark.parametrize("fault", ["gone", "name"])
def test_errors_of_the_hub_are_one_line(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    import httpx2

    answer = httpx2.Response(404, request=httpx2.Request("GET", "https://hub.invalid/model"))
    errors: dict[str, Exception] = {
        "gone": RevisionNotFoundError("404: not there\nRequest ID: 7", response=answer),
        "name": HFValidationError("no name"),
    }

    def download(_: str, **options: Any) -> str:
        assert options["revision"] == "v2"
        raise errors[fault]

    monkeypatch.setattr(hub, "snapshot_download", download)
    with pytest.raises(UserError) as caught:
        load_model("someone/model", revision="v2")
    assert "\n" not in str(caught.value)


def _cached(repository: Path, source: Path, shards: int = 3) -> Path:
    """A checkpoint as a download leaves it in the cache: sharded, links to blobs, a branch. Returns the snapshot."""
    sharded = sharded_copy(source, repository / "made", shards)
    for file in source.iterdir():
        if file.name != "config.json" and file.suffix in (".json", ".jinja", ".txt"):
            shutil.copy(file, sharded)
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for folder in ("blobs", "refs"):
        (repository / folder).mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for file in sharded.iterdir():
        blob = repository / "blobs" / sha256(file.name.encode()).hexdigest()
        file.rename(blob)
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    sharded.rmdir()
    return snapshot


STOCK: dict[str, Callable[[], Any]] = {
    "masked-lm": lambda: BertForMaskedLM(
        BertConfig(vocab_size=60, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48)
    ),
    "causal-lm": lambda: Qwen3ForCausalLM(
        Qwen3Config(vocab_size=60, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
                    num_key_value_heads=2, head_dim=8, tie_word_embeddings=True)
    ),
    "a2d-qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(vocab_size=60, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
                    num_key_value_heads=2)
    ),
    "sdar_moe": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(vocab_size=60, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
                       num_key_value_heads=2, num_experts=5, num_experts_per_tok=2,
                       moe_intermediate_size=24)
    ),
}  # fmt: skip
FOREIGN = {
    "a2d-qwen2": {"model_type": "a2d-qwen2", "mask_token_id": 59},
    "sdar_moe": {"model_type": "sdar_moe", "mask_token_id": 59, "block_size": 4, "num_experts": 5},
}
FAMILIES: dict[str, str | None] = {
    "llada": "llada-tiny", "mmada": "mmada-tiny", "dream": "dream-tiny", "a2d-qwen3": "a2d-mdlm-tiny",
    "sdar": "sdar-tiny", "fast-dllm-v2": "fast-dllm-v2-tiny", "llada2": "llada2-tiny",
    "nemotron-diffusion": "nemotron-diffusion-tiny", **dict.fromkeys(STOCK), "twin": None,
}  # fmt: skip
TOLD: dict[str, dict[str, Any]] = {"a2d-mdlm-tiny": {"mask_token_id": 252}, "fast-dllm-v2-tiny": {"mask_token_id": 252},
        "llada2-tiny": {"mask_token_id": 252}}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_loads_from_shards_of_the_hub(fixtures: Path, tmp_path: Path, cache: Path, family: str) -> None:
    fixture = FAMILIES[family]
    folder = tmp_path / family if fixture is None else fixtures / fixture
    if family in STOCK:
        torch.manual_seed(5)
        STOCK[family]().save_pretrained(tmp_path / "stock")
        changed_copy(tmp_path / "stock", folder, FOREIGN.get(family, {}), drop=("num_local_experts",))
    elif fixture is None:
        folder = find_packaged("twin-dlm")
    told = TOLD.get(folder.name, {})
    repository = cache.parent / "models--Org--model.v1"
    snapshot = _cached(repository, folder)
    assert len([*snapshot.glob("*.safetensors")]) == 3
    (repository / "refs" / "v1").write_text(COMMIT)
    local = load_model(folder, device="cpu", **told)
    tokens = torch.arange(3, 43).reshape(2, 20) % 50
    wanted = local.network(tokens).logits
    for revision in (None, "v1", COMMIT):
        model = load_model("Org/model.v1", revision=revision, device="cpu", **told)
        assert torch.equal(model.network(tokens).logits, wanted)
        assert (model.name, model.revision, model.family) == ("Org/model.v1", COMMIT, local.family)
        assert model.family.name == family.removesuffix("_moe")
    described = describe_model("Org/model.v1", **told)
    assert described.files == {file.name: file.stat().st_size for file in sorted(snapshot.glob("*.safetensors"))}


def _truncate(shard: Path) -> None:
    blob = shard.resolve()
    blob.write_bytes(blob.read_bytes()[:-100])


def _index(snapshot: Path, change: Callable[[dict[str, str]], None]) -> None:
    index = snapshot / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    change(content["weight_map"])
    index.resolve().write_text(json.dumps(content))


def _twice(snapshot: Path) -> None:
    first, second = sorted(snapshot.glob("*.safetensors"))[:2]
    name, weight = next(iter(load_file(first).items()))
    save_file(load_file(second) | {name: weight}, second.resolve(), {"format": "pt"})


SHARD = "model-00002-of-00003.safetensors"
DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "shard missing": (lambda one: (one / SHARD).unlink(), f"1 of 3 shards are missing: {SHARD}"),
    "blob missing": (lambda one: (one / SHARD).resolve().unlink(), f"1 of 3 shards are missing: {SHARD}"),
    "truncated": (lambda one: _truncate(one / SHARD), f"{SHARD}: truncated"),
    "in two shards": (_twice, "which another file of the checkpoint holds too"),
    "in no shard": (lambda one: _index(one, lambda placed: placed.update({"extra.weight": SHARD})),
                    f"the index says that {SHARD} holds extra.weight, and no shard does"),
    "out of the folder": (lambda one: _index(one, lambda placed: placed.update({"a": "../blobs/a.safetensors"})),
                          "wanted a safetensors file of this folder"),
    "a file elsewhere": (lambda one: _index(one, lambda placed: placed.update({"a": "/etc/a.safetensors"})),
                         "wanted a safetensors file of this folder"),
    "no index": (lambda one: (one / "model.safetensors.index.json").unlink(), "no weights in"),
    "index of nothing": (lambda one: _index(one, lambda placed: placed.clear()), "wanted a weight_map"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_shards_are_one_line(fixtures: Path, cache: Path, damage: str) -> None:
    repository = cache.parent / "models--Org--damaged"
    snapshot = _cached(repository, fixtures / "sdar-tiny")
    change, line = DAMAGES[damage]
    change(snapshot)
    with pytest.raises(UserError) as caught:
        load_model("Org/damaged", device="cpu")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
