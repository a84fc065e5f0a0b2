"""Read the cells of an ablation (`sinkscope ablate --out FOLDER`), for drawing: nothing is locked or changed.

Cells that differ in more than which keys are masked, such as the number of examples, are kept apart. A last line that
was cut short is left out.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.errors import UserError
from sinkscope.evaluation.ablation import Cell, Outcome, Row
from sinkscope.evaluation.ablation.grid import PLAIN, SINKS
from sinkscope.evaluation.ablation.measures import PERPLEXITY
from sinkscope.evaluation.ablation.store import NAME
from sinkscope.report.figures.inputs import Ablation
from sinkscope.report.figures.labels import rule_label

_VARIED = ("keys", "control", "seed")
_SHOWN = ("detect", "detect_from", "how")


def read_ablations(folder: Path) -> tuple[Ablation, ...]:
    """Every model and task of the folder, in the order of its cells.

    Raises `UserError` for a folder without cells, or with a line that is none.
    """
    lines = _lines(folder / NAME)
    plain = {_measured(line): line for line in lines if line["settings"]["intervention"] is None}
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line["settings"]["intervention"] is not None:
            groups.setdefault(_measured(line) + _text(_shared(line)), []).append(line)
    found = tuple(_ablation(some, plain.get(_measured(some[0]))) for some in groups.values())
    if not found:
        raise UserError(f"{folder} holds no cell in which anything is masked yet: run sinkscope ablate to its end")
    return found


def _ablation(lines: Sequence[dict[str, Any]], plain: dict[str, Any] | None) -> Ablation:
    shared = _shared(lines[0])
    seeds = sorted({line["settings"]["intervention"]["seed"] for line in lines})
    rows = [_row(line, seeds) for line in ([plain] if plain is not None else []) + list(lines)]
    masking = ", ".join(f"{name.replace('_', ' ')} {shared[name]}" for name in _SHOWN if name in shared)
    return Ablation(masking=masking, rows=tuple(rows))


def _row(line: dict[str, Any], seeds: Sequence[int]) -> Row:
    settings, measured = line["settings"], line["measured"]
    intervention = settings["intervention"]
    if intervention is None:
        cell = Cell(keys="none", masked=PLAIN, draw=0, intervention=None)
    else:
        masked = intervention["control"] or SINKS
        draw = seeds.index(intervention["seed"])
        cell = Cell(keys=rule_label(intervention["keys"]), masked=masked, draw=draw, intervention=None)
    task = str(settings["measure"]["task"])
    return Row(
        model=str(settings["model"]["name"]),
        task=task,
        better="low" if task == PERPLEXITY else "high",
        cell=cell,
        outcome=Outcome(np.array(measured["numerators"]), np.array(measured["denominators"]), measured["exact"]),
        removed=measured["removed"],
        seconds=measured["seconds"],
    )


def _measured(line: dict[str, Any]) -> str:
    """Model and measure, as text that is the same for the same."""
    return _text({name: line["settings"][name] for name in ("model", "measure")})


def _shared(line: dict[str, Any]) -> dict[str, Any]:
    """What an intervention sets beside the keys, the control and its seed."""
    return {name: value for name, value in line["settings"]["intervention"].items() if name not in _VARIED}


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True)


def _lines(file: Path) -> list[dict[str, Any]]:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(
            f"{file.parent} holds no cells of an ablation ({error.strerror}): name a folder that `sinkscope ablate "
            "--out` wrote"
        ) from error
    whole = content[: content.rfind(b"\n") + 1]
    return list(_parsed(file, whole.splitlines()))


def _parsed(file: Path, lines: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
            _row(line, [(line["settings"]["intervention"] or {}).get("seed", 0)])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{file}, line {number} is no cell of an ablation: restore the file, or run it anew"
            ) from error
        yield line
