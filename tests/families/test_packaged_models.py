"""The two real models that come inside packages: found without importing them, loaded, and sensible."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.machinery import ModuleSpec
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

import sinkscope.attention  # noqa: F401  registers the attention function that loading asks for by default
from sinkscope.errors import UserError
from sinkscope.families import PACKAGED, Model, describe_model, load_model, packaged
from sinkscope.families.checkpoint import resolve
from sinkscope.families.packaged import find_packaged
from sinkscope.families.stored import StoredTensor, read_stored


@pytest.fixture(scope="module")
def smollm2(gguf_read_once: Callable[[], AbstractContextManager[None]]) -> Model:
    """Read through a plain array: the `gguf` package makes a view for every word of a vocabulary, and those of a
    `numpy.memmap` take long. The demo's test reads it as it comes."""
    plain = property(
        lambda reader: reader.__dict__["plain"], lambda reader, read: reader.__dict__.update(plain=np.asarray(read))
    )
    gguf_reader = gguf.GGUFReader
    with pytest.MonkeyPatch.context() as patch, gguf_read_once():
        patch.setattr(gguf_reader, "data", plain, raising=False)
        return load_model("smollm2-135m", device="cpu")


def test_packages_are_found_and_not_imported() -> None:
    before = {*sys.modules}
    assert find_packaged("smollm2-135m").suffix == ".gguf"
    assert (find_packaged("rxnmapper") / "config.json").is_file()
    assert not {model.package for model in PACKAGED.values()} & ({*sys.modules} - before)


@pytest.mark.parametrize("name", PACKAGED)
def test_missing_package_says_how_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(packaged, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=f"run: {PACKAGED[name].install}"):
        load_model(name)
    hollow = ModuleSpec(PACKAGED[name].package, None, is_package=True)
    hollow.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(packaged, "find_spec", lambda _: hollow)
    with pytest.raises(UserError, match=f"has no .*run: {PACKAGED[name].install}"):
        load_model(name)


def test_smollm2_knows_the_capital(smollm2: Model) -> None:
    assert smollm2.tokenizer is not None
    ids = smollm2.tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    assert smollm2.tokenizer.decode(int(smollm2.network(ids).logits[0, -1].argmax())) == " Paris"
    assert smollm2.dtype == torch.float32
    assert sum(weight.numel() for weight in smollm2.network.parameters()) == 134_515_008


def test_smollm2_is_told_as_it_is(smollm2: Model) -> None:
    family = smollm2.family
    assert (family.name, family.bidirectional, family.mask_token_id) == ("causal-lm", False, None)
    assert (family.eos_token_ids, family.pad_token_id, family.position_offset) == ((2,), 2, 0)
    assert family.special_ids == tuple(range(17))
    assert family.max_length == 8192
    assert smollm2.tokenizer is not None
    assert "<|im_start|>user" in str(
        smollm2.tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    )


@pytest.mark.parametrize(
    ("kept", "reason"),
    [
        (0, "empty"),
        (3, "does not begin with GGUF"),
        (20, "truncated"),
        (1_000_000, "truncated"),
        (98_362_000, "truncated"),
    ],
)
def test_gguf_that_is_cut_off(tmp_path: Path, kept: int, reason: str) -> None:
    with find_packaged("smollm2-135m").open("rb") as file:
        (tmp_path / "cut.gguf").write_bytes(file.read(kept))
    with pytest.raises(UserError, match=rf"cut\.gguf: .*{reason}"):
        load_stored(tmp_path / "cut.gguf")


@pytest.mark.parametrize("content", [b"GGUF" + (9).to_bytes(4, "little"), b"GGUF\3\0\0\0" + b"\xff" * 32])
def test_file_that_is_no_gguf(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "odd.gguf").write_bytes(content)
    with pytest.raises(UserError, match=r"odd\.gguf: truncated, or not a GGUF file"):
        load_stored(tmp_path / "odd.gguf")


def test_gguf_header_is_what_the_gguf_package_reads(tmp_path: Path) -> None:
    """Oracle: a file written by the package, with metadata of every kind, another alignment and quantised tensors."""
    writer = gguf.GGUFWriter(tmp_path / "small.gguf", "llama")
    writer.add_custom_alignment(64)
    writer.add_array("words", ["a", "bc", ""])
    writer.add_array("numbers", [1.5, 2.5])
    writer.add_bool("flag", True)
    writer.add_uint64("big", 1 << 40)
    writer.add_float64("real", 0.5)
    values = np.arange(3 * 64, dtype=np.float32).reshape(3, 64)
    writer.add_tensor("plain", values[:, :5])
    quantised = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("coarse", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    stored = load_stored(tmp_path / "small.gguf")
    assert stored == {"plain": StoredTensor("F32", (3, 5)), "coarse": StoredTensor("Q8_0", (3, 64))}
    whole = (tmp_path / "small.gguf").read_bytes()
    last = gguf.GGUFReader(tmp_path / "small.gguf").tensors[-1]
    (tmp_path / "small.gguf").write_bytes(whole[: int(last.data_offset + last.n_bytes)])
    assert load_stored(tmp_path / "small.gguf") == stored
    (tmp_path / "small.gguf").write_bytes(whole[: int(last.data_offset + last.n_bytes) - 1])
    with pytest.raises(UserError, match="truncated"):
        load_stored(tmp_path / "small.gguf")


def test_gguf_of_an_architecture_that_transformers_lacks(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "martian")
    writer.add_tensor("weight", np.zeros((3, 5), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for way in (load_model, describe_model):
        with pytest.raises(UserError, match=r"this GGUF file .*martian"):
            way(tmp_path / "odd.gguf")


def load_stored(path: Path) -> dict[str, StoredTensor]:
    return read_stored(resolve(path))


def test_gguf_by_folder_and_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_model(tmp_path / "absent.gguf")
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(UserError, match="2 GGUF files; name one"):
        load_model(tmp_path)
    (tmp_path / "notes.md").write_text("no model")
    with pytest.raises(UserError, match="a single file must be GGUF"):
        load_model(tmp_path / "notes.md")


REACTIONS = [
    "CC(=O)Cl.OCc1ccccc1>>CC(=O)OCc1ccccc1",
    "CC(=O)O.OCC>>CC(=O)OCC.O",
    "Brc1ccccc1.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1",
]


def test_rxnmapper_fills_masks() -> None:
    """Every token of three textbook reactions masked in turn; chance is 1 in 591."""
    model = load_model("rxnmapper", device="cpu")
    assert model.tokenizer is not None
    right, total = 0, 0
    for reaction in REACTIONS:
        ids = model.tokenizer(reaction, return_tensors="pt")["input_ids"][0]
        inner = torch.arange(1, len(ids) - 1)
        masked = ids.repeat(len(inner), 1)
        masked[torch.arange(len(inner)), inner] = model.tokenizer.mask_token_id
        filled = model.network(masked).logits[torch.arange(len(inner)), inner].argmax(-1)
        right += int((filled == ids[inner]).sum())
        total += len(inner)
    assert right / total > 0.85


def test_rxnmapper_described() -> None:
    told = describe_model("rxnmapper")
    assert (told.family, told.architecture, told.stored_dtype) == ("masked-lm", "AlbertForMaskedLM", "F32")
    assert (told.layers, told.heads, told.kv_heads, told.head_dim) == (12, 8, 8, 32)
    assert (told.mask_token_id, told.mask_token, told.vocabulary, told.max_length) == (14, "[MASK]", 591, 512)
    assert told.special_tokens == {0: "[PAD]", 11: "[UNK]", 12: "[CLS]", 13: "[SEP]", 14: "[MASK]"}
    # The pickle holds the head of its sentence task too; what is loaded are these.
    assert told.parameters == sum(w.numel() for w in load_model("rxnmapper", device="cpu").network.parameters())
    assert told.files == {"pytorch_model.bin": 3_212_952}
