"""A tokenizer for reaction SMILES, made from a bare vocab.txt.

Molecules are cut by the regular expression usual for SMILES (Schwaller et al., Molecular Transformer, ACS Cent. Sci.
2019): a bracketed atom, a two-letter halogen, a ring closure or a single character each is one token. `[CLS]` and
`[SEP]` are put around the text. What the vocabulary does not hold becomes `[UNK]`.

Misleads: reactions must be written `reactants>>products`. `>` alone, as in `reactants>reagents>products`, is cut as a
token of its own, which vocabularies made from the first form do not hold.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from sinkscope.errors import UserError

_TOKEN = r"\[[^\]]+\]|Br|Cl|>>|%[0-9]{2}|[BCNOSPFIbcnosp0-9().=#\-+\\/:~@?>*$]"
_SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def is_smiles_vocabulary(path: Path) -> bool:
    """Whether the file is a vocabulary of SMILES tokens: it holds the reaction arrow and no word pieces (`##`)."""
    if not path.is_file():
        return False
    tokens = _tokens(path)
    return ">>" in tokens and not any(token.startswith("##") for token in tokens)


def _tokens(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def smiles_tokenizer(path: Path, *, max_length: int | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer whose ids are the line numbers of `path`. Raises `UserError` where a special token is missing."""
    vocabulary = {token: index for index, token in enumerate(_tokens(path))}
    absent = [token for token in _SPECIAL.values() if token not in vocabulary]
    if absent:
        raise UserError(f"{path}: a SMILES vocabulary needs {', '.join(absent)}, each on a line of its own")
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=_SPECIAL["unk"]))
    core.normalizer = normalizers.Strip()
    core.pre_tokenizer = pre_tokenizers.Split(Regex(_TOKEN), behavior="isolated")
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
        **{f"{role}_token": token for role, token in _SPECIAL.items()},
    )
    return wrapped
