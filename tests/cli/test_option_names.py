"""Names that helps show are those that the rooms have, and showing them imports none of the large libraries."""

import json
import subprocess
import sys
from collections.abc import Iterable

import pytest

from sinkscope.attention.kernels import KERNELS
from sinkscope.cli import choices
from sinkscope.compression import SCORERS
from sinkscope.compression.diagnostics import AMONG, NORM_TABLES
from sinkscope.decoding import CACHES, CONFIDENCE, SCHEDULES
from sinkscope.decoding.settings import STOPS
from sinkscope.evaluation import MAX_EXAMPLE_TOKENS
from sinkscope.evaluation.eviction_points import EVICTION_POINTS
from sinkscope.evaluation.measures import NAMES
from sinkscope.evaluation.measuring import WINDOW
from sinkscope.evaluation.tasks import TASKS
from sinkscope.evaluation.texts import TEXTS
from sinkscope.experiments import eviction, patches, pictures
from sinkscope.families.model import DTYPES
from sinkscope.interventions import CONTROLS, DETECT, DETECT_FROM, HOW
from sinkscope.lab.studies import OBJECTIVES, STUDIES
from sinkscope.report.figures import FIGURES, FORMATS
from sinkscope.report.page import MOST_MEGABYTES
from sinkscope.selection import control
from sinkscope.selection.channels import CHANNELS
from sinkscope.selection.digital import DIGITAL
from sinkscope.selection.modes import MODES
from sinkscope.selection.saved import SHIPPED
from sinkscope.selection.selectors import SELECTORS
from sinkscope.sinks import CLASSES, GROUPS, RULES, SCALES, TABLES
from sinkscope.training import KINDS

LARGE = ("torch", "transformers", "xarray", "zarr", "matplotlib", "numpy")
COMMANDS = [
    "info", "generate", "chat", "trace", "sinks", "norms", "figures", "report", "view", "push", "pull", "export",
    "evaluate", "ablate", "compress", "train", "demo", "select",
    *(f"select {name}" for name in ("train", "evaluate", "maps", "control", "agree")),
]  # fmt: skip


def test_names_are_those_of_the_rooms() -> None:
    for shown, there in [
        (choices.DTYPES, DTYPES), (choices.CONFIDENCE, CONFIDENCE), (choices.SCHEDULES, SCHEDULES),
        (choices.CACHES, CACHES), (choices.STOPS, STOPS),
        (choices.KERNELS, KERNELS), (choices.SCALES, SCALES), (choices.GROUPS, GROUPS),
        (choices.CLASSES, CLASSES), (choices.SINK_TABLES, TABLES), (choices.NORM_TABLES, NORM_TABLES),
        (choices.AMONG, AMONG), (choices.DETECT, DETECT), (choices.DETECT_FROM, DETECT_FROM), (choices.HOW, HOW),
        (choices.REFERENCES, TEXTS),
        (choices.DEFAULT_SCORERS, eviction.DEFAULT_SCORERS), (choices.DEFAULT_RATIOS, eviction.DEFAULT_RATIOS),
        (choices.TASKS, TASKS), (choices.MEASURES, NAMES),
        (choices.LAB_OBJECTIVES, OBJECTIVES), (choices.LAB_STUDIES, STUDIES),
        (choices.TWINS, KINDS), (choices.FORMATS, FORMATS), (choices.SHIPPED, SHIPPED),
        (choices.DEFAULT_SELECTORS, patches.DEFAULT_SELECTORS), (choices.ALPHAS, patches.DEFAULT_ALPHAS),
        (choices.RATES, patches.DEFAULT_RATES),
    ]:  # fmt: skip
        assert shown == tuple(there)
    pairs: list[tuple[Iterable[str], Iterable[str]]] = [
        (choices.RULES, RULES), (choices.CONTROLS, CONTROLS), (choices.SCORERS, SCORERS), (choices.FIGURES, FIGURES),
        (choices.SELECTORS, SELECTORS), (choices.CHANNELS, CHANNELS), (choices.MODES, MODES),
        (choices.DIGITAL, DIGITAL), (choices.PROCESSES, control.PROCESSES),
    ]  # fmt: skip
    for names, registered in pairs:
        assert set(names) == set(registered)
    assert {name: way.about for name, way in EVICTION_POINTS.items()} == choices.EVICTION_POINTS
    assert (choices.MAX_EXAMPLE_TOKENS, choices.WINDOW, choices.MOST_MEGABYTES) == (
        MAX_EXAMPLE_TOKENS,
        WINDOW,
        MOST_MEGABYTES,
    )
    assert (choices.PICTURES, choices.PICTURES_TOGETHER) == (pictures.PICTURES, pictures.BATCH)


def test_helps_and_mistakes_in_options_import_no_large_library() -> None:
    asked = [["--version"], ["--help"], *([*name.split(), "--help"] for name in COMMANDS)]
    mistakes = [
        ["bogus"], ["sinks", "./nowhere"], ["sinks", "t", "--group", "moon"],
        ["generate", "./nowhere", "--prompt", "a"],
        ["trace", "m", "--out", "t", "--prompt", "a", "--dtype", "int8"], ["ablate", "m", "--task", "moon"],
        ["ablate", "m", "--task", "copy", "--rule", "moon:k=3"],
        ["compress", "m", "--task", "copy", "--scorer", "moon"],
        ["report", "./nowhere"], ["export", "./nowhere", "--parquet", "--out", "x.parquet"],
        ["figures", "./nowhere"], ["evaluate", "m", "--n", "0"],
        ["ablate", "./nowhere", "--task", "copy"], ["info", "./nowhere"],
    ]  # fmt: skip
    script = (
        "import json, sys; from sinkscope.cli.main import run; "
        "codes = [run(line) for line in json.loads(sys.argv[1])]; "
        f"print(json.dumps([codes, sorted(set({LARGE!r}) & set(sys.modules))]), file=sys.stderr)"
    )
    lines = json.dumps([*asked, *mistakes])
    done = subprocess.run([sys.executable, "-c", script, lines], capture_output=True, text=True, timeout=120)
    codes, imported = json.loads(done.stderr.splitlines()[-1])
    assert codes == [0] * len(asked) + [2] * len(mistakes)
    assert imported == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_in_the_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from sinkscope.cli.main import run

    assert run([*name.split()[:-1], "--help"]) == 0
    assert name.split()[-1] in capsys.readouterr().out
