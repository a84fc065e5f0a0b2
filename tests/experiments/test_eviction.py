"""Grids of compressed caches: cells, resuming, what they say, and what is refused."""

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_cells import eviction_cells, exact

from sinkscope.compression import Compress, Protect, Tokens, make_scorer
from sinkscope.errors import UserError
from sinkscope.evaluation import Examples, KeysCondition, MeasureOptions, find_measure
from sinkscope.evaluation.answers import ExactAnswers
from sinkscope.evaluation.conditions import WHOLE
from sinkscope.experiments.eviction import (
    EvictionGrid,
    KeysCell,
    compress_caches,
    contrasts,
    read_evictions,
    verdicts,
)
from sinkscope.experiments.eviction_table import COLUMNS, TABLES, records
from sinkscope.experiments.masking import MaskingGrid, ablate
from sinkscope.families import Model, load_model
from sinkscope.grids import Keeping, Outcome, as_csv


@pytest.fixture(scope="module")
def twin(twin_folders: dict[str, Path]) -> Model:
    """An untrained autoregressive twin."""
    return load_model(twin_folders["twin-ar"], device="cpu")


def grid_of(twin: Model, n: int = 4, **changes: Any) -> Callable[..., list[KeysCell]]:
    examples = Examples(n=n, seed=1, max_example_tokens=36, batch_size=3)
    measure = find_measure("passkey", MeasureOptions(examples=examples, cached=True))(twin)
    grid = EvictionGrid(**{"scorers": ("key-norm", "random"), "budgets": (1.0, 0.5), "draws": 2, **changes})
    return lambda **options: compress_caches([measure], grid, Keeping(**options))


def test_cells_are_scorers_by_layers_by_budgets_by_draws() -> None:
    grid = EvictionGrid(
        scorers=("random", make_scorer("snapkv", window=32)), budgets=(1.0, 0.5, 64), skips=((), (0, 1)), draws=2,
        seed=7, protect_first=4,
    )  # fmt: skip
    named = [(one.scorer, one.exceptions, one.kept) for one in grid.conditions("context")]
    assert named == [(WHOLE, "", "1")] + [
        (scorer, exceptions, kept)
        for scorer, draws in (("random", 2), ("snapkv window 32", 1))
        for exceptions in ("first 4", "skip 0 1, first 4")
        for kept in ("0.5", "64 tokens")
        for _ in range(draws)
    ]
    made = [one.compression for one in grid.conditions("context") if one.compression is not None]
    assert [one.seed for one in made[:3]] == [7, 8, 7]
    assert isinstance(made[0].how, Protect) and made[2].much == Tokens(64)
    assert {one.when for one in made} == {"prompt"}
    [_, pruned] = EvictionGrid(scorers=("random",), budgets=(0.5,), prune_after=9).conditions("decode")
    assert pruned.compression == Compress("random", 0.5, when="decode", prune_after=9)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"budgets": (1.0,)}, "nothing is dropped in this grid"),
        ({"scorers": ()}, "nothing is dropped in this grid"),
        ({"budgets": (0.5, 0.5)}, "budget 0.5 is named twice"),
        ({"scorers": ("random", "random")}, "scorer 'random' is named twice"),
        ({"skips": ((0,), (0,))}, "set of layers"),
        ({"scorers": ("lowest",)}, "unknown scorer 'lowest'"),
        ({"budgets": (0.0,)}, "above 0 and be at most 1, got 0.0"),
        ({"budgets": (1.5,)}, "above 0 and be at most 1, got 1.5"),
        ({"draws": 0}, "draws must be at least 1"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        EvictionGrid(**wrong)


def test_caches_stand_beside_one_another(twin_folders: dict[str, Path], tmp_path: Path) -> None:
    model = load_model(twin_folders["twin-dlm"], device="cpu")
    caches = ("none", "dual", "dkv:refresh=1", "elastic:window=2")
    cells = grid_of(model, scorers=(), caches=caches)(out=tmp_path / "grid")
    assert [one.condition.scorer for one in cells] == [WHOLE, *(f"cache {name}" for name in caches)]
    line = TABLES.settings_line(records(cells))
    assert line.startswith("decoding: cache dual, none, dkv:refresh=1 and elastic:window=2, block length")
    assert [one.condition for one in read_evictions(tmp_path / "grid")] == [one.condition for one in cells]
    _, exact_run, dual, whole, elastic = (one.stats for one in cells)
    assert cells[3].outcome.score == cells[1].outcome.score
    assert whole["computed"] == exact_run["computed"] > elastic["computed"] > 0
    assert dual["passes"] == exact_run["passes"] and dual["computed"] < exact_run["computed"]
    assert dual["cache_bytes"] > 0 and whole["cache_bytes"] > 0 and exact_run["cache_bytes"] == 0
    assert [one["difference"] for one in records(cells)] == [
        None,
        None,
        *(one.outcome.score - cells[1].outcome.score for one in cells[2:]),
    ]
    with pytest.raises(UserError, match="--caches are of diffusion models"):
        EvictionGrid(caches=("none",)).conditions("prompt")
    with pytest.raises(UserError, match="unknown cache 'dkw'"):
        EvictionGrid(caches=("dkw",))


def test_pruning_needs_a_number_and_only_pruning_takes_one() -> None:
    with pytest.raises(UserError, match="--when decode needs --prune-after"):
        EvictionGrid().conditions("decode")
    with pytest.raises(UserError, match="--prune-after is for --when decode"):
        EvictionGrid(prune_after=3).conditions("context")


def test_cells_are_kept_and_taken_up_again(twin: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = grid_of(twin)(out=tmp_path / "grid")
    assert [(row.condition.scorer, row.draw) for row in first] == [
        (WHOLE, 0), ("key-norm", 0), ("random", 0), ("random", 1),
    ]  # fmt: skip
    with pytest.raises(UserError, match="holds cells already"):
        grid_of(twin)(out=tmp_path / "grid")
    asked: list[Compress | None] = []
    run = ExactAnswers.run

    def counted(self: ExactAnswers, condition: KeysCondition, observer: Callable[[int], None]) -> Any:
        asked.append(condition.compression)
        return run(self, condition, observer)

    monkeypatch.setattr(ExactAnswers, "run", counted)
    again = grid_of(twin)(out=tmp_path / "grid", resume=True)
    assert asked == [] and [row.seconds for row in again] == [row.seconds for row in first]
    grid_of(twin, budgets=(0.5, 0.25), draws=1)(out=tmp_path / "grid", resume=True)
    assert [one.much for one in asked if one is not None] == [Compress("key-norm", 0.25).much] * 2
    grid_of(twin, n=3)(out=tmp_path / "grid", resume=True)  # other examples: nothing is taken over
    assert len(asked) == 2 + 4


def test_cells_are_read_as_they_were_run(twin: Model, tmp_path: Path) -> None:
    run = grid_of(twin, skips=((0,),), protect_first=2)(out=tmp_path / "grid")
    for old, new in zip(run, read_evictions(tmp_path / "grid"), strict=True):
        assert (new.condition.to_dict(), new.settings, new.stats) == (old.condition.to_dict(), old.settings, old.stats)
        assert new.outcome.numerators.tolist() == old.outcome.numerators.tolist()


def test_a_folder_of_another_kind_of_grid_is_refused(twin: Model, tmp_path: Path) -> None:
    copies = find_measure("copy", MeasureOptions(examples=Examples(n=2, max_example_tokens=24)))(twin)
    ablate([copies], MaskingGrid(keys=(1,), controls=()), Keeping(out=tmp_path / "grid"))
    with pytest.raises(UserError, match="line 1 is no cell of a comparison of compressed caches"):
        read_evictions(tmp_path / "grid")
    with pytest.raises(UserError, match="name a folder that `sinkscope compress --out` wrote"):
        read_evictions(tmp_path / "nowhere")


def test_everything_is_checked_before_the_first_cell(twin: Model, tmp_path: Path) -> None:
    with pytest.raises(UserError) as said:
        grid_of(twin, budgets=(0.9, 2), protect_first=3)(out=tmp_path / "grid")
    assert "passkey, key-norm, first 3 at 2 tokens: 2 of " in str(said.value)
    assert "3 are protected" in str(said.value) and not (tmp_path / "grid").exists()
    with pytest.raises(UserError, match="no layer 5 to skip"):
        grid_of(twin, skips=((5,),))()


RIGHT, HALF, NONE = exact(*[1] * 20), exact(*[1, 0] * 10), exact(*[0] * 20)


def test_a_scorer_is_beyond_behind_or_within_the_noise_of_random() -> None:
    rows = eviction_cells({"key-norm": [NONE], "streaming": [RIGHT], "key-diff": [HALF], "random": [HALF, HALF]})
    assert {one.cell.condition.scorer: one.gain.verdict for one in contrasts(rows)} == {
        "key-norm": "behind", "streaming": "beyond", "key-diff": "within noise",
    }  # fmt: skip
    gains = {one.cell.condition.scorer: one.gain.value for one in contrasts(rows)}
    assert gains == {"key-norm": -0.5, "streaming": 0.5, "key-diff": 0.0}
    said = [str(one) for one in verdicts(rows)]
    assert said[1].startswith("m, t (n = 20): streaming is beyond random, mean of 2 draws at 0.5 (+0.500, +0.")
    assert "key-norm is behind random" in said[0] and "key-diff is within noise of random" in said[2]


def test_of_low_scores_the_lower_is_beyond() -> None:
    low, high = (Outcome(value * np.linspace(0.5, 1.5, 9), np.ones(9), exact=False) for value in (1.0, 2.0))
    rows = eviction_cells({"streaming": [low], "random": [high]}, better="low")
    [one] = contrasts(rows)
    assert one.gain.verdict == "beyond" and one.gain.value == pytest.approx(1.0)
    made = records(rows)
    assert made[1]["difference"] == 0 and made[1]["perplexity"] == pytest.approx(exp(1.0))


def test_random_is_matched_in_what_is_excepted() -> None:
    plain = eviction_cells({"key-norm": [RIGHT], "random": [NONE]})
    skipping = eviction_cells({"key-norm": [HALF], "random": [HALF]}, skips=((0, 1),))
    found = contrasts([*plain, *skipping[1:]])
    assert [(one.cell.condition.exceptions, one.gain.value) for one in found] == [("", 1.0), ("skip 0 1", 0.0)]


def test_without_random_nothing_is_claimed() -> None:
    rows = eviction_cells({"key-norm": [RIGHT], "streaming": [HALF]})
    assert contrasts(rows) == []
    [said] = map(str, verdicts(rows))
    assert "not set against random keys: key-norm, streaming" in said


def test_one_example_has_no_interval_and_no_verdict() -> None:
    one = Outcome(np.array([3.0]), np.array([2.0]), exact=False)
    rows = eviction_cells({"key-norm": [one], "random": [one]}, better="low")
    assert [one.gain.verdict for one in contrasts(rows)] == ["too few"]
    made = records(rows)[1]
    assert (made["score"], made["low"], made["difference_low"]) == (1.5, None, None)
    assert (TABLES.shown(made)["95 % interval"], TABLES.shown(made)["difference"]) == ("too few", "+0.500 (too few)")


def test_where_nothing_was_dropped_nothing_is_compared() -> None:
    rows = eviction_cells({"key-norm": [RIGHT], "random": [HALF]})
    rows = [
        replace(row, stats={**row.stats, "kept": 1.0}, condition=replace(row.condition, point="decode")) for row in rows
    ]
    assert contrasts(rows) == []
    assert any(
        "key-norm at 0.5: nothing was dropped: no layer ever held more than --prune-after" in str(one)
        for one in verdicts(rows)
    )
    assert TABLES.shown(records(rows)[1])["difference"] == "nothing dropped"


def test_records_say_how_cells_were_made_and_what_they_weigh() -> None:
    rows = eviction_cells({"key-norm": [HALF], "random": [HALF]}, skips=((0,),), seed=11)
    whole, dropped, random = records(rows)
    assert (whole["scorer"], whole["kept"], whole["drop_seed"], whole["difference"]) == (WHOLE, "1", None, None)
    assert (dropped["exceptions"], dropped["kept"], dropped["kept_share"]) == ("skip 0", "0.5", 0.5)
    assert (random["drop_seed"], random["gain"], dropped["gain"]) == (11, None, 0.0)
    assert (dropped["cache_bytes"], dropped["tokens_per_second"], dropped["peak_memory"]) == (4096.0, 20.0, 3145728)
    assert (dropped["when"], dropped["seed"], dropped["max_example_tokens"], dropped["batch_size"]) == (
        "context",
        3,
        29,
        7,
    )
    read = list(csv.DictReader(io.StringIO(as_csv([whole, dropped, random]))))
    assert [line["scorer"] for line in read] == [WHOLE, "key-norm", "random"]


def test_tables_for_people() -> None:
    rows = eviction_cells({"key-norm": [NONE], "random": [HALF, RIGHT]})
    shown = [TABLES.shown(one) for one in records(rows)]
    assert [row["scorer"] for row in shown] == [WHOLE, "key-norm", "random", "random #2"]
    assert shown[1]["difference"] == "-1.000 (-1.000 to -0.720)"
    assert shown[1]["beside random"].startswith("-0.750 (") and (shown[1]["KiB"], shown[1]["MiB"]) == ("4", "3")
    text = TABLES.markdown(records(rows))
    assert "### m, t: points (higher is better), n = 20" in text and "| random #2 |" in text
    assert "perplexity" not in text.split("scorer: which")[0]  # no cell has one, so no column does
    assert all(name in COLUMNS for name in TABLES.columns_of(shown))
