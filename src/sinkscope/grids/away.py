"""Measures that workers lay out and run: what a grid says to one, and what a worker makes of it.

    def open_keys(key):                                     # in a worker, once a model
        model = load_model(**key)
        return Serving(read_condition, lambda asked: Laid(model=stated_model(model), measure=find_measure(...)(model)))

    laid = lay_out([Origin("package.module:open_keys", {"name_or_folder": "chain-ar"}, {"task": "copy"})], workers)
    run_grid([Work(one.model, one.measure, conditions) for one in laid], form)

The same opener serves a grid that is run here (`workers=None`): then it is called in this process. The asking process
loads no model where workers do; all that it knows of one comes from them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from sinkscope.errors import UserError
from sinkscope.grids.cell import C, Measure, Measured, check_cell, run_cell
from sinkscope.grids.outcome import Outcome
from sinkscope.workers import Failed, Job, Workers
from sinkscope.workers.holding import open_by_path


@dataclass(frozen=True, kw_only=True)
class Laid(Generic[C]):
    """A measure that is laid out for a model.

    model: everything about it that decides numbers, as JSON. told: what its grid must know beside, as JSON. size: of
    the model, so that cells of large ones are run first.
    """

    model: Mapping[str, Any]
    measure: Measure[C]
    told: Mapping[str, Any] = field(default_factory=dict)
    size: float = 1.0


@dataclass
class Serving(Generic[C]):
    """What an opener gives: a model that is loaded, and the way to its measures. A worker calls it with what a grid
    asks.

    condition: from the JSON of one. lay: a measure, from the JSON of what is asked.
    """

    condition: Callable[[Mapping[str, Any]], C]
    lay: Callable[[Mapping[str, Any]], Laid[C]]
    _laid: dict[str, Laid[C]] = field(default_factory=dict)

    def laid(self, asked: Mapping[str, Any]) -> Laid[C]:
        """The measure, laid out once."""
        key = json.dumps(asked, sort_keys=True)
        if key not in self._laid:
            self._laid[key] = self.lay(asked)
        return self._laid[key]

    def __call__(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """Lay out, check or run, as JSON."""
        laid = self.laid(settings["asked"])
        measure, do = laid.measure, settings["do"]
        if do == "lay":
            facts = {name: getattr(measure, name) for name in _FACTS}
            plain = {"stated": measure.settings(), "model": dict(laid.model), "told": dict(laid.told)}
            return {**facts, **plain, "size": laid.size}
        conditions = [self.condition(one) for one in settings["conditions"]]
        if do == "check":
            for one in conditions:
                check_cell(settings["name"], measure, one)
            return None
        return run_cell(settings["name"], measure, conditions[0], lambda _: None)


_FACTS = ("task", "n", "better", "unit", "batch_size", "notes")


@dataclass(frozen=True)
class Origin:
    """Where a measure is to be had: see `workers.Job` for the first two. asked: what is laid out."""

    opener: str
    key: Mapping[str, Any]
    asked: Mapping[str, Any]

    def job(self, do: str, name: str, conditions: Sequence[C] = (), cost: float = 1.0) -> Job:
        """For a worker."""
        told = {"do": do, "asked": self.asked, "name": name, "conditions": [one.to_dict() for one in conditions]}
        return Job(self.opener, self.key, told, cost, name)


@dataclass(frozen=True, kw_only=True)
class Remote(Generic[C]):
    """A measure that workers have laid out. Implements `grids.Measure`."""

    address: Origin
    workers: Workers
    task: str
    n: int
    better: str
    unit: str
    batch_size: int
    notes: tuple[str, ...]
    stated: Mapping[str, Any]
    size: float

    def settings(self) -> dict[str, Any]:
        """As the worker said."""
        return dict(self.stated)

    def job(self, do: str, name: str, conditions: Sequence[C], cost: float = 1.0) -> Job:
        """ "check" or "run" for a worker; cost: of the condition beside others."""
        return self.address.job(do, name, conditions, cost * self.n * self.size)

    def check(self, condition: C) -> None:
        """Let a worker check."""
        self._do("check", condition)

    def run(self, condition: C, observer: Callable[[int], None]) -> Measured:
        """Let a worker measure this alone."""
        found = self._do("run", condition)
        observer(self.n)
        return Measured(Outcome.read(found), found["stats"])

    def _do(self, do: str, condition: C) -> Any:
        [end] = self.workers.run([self.job(do, self.task, [condition])])
        if isinstance(end, Failed):
            raise UserError(end.reason)
        return end.result


def lay_out(origins: Sequence[Origin], workers: Workers | None) -> list[Laid[Any]]:
    """The measures, in order: by workers, or here where there are none. Raises `UserError` for one that can't be."""
    if workers is None:
        return _lay_out_here(origins)
    found: dict[int, dict[str, Any]] = {}
    for end in workers.run([one.job("lay", str(one.asked.get("task", "a measure"))) for one in origins]):
        if isinstance(end, Failed):
            raise UserError(end.reason)
        found[end.number] = end.result
    return [_remote(one, workers, **found[number]) for number, one in enumerate(origins)]


def _lay_out_here(origins: Sequence[Origin]) -> list[Laid[Any]]:
    opened: dict[str, Any] = {}
    for one in origins:
        holding = one.job("lay", "").holding
        if holding not in opened:
            opened[holding] = open_by_path(one.opener, dict(one.key))
    return [opened[one.job("lay", "").holding].laid(one.asked) for one in origins]


def _remote(
    address: Origin, workers: Workers, *, model: Any, told: Any, size: float, notes: Sequence[str], **facts: Any
) -> Laid[Any]:
    measure: Remote[Any] = Remote(address=address, workers=workers, size=size, notes=tuple(notes), **facts)
    return Laid(model=model, measure=measure, told=told, size=size)
