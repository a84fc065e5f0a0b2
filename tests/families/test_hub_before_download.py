"""What is told of a hub model before its weights are fetched, against a stand-in of the hub on this machine."""

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from family_checkpoints import changed_copy, sharded_copy
from hub_server import COMMIT, Hub, serving
from huggingface_hub import close_session, constants
from safetensors.torch import load_file

from sinkscope.errors import UserError
from sinkscope.families import describe_model, load_model


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub without repositories, and an empty cache."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with serving(Hub()) as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.address)
        template = served.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield served
        close_session()


def _weights(hub: Hub) -> int:
    return sum(size for name, size in hub.given.items() if name.endswith(".safetensors"))


@pytest.mark.parametrize("shards", [1, 3])
def test_a_model_is_described_by_the_headers_of_its_weights(
    hub: Hub, fixtures: Path, tmp_path: Path, shards: int
) -> None:
    folder = tmp_path / "model"
    if shards > 1:
        sharded_copy(fixtures / "sdar-tiny", folder, shards)
    else:
        changed_copy(fixtures / "sdar-tiny", folder)
    hub.repositories["Org/model"] = folder
    local = vars(describe_model(folder))
    told = vars(describe_model("Org/model"))
    differing = {name for name in local if local[name] != told[name]}
    assert differing == {"name", "revision", "folder", "fetched"}
    assert (told["revision"], told["fetched"]) == (COMMIT, False)
    assert told["files"] == {one.name: one.stat().st_size for one in sorted(folder.glob("*.safetensors"))}
    assert not [*Path(told["folder"]).glob("*.safetensors")]
    headers = _weights(hub)
    assert headers <= shards * 100_001 < told["file_bytes"]

    model = load_model("Org/model", device="cpu")  # now they are fetched
    assert _weights(hub) == headers + told["file_bytes"]
    tokens = torch.arange(3, 23).reshape(1, 20)
    assert torch.equal(model.network(tokens).logits, load_model(folder, device="cpu").network(tokens).logits)
    again = describe_model("Org/model", revision="main")
    assert (again.fetched, again.files) == (True, told["files"])
    assert _weights(hub) == headers + told["file_bytes"]


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", ["llada-tiny", "llada2-tiny"])
def test_memory_of_the_weights_is_what_they_take(fixtures: Path, name: str, dtype: str | None) -> None:
    told: dict[str, Any] = {} if name != "llada2-tiny" else {"mask_token_id": 252}
    network = load_model(fixtures / name, dtype=dtype, device="cpu", **told).network
    told_of = describe_model(fixtures / name, dtype=dtype, **told)
    taken = sum(weight.nbytes for weight in network.parameters())
    routers = 0.01 if name == "llada2-tiny" else 0  # which stay float32
    assert told_of.weight_bytes == pytest.approx(taken, rel=routers, abs=0)
    assert told_of.dtype == (dtype or "float32")


def test_what_loading_would_refuse_is_refused_before_the_download(hub: Hub, fixtures: Path, tmp_path: Path) -> None:
    hub.repositories["Org/other"] = changed_copy(
        fixtures / "llada-tiny", tmp_path / "other", weights=lambda all_: {name: all_[name] for name in [*all_][1:]}
    )
    with pytest.raises(UserError, match="1 weights are missing"):
        describe_model("Org/other")
    assert _weights(hub) <= 100_001


def test_a_header_longer_than_the_first_request(hub: Hub, fixtures: Path, tmp_path: Path) -> None:
    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "long")
    content = (folder / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = content[8 : 8 + length] + b" " * 200_000
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])
    hub.repositories["Org/long"] = folder
    assert describe_model("Org/long").parameters == describe_model(folder).parameters


def _pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def _gguf(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    for bits in (4, 8):
        (folder / f"model-Q{bits}.gguf").write_bytes(b"GGUF")


def _nested(folder: Path) -> None:
    (folder / "transformer").mkdir()
    (folder / "model.safetensors").rename(folder / "transformer" / "model.safetensors")


def _lacking(folder: Path) -> None:
    placed = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")


def _odd(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"<html>nothing of the kind</html>")


@pytest.mark.parametrize(
    "claimed",
    [
        {"dtype": 3, "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": ["2"], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2.5], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2]},
        3,
    ],
)
def test_headers_that_claim_anything(hub: Hub, fixtures: Path, tmp_path: Path, claimed: object) -> None:
    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "model")
    header = json.dumps({"a": claimed}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    hub.repositories["Org/model"] = folder
    with pytest.raises(UserError, match=r"Org/model: model.safetensors is no whole safetensors file") as caught:
        describe_model("Org/model")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("way", [describe_model, lambda name: load_model(name, device="cpu")])
@pytest.mark.parametrize(
    ("change", "line"),
    [
        (_pickle, "pytorch_model.bin; its weights are pickles, which are not read from the hub"),
        (_gguf, r"model-Q4.gguf, model-Q8.gguf; download one of them \(hf download\) and name the file"),
        (_nested, r"no whole model \(config.json and weights at its root\)"),
        (_lacking, "1 of 2 shards are missing: model-00002-of-00002.safetensors"),
        (_odd, "model.safetensors"),
    ],
)
def test_repositories_that_hold_no_model(
    hub: Hub, fixtures: Path, tmp_path: Path, change: object, line: str, way: object
) -> None:
    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "model")
    assert callable(change) and callable(way)
    change(folder)
    hub.repositories["Org/model"] = folder
    with pytest.raises(UserError, match=line) as caught:
        way("Org/model")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "revision", "line"),
    [
        ("Org/nothing", None, "the hub has none of that name, or a private one"),
        ("Org/model", "v9", "Org/model has no revision 'v9' on the hub"),
        ("Org/gated", None, r"Org/gated is gated: accept its terms at http://127.*/Org/gated and log in"),
    ],
)
def test_what_the_hub_refuses_is_one_line(hub: Hub, fixtures: Path, name: str, revision: str | None, line: str) -> None:
    hub.repositories |= dict.fromkeys(("Org/model", "Org/gated"), fixtures / "llada-tiny")
    hub.gated.add("Org/gated")
    for way in (describe_model, load_model):
        with pytest.raises(UserError, match=line) as caught:
            way(name, revision=revision)
        assert "\n" not in str(caught.value)


def test_without_a_hub(hub: Hub, fixtures: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(fixtures / "llada-tiny", tmp_path / "model")
    hub.repositories["Org/model"] = tmp_path / "model"
    before = describe_model("Org/model")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    told = describe_model("Org/model")  # by the small files in the cache
    assert (told.parameters, told.files, told.fetched) == (before.parameters, {}, False)
    assert (told.stored_dtype, told.dtype, told.weight_bytes) == ("unknown", None, None)
    assert describe_model("Org/model", dtype="bfloat16").weight_bytes == 2 * told.parameters
    with pytest.raises(UserError, match=r"Org/other: not a folder.*and the hub cannot be reached"):
        describe_model("Org/other")


def test_the_command_says_it_by_the_usual_variables(hub: Hub, fixtures: Path, tmp_path: Path) -> None:
    hub.repositories["Org/model"] = sharded_copy(fixtures / "sdar-tiny", tmp_path / "model", 2)
    environment = os.environ | {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    command = [str(Path(sys.executable).parent / "sinkscope"), "info", "Org/model", "--json", "--gen-length", "16"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert (told["family"], told["fetched"], told["weight_bytes"]) == ("sdar", False, 4 * told["parameters"])
    assert told["trace"]["positions"] == 80
    assert [*(tmp_path / "home" / "hub" / "models--Org--model" / "snapshots" / COMMIT).glob("*.safetensors")] == []


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"[]", b"{}"])
def test_a_hub_that_answers_something_else(hub: Hub, fixtures: Path, body: bytes) -> None:
    """As the page of a network that wants a login does."""
    hub.repositories["Org/model"] = fixtures / "llada-tiny"
    hub.listing = body
    with pytest.raises(UserError, match=r"Org/model can't be fetched from the hub \(") as caught:
        describe_model("Org/model")
    assert "\n" not in str(caught.value)
