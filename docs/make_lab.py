"""Train the chains and print the tables of docs/results/lab.md; draw its picture.

    OMP_NUM_THREADS=1 python docs/make_lab.py runs/lab

About an hour and a half on one core, nearly all of it trainings; what the folder holds is taken over. `--quick` trains
two recipes for a few steps, to see that the script runs.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from math import nan
from pathlib import Path
from statistics import fmean

import torch
from commands import sinkscope

from sinkscope.decoding import Denoising
from sinkscope.evaluation import log_likelihood
from sinkscope.evaluation.chain_measures import PROMPT, writing_settings
from sinkscope.experiments.eviction import read_evictions
from sinkscope.experiments.masking import KeysCell, read_maskings
from sinkscope.experiments.points import Spread
from sinkscope.families import Blockwise, load_model
from sinkscope.files import write_whole
from sinkscope.lab.studies import Finding, findings, labels, read_lab
from sinkscope.language.chains import CHAIN_WORDS, Chains
from sinkscope.sinks import Excess, SinkReport, compare_masks, mask_name, summarise, table_rows
from sinkscope.trace import Prompt, Recording, Trace, open_trace, record

OBJECTIVES = ("next-token", "masked-diffusion", "adapted")
TASKS = "chain-writing,back-copy,recall"
AT_STEP = "--detect same --first-step 0"
MASKINGS: Mapping[str, str] = {
    "strongest of the step before": "--task chain-writing --rule top-k:1 --control random,equal-mass",
    "strongest of the step": f"--task {TASKS} --rule top-k:1 --control random,equal-mass-at-step {AT_STEP}",
    "first token": f"--task {TASKS} --rule first:1 --control random,equal-mass-at-step {AT_STEP}",
}
WAYS = ("scores", "values", "mean", "resample")
EPSILONS = (0.5, 1, 2, 4)
PRUNED = "--when decode --prune-after 16"
TABLES = ("overview", "motion", "lifetimes", "distances", "kinds")
BLOCKS = (1, 2, 4, 8, 16, None)
"""Masks that one network is compared under: causal, blocks of so many tokens, the whole canvas."""
DIFFUSION = (
    "registers=1", '{"registers":1,"registers_mode":"see-themselves"}', 'attention="learned-sink"',
    'attention="gated"', 'attention="sigmoid"',
)  # fmt: skip
"""What is tried of the mitigations on the diffusion model."""


def kept(command: str) -> None:
    """Run a command that keeps its cells; what it prints is told by the tables below."""
    with redirect_stdout(StringIO()):
        sinkscope(f"{command} --resume --json")


def main(out: Path, *, quick: bool) -> None:
    """Train, mask, drop, print and draw."""
    few = " --set steps=5 --set adapted_steps=5 --set rows=4" if quick else ""
    studies = "--set steps=5" if quick else "--set steps=400"
    trio = out / "trio"
    kept(f"lab --objective {','.join(OBJECTIVES)} --out {trio} --keep-models{few}")
    varied = out / "studies"
    kept(f"lab --study mitigation {studies} --objective next-token --out {varied}")
    some = " ".join(f"--vary {one}" for one in DIFFUSION)
    kept(f"lab {some} {studies} --objective masked-diffusion --out {varied}")
    kept(f"lab --study data,length,optimisation,network {studies} --objective next-token --out {varied}")
    folders = sorted((trio / "models").iterdir())
    models = " ".join(map(str, folders))
    limit = 6 if quick else 150
    for number, how in enumerate(MASKINGS.values()):
        folder = out / f"masked-{number}"
        kept(f"ablate {models} {how} --limit {limit} --out {folder}")
    causal = " ".join(str(one) for one in folders if one.name.startswith("next-token"))
    dropped = out / "dropped"
    scorers = f"--scorer key-norm,random,streaming:first=1 --ratio 0.25,0.5,0.75 {PRUNED}"
    kept(f"compress {causal} --task chain-writing {scorers} --limit {limit} --out {dropped}")
    texts = write_reference(out / "reference.txt")
    for way in WAYS:
        stand_in = f"--how {way}" + (f" --reference {texts}" if way in ("mean", "resample") else "")
        rule = f"--rule top-k:1 --control random {AT_STEP}"
        kept(f"ablate {models} --task chain-writing {rule} {stand_in} --limit {limit} --out {out / f'way-{way}'}")
    draw_threshold(out, causal, limit)
    kept(f"lab --objective joint --out {out / 'joint'} --keep-models{few}")
    print_shares(findings(read_lab(out / "joint")))
    joint = sorted((out / "joint" / "models").iterdir())
    networks = {one: [folder for folder in folders if folder.name.startswith(one)] for one in OBJECTIVES[:2]}
    for objective, trained in {"joint": joint, **networks}.items():
        print_masks(objective, trained, out / "masks", texts=2 if quick else 32)
    print_layers(joint, out / "masks", texts=2 if quick else 32)
    read = " ".join(str(out / "masks" / f"{joint[0].name}-{length}-read.zarr") for length in BLOCKS)
    sinkscope(f"figures {read} --only masks --format svg --out docs/figures/lab --overwrite")
    print_written(joint, out, min(limit, 50))
    print_shares(findings(read_lab(trio)))
    print_motion(folders, out / "traces", prompts=2 if quick else 16)
    for number, name in enumerate(MASKINGS):
        print_masked(name, read_maskings(out / f"masked-{number}"))
    for way in WAYS:
        print_masked(f"strongest of the step, {way}", read_maskings(out / f"way-{way}"))
    print_dropped(read_evictions(dropped))
    print_studies(findings(read_lab(varied)))
    sinkscope(f"figures --lab {varied} --only lab --format svg --out docs/figures/lab --overwrite")


def write_reference(file: Path) -> Path:
    """A hundred contexts of the chains, a line each, that stand-in values are taken from."""
    tokens = Chains().sample(100, 40, torch.Generator().manual_seed(5)).tolist()
    write_whole(file, "\n".join(" ".join(CHAIN_WORDS[token] for token in row[1:]) for row in tokens) + "\n")
    return file


def draw_threshold(out: Path, models: str, limit: int) -> None:
    """Epsilon against what is masked, and what is saved when all but sinks and a window are dropped."""
    rules = ",".join(f"excess:epsilon={one}" for one in EPSILONS)
    budgets = ",".join(f"sinks:epsilon={one},window=4" for one in EPSILONS)
    asked = f"--task chain-writing --limit {limit}"
    masked, left = out / "epsilon-masked", out / "epsilon-dropped"
    kept(f"ablate {models} {asked} --rule {rules} --control random {AT_STEP} --out {masked}")
    kept(f"compress {models} {asked} --scorer sinks,random --budget {budgets} {PRUNED} --out {left}")
    grids = f"--ablation {masked} --compression {left}"
    sinkscope(f"figures {grids} --only threshold --format svg --out docs/figures/lab --overwrite")


def objective_of(cell: KeysCell) -> str:
    """Of the training that a model's folder is named by."""
    return next(one for one in OBJECTIVES if Path(cell.model).name.startswith(one))


def told(values: Sequence[float], digits: int = 2) -> str:
    """Mean over seeds, and the lowest and the highest."""
    one = Spread.of(list(values))
    return f"{one.mean:.{digits}f} ({one.lowest:.{digits}f} to {one.highest:.{digits}f})"


def print_shares(found: Sequence[Finding]) -> None:
    """Where sinks are, what they are for, and what it costs to hide them in one pass, by share of masks."""
    columns = {
        "above entropy": "excess", "first token": "first_received", "Sink_1": "sink_1", "deep": "sink_1_deep",
        "strongest key": "strongest_received", "at first": "strongest_first", "at a mask": "strongest_masked",
        "idle": "dormant", "busy": "active", "value norm": "value_norm", "key norm": "key_norm",
    }  # fmt: skip
    print(f"\n| objective | pass | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}")
    for one in found:
        cells = [_told(one, name) for name in columns.values()]
        print(f"| {one.objective} | {one.where} | {' | '.join(cells)} |")
    hidden = ("first", "strongest", "random", "equal-mass")
    print(f"\n| objective | pass | {' | '.join(hidden)} | removed: strongest, equal |\n|---|---|{'---|' * 5}")
    for one in found:
        costs = [_told(one, f"cost {name} all") for name in hidden]
        removed = [one.values[f"removed {name}"].mean for name in ("strongest", "equal-mass")]
        print(f"| {one.objective} | {one.where} | {' | '.join(costs)} | {removed[0]:.2f}, {removed[1]:.2f} |")


def _told(one: Finding, name: str) -> str:
    spread = one.values.get(name)
    return "" if spread is None else f"{spread.mean:.2f} ({spread.lowest:.2f} to {spread.highest:.2f})"


def print_motion(folders: Sequence[Path], traces: Path, prompts: int) -> None:
    """How strong sinks are, how long they live and how far they move while contexts are written; excess rule."""
    columns = {
        "maps with a sink": ("overview", "any"), "soft chance": ("overview", "any_random"),
        "sharp chance": ("overview", "any_sharp"), "strongest receives": ("overview", "top_received"),
        "moves": ("motion", "moved"), "steps alive (median)": ("lifetimes", "median_lifetime"),
        "to the nearest mask": ("distances", "absolute"), "of any key": ("distances", "absolute_base"),
        "heads with a sink": ("kinds", "sinks"), "no-op": ("kinds", "no_op"), "broadcast": ("kinds", "broadcast"),
        "mixed": ("kinds", "mixed"), "value norm": ("kinds", "value_ratio"), "output": ("kinds", "output_share"),
    }  # fmt: skip
    found: dict[str, list[dict[str, float]]] = {}
    for folder in folders:
        objective = next(one for one in OBJECTIVES if folder.name.startswith(one))
        report = watched(folder, traces / f"{folder.name}.zarr", prompts)
        rows = {table: table_rows(report.tables[table]) for table in TABLES}
        rows["distances"] = [row for row in rows["distances"] if row["mark"] == "nearest_masked"]
        means = {}
        for name, (table, column) in columns.items():
            known = [row[column] for row in rows[table] if row[column] is not None]
            if known:
                means[name] = fmean(known)
        found.setdefault(objective, []).append(means)
    print(f"\n| objective | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for objective, seeds in found.items():
        cells = [told([one[name] for one in seeds]) if name in seeds[0] else "" for name in columns]
        print(f"| {objective} | {' | '.join(cells)} |")


def print_masks(objective: str, folders: Sequence[Path], traces: Path, texts: int) -> None:
    """Networks under several masks: the same texts read, and where they learnt all masks, texts written under each."""
    held_out = Chains().sample(texts, 32, torch.Generator().manual_seed(11))
    columns = ("first_received", "sink_1", "received", "first", "same", "value_norm", "key_norm")
    for write in (False, True) if objective == "joint" else (False,):
        found: dict[str, list[dict[str, float]]] = {}
        for folder in folders:
            for mask, row in compared(folder, held_out, traces, write=write).items():
                found.setdefault(mask, []).append(row)
        print(f"\n{objective} {'writes' if write else 'reads'}:\n\n| mask | nats above | {' | '.join(columns)} |")
        print(f"|---|---|{'---|' * len(columns)}")
        for mask, rows in found.items():
            print(f"| {mask} | {_beside(rows, 'above')} | {' | '.join(_beside(rows, name) for name in columns)} |")


def print_written(folders: Sequence[Path], out: Path, limit: int) -> None:
    """What one network writes under each mask, plain and without its first token, in nats under the true chain."""
    print("\n| mask | plain, no first token, controls |\n|---|---|")
    for length in BLOCKS:
        folder = out / f"written-{length}"
        block = "" if length is None else f" --attention-block-length {length}"
        how = f"--rule first:1 --control random,equal-mass-at-step {AT_STEP}{block}"
        kept(f"ablate {' '.join(map(str, folders))} --task chain-writing {how} --limit {limit} --out {folder}")
        scores: dict[str, list[float]] = {}
        for cell in read_maskings(folder):
            scores.setdefault(cell.condition.masked, []).append(cell.outcome.score)
        print(f"| {length} | {'; '.join(f'{name} {told(some)}' for name, some in scores.items())} |")


def compared(folder: Path, texts: torch.Tensor, traces: Path, *, write: bool) -> dict[str, dict[str, float]]:
    """By mask: nats a symbol of held-out texts above their entropy, and the means of `compare_masks`."""
    entropy = -float(Chains().log_likelihood(texts).sum()) / texts[:, 1:].numel()
    found: dict[str, Trace] = {}
    above: dict[str, float] = {}
    # A network of next tokens sees a whole text only as one block of it.
    whole = texts.shape[1] if folder.name.startswith("next-token") else None
    for length in [one or whole for one in BLOCKS]:
        model = load_model(folder, dtype="float32", device="cpu", block_length=length)
        settings = writing_settings(model) if write else Denoising(gen_length=0, steps=0, block_length=None)
        prompts = [Prompt(f"t{n}", row[: PROMPT if write else None]) for n, row in enumerate(texts.tolist())]
        path = traces / f"{folder.name}-{length}-{'wrote' if write else 'read'}.zarr"
        recording = Recording(kinds=True, norms=True, by_group=None)
        trace = record(model, prompts, settings, out=path, overwrite=True, recording=recording, batch_size=len(prompts))
        found[mask_name(trace[0])] = trace
        if not write:
            values = [log_likelihood(model, row[:1], row[1:], mc_num=32, batch_size=32).value for row in texts.tolist()]
            above[mask_name(trace[0])] = -sum(values) / texts[:, 1:].numel() - entropy
    masks = compare_masks(found)
    rows = {label: masks.sel(mask=label).drop_dims("position").mean() for label in found}
    return {
        label: {**{str(name): float(value) for name, value in row.items()}, "above": above.get(label, nan)}
        for label, row in rows.items()
    }


def print_layers(folders: Sequence[Path], traces: Path, texts: int) -> None:
    """What the first token receives by layer, also where it alone can't see others and all else sees everything."""
    held_out = Chains().sample(texts, 32, torch.Generator().manual_seed(11)).tolist()
    found: dict[str, list[list[float]]] = {}
    for folder in folders:
        loaded = load_model(folder, dtype="float32", device="cpu", block_length=31)
        # Blocks of 31 tokens before the 32nd: the first token is left over, a block of its own.
        alone = replace(loaded, family=replace(loaded.family, blocks=Blockwise(length=31, from_prompt=True)))
        read = Denoising(gen_length=0, steps=0, block_length=None)
        path, recording = traces / f"{folder.name}-alone-read.zarr", Recording(by_group=None)
        record(alone, held_out, read, out=path, overwrite=True, recording=recording, batch_size=texts)
        masks = compare_masks(
            {str(one): open_trace(traces / f"{folder.name}-{one}-read.zarr") for one in (*BLOCKS, "alone")}
        )
        for label in masks["mask"].values:
            one = masks.sel(mask=label)
            chances = [float(one[f"first_received_{kind}"]) for kind in ("random", "sharp")]
            found.setdefault(label, []).append([*one["first_received"].values.tolist(), *chances])
    layers = len(next(iter(found.values()))[0]) - 2
    print(f"\n| mask | {' | '.join(f'layer {number}' for number in range(layers))} | chance |")
    print(f"|---|{'---|' * (layers + 1)}")
    for label, rows in found.items():
        cells = [told([row[number] for row in rows]) for number in range(layers)]
        chance = " to ".join(dict.fromkeys(f"{one:.2f}" for one in sorted(rows[0][layers:])))
        print(f"| {label} | {' | '.join(cells)} | {chance} |")


def _beside(rows: Sequence[Mapping[str, float]], name: str) -> str:
    """Mean over seeds, from lowest to highest, and chance where it is known."""
    values = [row[name] for row in rows]
    if any(value != value for value in values):
        return ""
    known = [f"{name}_{kind}" for kind in ("random", "sharp", "chance")]
    chances = [rows[0][one] for one in known if one in rows[0]]
    chance = f"; chance {' to '.join(dict.fromkeys(f'{one:.2f}' for one in chances))}" if chances else ""
    return told(values) + chance


def watched(folder: Path, trace: Path, prompts: int) -> SinkReport:
    """Contexts written at temperature 1 by a model, traced, and what the tables of sinks say."""
    model = load_model(folder, dtype="float32", device="cpu")
    starts = Chains().sample(prompts, PROMPT, torch.Generator().manual_seed(7)).tolist()
    settings = writing_settings(model)
    asked = [Prompt(f"p{number}", one) for number, one in enumerate(starts)]
    written = record(model, asked, settings, out=trace, overwrite=True, recording=Recording(kinds=True))
    return summarise(written, Excess(epsilon=3.0, scale="sum"))


def print_masked(name: str, cells: Sequence[KeysCell]) -> None:
    """Scores while keys are masked, mean over seeds, and the attention that was removed."""
    print(f"\n{name}:\n\n| objective | task | plain | sinks | {' | '.join(_controls(cells))} |")
    print(f"|---|---|---|---|{'---|' * len(_controls(cells))}")
    for objective in OBJECTIVES:
        for task in dict.fromkeys(cell.task for cell in cells):
            some = [cell for cell in cells if objective_of(cell) == objective and cell.task == task]
            print(f"| {objective} | {task} | {' | '.join(_scores(some))} |")


def _controls(cells: Sequence[KeysCell]) -> list[str]:
    found = dict.fromkeys(cell.condition.masked for cell in cells)
    return [name for name in found if name not in ("plain", "sinks")]


def _scores(some: Sequence[KeysCell]) -> list[str]:
    cells = []
    for masked in dict.fromkeys(one.condition.masked for one in some):
        alike = [one for one in some if one.condition.masked == masked]
        removed = [one.stats["removed"]["mass"] for one in alike if one.stats["removed"] is not None]
        beside = f"; {fmean(removed):.2f} removed" if removed else ""
        cells.append(told([one.outcome.score for one in alike]) + beside)
    return cells


def print_dropped(cells: Sequence[KeysCell]) -> None:
    """Scores while keys are dropped from the cache, mean over seeds."""
    print("\n| task | scorer | kept | score |\n|---|---|---|---|")
    groups: dict[tuple[str, str, str], list[float]] = {}
    for cell in cells:
        key = (cell.task, cell.condition.dropping, cell.condition.kept)
        groups.setdefault(key, []).append(cell.outcome.score)
    for (task, scorer, kept), scores in groups.items():
        print(f"| {task} | {scorer} | {kept} | {told(scores)} |")


def print_studies(found: Sequence[Finding]) -> None:
    """What every change of the recipe makes of the sink, of the loss and of the costs."""
    columns = {
        "above entropy": "excess", "first": "first_received", "Sink_1": "sink_1", "strongest": "strongest_received",
        "value norm": "value_norm", "hide strongest": "cost strongest all", "hide equal": "cost equal-mass all",
    }  # fmt: skip
    for objective, where in (("next-token", "text"), ("masked-diffusion", "masked 0.5")):
        print(f"\n{objective}, {where}:\n\n| changed | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
        some = [one for one in found if (one.objective, one.where) == (objective, where)]
        for one, label in zip(some, labels(some), strict=True):
            print(f"| {label} | {' | '.join(_told(one, name) for name in columns.values())} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), quick="--quick" in sys.argv)
