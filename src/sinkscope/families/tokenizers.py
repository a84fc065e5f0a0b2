"""Tokenizers without a checkpoint's own code.

Each reader takes the files of one checkpoint and gives a tokenizer, or None where the folder has none (prompts are
then token ids). A foreign class named in tokenizer_config.json is never looked up: LLaDA's tokenizer.json is read as
it is, Dream's and A2D's files through Qwen2's class, anything else through what transformers itself knows.

Misleads: a tokenizer that is found may still know fewer tokens than the network has rows; see `Family.mask_token_id`.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer

from sinkscope.errors import UserError, refusing
from sinkscope.families.checkpoint import Checkpoint
from sinkscope.families.smiles import is_smiles_vocabulary, smiles_tokenizer

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
        return _read(checkpoint, AutoTokenizer.from_pretrained, gguf_file=checkpoint.gguf)
    vocabulary = checkpoint.folder / "vocab.txt"
    if not _has(checkpoint, "tokenizer.json"):
        with refusing(f"{vocabulary} is no list of words", _ADVICE):
            if is_smiles_vocabulary(vocabulary):
                return smiles_tokenizer(vocabulary, max_length=checkpoint.config.get("max_position_embeddings"))
    if not _has(checkpoint, *_ANY_TOKENIZER):
        return None
    return _read(checkpoint, AutoTokenizer.from_pretrained, trust_remote_code=False)
