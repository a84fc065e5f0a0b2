"""Measure what dropping keys costs `twin-ar`, for the tables and pictures of docs/results/compression.md, by command.

    OMP_NUM_THREADS=1 python docs/make_compression.py

Cells go to runs/twin-ar, whose table.md has every number, and are not measured again; pictures to
docs/figures/compression; the page's tables are printed last. It takes three minutes on one core.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from commands import read_table, share, sinkscope

CELLS = Path("runs/twin-ar")
PICTURES = Path("docs/figures/compression")
SCORERS = "key-norm,high-key-norm,random,streaming,key-diff,expected-attention"
RATIOS = "0.75,0.5,0.25,0.1"
COMMON = f"--ratio {RATIOS} --draws 3 --n 200 --out {CELLS} --resume"
TASKS = ("passkey", "lookup", "arithmetic-1")

Row = Mapping[str, str]


def main() -> None:
    """Run all commands; the first that fails ends it."""
    CELLS.mkdir(parents=True, exist_ok=True)
    tasks = " ".join(f"--task {task}" for task in TASKS)
    sinkscope(f"compress twin-ar {tasks} --scorer {SCORERS} {COMMON}")
    sinkscope(f"compress twin-ar {tasks} --scorer key-norm,random --skip-layers 0,1 {COMMON}")
    sinkscope(f"compress twin-ar --task needle --lengths 32,64 --depths 0,0.25,0.5,0.75,1 --scorer {SCORERS} {COMMON}")
    sinkscope(f"figures --compression {CELLS} --out {PICTURES} --overwrite")
    rows = read_table(CELLS / "table.csv")
    for task in (*TASKS, "needle"):
        print_table(task, [row for row in rows if row["task"] == task])


def print_table(task: str, rows: Sequence[Row]) -> None:
    """Scores by scorer and share kept, in per cent with Wilson's interval; draws as their mean."""
    plain = next(row for row in rows if row["scorer"] == "all keys")
    ratios = RATIOS.split(",")
    print(f"\n| {task}; all keys {share_of([plain])} | {' | '.join(ratios)} |\n|---|{'---|' * len(ratios)}")
    cells = defaultdict[tuple[str, str], list[Row]](list)
    for row in rows:
        cells[f"{row['scorer']}, {row['exceptions']}".removesuffix(", "), row["kept"]].append(row)
    for scorer in dict.fromkeys(name for name, _ in cells if name != "all keys"):
        print(f"| {scorer} | {' | '.join(share_of(cells[scorer, ratio]) for ratio in ratios)} |")


def share_of(draws: Sequence[Row]) -> str:
    """The mean of all draws."""
    return share(fmean(float(row["score"]) for row in draws), int(draws[0]["n"]))


if __name__ == "__main__":
    main()
