"""Print the tables of docs/results/twins.md and demo.md: scores, and where the twins' attention goes in their demo.

    OMP_NUM_THREADS=1 python docs/make_twins.py

Scores are those of the packaged model cards; the demo runs anew, in half a minute. Traces go to runs/make-twins.
"""

import json
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import sinkscope
from sinkscope.cli.main import run
from sinkscope.evaluation import LITTLE
from sinkscope.training import KINDS
from sinkscope.training.export import read_scores

PACKAGED = Path(sinkscope.__file__).parent / "twins"


def main() -> None:
    """Print all tables."""
    print_scores()
    said = StringIO()
    with redirect_stdout(said):
        code = run(["demo", "--out", "runs/make-twins", "--json"])
    if code != 0:
        raise SystemExit(code)
    demo = json.loads(said.getvalue())
    print_layers(demo)
    print_overview(demo)
    for finding in demo["findings"]:
        print("-", finding)


def print_scores() -> None:
    """Share of right answers by task, in per cent with its interval."""
    scores = {name: {one["task"]: one for one in read_scores(PACKAGED / name)} for name in KINDS}
    print(f"| task | {' | '.join(KINDS)} |\n|---|{'---|' * len(KINDS)}")
    for task in LITTLE:
        cells = [scores[name][task] for name in KINDS]
        shares = [f"{one['score']:.1%} ({one['low']:.1%} to {one['high']:.1%})".replace("%", "") for one in cells]
        print(f"| {task} | {' | '.join(shares)} |")


def print_layers(demo: Mapping[str, Any]) -> None:
    """By layer: what the strongest key receives in finished texts, and how often a head's strongest key changes."""
    print(f"\n| layer | {' | '.join(demo['finished'])} | {', top moves | '.join(demo['finished'])}, top moves |")
    print(f"|---|{'---|' * 2 * len(KINDS)}")
    moved = [values(report, "motion", "moved") for report in demo["reports"]]
    for layer, numbers in enumerate(zip(*demo["finished"].values(), *moved, strict=True)):
        print(f"| {layer} | {' | '.join(f'{number:.3f}'.removeprefix('0') for number in numbers)} |")


def print_overview(demo: Mapping[str, Any]) -> None:
    """The demo in five rows."""
    print(f"\n| | {' | '.join(demo['finished'])} |\n|---|{'---|' * len(KINDS)}")
    reports = demo["reports"]
    rows = {
        "rows with a sink": [values(one, "overview", "any") for one in reports],
        "the strongest token of a row receives": [values(one, "overview", "top_received") for one in reports],
        "in whole passes over the finished texts": [sum(one) / len(one) for one in demo["finished"].values()],
        "strongest on average, at so many steps": [values(one, "tokens", "top_frequency")[0] for one in reports],
        "a head's strongest token changes": [sum(moves) / len(moves) for moves in map(moves_of, reports)],
    }
    for what, numbers in rows.items():
        print(f"| {what} | {' | '.join(f'{number:.1%}' for number in numbers)} |")
    print("| strongest on average | ", " | ".join(values(one, "tokens", "text")[0] for one in reports), "|\n")


def moves_of(report: Mapping[str, Any]) -> list[float]:
    """Share of steps at which the strongest key of a layer's heads changes."""
    found: list[float] = values(report, "motion", "moved")
    return found


def values(report: Mapping[str, Any], table: str, name: str) -> Any:
    """Numbers of a table of the demo, or names."""
    held = report["tables"][table]
    return held["coords"][name] if name in held["coords"] else held["data"][name]["values"]


if __name__ == "__main__":
    main()
