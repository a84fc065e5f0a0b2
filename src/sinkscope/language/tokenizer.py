"""The little language as a Hugging Face tokenizer, so that a twin's folder is a stock one.

    little_tokenizer()("Ann has 5 apples.")["input_ids"]      # <bos> Ann has 5 apples .

Same pieces, ids and text as `vocabulary.encode` and `decode`, with two differences that loading through transformers
brings: `<bos>` is put in front, and a special token written in a text ("12 + 3 = <mask>") is that token.

Misleads: a word that the language lacks becomes `<unk>` here, in silence; decoding refuses such prompts
(`Family.closed_vocabulary`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from sinkscope.language.vocabulary import BOS, EOS, MASK, PAD, SPLIT, UNKNOWN, ids

# Python takes the four separators 1C to 1F for white space, the regular expressions of `tokenizers` do not.
_PIECE = SPLIT.replace(r"\s", r"\s\x1c-\x1f")

# The question, ` =>`, the answer, `<eos>`, as in the documents of the training; where white space stands is no matter.
# A question that ends with the sign already gets no second one.
_CHAT = (
    "{{ bos_token }}{% for m in messages %}{% set said = m.content.rstrip() %}"
    "{{ ' => ' + m.content + eos_token if m.role == 'assistant' "
    "else ' ' + (said[:-2].rstrip() if said.endswith('=>') else m.content) }}"
    "{% endfor %}{{ ' =>' if add_generation_prompt else '' }}"
)

_NO_PIECE_OF_A_WORD = "##"
"""Marks continued words for the decoder; no token begins so, which puts a space before each."""


def little_tokenizer(*, max_length: int | None = None) -> PreTrainedTokenizerFast:
    """The tokenizer of the little language: a token's place in `WORDS` is its id. `max_length`: the context it tells
    of, in tokens; unlimited where None."""
    core = Tokenizer(models.WordLevel(ids(), unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECE), behavior="removed", invert=True)
    core.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B:1", special_tokens=[(BOS, ids()[BOS])]
    )
    core.decoder = decoders.Sequence(
        [
            decoders.WordPiece(prefix=_NO_PIECE_OF_A_WORD, cleanup=False),
            decoders.Fuse(),
            decoders.Replace(Regex(r"(?<=\d) (?=\d)"), ""),
            decoders.Replace(Regex(r" (?=[.,?:])"), ""),
        ]
    )
    specials = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD, "mask_token": MASK, "unk_token": UNKNOWN}
    wrapped = wrapped_tokenizer(core, specials, max_length)
    wrapped.chat_template = _CHAT
    return wrapped


def wrapped_tokenizer(core: Tokenizer, specials: Mapping[str, str], max_length: int | None) -> PreTrainedTokenizerFast:
    """A tokenizer of `tokenizers` as transformers takes one. specials: its special tokens, as `bos_token` and so on."""
    limit = {} if max_length is None else {"model_max_length": max_length}
    wrapper: Any = PreTrainedTokenizerFast
    wrapped: PreTrainedTokenizerFast = wrapper(
        tokenizer_object=core, clean_up_tokenization_spaces=False, **specials, **limit
    )
    return wrapped
