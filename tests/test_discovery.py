"""Names are given once in every register; the language of specs; and plugins."""

import importlib
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.compression.scorers import SCORERS
from sinkscope.compression.scorers.base import read_scorer
from sinkscope.discovery import Names, Register, is_filed, load_plugin, split_specs
from sinkscope.errors import UserError
from sinkscope.evaluation import TASKS, Examples, MeasureOptions, find_measure
from sinkscope.experiments.eviction import EvictionGrid, compress_caches, read_evictions, verdicts
from sinkscope.experiments.masking import MaskingGrid, ablate, read_maskings
from sinkscope.families import load_model
from sinkscope.grids import Keeping
from sinkscope.interventions import CONTROLS
from sinkscope.report.figures import FIGURES
from sinkscope.selection.backbones import BACKBONES
from sinkscope.selection.channels import CHANNELS
from sinkscope.selection.digital import DIGITAL
from sinkscope.sinks import RULES, TABLES
from sinkscope.sinks.rules import read_rule

EVERY = {
    "rule": RULES, "table": TABLES, "control": CONTROLS, "scorer": SCORERS, "task": TASKS, "figure": FIGURES,
    "channel": CHANNELS, "baseline": DIGITAL, "backbone": BACKBONES,
}  # fmt: skip


@pytest.mark.parametrize("names", EVERY.values(), ids=EVERY)
def test_a_built_in_is_not_replaced(names: Names[object]) -> None:
    before = dict(names)
    taken = next(iter(before))
    with pytest.raises(UserError, match=f"{taken}.* already.*another name"):
        names.add(taken, type("Mine", (), {"__module__": "mine"}))
    assert dict(names) == before
    names.add(taken, before[taken])
    with pytest.raises(UserError, match="unknown"):
        names.find("no such name")


def test_a_module_imported_again_files_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a notebook that reloads."""
    (tmp_path / "reloaded_rule.py").write_text(
        "from sinkscope.sinks.rules import TopK, sink_rule\n\n@sink_rule('reloaded')\nclass Mine(TopK): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(RULES, "_things", dict(RULES))
    module = importlib.import_module("reloaded_rule")
    first = RULES["reloaded"]
    importlib.reload(module)
    assert RULES["reloaded"] is not first and RULES["reloaded"].__qualname__ == first.__qualname__


KINDS: Register[object] = Register("pudding")


@KINDS.file("custard")
@dataclass(frozen=True)
class Custard:
    """With a parameter of every type that a spec may give."""

    eggs: int = 3
    sugar: float = 0.5
    vanilla: bool = False
    dish: str = "bowl"
    layers: int | None = None


@KINDS.file("plain-jelly")
@dataclass(frozen=True)
class PlainJelly:
    """Without parameters."""


WORDS = st.text(string.ascii_letters + string.digits + "-_", min_size=1, max_size=9)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "eggs": st.integers(-9, 10**12),
        "sugar": st.floats(allow_nan=False, allow_infinity=False),
        "vanilla": st.booleans(),
        "dish": WORDS,
        "layers": st.integers(0, 99),
    },
)
PARTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), WORDS).map(
    lambda some: ",".join(f"{name}={value}" for name, value in some.items())
)
SPECS = st.builds(lambda name, parts: f"{name}:{parts}" if parts else name, WORDS, PARTS)


@settings(max_examples=100, deadline=None)
@given(SETTINGS, st.sampled_from([",", ";", " , "]), st.randoms())
def test_whatever_is_written_is_read_again(wanted: dict[str, object], between: str, random: object) -> None:
    items = list(wanted.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    spec = "custard:" + between.join(f"{name}={value}" for name, value in items)
    assert KINDS.read(spec) == Custard(**wanted)  # type: ignore[arg-type]
    assert KINDS.read(f"  {spec}  ") == Custard(**wanted)  # type: ignore[arg-type]


@settings(max_examples=100, deadline=None)
@given(st.lists(SPECS, min_size=1, max_size=5), st.data())
def test_lists_of_specs_come_apart_where_they_were_joined(specs: list[str], data: st.DataObject) -> None:
    """By commas, given once or several times, however they are mixed."""
    cuts = data.draw(st.sets(st.integers(1, len(specs) - 1))) if len(specs) > 1 else set()
    given = [specs[start:stop] for start, stop in _between(sorted(cuts), len(specs))]
    assert split_specs(",".join(some) for some in given) == specs
    assert split_specs(" , ".join(some) for some in given) == specs


def _between(cuts: list[int], end: int) -> Iterator[tuple[int, int]]:
    yield from zip([0, *cuts], [*cuts, end], strict=True)


def test_the_first_parameter_needs_no_name() -> None:
    assert KINDS.read("custard:7") == Custard(7) == KINDS.read("custard:eggs=7")
    assert KINDS.read("custard:7,sugar=1e-3;vanilla=TRUE") == Custard(7, 0.001, True)
    assert KINDS.read("custard") == KINDS.read("custard:") == Custard()
    assert KINDS.read("plain-jelly") == PlainJelly()
    assert KINDS.read("custard:dish=2") == Custard(dish="2")  # text stays text


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("trifle", ("unknown pudding 'trifle'", "custard, plain-jelly")),
        ("", ("unknown pudding ''", "custard")),
        ("custard:eggs=3.5", ("eggs takes a whole number", "'3.5'")),
        ("custard:eggs=", ("eggs takes a whole number",)),
        ("custard:sugar=sweet", ("sugar takes a number", "'sweet'")),
        ("custard:sugar=nan", ("sugar takes a number", "'nan'")),
        ("custard:sugar=inf", ("sugar takes a number",)),
        ("custard:vanilla=1", ("vanilla takes true or false",)),
        ("custard:layers=two", ("layers takes a whole number",)),
        ("custard:salt=1", ("has no parameter 'salt'", "eggs, sugar, vanilla, dish, layers")),
        ("custard:eggs=1,eggs=2", ("names eggs twice",)),
        ("custard:1,eggs=2", ("names eggs twice",)),
        ("custard:sugar=1,2", ("parameters are written name=value", "'2'")),
        ("plain-jelly:3", ("parameters are written name=value", "'3'")),
        ("plain-jelly:eggs=3", ("has no parameter 'eggs'", "has none")),
    ],
)
def test_specs_that_are_none_are_refused_with_what_there_is(spec: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as refused:
        KINDS.read(spec)
    assert all(word in str(refused.value) for word in words) and "\n" not in str(refused.value)


PLUGIN = """
from dataclasses import dataclass

import torch

from sinkscope.compression.scorers.base import Scorer, scorer
from sinkscope.interventions.controls import Control, control, lowest_ranked
from sinkscope.sinks.rules import First, sink_rule


@scorer("plugged-latest")
@dataclass(frozen=True)
class Latest(Scorer):
    keep: int = 0

    def importance(self, cached):
        return cached.positions.float()

    def protects(self, length, prompt_length):
        return self.keep


@sink_rule("plugged-first")
@dataclass(frozen=True)
class Mine(First): ...


@control("plugged-leftmost")
class Leftmost(Control):
    noisy = False

    def choose(self, situation):
        places = torch.arange(situation.candidates.shape[-1], device=situation.candidates.device)
        order = places.expand(situation.candidates.shape).double()
        return lowest_ranked(order, situation.candidates, situation.sinks.sum(-1))
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Path]:
    """A file of the user's that files a scorer, a rule and a control; gone from the registers afterwards."""
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)
    registers: tuple[Any, ...] = (SCORERS, RULES, CONTROLS)
    before = [dict(names) for names in registers]
    yield file
    for names, things in zip(registers, before, strict=True):
        names._things = things


def test_a_plugin_files_a_scorer_a_rule_and_a_control(plugin: Path) -> None:
    for names in (SCORERS, RULES, CONTROLS):
        assert not [name for name in names if name.startswith("plugged")]
    load_plugin(plugin)
    assert "plugged-latest" in SCORERS and "plugged-first" in RULES and "plugged-leftmost" in CONTROLS
    assert is_filed("scorer", "plugged-latest") and not is_filed("scorer", "plugged-first")
    load_plugin(plugin)  # again, as in a notebook
    with pytest.raises(UserError, match="already"):
        load_plugin(plugin.rename(plugin.with_name("other.py")))


def test_what_a_plugin_imports_stays_when_it_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that are imported are not run again, so what they have filed must not be dropped."""
    names = Names[str]("sham unit")
    monkeypatch.setattr("sinkscope.discovery.SHAM", names, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    add = "from sinkscope import discovery\ndiscovery.SHAM.add({0!r}, {0!r})\n"
    (tmp_path / "sham_library.py").write_text(add.format("of the library"))
    file = tmp_path / "sham_plugin.py"
    for own in ("first", "second"):
        file.write_text(f"import sham_library\n{add.format(own)}")
        load_plugin(file)
        assert set(names) == {"of the library", own}


@pytest.mark.filterwarnings("ignore::sinkscope.errors.TrainedLengthWarning")
def test_what_a_plugin_files_is_at_work_in_grids(plugin: Path, tmp_path: Path, twin_folders: dict[str, Path]) -> None:
    """As built-ins are: named by specs, kept in cells, and read again."""
    load_plugin(plugin)
    model = load_model(twin_folders["twin-ar"], device="cpu")
    few = Examples(n=3, max_example_tokens=30)
    grid = MaskingGrid(keys=(read_rule("plugged-first:2"),), controls=("plugged-leftmost",))
    ablate([find_measure("copy", MeasureOptions(examples=few))(model)], grid, Keeping(out=tmp_path / "masked"))
    plain, sinks, other = read_maskings(tmp_path / "masked")
    assert (plain.condition.intervention, sinks.condition.masked, other.condition.masked) == (
        None, "sinks", "plugged-leftmost",
    )  # fmt: skip
    assert sinks.stats["removed"]["keys"] == other.stats["removed"]["keys"] == 2
    dropping = EvictionGrid(scorers=(read_scorer("plugged-latest:keep=1"), "random"), budgets=(0.5,))
    measure = find_measure("passkey", MeasureOptions(examples=few, cached=True))(model)
    compress_caches([measure], dropping, Keeping(out=tmp_path / "dropped"))
    _, latest, random = read_evictions(tmp_path / "dropped")
    assert latest.condition.scorer == "plugged-latest keep 1" and latest.stats["kept"] == random.stats["kept"] < 1
    [verdict] = verdicts([latest, random])
    assert "plugged-latest keep 1" in str(verdict)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("gone.py", None, "is no file; name a Python file"),
        ("notes.txt", "x = 1", "its name must end with .py"),
        ("broken.py", "def", "can't be run.*invalid syntax|can't be run"),
        ("failing.py", "raise ValueError('by design')", "can't be run.*by design"),
        ("missing.py", "import no_such_package_here", "can't be run.*no_such_package_here"),
    ],
)
def test_plugins_that_fail_are_told_with_their_cause(tmp_path: Path, name: str, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=said) as refused:
        load_plugin(tmp_path / name)
    assert name in str(refused.value)
