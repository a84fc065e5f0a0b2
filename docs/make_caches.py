"""Measure caches of a diffusion model side by side on `twin-dlm`, for docs/results/caches.md.

    OMP_NUM_THREADS=1 python docs/make_caches.py

Cells go to runs/caches, whose table.md has every number, and are not measured again. It takes ten minutes on one core.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from commands import read_table, share, sinkscope

CELLS = Path("runs/caches")
TASKS = ("passkey", "lookup", "copy")
CACHES = "none,prefix,dual,dkv:refresh=4,dllm:prompt=4,response=2,elastic:window=4,d2:masks=4"
SCORERS = "key-norm,high-key-norm,mask-queries,sparse-dllm,streaming,random"
COMMON = f"--n 100 --out {CELLS} --resume"

Row = Mapping[str, str]


def main() -> None:
    """Run all commands; the first that fails ends it."""
    CELLS.mkdir(parents=True, exist_ok=True)
    tasks = " ".join(f"--task {task}" for task in TASKS)
    sinkscope(f"compress twin-dlm {tasks} --caches {CACHES} {COMMON}")
    sinkscope(f"compress twin-dlm {tasks} --scorer {SCORERS} --ratio 0.5,0.25 --draws 3 {COMMON}")
    sinkscope(f"compress twin-dlm {tasks} --scorer sinks --budget sinks:epsilon=3,window=8 {COMMON}")
    rows = read_table(CELLS / "table.csv")
    for task in TASKS:
        print_table(task, [row for row in rows if row["task"] == task])


def print_table(task: str, rows: Sequence[Row]) -> None:
    """One line a cache: score with Wilson's interval, passes, columns computed, keys held, seconds; draws as their
    mean."""
    print(f"\n| {task} | right, % | passes | computed | keys held | KiB | s |\n|---|---|---|---|---|---|---|")
    cells = defaultdict[str, list[Row]](list)
    for row in rows:
        cells[row["scorer"] if row["kept"] == "1" else f"dual, {row['scorer']} {row['kept']}"].append(row)
    for name, draws in cells.items():
        if name == "all keys":  # the dual cache again
            continue
        mean = {one: fmean(float(draw[one] or "nan") for draw in draws) for one in
                ("score", "passes", "computed", "kept_share", "cache_bytes", "seconds")}  # fmt: skip
        print(
            f"| {name} | {share(mean['score'], int(draws[0]['n']))} | {mean['passes']:.1f} | {mean['computed']:.0f} | "
            f"{100 * mean['kept_share']:.0f} % | {mean['cache_bytes'] / 1024:.0f} | {mean['seconds']:.0f} |"
        )


if __name__ == "__main__":
    main()
