"""Tokenizers without a checkpoint's own code.

Each reader takes the files of one checkpoint and gives a tokenizer, or None where the folder has none (prompts are
then token ids). A foreign class named in tokenizer_config.json is never looked up: LLaDA's tokenizer.json is read as
it is, Dream's and A2D's files through Qwen2's class, anything else through what transformers itself knows.

Misleads: a tokenizer that is found may still know fewer tokens than the network has rows; see `Family.mask_token_id`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer

from sinkscope.errors import UserError
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


def _has(checkpoint: Checkpoint, *names: str) -> bool:
    return any((checkpoint.folder / name).is_file() for name in names)


def _read(checkpoint: Checkpoint, reader: Callable[..., Any], **options: Any) -> PreTrainedTokenizerBase:
    try:
        tokenizer: PreTrainedTokenizerBase = reader(checkpoint.folder, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _unreadable(checkpoint, error) from error
    except BaseException as error:
        if type(error) is Exception:  # what the library of tokenizers itself raises for a file that it can't take
            raise _unreadable(checkpoint, error) from error
        raise
    return tokenizer


def _unreadable(checkpoint: Checkpoint, error: BaseException) -> UserError:
    reason = " ".join(str(error).split())[:300]
    return UserError(f"{checkpoint.name}: the tokenizer cannot be read without running its own code: {reason}")


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
    if not _has(checkpoint, "tokenizer.json") and is_smiles_vocabulary(vocabulary):
        return smiles_tokenizer(vocabulary, max_length=checkpoint.config.get("max_position_embeddings"))
    if not _has(checkpoint, *_ANY_TOKENIZER):
        return None
    return _read(checkpoint, AutoTokenizer.from_pretrained, trust_remote_code=False)
