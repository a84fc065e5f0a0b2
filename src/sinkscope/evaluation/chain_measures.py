"""What is asked of a model of chains: two exact tasks, and how probable what it writes is under the true chain.

- `back-copy`, `recall`: the symbol after a trigger, which is certain but for the chain's noise; one number, right or
  wrong, an example.
- `chain-writing`: contexts written from their first symbols at temperature 1; the mean log-probability of a written
  symbol under the chain itself, nats. The chain's own texts have minus its entropy.

Misleads: a model that writes a trigger's copy again and again writes probable texts; the exact tasks tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

import numpy as np
import torch

from sinkscope.decoding import Decoding, Denoising, default_settings
from sinkscope.decoding.protocols import MaskingStats, added
from sinkscope.decoding.settings import Settings
from sinkscope.errors import UserError, refusing
from sinkscope.evaluation.cache_stats import Meter
from sinkscope.evaluation.conditions import POINTS, KeysCondition
from sinkscope.evaluation.eviction_points import Question, answering
from sinkscope.evaluation.measuring import KeysMeasure, MeasureOptions
from sinkscope.evaluation.tasks import TASKS, Example, Task
from sinkscope.families import Model
from sinkscope.grids import Outcome
from sinkscope.language.chains import CHAIN_WORDS, Chains
from sinkscope.records import record_from

BACK_COPY, RECALL, WRITING = "back-copy", "recall", "chain-writing"
PROMPT, WRITTEN = 6, 26
"""Tokens of `chain-writing`, `<bos>` among the prompt's."""
_SHORTEST = 8
_LONGEST = 28
"""Tokens of a prompt of the exact tasks: with four more the contexts of the training are full."""


def learnt_chains(model: Model) -> Chains | None:
    """The chains that a model learnt; None for one that learnt none. Raises `UserError` for chains that can't be."""
    told = getattr(model.network.config, "sinkscope", None) or {}
    if not isinstance(told, dict) or told.get("chains") is None:
        return None
    with refusing(f"{model.name}: config.json tells of chains that can't be", "write the folder anew"):
        stored, wanted = dict(told["chains"]), asdict(Chains())
        if stored.keys() != wanted.keys():
            raise ValueError(f"the fields {', '.join(wanted)} were wanted")
        try:
            return record_from(Chains, stored)
        except UserError as error:  # which does not know whose chains they are
            raise ValueError(str(error)) from None


def chains_of(model: Model, asked: str) -> Chains:
    """The chains that a model learnt. Raises `UserError` for one that learnt none, or several in a context."""
    found = learnt_chains(model)
    if found is None:
        raise UserError(
            f"{model.name} has learnt no chains, and {asked} is about them: name chain-ar, chain-dlm, chain-adapted or "
            "a network of `sinkscope lab --keep-models`"
        )
    if found.documents > 1:
        raise UserError(f"{model.name} learnt contexts of {found.documents} walks, and {asked} is about one")
    return found


def _check_default(model: Model, task: str) -> None:
    found = chains_of(model, task)
    own, usual = asdict(found), asdict(Chains())
    other = [f"{name}={own[name]} (asked about: {usual[name]})" for name in own if own[name] != usual[name]]
    if other:
        raise UserError(f"{model.name} learnt other chains than the task {task} asks about: {', '.join(other)}")


def _asked(which: int, random: Random, room: int) -> Iterator[Example]:
    """Contexts up to a trigger of one kind whose next symbol follows from them. which: 0 back-copy, 1 recall."""
    chains, longest = Chains(), min(room, _LONGEST)
    while longest >= _SHORTEST:
        tokens = chains.sample(64, longest + 1, torch.Generator().manual_seed(random.getrandbits(32)))
        acts = chains.triggers(tokens)[which]
        certain = chains.log_likelihood(tokens).exp() > 1 - 2 * chains.noise
        for row, where, sure in zip(tokens.tolist(), acts.tolist(), certain.tolist(), strict=True):
            places = [place for place in range(3, longest) if where[place] and sure[place + 1]]
            if places:
                place = random.choice(places)
                words = [CHAIN_WORDS[token] for token in row[1 : place + 2]]
                yield Example(" ".join(words[:-1]), words[-1])


def first_symbol(expected: str, got: str) -> bool:
    """The same first symbol; a model of chains writes on after it."""
    return got.split()[:1] == expected.split()[:1]


for _number, (_name, _summary) in enumerate(
    {
        BACK_COPY: "the symbol before a trigger, after it",
        RECALL: "the symbol that followed the same trigger before",
    }.items()
):
    TASKS.add(
        _name,
        Task(
            name=_name,
            summary=_summary,
            gen_length=4,
            stream=lambda random, room, which=_number: _asked(which, random, room),  # type: ignore[misc]
            is_right=first_symbol,
            check=lambda model, task=_name: _check_default(model, task),  # type: ignore[misc]
        ),
    )


@dataclass(frozen=True, kw_only=True)
class ChainWriting(KeysMeasure):
    """Mean log-probability under the true chain of the symbols that a model writes, one number a context."""

    chains: Chains
    questions: tuple[Question, ...]
    decoding: Settings
    seed: int

    task = WRITING
    better = "high"
    unit = "nats a symbol under the true chain"

    @property
    def n(self) -> int:
        """Number of contexts."""
        return len(self.questions)

    def settings(self) -> dict[str, Any]:
        """Chains, prompts and decoding."""
        return {
            "task": WRITING, "n": self.n, "seed": self.seed, "chains": asdict(self.chains), "prompt": PROMPT,
            "decoding": vars(self.decoding),
        }  # fmt: skip

    def check(self, condition: KeysCondition) -> None:
        """Before any work."""
        answering(self.model, self.decoding, condition, Meter()).check(self.questions)

    def score(
        self, condition: KeysCondition, meter: Meter, observer: Callable[[int], None]
    ) -> tuple[Outcome, MaskingStats | None]:
        """Write all contexts."""
        how = answering(self.model, self.decoding, condition, meter)
        found, done = np.zeros(self.n), 0
        removed: MaskingStats | None = None
        for batch in how.batches(self.questions, self.batch_size):
            asked = [self.questions[number] for number in batch]
            written = how.answers(asked)
            removed = added(removed, written.removed)
            tokens = torch.cat([torch.tensor([one.asked for one in asked]), written.generated.cpu()], 1)
            found[batch] = self.chains.log_likelihood(tokens)[:, PROMPT : PROMPT + WRITTEN].sum(1).numpy()
            done += len(batch)
            observer(done)
        return Outcome(found, np.full(self.n, float(WRITTEN)), exact=False), removed


def make_writing(model: Model, options: MeasureOptions) -> ChainWriting:
    """Prompts of held-out contexts. Raises `UserError` for a model that learnt no chains."""
    chains, asked = chains_of(model, WRITING), options.examples
    generator = torch.Generator().manual_seed(_HELD_OUT + asked.seed)
    prompts = chains.sample(asked.n, PROMPT, generator)
    laid = ChainWriting(
        model=model,
        point=options.point(model, POINTS),
        batch_size=asked.batch_size,
        chains=chains,
        questions=tuple(Question(context=[], asked=row) for row in prompts.tolist()),
        decoding=_decoding(model, options),
        seed=asked.seed,
    )
    laid.check(KeysCondition(point=laid.point))
    return laid


_HELD_OUT = 7_000_000_000
"""Seeds of prompts begin here; those of trainings lie below."""


def writing_settings(model: Model) -> Settings:
    """One symbol a step at temperature 1; a diffusion model fills its places in a random order, as a bound counts."""
    if isinstance(default_settings(model), Decoding):
        return Decoding(max_new_tokens=WRITTEN, temperature=1.0)
    if model.family.blocks is not None:  # the last block may be written beyond what is asked
        return Denoising(
            gen_length=WRITTEN, block_length=None, steps=None, confidence="random", temperature=1.0, cache="blocks"
        )
    return Denoising(gen_length=WRITTEN, block_length=WRITTEN, steps=None, confidence="random", temperature=1.0)


def _decoding(model: Model, options: MeasureOptions) -> Settings:
    settings = writing_settings(model)
    if options.cached and isinstance(settings, Denoising):
        return replace(settings, cache=options.blocks.cache)
    return settings
