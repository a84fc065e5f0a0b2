"""Record a trace on Ray's workers: prompts are dealt to shards, and workers write one shard after the other.

    trace = ss.record_shards("llada-8b", ss.read_prompts("prompts.jsonl"), out="runs/llada.zarr", on="ray", workers=4)

A worker opens the model once. The first one checks all prompts and says what the manifest is to hold; the asking
process writes the manifest, and loads no model. Samples are those of `ss.record`, bit for bit on machines that are
alike, however many workers there are and whichever of them die. See `trace.shards`.

Where it misleads: folders and files are opened by workers, so they must be at the same place on every machine.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from sinkscope import addresses, errors
from sinkscope.compression import Compress
from sinkscope.decoding import Decoding, Denoising, Prompts, Renoising, Run, Settings, settings_with
from sinkscope.decoding.generation import warn_beyond_training
from sinkscope.decoding.protocols import MaskingStats, added, warn_if_nothing
from sinkscope.errors import Caution, UserError
from sinkscope.evaluation.conditions import KeysCondition, read_condition
from sinkscope.families import Model, load_model
from sinkscope.interventions import MaskSinks
from sinkscope.interventions.reference import Reference
from sinkscope.trace import (
    Maps,
    Plan,
    Prompt,
    Recording,
    Shard,
    Trace,
    begun,
    check_output,
    checked,
    named,
    open_trace,
    record_shard,
)  # fmt: skip
from sinkscope.workers import Asked, Done, Failed, Job, Workers, open_workers

_OPENER = f"{__name__}:open_recorder"
_SETTINGS = {kind.__name__: kind for kind in (Denoising, Renoising, Decoding)}
_SHARDS = 4
"""Shards for each worker, so that none waits long for the last one, and a death costs little."""


def record_shards(
    model: str | Path,
    prompts: Prompts | Sequence[Prompt],
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    out: str | Path,
    on: str = "ray",
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    recording: Recording | None = None,
    intervention: MaskSinks | None = None,
    compression: Compress | None = None,
    batch_size: int = 1,
    resume: bool = False,
    other_versions: bool = False,
    overwrite: bool = False,
    observer: Callable[[int, int], None] | None = None,
    **loading: Any,
) -> Trace:
    """Generate from every prompt, on workers, and write a trace in shards at `out`; returns it opened.

    model: a name or folder, loaded by each worker with `loading`, arguments of `load_model` that are plain values.
    settings: or fields of them, over the family's own. on, workers, gpus_per_worker: see `workers.Asked`. observer:
    called with the samples that are complete, and all there are. All else as in `record`. There are four shards a
    worker; a trace that is resumed keeps those that it has.

    Raises `UserError` as `record` does, before any work, and where a shard could not be recorded; the others are.
    """
    if isinstance(where := addresses.place(out), addresses.Address) and where.root_address == "memory://":
        raise UserError(f"{where} is seen by one process alone, and workers are others: name a folder or a store")
    check_output(out, resume=resume, overwrite=overwrite)
    given, condition = named(prompts), KeysCondition(intervention, compression)
    asked = {
        "settings": _plain(settings),
        "recording": asdict(recording or Recording()),
        "condition": condition.to_dict(),
        "reference": _texts(condition),
        "batch_size": batch_size,
        "out": str(out),
        "other_versions": other_versions,
    }
    key = {"name_or_folder": str(model), **loading}
    options = {"resume": resume, "other_versions": other_versions, "overwrite": overwrite}
    with open_workers(Asked(on=on, workers=workers, gpus_per_worker=gpus_per_worker)) as there:
        plan = _plan(there, key, {**asked, "fresh": not resume, "shards": _SHARDS * there.crew.most}, given)
        shards = [Shard(**one) for one in plan["shards"]]
        with begun(out, plan["attributes"], shards, **options) as (store, left):
            if not store.shards:
                raise UserError(f"the trace {out} is not in shards: go on with it in one process (leave out --on)")
            jobs = [_job(key, {**asked, "do": "record", "shard": asdict(one)}, one, given) for one in left]
            done = len(given) - sum(len(one.numbers) for one in left)
            removed = _record(there, jobs, lambda more: observer and observer(done + more, len(given)), out)
    warn_if_nothing(removed)
    return open_trace(out)


def _plan(
    there: Workers, key: Mapping[str, Any], asked: Mapping[str, Any], prompts: Sequence[Prompt]
) -> dict[str, Any]:
    """What a worker says of the whole run."""
    told = {**asked, "do": "plan", "prompts": [[one.id, one.content] for one in prompts]}
    [end] = there.run([Job(_OPENER, key, told, name="the plan")])
    if isinstance(end, Failed):
        raise UserError(end.reason)
    plan: dict[str, Any] = end.result
    for kind, message in plan["cautions"]:
        warnings.warn(message, getattr(errors, kind, Caution), stacklevel=3)
    return plan


def _job(key: Mapping[str, Any], asked: Mapping[str, Any], shard: Shard, prompts: Sequence[Prompt]) -> Job:
    own = [[prompts[number].id, prompts[number].content] for number in shard.numbers]
    return Job(_OPENER, key, {**asked, "prompts": own}, cost=len(own), name=f"shard {shard.name}")


def _record(there: Workers, jobs: Sequence[Job], tell: Callable[[int], object], out: str | Path) -> MaskingStats | None:
    """Let workers record the shards; returns what an intervention took away in all."""
    done, sums, failed = 0, [], list[Failed]()
    tell(done)
    for end in there.run(jobs):
        if isinstance(end, Done):
            done += len(end.job.settings["prompts"])
            sums.append(None if end.result is None else MaskingStats.from_sums(end.result))
            tell(done)
        else:
            failed.append(end)
    if failed:
        first = failed[0]
        raise UserError(
            f"{len(failed)} of {len(jobs)} shards of {out} could not be recorded, {first.job.name} for one "
            f"({first.reason}); what is done is safe: go on with --resume"
        )
    return reduce(added, sums, None)


def _plain(settings: Settings | Mapping[str, Any] | None) -> dict[str, Any]:
    """As JSON: the kind, None for the family's own, and the fields that are given."""
    if settings is None or isinstance(settings, Mapping):
        return {"kind": None, "given": dict(settings or {})}
    return {"kind": type(settings).__name__, "given": asdict(settings)}


def _texts(condition: KeysCondition) -> Sequence[Any] | None:
    """The texts of a reference, of which a condition's JSON holds the digest alone."""
    masking = condition.intervention
    return None if masking is None or masking.reference is None else Reference.of(masking.reference).texts


@dataclass(frozen=True)
class _Recorder:
    """What a worker holds: a model, and what it can be asked."""

    model: Model

    def __call__(self, asked: Mapping[str, Any]) -> Any:
        """The plan of a run, or what is taken away in a shard of it, as JSON."""
        plan = self._plan_of(asked)
        if asked["do"] == "record":
            removed = record_shard(plan, asked["out"], other_versions=asked["other_versions"])
            return None if removed is None else {name: float(value) for name, value in vars(removed).items()}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", Caution)
            found = checked(plan, fresh=asked["fresh"])
            warn_beyond_training(plan.run.model, [found.longest], plan.run.settings)
        cautions = [[one.category.__name__, str(one.message)] for one in caught if issubclass(one.category, Caution)]
        shards = [asdict(one) for one in plan.shards(found, asked["shards"])]
        return {"attributes": plan.attributes(found.prompts), "shards": shards, "cautions": cautions}

    def _plan_of(self, asked: Mapping[str, Any]) -> Plan:
        kind, given = asked["settings"]["kind"], asked["settings"]["given"]
        settings = settings_with(self.model, given) if kind is None else _SETTINGS[kind](**given)
        condition, maps = read_condition(asked["condition"]), asked["recording"]["maps"]
        masking = condition.intervention
        if masking is not None and masking.reference is not None:
            masking = replace(masking, reference=Reference.of(asked["reference"]))
        recording = Recording(
            **{**asked["recording"], "maps": maps and Maps(**{name: tuple(those) for name, those in maps.items()})}
        )
        run = Run(self.model, settings, masking, condition.compression)
        shard = Shard(**asked["shard"]) if "shard" in asked else None
        return Plan(run, [Prompt(*one) for one in asked["prompts"]], recording, asked["batch_size"], shard)


def open_recorder(key: Mapping[str, Any]) -> _Recorder:
    """A model, loaded as `key` says."""
    return _Recorder(load_model(**key))
