"""Hub names, without a network: a cache folder as `huggingface_hub` lays it out, and the offline switch."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import HFValidationError, RevisionNotFoundError
from huggingface_hub.utils._paths import filter_repo_objects
from safetensors.torch import load_file

import sinkscope.attention  # noqa: F401  registers the attention function that loading asks for by default
from sinkscope.errors import UserError
from sinkscope.families import checkpoint, describe_model, load_model

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
    with pytest.raises(UserError, match="no adapter"):
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

    monkeypatch.setattr(checkpoint, "snapshot_download", download)
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

    monkeypatch.setattr(checkpoint, "snapshot_download", download)
    with pytest.raises(UserError) as caught:
        load_model("someone/model", revision="v2")
    assert "\n" not in str(caught.value)
