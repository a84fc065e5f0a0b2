"""Whether a change of the code changed a number: run a fixed set of commands, store what comes out, compare later.

    python benchmarks/same_numbers.py store numbers.json       # before the change
    python benchmarks/same_numbers.py compare numbers.json     # after it: "equal", or every number that differs

The set: traces of every reference checkpoint under `tests/fixtures`, of the twins and of the packaged models, array by
array; all tables of sinks; key norms; the grids of `ablate`, `compress` and `select evaluate`; task scores; the data
of every figure, read from what matplotlib draws. Numbers are compared exactly, so both runs must be on one machine.

What may change with the code is how a number is called. `NAMES` maps a new name to the one it had when the file was
stored, and `UNSTABLE` lists what no two runs share. A number that is new is told, and is no difference.
"""

import contextlib
import hashlib
import io
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import sinkscope as ss
from sinkscope.cli.main import run
from sinkscope.decoding import default_settings

FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures"
NAMES: dict[str, str] = {"max_example_tokens": "room", "exceptions": "around"}
UNSTABLE = {
    "seconds", "tokens_per_second", "peak_memory", "experiment", "path", "trace", "bytes", "versions", "sinkscope",
    "torch", "transformers", "sionna", "pillow", "files", "out", "batch_size",
}  # fmt: skip
PASSKEY = "Ann has the ball. The passkey is 315. Bo has the cup. What is the passkey? =>"
IDS = [5, 9, 14, 22, 30, 7]
TRACES: dict[str, tuple[Any, dict[str, Any]]] = {
    "llada-tiny": (IDS, {"gen_length": 24, "block_length": 8, "steps": 12}),
    "mmada-tiny": (IDS, {"gen_length": 24, "block_length": 8, "steps": 12, "confidence": "random"}),
    "llada-gqa-tiny": (IDS, {"gen_length": 16, "block_length": 8, "steps": 16, "cache": "dual"}),
    "dream-tiny": (IDS, {"gen_length": 16, "steps": 8, "confidence": "entropy"}),
    "twin-dlm": (PASSKEY, {"gen_length": 8, "steps": None, "block_length": None}),
    "twin-adapted": (PASSKEY, {"gen_length": 8, "steps": None, "block_length": None, "cfg_scale": 0.5}),
    "twin-ar": (PASSKEY, {"max_new_tokens": 8}),
    "smollm2-135m": ("The capital of France is", {"max_new_tokens": 6}),
    "rxnmapper": ("CC(=O)O.OCC>>CC(=O)[MASK][MASK]C", {}),
}
"""Prompt and settings of each trace; prompts of models without a tokenizer are token ids."""
RECORDING = ss.Recording(norms=True, entropy=True, by_group="heads")
GRIDS = {
    "ablate": "ablate twin-ar twin-dlm --task passkey --control random,equal-mass,lowest --limit 8",
    "ablate-perplexity": "ablate twin-ar --task perplexity --control random --limit 4",
    "ablate-infilling": "ablate twin-dlm --task infilling-0.3 --control random --strongest 1 --detect same "
    "--first-step 0 --limit 4",
    "compress": "compress twin-ar twin-dlm --task passkey --scorer key-norm,random,snapkv --ratio 0.75,0.5 --limit 8",
    "compress-needle": "compress twin-ar --task needle --scorer key-norm,streaming --ratio 0.5 --limit 2",
    "select": "select evaluate digits --data digits --selector gates,random,key-norm --alpha 0.3,1 --snr none,0 "
    "--limit 48",
    "evaluate": "evaluate twin-ar --limit 8",
}


def main() -> None:
    """Store the numbers or compare them; exit code 1 where one differs."""
    if len(sys.argv) != 3 or sys.argv[1] not in ("store", "compare"):
        sys.exit("usage: same_numbers.py store|compare FILE")
    action, file = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    found = dict(numbers())
    if action == "store":
        file.write_text(json.dumps(found, indent=0))
        print(f"{len(found)} numbers stored in {file}")
        return
    stored = {name: value for name, value in json.loads(file.read_text()).items() if name.split()[-1] not in UNSTABLE}
    differing = [name for name, value in stored.items() if name in found and found[name] != value]
    gone = [name for name in stored if name not in found]
    new = [name for name in found if name not in stored]
    for word, names in (("differs", differing), ("is gone", gone)):
        for name in names:
            print(f"{name} {word}: {stored[name]} -> {found.get(name)}")
    print(f"{len(stored)} numbers, {len(differing)} differ, {len(gone)} are gone, {len(new)} are new")
    print("not equal" if differing or gone else "equal")
    sys.exit(1 if differing or gone else 0)


def numbers() -> Iterator[tuple[str, Any]]:
    """Every number by a name that says where it comes from."""
    with tempfile.TemporaryDirectory() as folder:
        traces = dict(_traces(Path(folder)))
        for name, trace in traces.items():
            print(name, file=sys.stderr)
            yield from _arrays(name, trace)
            yield from _flat(f"sinks {name}", _json(f"sinks {trace} --table all"))
        for name, line in GRIDS.items():
            print(name, file=sys.stderr)
            yield from _flat(name, _json(line))
        for name in ("twin-dlm", "twin-ar"):
            yield from _flat(f"norms {name}", _json(f"norms {traces[name]}"))
            yield from _drawn(name, traces[name], Path(folder) / f"figures-{name}")


def _traces(folder: Path) -> Iterator[tuple[str, Path]]:
    for name, (prompt, changes) in TRACES.items():
        model = ss.load_model(FIXTURES / name if (FIXTURES / name).exists() else name, device="cpu")
        settings = replace(default_settings(model), **changes)
        out = folder / f"{name}.zarr"
        ss.record(model, [prompt], settings, out=out, recording=RECORDING)
        yield name, out


def _arrays(name: str, trace: Path) -> Iterator[tuple[str, Any]]:
    """A digest of every array of a trace's sample, and its sum, which says how far apart two are."""
    sample = ss.open_trace(trace)[0]
    for variable in map(str, sample.variables):
        values = np.ascontiguousarray(sample[variable].values)
        if values.dtype.kind in "fiub":
            exact = values.astype(np.float64)
            yield f"trace {name} {variable} sum", float(np.nansum(exact))
            yield f"trace {name} {variable} digest", hashlib.sha256(exact.tobytes()).hexdigest()[:16]


def _drawn(name: str, trace: Path, folder: Path) -> Iterator[tuple[str, Any]]:
    """Lines, bars and images of every figure, as they are drawn."""
    figures: dict[str, Figure] = {}
    save = Figure.savefig

    def keep(figure: Figure, target: Any, *arguments: Any, **options: Any) -> None:
        figures[f"figure-{len(figures)}"] = figure
        save(figure, target, *arguments, **options)

    mpl.use("agg")
    with mock.patch.object(Figure, "savefig", keep):
        _run(["figures", str(trace), "--out", str(folder)])
    for title, figure in figures.items():
        for number, axes in enumerate(figure.axes):
            data: list[Any] = [np.asarray(line.get_xydata()) for line in axes.lines]
            data += [np.asarray(image.get_array()) for image in axes.images]
            data += [np.array([bar.get_x(), bar.get_height()]) for bar in axes.patches if isinstance(bar, Rectangle)]
            joined = np.concatenate([np.ravel(np.asarray(part, dtype=np.float64)) for part in data] or [np.empty(0)])
            yield f"{name} {title} axes {number}", f"{joined.size} {np.nansum(joined):.12g}"


def _json(line: str) -> Any:
    text = _run([*shlex.split(line), "--json"])
    return json.loads(text)


def _run(arguments: list[str]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = run(arguments)
    if code != 0:
        sys.exit(f"sinkscope {' '.join(arguments)} ended with {code}")
    return printed.getvalue()


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of a document; what no two runs share is left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in UNSTABLE:
                yield from _flat(f"{name} {NAMES.get(key, key)}", inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _flat(f"{name} {number}", inner)
    elif value is not None:
        yield name, value


if __name__ == "__main__":
    main()
