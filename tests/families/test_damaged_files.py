"""Whatever bytes and values a checkpoint's files hold: it loads, or one line says what is wrong with it."""

import copy
import io
import json
import os
import shutil
import stat
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_checkpoints import changed_copy, sharded_copy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sinkscope.errors import UserError
from sinkscope.families import describe_model, load_model
from sinkscope.families.checkpoint import resolve
from sinkscope.families.stored import read_stored

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=3),
    st.sampled_from([[], {}, [[]], [0, 2**62], [4, 0], [-1, 4], "I64", "F8_E4M3", "\x1b[31m", "x" * 5000]),
)  # fmt: skip


def refused(way: Callable[[Path], object], path: Path) -> str:
    """The one line; fails for anything but a `UserError`."""
    with pytest.raises(UserError) as raised:
        way(path)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 1500
    return str(raised.value)


def taken_or_refused(way: Callable[[Path], object], path: Path) -> None:
    said = ""
    try:
        way(path)
    except UserError as error:
        said = str(error)
    assert "\n" not in said


def _load(path: Path) -> object:
    return load_model(path, device="cpu")


def _stored(path: Path) -> object:
    return read_stored(resolve(path))


@pytest.fixture
def whole(fixtures: Path) -> tuple[dict[str, Any], bytes]:
    content = (fixtures / "llada-tiny" / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _packed(header: object, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@FUZZ
@given(data=st.data())
def test_any_field_of_a_safetensors_header(
    fixtures: Path, tmp_path: Path, whole: tuple[dict[str, Any], bytes], data: st.DataObject
) -> None:
    header, weights = copy.deepcopy(whole[0]), whole[1]
    name = data.draw(st.sampled_from(sorted(header)))
    field = data.draw(st.sampled_from(["dtype", "shape", "data_offsets", None]))
    if field is None or name == "__metadata__":
        header[name] = data.draw(ODD)
    else:
        header[name][field] = data.draw(ODD)
    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "odd")
    (folder / "model.safetensors").write_bytes(_packed(header, weights))
    taken_or_refused(_load, folder)


@FUZZ
@given(place=st.integers(0, 2000), byte=st.integers(0, 255))
def test_any_byte_of_a_safetensors_header(fixtures: Path, tmp_path: Path, place: int, byte: int) -> None:
    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "odd")
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[place] = byte
    (folder / "model.safetensors").write_bytes(content)
    taken_or_refused(_load, folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 50_000) + b"[" * 50_000,
        _packed({"a": {"dtype": "F32", "shape": [2**31, 2**31], "data_offsets": [0, 4]}}, b"1234"),
        _packed({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, b"1234"),
        _packed({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"12345678"),
        _packed({n: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for n in "ab"}, b"1234"),
        _packed({"a": {"dtype": "Q4", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
        _packed({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234"),
        _packed({"a": 3}, b""),
    ],
)
def test_safetensors_that_contradict_themselves(fixtures: Path, tmp_path: Path, content: bytes) -> None:
    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "odd")
    (folder / "model.safetensors").write_bytes(content)
    for way in (describe_model, _load):
        assert "model.safetensors" in refused(way, folder)


@pytest.mark.parametrize(
    "shard",
    [3, None, [], {}, ["a"], "../other.safetensors", "/etc/passwd", "a/b.safetensors", "model.safetensors.index.json",
     "config.json", "", ".", "a\0.safetensors", "x" * 5000 + ".safetensors"],
)  # fmt: skip
def test_shard_indexes_that_leave_the_folder(fixtures: Path, tmp_path: Path, shard: object) -> None:
    folder = sharded_copy(fixtures / "llada-tiny", tmp_path / "sharded", shards=2)
    shutil.copy(fixtures / "llada-tiny" / "model.safetensors", tmp_path / "other.safetensors")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"][next(iter(content["weight_map"]))] = shard
    index.write_text(json.dumps(content))
    assert "safetensors" in refused(_load, folder)


def test_a_weight_in_two_shards(fixtures: Path, tmp_path: Path) -> None:
    folder = sharded_copy(fixtures / "llada-tiny", tmp_path / "sharded", shards=2)
    first, second = sorted(folder.glob("*.safetensors"))
    name, weight = next(iter(load_file(first).items()))
    save_file(load_file(second) | {name: weight}, second)
    assert name in refused(_load, folder)


def test_shards_may_be_links_as_in_the_hubs_cache(fixtures: Path, tmp_path: Path) -> None:
    folder = sharded_copy(fixtures / "llada-tiny", tmp_path / "sharded", shards=2)
    for shard in folder.glob("*.safetensors"):
        moved = shard.rename(tmp_path / shard.name)
        shard.symlink_to(moved)
    assert describe_model(folder).parameters > 0


def _zip_bomb(weights: dict[str, torch.Tensor]) -> bytes:
    plain, packed = io.BytesIO(), io.BytesIO()
    torch.save(weights, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, bytes(1 << 20) if "/data/" in entry.filename else source.read(entry))
    return packed.getvalue()


class _Claims:
    """Unpickled, it asks for 32 TiB."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return bytearray, (1 << 45,)


@pytest.mark.parametrize(
    "content",
    [
        None, [torch.ones(2)], {"state_dict": {"a": torch.ones(2)}}, {3: torch.ones(2)}, {"a": 3}, torch.ones(3),
        {"a": torch.zeros(1).expand(1 << 40)}, {"a": torch.eye(4).to_sparse()}, {"a": torch.empty(9999, device="meta")},
        {"a": _Claims()},
    ],
)  # fmt: skip
def test_pickles_of_something_else(fixtures: Path, tmp_path: Path, content: object) -> None:
    folder = changed_copy(fixtures / "dream-tiny", tmp_path / "pickle")
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")
    for way in (describe_model, _load):
        assert "pytorch_model.bin" in refused(way, folder)


def test_zip_bomb(fixtures: Path, tmp_path: Path) -> None:
    folder = changed_copy(fixtures / "dream-tiny", tmp_path / "pickle")
    bomb = _zip_bomb(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(bomb)
    assert "larger than the file" in refused(_load, folder)


def _gguf(path: Path) -> bytes:
    gguf = pytest.importorskip("gguf")
    writer, random = gguf.GGUFWriter(path, "llama"), np.random.default_rng(0)
    for add, value in (
        (writer.add_context_length, 64), (writer.add_embedding_length, 32), (writer.add_block_count, 1),
        (writer.add_feed_forward_length, 48), (writer.add_head_count, 4), (writer.add_head_count_kv, 2),
        (writer.add_layer_norm_rms_eps, 1e-5), (writer.add_rope_freq_base, 1e4), (writer.add_vocab_size, 20),
        (writer.add_tokenizer_model, "llama"), (writer.add_bos_token_id, 1), (writer.add_eos_token_id, 2),
        (writer.add_unk_token_id, 0), (writer.add_token_list, ["<unk>", "<s>", "</s>", *map(chr, range(97, 114))]),
        (writer.add_token_scores, [0.0] * 20), (writer.add_token_types, [2, 3, 3] + [1] * 17),
    ):  # fmt: skip
        add(value)
    shapes = {"token_embd": (20, 32), "output": (20, 32), "output_norm": (32,), "blk.0.attn_norm": (32,),
              "blk.0.ffn_norm": (32,), "blk.0.attn_q": (32, 32), "blk.0.attn_k": (16, 32), "blk.0.attn_v": (16, 32),
              "blk.0.attn_output": (32, 32), "blk.0.ffn_gate": (48, 32), "blk.0.ffn_up": (48, 32),
              "blk.0.ffn_down": (32, 48)}  # fmt: skip
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def test_the_gguf_of_these_tests_is_fine(tmp_path: Path) -> None:
    _gguf(tmp_path / "fine.gguf")
    network = load_model(tmp_path / "fine.gguf", device="cpu")
    assert network.shape.layers == describe_model(tmp_path / "fine.gguf").layers == 1


@settings(FUZZ, max_examples=80)
@given(data=st.data())
def test_any_bytes_of_a_gguf_header(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(_gguf(tmp_path / "odd.gguf"))
    header = content.index(b"blk.0.ffn_down.weight") + 50
    place = data.draw(st.integers(0, header))
    odd = data.draw(
        st.one_of(
            st.integers(0, 255).map(lambda byte: struct.pack("B", byte)),
            st.sampled_from([0, 1, 2**31, 2**32 - 1]).map(lambda number: struct.pack("<I", number)),
            st.sampled_from([0, 2**31, 2**40, 2**60, 2**63, 2**64 - 1]).map(lambda number: struct.pack("<Q", number)),
        )
    )
    content[place : place + len(odd)] = odd
    (tmp_path / "odd.gguf").write_bytes(content)
    taken_or_refused(_stored, tmp_path / "odd.gguf")


@pytest.mark.parametrize(
    ("key", "kind"), [("llama.block_count", 9), ("llama.block_count", 6), ("tokenizer.ggml.tokens", 4),
                      ("general.architecture", 9), ("llama.attention.head_count", 12), ("tokenizer.ggml.scores", 8)],
)  # fmt: skip
def test_gguf_metadata_of_other_types(tmp_path: Path, key: str, kind: int) -> None:
    content = bytearray(_gguf(tmp_path / "odd.gguf"))
    place = content.index(key.encode()) + len(key)
    content[place : place + 4] = struct.pack("<I", kind)
    (tmp_path / "odd.gguf").write_bytes(content)
    for way in (describe_model, _load):
        assert "odd.gguf" in refused(way, tmp_path / "odd.gguf")


def test_gguf_that_lost_its_number_of_layers(tmp_path: Path) -> None:
    """transformers then believes in a default of 32, and would look for their weights for minutes."""
    content = _gguf(tmp_path / "odd.gguf").replace(b"llama.block_count", b"llama.block_kount")
    (tmp_path / "odd.gguf").write_bytes(content)
    for way in (describe_model, _load):
        assert "32 layers" in refused(way, tmp_path / "odd.gguf")


WORDS = ["<pad>", "<s>", "</s>", *map(chr, range(97, 123)), "Ġ", "th", "the", "Ġthe"]


@pytest.fixture(scope="module")
def spoken(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a tokenizer."""
    folder = changed_copy(fixtures / "llada-tiny", tmp_path_factory.mktemp("spoken") / "model")
    core = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(WORDS)}, merges=[("t", "h"), ("th", "e")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    maker: Any = PreTrainedTokenizerFast
    tokenizer = maker(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=64)
    tokenizer.save_pretrained(folder)
    return folder


def _places(content: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in pairs:
        yield from _places(value, (*path, key))


def _with(content: Any, path: tuple[Any, ...], value: object) -> Any:
    if not path:
        return value
    copied = copy.copy(content)
    copied[path[0]] = _with(content[path[0]], path[1:], value)
    return copied


@settings(FUZZ, max_examples=50)
@given(data=st.data())
def test_anything_anywhere_in_a_tokenizers_files(spoken: Path, tmp_path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["tokenizer.json", "tokenizer_config.json"]))
    content = json.loads((spoken / name).read_text())
    extra = st.sampled_from(
        ["chat_template", "mask_token", "extra_special_tokens", "tokenizer_class", "auto_map", "added_tokens_decoder"]
    )
    if name == "tokenizer_config.json" and data.draw(st.booleans()):
        changed = content | {data.draw(extra): data.draw(ODD)}
    else:
        changed = _with(content, data.draw(st.sampled_from(list(_places(content)))), data.draw(ODD))
    folder = tmp_path / "odd"
    shutil.copytree(spoken, folder, dirs_exist_ok=True)
    (folder / name).write_text(json.dumps(changed))
    taken_or_refused(describe_model, folder)


def test_a_panic_of_the_tokenizers_library(spoken: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A prefix longer than a word: the library in Rust panics, and would print a trace past Python."""
    shutil.copytree(spoken, tmp_path / "odd")
    content = json.loads((spoken / "tokenizer.json").read_text())
    content["model"]["continuing_subword_prefix"] = "x" * 2000
    (tmp_path / "odd" / "tokenizer.json").write_text(json.dumps(content))
    assert "tokenizer" in refused(describe_model, tmp_path / "odd")
    assert "panicked" not in capfd.readouterr().err


def test_padding_is_an_id_that_the_network_has(causal_folder: Path, spoken: Path, tmp_path: Path) -> None:
    """Tokenizers of fine-tuned models know a pad token that nobody made an embedding for."""
    folder = tmp_path / "grown"
    shutil.copytree(causal_folder, folder)
    shutil.copy(spoken / "tokenizer.json", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "w109", "eos_token": "</s>"}))
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"].update({f"w{index}": index for index in range(len(WORDS), 110)})
    (folder / "tokenizer.json").write_text(json.dumps(content))
    model = load_model(folder, device="cpu")
    assert model.tokenizer is not None
    assert model.tokenizer.pad_token_id == 109
    assert model.family.pad_token_id == 0


SMALL = ["config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"]


@pytest.mark.parametrize("name", [*SMALL, "model.safetensors", "additional_chat_templates/tools.jinja"])
@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "endless"])
def test_files_that_are_none(spoken: Path, tmp_path: Path, name: str, kind: str) -> None:
    if (name.startswith("additional") and kind == "folder") or (name == "model.safetensors" and kind == "endless"):
        pytest.skip("never opened, or its size is read before it")
    folder = tmp_path / "m"
    shutil.copytree(spoken, folder)
    place = folder / name
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "socket":
        os.mknod(place, stat.S_IFSOCK | 0o600)  # a bound socket's path may not be as long as these
    elif kind == "folder":
        place.mkdir()
    else:
        with place.open("wb") as file:
            file.truncate(1 << 40)
    for way in (describe_model, _load):
        refused(way, folder)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "\ud800", "~nobody-here/x", "", " ", "a/" * 3000, "\x1b]0;x\x07"])
def test_names_that_nothing_can_have(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for way in (describe_model, load_model):
        with pytest.raises(UserError) as raised:
            way(name)
        assert len(str(raised.value)) < 1000
        str(raised.value).encode()


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a": ' * 5000, "9" * 5000, "\ufeff{}x", "{", "null", '{"a": 1e999}x']
)
def test_json_that_is_too_much(fixtures: Path, tmp_path: Path, text: str) -> None:
    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "odd")
    (folder / "config.json").write_text(text)
    assert "config.json" in refused(describe_model, folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_that_are_no_numbers(fixtures: Path, tmp_path: Path, value: float, dtype: str) -> None:
    def spoil(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        weights["model.layers.1.mlp.up_proj.weight"][7, 3] = value
        return weights

    folder = changed_copy(fixtures / "dream-tiny", tmp_path / "odd", weights=spoil)
    said = refused(lambda path: load_model(path, device="cpu", dtype=dtype), folder)
    assert "model.layers.1.mlp.up_proj.weight" in said


def test_weights_that_a_dtype_cannot_hold(fixtures: Path, tmp_path: Path) -> None:
    def enlarge(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        weights["model.norm.weight"][5] = 7e4
        return weights

    folder = changed_copy(fixtures / "dream-tiny", tmp_path / "large", weights=enlarge)
    said = refused(lambda path: load_model(path, device="cpu", dtype="float16"), folder)
    assert "model.norm.weight" in said
    assert "bfloat16 or float32" in said
    for dtype in ("float32", "bfloat16"):
        assert load_model(folder, device="cpu", dtype=dtype).dtype == getattr(torch, dtype)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.complex64])
def test_numbers_that_are_no_weights(fixtures: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    folder = changed_copy(
        fixtures / "dream-tiny",
        tmp_path / "odd",
        weights=lambda weights: {name: weight.to(dtype) for name, weight in weights.items()},
    )
    for way in (describe_model, _load):
        refused(way, folder)
