"""Record what attention every token receives while a model generates.

    trace = record(model, read_prompts("prompts.jsonl"), Denoising(gen_length=64, steps=64), out="runs/llada.zarr")
    trace["q1"]["received"]                     # (step, layer, head, position)

Samples are written step by step and are safe on disk as they go; a run that was stopped goes on with `resume=True` and
ends in the same trace as an unbroken one. Memory holds one batch, however many prompts there are. Batches are cut from
the prompts in their order, also when resuming, so that a sample's numbers never depend on where a run was stopped.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from sinkscope.attention import GROUPS, RENOISED_GROUPS, Collect, watch
from sinkscope.decoding import Denoising, Prompts, Run, Step, default_settings
from sinkscope.decoding.canvas import Canvas, encode_prompts, split_prompts
from sinkscope.decoding.coupling import check_padding
from sinkscope.decoding.forward import forward_for
from sinkscope.decoding.generation import read_text, warn_beyond_training
from sinkscope.decoding.protocols import Compression, Intervention, MaskingStats, added, warn_if_nothing
from sinkscope.decoding.sampling import prompt_seeds
from sinkscope.decoding.settings import Settings
from sinkscope.errors import UserError
from sinkscope.families import Model
from sinkscope.trace.attributes import run_attributes
from sinkscope.trace.layout import Counts, Layout, Maps, Statistics, plan_layout
from sinkscope.trace.prompts import Prompt
from sinkscope.trace.reading import Trace, open_trace
from sinkscope.trace.rows import Arrays, BatchRow, final_arrays, heads_by_layer, step_arrays
from sinkscope.trace.sample import SampleWriter
from sinkscope.trace.store import TraceStore, check_output


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


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a recording stands; given to the observer after every step."""

    samples_done: int
    samples: int
    step: int
    most_steps: int


@dataclass(frozen=True)
class _Batch:
    """Some prompts that are run together, with their place among all."""

    first: int
    prompts: tuple[Prompt, ...]
    tokens: tuple[list[int], ...]
    seeds: tuple[int, ...]

    def row(self, number: int) -> BatchRow:
        """Where a prompt lies in the padded batch."""
        return BatchRow(number=number, padding=max(map(len, self.tokens)) - len(self.tokens[number]))


def record(
    model: Model,
    prompts: Prompts | Sequence[Prompt],
    settings: Settings | None = None,
    *,
    out: str | Path,
    recording: Recording | None = None,
    intervention: Intervention | None = None,
    compression: Compression | None = None,
    batch_size: int = 1,
    resume: bool = False,
    other_versions: bool = False,
    overwrite: bool = False,
    observer: Callable[[Progress], None] | None = None,
) -> Trace:
    """Generate from every prompt and write a trace at `out`; returns it opened.

    prompts: anything `generate` takes, or `Prompt`s with ids. intervention: what is cut from attention meanwhile, or
        `Hooks`; the trace then holds what keys receive under the cut, and `final_received` what they receive without.
        compression: which keys the cache drops; dropped keys receive nothing and have no norm (NaN). batch_size:
        prompts run together; the numbers of a sample agree between batch sizes to rounding, and are the same bit for
        bit for the same batch size. Raises `UserError` before any work starts for whatever is wrong with prompts,
        settings or `out`; warns there, once, with `TrainedLengthWarning` where texts grow longer than those the model
        was trained on.
    """
    recording = recording or Recording()
    run = Run(model, settings or default_settings(model), intervention, compression)
    if batch_size < 1:
        raise UserError(f"batch_size must be at least 1, got {batch_size}")
    if run.prefix:
        raise UserError("a trace begins with its prompt, so it can't be recorded after a prefix; record Compress(...)")
    check_output(out, resume=resume, overwrite=overwrite)
    plan = _Plan(run, _named(prompts), recording, batch_size)
    digest, longest = plan.check()
    warn_beyond_training(model, [longest], run.settings)
    if not resume:  # else the trace was begun with this very model
        _probe(model, recording.kernel)
    kept = {**asdict(recording), "batch_size": batch_size}
    attributes = run_attributes(run, kept, digest)
    if resume:
        store = TraceStore.resume(out, attributes, other_versions=other_versions)
    else:
        store = TraceStore.create(out, attributes, overwrite=overwrite)
    with store:
        recorder = _Recorder(plan, store, observer)
        for batch in plan.batches():
            recorder.record(batch)
    warn_if_nothing(recorder.removed)
    return open_trace(out)


def planned_layout(model: Model, prompt_length: int, settings: Settings, recording: Recording) -> Layout:
    """The arrays of one sample, for its sizes; no weights are needed. A prompt that is all there is has nothing but
    masks. Raises `UserError` as `record` does."""
    run = Run(model, settings)
    filled = model.family.mask_token_id if run.new_tokens([[0] * prompt_length]) == 0 else None
    tokens = [model.family.pad_token_id if filled is None else filled] * prompt_length
    run.check([tokens])
    return _Plan(run, (), recording, 1).layout(tokens, [tokens])


def _keeping(steps: Iterator[Step], writers: Mapping[BatchRow, SampleWriter]) -> Iterator[Step]:
    """The steps; where one can't be made, those before it are written first."""
    try:
        yield from steps
    except UserError:
        for writer in writers.values():
            writer.flush()
        raise


def _named(prompts: Prompts | Sequence[Prompt]) -> list[Prompt]:
    """Prompts with ids; unnamed ones are numbered from 0. Raises `UserError` for an id used twice."""
    if isinstance(prompts, Sequence) and any(isinstance(prompt, Prompt) for prompt in prompts):
        named = [prompt for prompt in prompts if isinstance(prompt, Prompt)]
        if len(named) < len(prompts):
            raise UserError(
                f"{len(named)} of {len(prompts)} prompts are `Prompt`s with ids; give all of them ids, or none"
            )
        twice = [name for name, count in Counter(prompt.id for prompt in named).items() if count > 1]
        if twice:
            raise UserError(f"{len(named)} prompts share ids, {twice[0]!r} for one; ids must differ")
        return named
    named = [Prompt(str(number), content) for number, content in enumerate(split_prompts(prompts))]
    if not named:
        raise UserError("no prompts were given")
    return named


@dataclass(frozen=True)
class _Plan:
    """A run that is to be recorded: all that is fixed before the first step."""

    run: Run
    prompts: Sequence[Prompt]
    recording: Recording
    batch_size: int

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

    def batches(self) -> Iterator[_Batch]:
        """Batches in the order of the prompts, each with seeds that depend on the prompts alone."""
        seen: Counter[bytes] = Counter()
        for first in range(0, len(self.prompts), self.batch_size):
            some = tuple(self.prompts[first : first + self.batch_size])
            tokens = tuple(self._encoded(prompt) for prompt in some)
            yield _Batch(first, some, tokens, tuple(prompt_seeds(tokens, self.run.settings.seed, seen)))

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

    def check(self) -> tuple[str, list[int]]:
        """Check every prompt and batch before any work; returns what tells this list of prompts from another, and the
        longest prompt."""
        digest, longest = hashlib.sha256(), list[int]()
        for batch in self.batches():
            lengths = [len(tokens) for tokens in batch.tokens]
            check_padding(self.run.model, min(lengths), max(lengths), self.run.new_tokens(batch.tokens))
            for prompt, tokens in zip(batch.prompts, batch.tokens, strict=True):
                with _naming(prompt):
                    self.run.check([tokens])
                self.layout(tokens, [tokens])
                digest.update(repr((prompt.id, tokens)).encode())
                longest = max(longest, tokens, key=len)
        return f"{len(self.prompts)}, sha256 {digest.hexdigest()[:16]}", longest


@contextmanager
def _naming(prompt: Prompt) -> Iterator[None]:
    """Name the prompt in a mistake's message."""
    try:
        yield
    except UserError as error:
        raise UserError(f"prompt {prompt.id!r}: {error}") from error


@torch.no_grad()
def _probe(model: Model, kernel: str | None) -> None:
    """Refuse a network that can't be recorded, before any work: pass two tokens through it."""
    tokens = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    canvas = Canvas(tokens=tokens, real=torch.ones_like(tokens, dtype=torch.bool), prompt_length=2)
    with watch(model, kernel=kernel) as watched:
        forward_for(model, canvas, None, ())(tokens, (0, 2), (0, 1), torch.zeros_like(tokens))
    seen, told = heads_by_layer(watched.received), [one.heads for one in model.shape.each]
    if seen != told:
        raise UserError(
            f"{model.name} attends with {seen} heads by layer where {told} are known of it: load it with load_model, "
            "which tries it"
        )


class _Recorder:
    """Writes batches into a store."""

    def __init__(self, plan: _Plan, store: TraceStore, observer: Callable[[Progress], None] | None) -> None:
        self._plan = plan
        self._model = plan.run.model
        self._statistics = plan.statistics
        self._store = store
        self._observer = observer
        self._numbers = [one.number for one in self._model.shape.each]
        self.removed: MaskingStats | None = None  # in all steps so far; None without an intervention

    def record(self, batch: _Batch) -> None:
        """Run one batch and write those of its samples that the trace lacks."""
        done = self._store.complete_ids()
        missing = [number for number, prompt in enumerate(batch.prompts) if prompt.id not in done]
        if not missing:
            return
        writers = {batch.row(number): self._writer(batch, number) for number in missing}
        ends = self._run(batch, writers)
        for row, writer in writers.items():
            self._finish(writer, ends[row], row, len(batch.tokens[row.number]))

    def _writer(self, batch: _Batch, number: int) -> SampleWriter:
        prompt, tokens = batch.prompts[number], batch.tokens[number]
        attributes = {"prompt_length": len(tokens), "seed": batch.seeds[number]}
        layout = self._plan.layout(tokens, batch.tokens)
        return self._store.sample(batch.first + number, prompt.id, layout, attributes)

    def _run(self, batch: _Batch, writers: Mapping[BatchRow, SampleWriter]) -> dict[BatchRow, Step]:
        """Generate and write every step; returns each row's last one."""
        ends: dict[BatchRow, Step] = {}
        removed: MaskingStats | None = None
        taken = dict.fromkeys(writers, 0)
        plan, done = self._plan, len(self._store.complete_ids())
        most = plan.run.max_steps(batch.tokens)
        with watch(self._model, self._collect(taken), kernel=plan.recording.kernel) as watched:
            steps = plan.run.steps(list(batch.tokens), batch.seeds)
            for step in _keeping(steps, writers):
                by_number = {self._numbers[call]: maps for call, maps in watched.last.maps.items()}
                seen = replace(watched.last, maps=by_number)
                # A row that is done waits for the others: what it would not have done alone is not its own.
                for row in [row for row in writers if bool(step.takes_part[row.number])]:
                    writers[row].append(step_arrays(step, taken[row], seen, row, self._statistics))
                    ends[row] = step
                    taken[row] += 1
                removed = step.add_to(removed)
                if self._observer is not None:
                    number = step.index + 1
                    self._observer(Progress(samples_done=done, samples=len(plan.prompts), step=number, most_steps=most))
                watched.collect = self._collect(taken)
        if removed is not None:
            self.removed = added(self.removed, removed.whole())
        return ends

    def _collect(self, taken: Mapping[BatchRow, int]) -> Collect:
        """What to collect in the next pass: full maps only where a row's next step is to have one."""
        kept, maps = self._statistics, self._statistics.maps
        wanted = maps if maps is not None and not set(taken.values()).isdisjoint(maps.steps) else None
        return Collect(
            groups=True,
            norms=kept.norms,
            entropy=kept.entropy,
            map_layers=tuple(map(self._numbers.index, wanted.layers)) if wanted else (),
            map_heads=wanted.heads if wanted else (),
        )

    def _finish(self, writer: SampleWriter, last: Step, row: BatchRow, prompt_length: int) -> None:
        sequence = last.canvas[row.number : row.number + 1, row.padding :]
        static: Arrays = {"sequence": sequence[0].cpu().numpy().astype(np.int32)}
        if self._plan.recording.final:
            static |= self._pass_once_more(sequence, prompt_length)
        text = read_text(self._model, sequence, prompt_length)
        attributes = {"tokens": self._token_texts(sequence), "text": None if text is None else text[0]}
        writer.finish(static, attributes, positions=sequence.shape[1])

    @torch.no_grad()
    def _pass_once_more(self, sequence: torch.Tensor, prompt_length: int) -> Arrays:
        """The variables of the final pass: of the finished sequence (1, position), passed whole."""
        length = sequence.shape[1]
        canvas = Canvas(tokens=sequence, real=torch.ones_like(sequence, dtype=torch.bool), prompt_length=prompt_length)
        recording = self._plan.recording
        with watch(self._model, Collect(outputs=recording.kinds), kernel=recording.kernel) as watched:
            forward = forward_for(self._model, canvas, None, ())
            forward(sequence, (0, length), (0, 1), torch.zeros_like(sequence), finished=True)
        return final_arrays(watched.last)

    def _token_texts(self, sequence: torch.Tensor) -> dict[str, str]:
        """Text of every token id of the sequence, and of the mask that stood there before."""
        tokenizer, mask = self._model.tokenizer, self._model.family.mask_token_id
        if tokenizer is None:
            return {}
        ids = sorted({*sequence[0].tolist(), *(() if mask is None else (mask,))})
        # A vocabulary may be smaller than the embedding, so an id may have no text.
        texts = tokenizer.convert_ids_to_tokens(ids)
        return {str(token): str(text) for token, text in zip(ids, texts, strict=True) if text is not None}
