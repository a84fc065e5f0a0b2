"""Run the grids of docs/results/interventions.md with its commands, and print its tables.

    OMP_NUM_THREADS=1 python docs/make_interventions.py                     # all of them
    OMP_NUM_THREADS=1 python docs/make_interventions.py passkey copy

Cells go to runs/interventions and are not measured again. The grids of the twins take ten minutes on one core, those
of the real models half an hour.
"""

import sys
from pathlib import Path

from commands import read_table, sinkscope

RUNS = Path("runs/interventions")
TWINS = "twin-ar twin-dlm twin-adapted"
PASSKEY = f"{TWINS} --task passkey --control random,equal-mass,lowest --n 500"
EPSILONS = ",".join(f"excess:epsilon={epsilon}" for epsilon in (2, 3, 4, 6, 8))
GRIDS = {
    "passkey": f"{PASSKEY} --strongest 1,5,10",
    "same": f"{PASSKEY} --strongest 1 --detect same",
    "copy": f"{TWINS} --task copy --control random,equal-mass,lowest --n 500 --strongest 1,2,5",
    "epsilon": f"{TWINS} --task passkey --rule {EPSILONS} --control random --n 200",
    "smollm2": "smollm2-135m --task passkey --task perplexity --strongest 1,5,10 --rule first:1 --n 60 "
    "--control random,equal-mass",
    "rxnmapper": "rxnmapper --task infilling-0.15 --task infilling-0.5 --task infilling-0.9 --strongest 1,5,10 "
    "--control random,equal-mass,mask-matched --detect same --first-step 0",
}


def main() -> None:
    """Run the grids that are named, or all."""
    for name in sys.argv[1:] or GRIDS:
        folder = RUNS / name
        sinkscope(f"ablate {GRIDS[name]} --out {folder} --resume")
        print_table(folder / "table.csv")


def print_table(file: Path) -> None:
    """Scores by model, task and keys, with the attention removed at the step itself; one column a control."""
    rows = read_table(file)
    columns = [name for name in dict.fromkeys(row["masked"] for row in rows) if name != "plain"]
    print(
        f"\n| model | task | keys | plain | {' | '.join(columns)} | cut |\n|---|---|---|---|{'---|' * len(columns)}---|"
    )
    cells = {(row["model"], row["task"], row["keys"], row["masked"]): row for row in rows}
    for model, task, keys in dict.fromkeys(key[:3] for key in cells if key[3] != "plain"):
        plain = next(row for row in rows if (row["model"], row["task"], row["masked"]) == (model, task, "plain"))
        cell = [cells.get((model, task, keys, name)) for name in columns]
        scores = ["" if one is None else f"{float(one['score']):.3f} ({float(one['mass']):.2f})" for one in cell]
        cut = cells[model, task, keys, columns[0]]["keys_cut"]
        print(f"| {model} | {task} | {keys} | {float(plain['score']):.3f} | {' | '.join(scores)} | {float(cut):.1f} |")
    print(flush=True)


if __name__ == "__main__":
    main()
