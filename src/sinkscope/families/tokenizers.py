"""Tokenizers without a checkpoint's own code.

Each reader takes the files of one checkpoint and gives a tokenizer, or None where the folder has none (prompts are
then token ids). A foreign class named in tokenizer_config.json is never looked up: LLaDA's tokenizer.json is read as
it is, Dream's and A2D's files through Qwen2's class, anything else through what transformers itself knows.

A bare vocab.txt of reaction SMILES makes a tokenizer too: molecules are cut by the regular expression usual for SMILES
(Schwaller et al., Molecular Transformer, ACS Cent. Sci. 2019), so a bracketed atom, a two-letter halogen, a ring
closure or a single character each is one token. `[CLS]` and `[SEP]` are put around the text. What the vocabulary does
not hold becomes `[UNK]`.

Misleads: reactions must be written `reactants>>products`. `>` alone, as in `reactants>reagents>products`, is cut as a
token of its own, which vocabularies made from the first form do not hold. A tokenizer that is found may still know
fewer tokens than the network has rows; see `Family.mask_token_id`.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer

from sinkscope.errors import UserError, refusing
from sinkscope.families.checkpoint import Checkpoint
from sinkscope.families.unpacked import read_once

_ANY_TOKENIZER = (
    "tokenizer.json",
    "vocab.json",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
)
_ROLES = ("bos", "eos", "pad", "mask", "unk", "cls", "sep")
_SMILES = r"\[[^\]]+\]|Br|Cl|>>|%[0-9]{2}|[BCNOSPFIbcnosp0-9().=#\-+\\/:~@?>*$]"
_SMILES_SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_ADVICE = "fetch its files again, or remove them and give prompts as token ids"


def _has(checkpoint: Checkpoint, *names: str) -> bool:
    return any((checkpoint.folder / name).is_file() for name in names)


def _read(checkpoint: Checkpoint, reader: Callable[..., Any], **options: Any) -> PreTrainedTokenizerBase:
    what = f"{checkpoint.name}: the tokenizer cannot be read without running its own code"
    with refusing(what, _ADVICE), _silent_rust():
        tokenizer: PreTrainedTokenizerBase = reader(checkpoint.folder, **options)
        _check(tokenizer)
    return tokenizer


@contextmanager
def _silent_rust() -> Iterator[None]:
    """Take away what the library in Rust prints past Python: notices on standard output, a trace where it panics."""
    with ExitStack() as undo:
        nothing = os.open(os.devnull, os.O_WRONLY)
        undo.callback(os.close, nothing)
        for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
            if stream is not None:
                stream.flush()
            with suppress(OSError):  # a process without this output
                kept = os.dup(number)
                undo.callback(os.close, kept)
                undo.callback(os.dup2, kept, number)
                os.dup2(nothing, number)
        yield


def _check(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `ValueError` for what the libraries let pass and fall over later."""
    for role in _ROLES:
        index = getattr(tokenizer, f"{role}_token_id", None)
        if index is not None and (type(index) is not int or index < 0):
            raise ValueError(f"{role}_token has the id {index!r}")
    longest, template = tokenizer.model_max_length, tokenizer.chat_template
    if isinstance(longest, bool) or not isinstance(longest, int | float) or not math.isfinite(longest):
        raise ValueError(f"model_max_length is {longest!r}, wanted a number")
    named = template if isinstance(template, dict) else {"default": template}
    if template is not None and not all(isinstance(text, str) for text in (*named, *named.values())):
        raise ValueError(f"chat_template is {template!r}, wanted text, or texts by name")
    if not all(isinstance(token, str) and type(index) is int for token, index in tokenizer.get_vocab().items()):
        raise ValueError("its vocabulary is no list of words with an id each")


def read_fast_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase | None:
    """tokenizer.json with the special tokens and chat template of tokenizer_config.json (LLaDA, MMaDA)."""
    if not _has(checkpoint, *_ANY_TOKENIZER):
        return None
    if not _has(checkpoint, "tokenizer.json"):
        raise UserError(
            f"{checkpoint.name}: wanted tokenizer.json, the folder has another kind of tokenizer; add that file"
        )
    return _read(checkpoint, PreTrainedTokenizerFast.from_pretrained)


def read_qwen_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase | None:
    """vocab.json and merges.txt, or tokenizer.json, through Qwen2's class (Dream, A2D)."""
    if not _has(checkpoint, *_ANY_TOKENIZER):
        return None
    return _read(checkpoint, Qwen2Tokenizer.from_pretrained)


def read_stock_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase | None:
    """Whatever transformers knows, or a SMILES vocabulary, or the tokenizer inside a GGUF file."""
    if checkpoint.gguf is not None:
        return _read(checkpoint, lambda _: read_once(checkpoint, "tokenizer", AutoTokenizer.from_pretrained))
    vocabulary = checkpoint.folder / "vocab.txt"
    if not _has(checkpoint, "tokenizer.json"):
        with refusing(f"{vocabulary} is no list of words", _ADVICE):
            if is_smiles_vocabulary(vocabulary):
                return smiles_tokenizer(vocabulary, max_length=checkpoint.config.get("max_position_embeddings"))
    if not _has(checkpoint, *_ANY_TOKENIZER):
        return None
    return _read(checkpoint, AutoTokenizer.from_pretrained, trust_remote_code=False)


def is_smiles_vocabulary(path: Path) -> bool:
    """Whether the file is a vocabulary of SMILES tokens: it holds the reaction arrow and no word pieces (`##`)."""
    if not path.is_file():
        return False
    tokens = path.read_text(encoding="utf-8").splitlines()
    return ">>" in tokens and not any(token.startswith("##") for token in tokens)


def smiles_tokenizer(path: Path, *, max_length: int | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer whose ids are the line numbers of `path`. Raises `UserError` where a special token is missing."""
    vocabulary = {token: index for index, token in enumerate(path.read_text(encoding="utf-8").splitlines())}
    absent = [token for token in _SMILES_SPECIAL.values() if token not in vocabulary]
    if absent:
        raise UserError(f"{path}: a SMILES vocabulary needs {', '.join(absent)}, each on a line of its own")
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=_SMILES_SPECIAL["unk"]))
    core.normalizer = normalizers.Strip()
    core.pre_tokenizer = pre_tokenizers.Split(Regex(_SMILES), behavior="isolated")
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")],
    )
    core.decoder = decoders.Fuse()
    wrapper: Any = PreTrainedTokenizerFast
    wrapped: PreTrainedTokenizerBase = wrapper(
        tokenizer_object=core,
        clean_up_tokenization_spaces=False,
        **({} if max_length is None else {"model_max_length": max_length}),
        **{f"{role}_token": token for role, token in _SMILES_SPECIAL.items()},
    )
    return wrapped
