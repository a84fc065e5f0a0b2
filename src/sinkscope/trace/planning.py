"""A run that is to be recorded: what is kept, and the prompts with numbers and seeds, all fixed before the first step.

    plan = Plan(Run(model, settings), named(prompts), Recording(), batch_size=4)
    checked = plan.check()                      # every prompt and batch, before any work
    for batch in plan.batches(): ...

Batches are cut from the prompts in their order, and seeds follow from the prompts alone. So the plan of one shard,
which has some of the batches, makes the very samples that the whole plan makes of them.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, Literal

from sinkscope.attention import GROUPS, RENOISED_GROUPS
from sinkscope.decoding import Denoising, Prompts, Run
from sinkscope.decoding.canvas import encode_prompts, split_prompts
from sinkscope.decoding.coupling import check_padding
from sinkscope.decoding.protocols import MaskingStats
from sinkscope.decoding.sampling import prompt_seeds
from sinkscope.decoding.settings import Settings
from sinkscope.errors import UserError
from sinkscope.families import Model
from sinkscope.trace.attributes import run_attributes
from sinkscope.trace.layout import Counts, Layout, Maps, Statistics, plan_layout
from sinkscope.trace.prompts import Prompt
from sinkscope.trace.rows import BatchRow
from sinkscope.trace.shards import Shard, deal, prompt_digest


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What to keep of each step besides received attention, the canvas and the commits.

    precision: "rounded" leaves out bits of large arrays that no rule could tell (`trace.sample.rounded`); "float32"
        keeps all.
    by_group: received attention by group of queries, as the mean over heads ("mean"), for every head ("heads", as large
        as everything else times five), or not at all (None).
    norms, entropy: key and value norms; entropy of each query's row.
    final: pass the finished sequence once more whole and keep what each token receives, so that diffusion and
        autoregressive models stand side by side.
    kinds: of that pass also what of each head's output comes through which key, which tells kinds of sinks apart.
    maps: steps, layers and heads whose full maps are kept.
    kernel: attention kernel, see `sinkscope.attention.watch`.
    """

    precision: Literal["rounded", "float32"] = "rounded"
    by_group: Literal["mean", "heads"] | None = "mean"
    norms: bool = False
    entropy: bool = False
    final: bool = True
    kinds: bool = False
    maps: Maps | None = None
    kernel: str | None = None

    def __post_init__(self) -> None:
        if self.precision not in ("rounded", "float32"):
            raise UserError(f"unknown precision {self.precision!r}; choose rounded or float32")
        if self.by_group not in ("mean", "heads", None):
            raise UserError(f"unknown by_group {self.by_group!r}; choose 'mean', 'heads' or None")
        if self.kinds and not self.final:
            raise UserError("kinds of sinks are told from the final pass: leave final on, or kinds off")


@dataclass(frozen=True)
class PromptBatch:
    """Some prompts that are run together, with their place among all."""

    first: int
    prompts: tuple[Prompt, ...]
    tokens: tuple[list[int], ...]
    seeds: tuple[int, ...]

    def row(self, number: int) -> BatchRow:
        """Where a prompt lies in the padded batch."""
        return BatchRow(number=number, padding=max(map(len, self.tokens)) - len(self.tokens[number]))


@dataclass(frozen=True)
class Checked:
    """What checking told of the prompts, an entry for each."""

    digests: list[str]
    lengths: list[int]
    seeds: list[int]
    longest: list[int]  # the token ids of the longest prompt
    prompts: str  # what tells this list of prompts from another


@dataclass(frozen=True)
class Plan:
    """A run that is to be recorded: all that is fixed before the first step. shard: what the manifest says of these
    prompts, where they are not all."""

    run: Run
    prompts: Sequence[Prompt]
    recording: Recording
    batch_size: int
    shard: Shard | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.run.prefix:
            raise UserError(
                "a trace begins with its prompt, so it can't be recorded after a prefix; record Compress(...)"
            )
        maps, shape = self.recording.maps, self.run.model.shape
        if maps is not None:
            layers = maps.layers or tuple(one.number for one in shape.each)
            whole = replace(maps, layers=layers, heads=maps.heads or tuple(range(shape.heads)))
            object.__setattr__(self, "recording", replace(self.recording, maps=whole))

    def attributes(self, prompts: str) -> dict[str, Any]:
        """What the trace says of this run, given what it says of all prompts."""
        return run_attributes(self.run, {**asdict(self.recording), "batch_size": self.batch_size}, prompts)

    @property
    def statistics(self) -> Statistics:
        """What is kept of each step."""
        settings, masking = self.run.settings, self.run.masking
        asked = {name: value for name, value in vars(self.recording).items() if name != "kernel"}
        return Statistics(
            groups=RENOISED_GROUPS if self.run.model.family.renoises else GROUPS,
            unconditional=isinstance(settings, Denoising) and settings.cfg_scale > 0,
            no_key=self.run.model.shape.learned_sinks,
            noise=self.run.model.family.renoises,
            removed=MaskingStats.names() if masking is not None and "attention" in masking.changes else (),
            **asked,
        )

    def batches(self) -> Iterator[PromptBatch]:
        """Batches in the order of the prompts, each with seeds that depend on the prompts alone.

        Raises `UserError` where the prompts of a shard are not those of its manifest."""
        seen: Counter[bytes] = Counter()
        shard = self.shard
        numbers = range(len(self.prompts)) if shard is None else shard.numbers
        for _, together in groupby(range(len(numbers)), key=lambda place: numbers[place] // self.batch_size):
            places = list(together)
            some = tuple(self.prompts[place] for place in places)
            tokens = tuple(self._encoded(prompt) for prompt in some)
            if shard is None:
                seeds = prompt_seeds(tokens, self.run.settings.seed, seen)
            else:
                seeds = [shard.seeds[place] for place in places]
                _check_digests(some, tokens, [shard.digests[place] for place in places])
            yield PromptBatch(numbers[places[0]], some, tokens, tuple(seeds))

    def _encoded(self, prompt: Prompt) -> list[int]:
        with _naming(prompt):
            return encode_prompts(self.run.model, [prompt.content])[0]

    def layout(self, tokens: Sequence[int], batch: Sequence[Sequence[int]]) -> Layout:
        """The arrays of a sample that is run in this batch."""
        steps, shape = self.run.max_steps(batch), self.run.model.shape
        counts = Counts(
            max_steps=steps,
            layers=len(shape.each),
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            positions=len(tokens) + self.run.new_tokens([tokens]),
            attending=shape.attending,
        )
        return plan_layout(counts, self.statistics)

    def check(self) -> Checked:
        """Check every prompt and batch before any work."""
        whole, longest = hashlib.sha256(), list[int]()
        digests, lengths, seeds = list[str](), list[int](), list[int]()
        for batch in self.batches():
            its_lengths = [len(tokens) for tokens in batch.tokens]
            check_padding(self.run.model, min(its_lengths), max(its_lengths), self.run.new_tokens(batch.tokens))
            for prompt, tokens in zip(batch.prompts, batch.tokens, strict=True):
                with _naming(prompt):
                    self.run.check([tokens])
                self.layout(tokens, [tokens])
                whole.update(repr((prompt.id, tokens)).encode())
                digests.append(prompt_digest(prompt.id, tokens))
                longest = max(longest, tokens, key=len)
            lengths += its_lengths
            seeds += batch.seeds
        return Checked(digests, lengths, seeds, longest, f"{len(self.prompts)}, sha256 {whole.hexdigest()[:16]}")

    def shards(self, checked: Checked, count: int) -> list[Shard]:
        """The shards of a manifest: batches dealt by the tokens that they take, padding included."""
        size, new = self.batch_size, self.run.new_tokens([[0] * max(checked.lengths)])
        batches = [range(first, min(first + size, len(self.prompts))) for first in range(0, len(self.prompts), size)]
        costs = [len(batch) * (max(checked.lengths[one] for one in batch) + new) for batch in batches]
        shards = []
        for place, dealt in enumerate(deal(costs, count)):
            numbers = [number for batch in dealt for number in batches[batch]]
            digests, seeds = [checked.digests[one] for one in numbers], [checked.seeds[one] for one in numbers]
            shards.append(Shard(f"{place:04d}", numbers, digests, seeds))
        return shards

    def of(self, shard: Shard) -> "Plan":
        """The part of this plan that lies in a shard."""
        return replace(self, prompts=[self.prompts[number] for number in shard.numbers], shard=shard)


def _check_digests(prompts: Sequence[Prompt], tokens: Sequence[Sequence[int]], digests: Sequence[str]) -> None:
    """Raise `UserError` where a prompt has not the token ids with which it was dealt."""
    for prompt, ids, digest in zip(prompts, tokens, digests, strict=True):
        if prompt_digest(prompt.id, ids) != digest:
            raise UserError(
                f"prompt {prompt.id!r} is not the one that the manifest names, or its tokens are not: use the same "
                "prompts and the same tokenizer on every machine"
            )


@contextmanager
def _naming(prompt: Prompt) -> Iterator[None]:
    """Name the prompt in a mistake's message."""
    try:
        yield
    except UserError as error:
        raise UserError(f"prompt {prompt.id!r}: {error}") from error


def named(prompts: Prompts | Sequence[Prompt]) -> list[Prompt]:
    """Prompts with ids; unnamed ones are numbered from 0. Raises `UserError` for an id used twice."""
    if isinstance(prompts, Sequence) and any(isinstance(prompt, Prompt) for prompt in prompts):
        given = [prompt for prompt in prompts if isinstance(prompt, Prompt)]
        if len(given) < len(prompts):
            raise UserError(
                f"{len(given)} of {len(prompts)} prompts are `Prompt`s with ids; give all of them ids, or none"
            )
        twice = [name for name, count in Counter(prompt.id for prompt in given).items() if count > 1]
        if twice:
            raise UserError(f"{len(given)} prompts share ids, {twice[0]!r} for one; ids must differ")
        return given
    numbered = [Prompt(str(number), content) for number, content in enumerate(split_prompts(prompts))]
    if not numbered:
        raise UserError("no prompts were given")
    return numbered


def planned_layout(model: Model, prompt_length: int, settings: Settings, recording: Recording) -> Layout:
    """The arrays of one sample, for its sizes; no weights are needed. A prompt that is all there is has nothing but
    masks. Raises `UserError` as `record` does."""
    run = Run(model, settings)
    filled = model.family.mask_token_id if run.new_tokens([[0] * prompt_length]) == 0 else None
    tokens = [model.family.pad_token_id if filled is None else filled] * prompt_length
    run.check([tokens])
    return Plan(run, (), recording, 1).layout(tokens, [tokens])
