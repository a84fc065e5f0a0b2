"""Tokenizers read without the checkpoint's own code."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from family_checkpoints import changed_copy
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sinkscope.errors import UserError
from sinkscope.families import describe_model, load_model
from sinkscope.families.packaged import find_packaged
from sinkscope.families.tokenizers import is_smiles_vocabulary, smiles_tokenizer

FOREIGN_CODE = "open(__file__ + '.ran', 'w').close()\nraise RuntimeError('the code of the checkpoint ran')\n"
WORDS = [*(chr(letter) for letter in range(97, 123)), "Ġ", "th", "the", "Ġthe", "Ċ"]
MERGES = ["t h", "th e", "Ġ the"]


def _fast_tokenizer(folder: Path, special: dict[str, Any], named_class: str) -> None:
    """tokenizer.json with `WORDS`, special tokens after them, and a tokenizer_config.json naming foreign code."""
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[(a, b) for a, b in (m.split() for m in MERGES)]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    maker: Any = PreTrainedTokenizerFast
    maker(tokenizer_object=core, **special).save_pretrained(folder)
    _point_to_foreign_code(folder, named_class)


def _point_to_foreign_code(folder: Path, named_class: str, **more: Any) -> None:
    path = folder / "tokenizer_config.json"
    stored = json.loads(path.read_text()) if path.is_file() else {}
    foreign = {"tokenizer_class": named_class, "auto_map": {"AutoTokenizer": ["foreign.Foreign", "foreign.Foreign"]}}
    path.write_text(json.dumps(stored | foreign | more))
    (folder / "foreign.py").write_text(FOREIGN_CODE)


def _nothing_ran(folder: Path) -> bool:
    return not list(folder.rglob("*.ran"))


def test_llada_reads_its_tokenizer_file(fixtures: Path, tmp_path: Path) -> None:
    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "llada", {"mask_token_id": 34, "eos_token_id": 31})
    special: dict[str, Any] = {
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "additional_special_tokens": ["<|eot_id|>"],
    }
    _fast_tokenizer(folder, special, "Foreign")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}<{{ m['content'] }}>{% endfor %}")
    model = load_model(folder, device="cpu")
    assert model.tokenizer is not None
    assert model.tokenizer("the theb")["input_ids"] == [28, 29, 1]
    assert model.tokenizer.decode([28, 29, 1]) == "the theb"
    chat = model.tokenizer.apply_chat_template([{"role": "user", "content": "the"}], tokenize=False)
    assert chat == "<the>"
    # The end of turn is the token of that name, wherever this vocabulary has it.
    assert model.family.eos_token_ids == (31, 32)
    assert model.family.special_ids == (31, 32, 34, 250)
    assert _nothing_ran(tmp_path)


def test_dream_reads_through_qwen2(fixtures: Path, tmp_path: Path) -> None:
    """vocab.json and merges.txt; the class that tokenizer_config.json names does not exist here."""
    folder = changed_copy(fixtures / "dream-tiny", tmp_path / "dream", {"mask_token_id": 33})
    (folder / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(WORDS)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n")
    added = {str(31 + i): {"content": token, "special": True, "lstrip": False, "rstrip": False, "normalized": False,
                           "single_word": False}
             for i, token in enumerate(["<|endoftext|>", "<|im_end|>", "<|mask|>"])}  # fmt: skip
    names = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "mask_token": "<|mask|>"}
    _point_to_foreign_code(folder, "DreamTokenizer", added_tokens_decoder=added, **names)
    model = load_model(folder, device="cpu")
    assert model.tokenizer is not None
    assert type(model.tokenizer).__name__ == "Qwen2Tokenizer"
    assert model.tokenizer("the the<|mask|>")["input_ids"] == [28, 29, 33]
    assert model.family.mask_token_id == 33
    assert {31, 32, 33} <= {*model.family.special_ids}
    described = describe_model(folder)
    assert (described.mask_token, described.tokenizer) == ("<|mask|>", "Qwen2Tokenizer")
    assert described.special_tokens[32] == "<|im_end|>"
    assert _nothing_ran(tmp_path)


def test_a2d_mask_is_the_tokenizers(fixtures: Path, tmp_path: Path) -> None:
    folder = changed_copy(
        fixtures / "dream-tiny", tmp_path / "a2d", {"model_type": "a2d-qwen2"}, drop=("mask_token_id",)
    )
    with pytest.raises(UserError, match="no mask token"):
        load_model(folder)
    _fast_tokenizer(folder, {"eos_token": "<|endoftext|>", "mask_token": "<|mask|>"}, "Qwen2Tokenizer")
    family = load_model(folder, device="cpu").family
    assert family.mask_token_id == 32
    assert family.special_ids == (31, 32, 250)
    assert family.eos_token_ids == (250, 31)


def test_wrong_kind_of_tokenizer_for_llada(fixtures: Path, tmp_path: Path) -> None:
    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "llada")
    (folder / "vocab.json").write_text("{}")
    with pytest.raises(UserError, match=r"wanted tokenizer\.json"):
        load_model(folder)


def test_tokenizer_that_cannot_be_read(fixtures: Path, tmp_path: Path) -> None:
    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "llada")
    _fast_tokenizer(folder, {}, "Foreign")
    stored = json.loads((folder / "tokenizer.json").read_text())
    for broken in ({}, {**stored, "model": {**stored["model"], "type": "Tomorrow"}}):  # of a newer library
        (folder / "tokenizer.json").write_text(json.dumps(broken))
        with pytest.raises(UserError, match="the tokenizer cannot be read") as caught:
            load_model(folder)
        assert "\n" not in str(caught.value)


SMILES = {
    "CC(=O)O.OCC>>CC(=O)OCC.O": "C C ( = O ) O . O C C >> C C ( = O ) O C C . O",
    "c1ccc(Br)cc1[C@@H](Cl)N": "c 1 c c c ( Br ) c c 1 [C@@H] ( Cl ) N",
    "[Na+].C%10CC%10": "[Na+] . C %10 C C %10",
    "O=[N+]([O-])c1ccc(\\C=C\\F)cc1": "O = [N+] ( [O-] ) c 1 c c c ( \\ C = C \\ F ) c c 1",
    "N#Cc1ccc(B(O)O)cn1": "N # C c 1 c c c ( B ( O ) O ) c n 1",
}


@pytest.mark.parametrize("text", SMILES)
def test_smiles(text: str) -> None:
    tokenizer = smiles_tokenizer(find_packaged("rxnmapper") / "vocab.txt", max_length=512)
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", *SMILES[text].split(), "[SEP]"]
    lines = (find_packaged("rxnmapper") / "vocab.txt").read_text().splitlines()
    assert [lines[index] for index in ids[1:-1]] == SMILES[text].split()
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.model_max_length == 512


@given(st.lists(st.sampled_from(sorted({token for cut in SMILES.values() for token in cut.split()})), min_size=1))
def test_smiles_are_never_lost(tokens: list[str]) -> None:
    text = "".join(tokens)
    tokenizer = smiles_tokenizer(find_packaged("rxnmapper") / "vocab.txt")
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_smiles_mask_and_what_the_vocabulary_lacks() -> None:
    tokenizer = smiles_tokenizer(find_packaged("rxnmapper") / "vocab.txt")
    masked = tokenizer.convert_ids_to_tokens(tokenizer("C[MASK]O")["input_ids"])
    assert masked == ["[CLS]", "C", "[MASK]", "O", "[SEP]"]
    # This vocabulary knows reactants>>products only: the form with reagents between is unknown to it.
    unknown = tokenizer.convert_ids_to_tokens(tokenizer("C>O>N")["input_ids"])
    assert unknown == ["[CLS]", "C", "[UNK]", "O", "[UNK]", "N", "[SEP]"]


def test_smiles_vocabulary_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    assert not is_smiles_vocabulary(path)
    path.write_text("[PAD]\nthe\n##s\n>>\n")
    assert not is_smiles_vocabulary(path)
    path.write_text("[PAD]\nC\n>\n")
    assert not is_smiles_vocabulary(path)
    path.write_text("[PAD]\nC\n>>\n")
    assert is_smiles_vocabulary(path)
    with pytest.raises(UserError, match=r"needs \[UNK\], \[CLS\], \[SEP\], \[MASK\]"):
        smiles_tokenizer(path)
    assert is_smiles_vocabulary(find_packaged("rxnmapper") / "vocab.txt")


def test_bert_word_pieces(tmp_path: Path) -> None:
    """A plain BERT vocabulary is not taken for SMILES, and its mask becomes the family's."""
    source = find_packaged("rxnmapper")
    shutil.copy(source / "pytorch_model.bin", tmp_path)
    fields = json.loads((source / "config.json").read_text()) | {"model_type": "albert"}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    core = Tokenizer(models.WordPiece({"[PAD]": 0, "[UNK]": 1, "the": 2, "##m": 3, "[CLS]": 4, "[SEP]": 5}))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    maker: Any = PreTrainedTokenizerFast
    maker(tokenizer_object=core, mask_token="[MASK]", **special).save_pretrained(tmp_path)
    model = load_model(tmp_path, device="cpu")
    assert model.tokenizer is not None
    assert model.tokenizer("the them", add_special_tokens=False)["input_ids"] == [2, 2, 3]
    assert model.family.mask_token_id == 6
    assert model.family.special_ids == (0, 1, 4, 5, 6)
