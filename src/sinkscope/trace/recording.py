"""Record what attention every token receives while a model generates.

    trace = record(model, read_prompts("prompts.jsonl"), Denoising(gen_length=64, steps=64), out="runs/llada.zarr")
    trace["q1"]["received"]                     # (step, layer, head, position)

Samples are written step by step and are safe on disk as they go; a run that was stopped goes on with `resume=True` and
ends in the same trace as an unbroken one. Memory holds one batch, however many prompts there are. Batches are cut from
the prompts in their order, also when resuming, so that a sample's numbers never depend on where a run was stopped.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import numpy as np
import torch

from sinkscope.addresses import place
from sinkscope.attention import Collect, watch
from sinkscope.decoding import Prompts, Run, Step, default_settings
from sinkscope.decoding.canvas import Canvas
from sinkscope.decoding.forward import Feed, forward_for
from sinkscope.decoding.generation import read_text, warn_beyond_training
from sinkscope.decoding.protocols import Compression, Intervention, MaskingStats, added, warn_if_nothing
from sinkscope.decoding.settings import Settings
from sinkscope.errors import UserError
from sinkscope.families import Model
from sinkscope.trace.groups import read_root
from sinkscope.trace.planning import Checked, Plan, PromptBatch, Recording, named
from sinkscope.trace.prompts import Prompt
from sinkscope.trace.reading import Trace, open_trace
from sinkscope.trace.rows import Arrays, BatchRow, final_arrays, heads_by_layer, step_arrays
from sinkscope.trace.sample import SampleWriter
from sinkscope.trace.store import TraceStore, begun, check_output


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a recording stands; given to the observer after every step."""

    samples_done: int
    samples: int
    step: int
    most_steps: int


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
    run = Run(model, settings or default_settings(model), intervention, compression)
    check_output(out, resume=resume, overwrite=overwrite)
    plan = Plan(run, named(prompts), recording or Recording(), batch_size)
    found = checked(plan, fresh=not resume)
    warn_beyond_training(model, [found.longest], run.settings)
    attributes = plan.attributes(found.prompts)
    with begun(out, attributes, resume=resume, other_versions=other_versions, overwrite=overwrite) as (store, left):
        if store.shards:
            parts = [plan.of(shard) for shard in left]
            sums = [record_shard(part, out, other_versions=other_versions, observer=observer) for part in parts]
        else:
            sums = [_write(plan, store, observer)]
    warn_if_nothing(reduce(added, sums, None))
    return open_trace(out)


def checked(plan: Plan, *, fresh: bool) -> Checked:
    """What checking tells of the prompts. fresh: no trace is there that was begun with this very model. Raises
    `UserError` for whatever is wrong."""
    found = plan.check()
    if fresh:
        _probe(plan.run.model, plan.recording.kernel)
    return found


def record_shard(
    plan: Plan,
    out: str | Path,
    *,
    other_versions: bool = False,
    observer: Callable[[Progress], None] | None = None,
) -> MaskingStats | None:
    """Record what is missing of a shard of the trace at `out`; returns what an intervention took away.

    Raises `UserError` where this process would make other numbers than the one that began the trace.
    """
    assert plan.shard is not None
    folder = plan.shard.folder(place(out))
    told = (read_root(folder) or {}).get("prompts", "")
    with TraceStore.resume(folder, plan.attributes(told), other_versions=other_versions) as store:
        return _write(plan, store, observer)


def _write(plan: Plan, store: TraceStore, observer: Callable[[Progress], None] | None) -> MaskingStats | None:
    """Record the samples that the store lacks."""
    recorder = _Recorder(plan, store, observer)
    for batch in plan.batches():
        recorder.record(batch)
    return recorder.removed


def _keeping(steps: Iterator[Step], writers: Mapping[BatchRow, SampleWriter]) -> Iterator[Step]:
    """The steps; where one can't be made, those before it are written first."""
    try:
        yield from steps
    except UserError:
        for writer in writers.values():
            writer.flush()
        raise


@torch.no_grad()
def _probe(model: Model, kernel: str | None) -> None:
    """Refuse a network that can't be recorded, before any work: pass two tokens through it."""
    tokens = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    canvas = Canvas(tokens=tokens, real=torch.ones_like(tokens, dtype=torch.bool), prompt_length=2)
    with watch(model, kernel=kernel) as watched:
        forward_for(model, canvas, None, ())(Feed(tokens, (0, 2), (0, 1), torch.zeros_like(tokens)))
    seen, told = heads_by_layer(watched.received), [one.heads for one in model.shape.each]
    if seen != told:
        raise UserError(
            f"{model.name} attends with {seen} heads by layer where {told} are known of it: load it with load_model, "
            "which tries it"
        )


class _Recorder:
    """Writes batches into a store."""

    def __init__(self, plan: Plan, store: TraceStore, observer: Callable[[Progress], None] | None) -> None:
        self._plan = plan
        self._model = plan.run.model
        self._statistics = plan.statistics
        self._store = store
        self._observer = observer
        self._numbers = [one.number for one in self._model.shape.each]
        self.removed: MaskingStats | None = None  # in all steps so far; None without an intervention

    def record(self, batch: PromptBatch) -> None:
        """Run one batch and write those of its samples that the trace lacks."""
        done = self._store.complete_ids()
        missing = [number for number, prompt in enumerate(batch.prompts) if prompt.id not in done]
        if not missing:
            return
        writers = {batch.row(number): self._writer(batch, number) for number in missing}
        ends = self._run(batch, writers)
        for row, writer in writers.items():
            self._finish(writer, ends[row], row, len(batch.tokens[row.number]))

    def _writer(self, batch: PromptBatch, number: int) -> SampleWriter:
        prompt, tokens = batch.prompts[number], batch.tokens[number]
        attributes = {"prompt_length": len(tokens), "seed": batch.seeds[number]}
        layout = self._plan.layout(tokens, batch.tokens)
        return self._store.sample(batch.first + number, prompt.id, layout, attributes)

    def _run(self, batch: PromptBatch, writers: Mapping[BatchRow, SampleWriter]) -> dict[BatchRow, Step]:
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
            forward(Feed(sequence, (0, length), (0, 1), torch.zeros_like(sequence), finished=True))
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
