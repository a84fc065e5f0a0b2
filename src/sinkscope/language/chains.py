"""Chains: a second little language, of which the true probabilities are known, and in which attention sinks form within
minutes.

    chains = Chains()
    tokens = chains.sample(64, 32, torch.Generator().manual_seed(0))      # (64, 32) token ids, <bos> first
    chains.log_likelihood(tokens)          # (64, 32) nats: of each token given those before it

A context is a walk over symbols by a sparse matrix of transitions, but for triggers: after a *back-copy* trigger the
next symbol is the one before the trigger (the Bigram-Backcopy task of Guo et al., arXiv 2410.13835), after a *recall*
trigger it is the one that followed the same trigger before in this context. A head that serves triggers has nothing to
do at all other tokens, which is what a sink is said to be for. A small share of symbols is drawn at random instead, so
that no text is impossible and the log-likelihood of whatever a model writes is a number.

No model can be better on average than the chain's own entropy, in whichever order it fills the tokens in: what a loss
is above it is what has not been learnt.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from sinkscope.errors import UserError
from sinkscope.language.tokenizer import wrapped_tokenizer

BOS, MASK, UNKNOWN = "<bos>", "<mask>", "<unk>"
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEF"
_TRIGGERS = "12345678"
SPECIAL = (BOS, MASK, UNKNOWN)
CHAIN_WORDS: tuple[str, ...] = (*SPECIAL, *_LETTERS, *_TRIGGERS)
"""All tokens; a token's place is its id. Triggers are digits."""
BOS_ID, MASK_ID = 0, 1
_FIRST = len(SPECIAL)
"""Id of the first symbol."""
_SYMBOLS = len(_LETTERS) + len(_TRIGGERS)
_LEAST_SPARSITY, _MOST_SPARSITY = 0.01, 100.0
"""Below, every weight of a row may be too small for a number."""
_TRIGGER = _FIRST + len(_LETTERS)
"""Id of the first trigger."""


@dataclass(frozen=True, kw_only=True)
class Chains:
    """What the contexts are like.

    back, recall: number of triggers of each kind, at most 8 together; they are the digits from 1 on, the rest of the
        digits are ordinary.
    share: of the walk's steps that lead to a trigger. sparsity: of the Dirichlet distribution that each row of
        transitions is drawn from. noise: share of symbols drawn evenly.
    documents: walks in a context, each after a `<bos>` of its own. seed: of the transitions.

    Raises `UserError` for numbers out of range.
    """

    back: int = 2
    recall: int = 2
    share: float = 0.5
    sparsity: float = 0.15
    noise: float = 0.01
    documents: int = 1
    seed: int = 1

    def __post_init__(self) -> None:
        if min(self.back, self.recall) < 0 or self.back + self.recall > len(_TRIGGERS):
            raise UserError(
                f"back={self.back} and recall={self.recall} must be at least 0 and together at most {len(_TRIGGERS)}"
            )
        if not _LEAST_SPARSITY <= self.sparsity <= _MOST_SPARSITY:
            raise UserError(f"sparsity must lie between {_LEAST_SPARSITY} and {_MOST_SPARSITY:g}, got {self.sparsity}")
        for name in ("share", "noise"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"{name} must lie between 0 and 1, got {getattr(self, name)}")
        if self.documents < 1:
            raise UserError(f"documents must be at least 1, got {self.documents}")

    @cached_property
    def transitions(self) -> Tensor:
        """(symbol, next symbol) float64 probabilities of the walk without triggers and noise."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = torch.full((_SYMBOLS, _SYMBOLS), self.sparsity, dtype=torch.float64)
        drawn = torch._standard_gamma(shape, generator=generator).clamp_min(1e-30)
        count = self.back + self.recall
        parts = drawn[:, _TRIGGER - _FIRST :][:, :count], drawn.clone()
        parts[1][:, _TRIGGER - _FIRST :][:, :count] = 0
        drawn = (1 - self.share) * parts[1] / parts[1].sum(-1, keepdim=True)
        if count:
            drawn[:, _TRIGGER - _FIRST :][:, :count] = self.share * parts[0] / parts[0].sum(-1, keepdim=True)
        return drawn / drawn.sum(-1, keepdim=True)

    def triggers(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Where a back-copy trigger, and where a recall trigger decides the next token; (row, position) boolean."""
        ahead = torch.cat([torch.full_like(tokens[:, :1], BOS_ID), tokens[:, :-1]], 1)
        back = (tokens >= _TRIGGER) & (tokens < _TRIGGER + self.back)
        recall = (tokens >= _TRIGGER + self.back) & (tokens < _TRIGGER + self.back + self.recall)
        alone = (ahead < _TRIGGER) | (ahead >= _TRIGGER + self.back + self.recall)
        return back & alone & (ahead != BOS_ID), recall & alone

    def sample(self, count: int, length: int, generator: torch.Generator) -> Tensor:
        """Contexts (count, length) int64 token ids, `<bos>` first. generator: on the CPU."""
        tokens = torch.full((count, length), BOS_ID)
        cumulative = self.transitions.cumsum(-1)
        uniform = torch.rand(length, count, 1, generator=generator, dtype=torch.float64)
        noisy = torch.rand(length, count, generator=generator) < self.noise
        anything = torch.randint(_FIRST, _FIRST + _SYMBOLS, (length, count), generator=generator)
        starts = self._starts(length)
        last = torch.full((count, len(CHAIN_WORDS)), -1)  # what followed a symbol last, in this walk
        for place in range(1, length):
            if place in starts:
                last.fill_(-1)
                continue
            before = tokens[:, place - 1]
            if place - 1 in starts:
                tokens[:, place] = anything[place]
                continue
            walked = (cumulative[before - _FIRST] < uniform[place]).sum(-1).clamp(max=_SYMBOLS - 1) + _FIRST
            ruled = self._ruled(tokens, place, last)
            chosen = torch.where(noisy[place], anything[place], torch.where(ruled >= 0, ruled, walked))
            last.scatter_(1, before[:, None], chosen[:, None])
            tokens[:, place] = chosen
        return tokens

    def log_likelihood(self, tokens: Tensor) -> Tensor:
        """Log-probability of every token given those before it under the true chain, (row, position) float64 nats.

        0 for a `<bos>` in its place. A special token in the place of a symbol is as unlikely as can be, and what
        follows it is drawn evenly, so that whatever a model writes has a number. Raises `UserError` without a `<bos>`
        in its place.
        """
        rows, length = tokens.shape
        starts = self._starts(length)
        if not bool((tokens[:, [*starts]] == BOS_ID).all()):
            raise UserError(f"a context of {self.documents} chains has {BOS} at {sorted(starts)}")
        found = torch.zeros(rows, length, dtype=torch.float64)
        last = torch.full((rows, len(CHAIN_WORDS)), -1)
        even = torch.full((rows,), 1 / _SYMBOLS, dtype=torch.float64)
        for place in range(1, length):
            if place in starts:
                last.fill_(-1)
                continue
            now, before = tokens[:, place], tokens[:, place - 1]
            walked = self.transitions[(before - _FIRST).clamp_min(0), (now - _FIRST).clamp_min(0)]
            ruled = self._ruled(tokens, place, last) if place - 1 not in starts else torch.full_like(now, -1)
            chance = torch.where(ruled >= 0, (ruled == now).double(), walked)
            chance = torch.where(now < _FIRST, 0.0, torch.where(before < _FIRST, even, chance))
            found[:, place] = ((1 - self.noise) * chance + self.noise * even).log()
            last.scatter_(1, before[:, None], now[:, None])
        return found

    def _starts(self, length: int) -> set[int]:
        """Places of `<bos>`."""
        return {length * number // self.documents for number in range(self.documents)}

    def _ruled(self, tokens: Tensor, place: int, last: Tensor) -> Tensor:
        """(row,) the token that a trigger just before `place` asks for; -1 where none does."""
        back, recall = (acts[:, -1] for acts in self.triggers(tokens[:, place - 2 : place]))
        recalled = last.gather(1, tokens[:, place - 1 : place]).squeeze(1)
        return torch.where(back, tokens[:, place - 2], torch.where(recall, recalled, -1))


def chain_tokenizer(*, max_length: int | None = None) -> PreTrainedTokenizerFast:
    """The tokenizer of the chains: symbols with white space between them, `<bos>` put in front.

    max_length: the context that it tells of, in tokens; unlimited where None.
    """
    core = Tokenizer(models.WordLevel({word: index for index, word in enumerate(CHAIN_WORDS)}, unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B:1", special_tokens=[(BOS, BOS_ID)]
    )
    return wrapped_tokenizer(core, {"bos_token": BOS, "mask_token": MASK, "unk_token": UNKNOWN}, max_length)
