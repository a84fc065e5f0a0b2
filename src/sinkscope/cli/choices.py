"""Names that options take, known without importing what they name: helps and mistakes in options come at once.

What files itself in a folder is read from there. The rest is written down here, and a test compares both with what the
rooms have.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import sinkscope
from sinkscope.discovery import is_filed, parted_spec, split_specs
from sinkscope.errors import UserError

_FILED = re.compile(r'^@\w+\("([a-z0-9-]+)"', re.MULTILINE)


def filed(folder: str) -> tuple[str, ...]:
    """The names under which classes or functions of a folder or file of the package file themselves, sorted."""
    place = Path(sinkscope.__file__).parent / folder
    files = place.glob("*.py") if place.is_dir() else [place.with_suffix(".py")]
    return tuple(sorted(name for file in files for name in _FILED.findall(file.read_text(encoding="utf-8"))))


def check_names(what: str, names: Iterable[str], known: tuple[str, ...], hint: str = "") -> None:
    """Raise `UserError`, which ends with the hint, for a name that is not known, nor filed by a plugin."""
    for name in names:
        if name not in known and not is_filed(what, name):
            raise UserError(f"unknown {what} {name!r}: use one of {', '.join(known)}{hint}")


def check_specs(what: str, given: Iterable[str], known: tuple[str, ...]) -> list[str]:
    """The names of specs, with commas between them. Raises `UserError` for one that is not known."""
    names = [parted_spec(spec)[0] for spec in split_specs(given)]
    check_names(what, names, known)
    return names


DTYPES = ("float32", "bfloat16", "float16", "float64")
CONFIDENCE = ("max-prob", "margin", "entropy", "random", "left-to-right")
SCHEDULES = ("blocks", "shares", "linear", "dream")
CACHES = ("prefix", "dual", "blocks")
REFRESH_RULES = filed("decoding/refresh_rules")
STOPS = ("block", "at-once")
KERNELS = ("one-pass", "two-pass", "fused")

RULES = filed("sinks/rules")
SCALES = ("sum", "percent", "mean")
GROUPS = (
    "prompt", "committed", "block-committed", "block-masked", "later", "masked", "block", "all-committed", "all",
    "kept", "changed",
)  # fmt: skip
CLASSES = ("mask", "special", "newline", "punctuation", "prompt", "other")
SINK_TABLES = (
    "overview", "layers", "heads", "epsilon", "tokens", "classes", "positions", "lifetimes", "motion", "stability",
    "distances", "groups", "sink-k", "value-norms", "key-norms", "kinds",
)  # fmt: skip
NORM_TABLES = ("overview", "correlation", "heads", "phases", "loss", "overlap", "stability")
AMONG = ("all", "outside-block", "tokens")

LAB_OBJECTIVES = ("next-token", "masked-diffusion", "adapted", "joint")
LAB_STUDIES = ("default", "data", "length", "optimisation", "network", "mitigation")
CONTROLS = filed("interventions/controls")
DETECT = ("previous", "same")
DETECT_FROM = ("masked", "clean")
HOW = ("scores", "values", "mean", "resample")
REFERENCES = ("little", "prose", "reactions")

SCORERS = filed("compression/scorers")
DEFAULT_SCORERS = ("key-norm", "high-key-norm", "random", "streaming")
DEFAULT_RATIOS = (1.0, 0.75, 0.5, 0.25, 0.1)
EVICTION_POINTS = {
    "context": "the context, before the question is read",
    "prompt": "context and question, after both were read",
    "decode": "whenever there are more than --prune-after keys",
    "block": "a diffusion model's block cache, after each block's first pass",
}
WINDOW = 1000

LITTLE = (
    "arithmetic-1", "arithmetic-2", "arithmetic-3", "passkey", "lookup", "tracking", "copy", "reverse", "sort",
)  # fmt: skip
CHAIN_TASKS = ("back-copy", "recall")
TASKS = (*LITTLE, *CHAIN_TASKS)
RULER = (
    "single-1", "single-2", "single-3", "multikey-1", "multikey-2", "multikey-3", "multivalue", "multiquery", "vt",
    "cwe", "fwe",
)  # fmt: skip
MEASURES = (
    *TASKS, "chain-writing", "needle", *(f"ruler-{name}" for name in RULER), "perplexity", "continuations",
    "infilling-RATIO", "likelihood-TASK", "lm-eval:TASK", "FILE", "FILE.jsonl",
)  # fmt: skip
MAX_EXAMPLE_TOKENS = 64
TWINS = ("twin-ar", "twin-dlm", "twin-adapted")
CHAINS = ("chain-ar", "chain-dlm", "chain-adapted")

FIGURES = filed("report/figures")
FORMATS = ("svg", "pdf", "png")
MOST_MEGABYTES = 64.0

SELECTORS = tuple(sorted(filed("selection/selectors") + filed("selection/merging")))
DEFAULT_SELECTORS = ("gates", "random", "cls-attention", "key-norm")
DIGITAL = ("jpeg", "resized")
CHANNELS = filed("selection/channels")
MODES = filed("selection/modes")
PROCESSES = filed("selection/control/processes")
SHIPPED = ("fashion-mnist", "digits")
ALPHAS = (0.1, 0.3, 0.5, 1.0)
RATES = (0.25,)
PICTURES, PICTURES_TOGETHER = 1000, 250
