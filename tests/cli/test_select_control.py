"""`sinkscope select control`: a table measured, kept and read; rules compared; every mistake in one line."""

import json
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_runs import Command
from little_selections import PATCHES, WIDTH, save_little

from sinkscope.cli.select.control import TRIED
from sinkscope.selection.control import (
    BlockFading,
    Constant,
    DriftPlusPenalty,
    Fixed,
    Gaussian,
    OperatingTable,
    Oracle,
    choose_v,
    simulate,
)

TABLE: dict[str, Any] = {
    "split": "made, validation", "alphas": [0.1, 0.5, 1.0], "rates": [0.1, 0.5], "snrs": [-10, 0, 10],
    "accuracy": [
        [[0.2, 0.3, 0.4], [0.25, 0.5, 0.6]], [[0.3, 0.4, 0.6], [0.4, 0.7, 0.8]], [[0.3, 0.5, 0.7], [0.5, 0.8, 0.9]],
    ],
    "rho": [[0.01, 0.05], [0.05, 0.25], [0.1, 0.5]], "latency": [0.001, 0.003, 0.006],
}  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A file of --save-table."""
    file = tmp_path / "table.json"
    file.write_text(json.dumps(TABLE))
    return file


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return save_little(tmp_path_factory.mktemp("control") / "model")


def rules_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["rule"]: one for one in document["rules"]}


def test_rules_are_replayed_on_the_same_channel(sinkscope: Command, table: Path) -> None:
    given = ("--table", table, "--mean-rate", 0.08, "--v", 0.5, "--mu", 2, "--slots", 500, "--seed", 3)
    found = sinkscope("select", "control", *given, "--snr-mean", 2, "--snr-std", 6, "--json").document
    known, snrs = OperatingTable.from_dict(TABLE), Gaussian(2, 6).draw(500, 3)
    expected = {
        "drift-plus-penalty": simulate(DriftPlusPenalty(known, 0.08, 0.5, mu=2), snrs),
        "fixed": simulate(Fixed(known, 0.08, mu=2), snrs),
        "oracle": simulate(Oracle(known, 0.08, mu=2), snrs),
    }
    assert list(rules_of(found)) == list(expected)
    for name, one in rules_of(found).items():
        run = expected[name]
        assert one["mean_accuracy"] == run.mean_accuracy and one["mean_rho"] == run.mean_rate
        assert one["largest_queue"] == run.queue.max() and one["last_queue"] == run.queue[-1]
        assert {(point["alpha"], point["rate"]): point["slots"] for point in one["points"]} == {
            (point.alpha, point.rate): share for point, share in run.shares.items()
        }
    assert found["process"] == {"name": "gaussian", "mean": 2.0, "std": 6.0}
    assert (found["limit"], found["V"], found["V_chosen"], found["mu"], found["slots"]) == (0.08, 0.5, False, 2.0, 500)
    assert found["beyond_table"] == np.mean(np.abs(snrs) > 10)
    assert found["table"] == known.to_dict() and found["file"] is None


def test_a_weight_that_is_not_given_keeps_the_limit_elsewhere(sinkscope: Command, table: Path) -> None:
    """It is chosen in a run of its own, so that the run shown is none that it was fitted to."""
    found = sinkscope("select", "control", "--table", table, "--mean-rate", 0.08, "--slots", 900, "--json").document
    known, own = OperatingTable.from_dict(TABLE), Gaussian(10, 5).draw(900, 1)
    assert found["V_chosen"] and found["V"] == choose_v(known, 0.08, TRIED, own, last=900, slack=0.01)
    assert simulate(DriftPlusPenalty(known, 0.08, found["V"]), own).mean_rate <= 0.0808
    larger = min(one for one in TRIED if one > found["V"])
    assert simulate(DriftPlusPenalty(known, 0.08, larger), own).mean_rate > 0.0808
    adaptive, fixed, oracle = (rules_of(found)[name] for name in ("drift-plus-penalty", "fixed", "oracle"))
    assert fixed["mean_accuracy"] < adaptive["mean_accuracy"]
    assert oracle["mean_rho"] <= 0.08 * (1 + 1e-9)
    assert any("in a run with seed 1" in one for one in found["said"])


def test_only_the_ratio_of_weight_and_step_matters(sinkscope: Command, table: Path) -> None:
    given = ("select", "control", "--table", table, "--mean-rate", 0.08, "--slots", 300, "--json")
    one, other = sinkscope(*given).document, sinkscope(*given, "--mu", 4).document
    assert other["V"] == 4 * one["V"]
    assert rules_of(other)["drift-plus-penalty"]["points"] == rules_of(one)["drift-plus-penalty"]["points"]


@pytest.mark.parametrize(
    ("options", "process"),
    [
        (("fading", "--snr-mean", 4, "--correlation", 0.9), BlockFading(4, 0.9)),
        (("fading",), BlockFading(10)),
        (("constant", "--snr-mean", 3), Constant(3)),
        (("gaussian",), Gaussian(10, 5)),
    ],
)
def test_processes_are_taken_as_they_are_set(
    sinkscope: Command, table: Path, options: tuple[object, ...], process: Gaussian
) -> None:
    given = ("--table", table, "--mean-rate", 0.1, "--v", 1, "--slots", 60, "--process", *options, "--json")
    found = sinkscope("select", "control", *given).document
    run = simulate(DriftPlusPenalty(OperatingTable.from_dict(TABLE), 0.1, 1), process.draw(60, 0))
    assert found["process"] == {"name": process.name, **vars(process)}
    assert rules_of(found)["drift-plus-penalty"]["mean_accuracy"] == run.mean_accuracy


def test_a_channel_without_noise_is_drawn(sinkscope: Command, table: Path, tmp_path: Path) -> None:
    given = ("--table", table, "--mean-rate", 0.1, "--slots", 60, "--process", "constant", "--snr-mean", "inf")
    found = sinkscope("select", "control", *given, "--out", tmp_path / "a.svg", "--json").document
    assert found["process"] == {"name": "constant", "snr": "inf"} and found["beyond_table"] == 0
    assert "no noise" in (tmp_path / "a.svg").read_text()


def test_slow_points_are_left_out_under_a_latency_limit(sinkscope: Command, table: Path) -> None:
    given = ("--table", table, "--mean-rate", 0.3, "--slots", 80, "--latency-ms", 3.5, "--json")
    found = sinkscope("select", "control", *given).document
    assert found["latency_ms"] == 3.5
    chosen = [point["alpha"] for one in found["rules"] for point in one["points"]]
    assert max(chosen) == 0.5  # a share of 1 takes 6 ms


def test_people_see_rules_points_and_what_they_mean(sinkscope: Command, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "control.svg"
    given = ("--table", table, "--mean-rate", 0.08, "--v", 100, "--slots", 200, "--snr-std", 8, "--out", out)
    said = " ".join(sinkscope("select", "control", *given).table.split())
    assert "drift-plus-penalty, V = 100; SNR in dB: gaussian, mean 10, std 8" in said
    assert "knows all SNRs beforehand" in said and "largest queue" in said and "made, validation" in said
    assert "beside the best fixed point" in said and "lie beyond the SNRs that were measured" in said
    assert "more than the limit of 0.08" in said  # a weight so large overspends in so few slots
    assert f"{out}: SNR, choices, rate and queue over the slots" in said
    text = out.read_text()
    assert "limit 0.08" in text and "table: made, validation" in text
    again = tmp_path / "again.svg"
    sinkscope("select", "control", *given[:-1], again)
    assert again.read_text() == text


MEASURE = ("--alpha", "1,0.3", "--rate", "0.5,0.25", "--snr", "0,inf", "--n", 10)


def test_a_table_is_measured_kept_and_read_again(sinkscope: Command, model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "new" / "table.json"
    given = ("select", "control", model, *MEASURE, "--mean-rate", 0.5, "--slots", 50, "--save-table", kept, "--json")
    found = sinkscope(*given).document
    stored = json.loads(kept.read_text())
    assert stored == found["table"]
    assert stored["alphas"] == [0.3, 1.0] and stored["rates"] == [0.25, 0.5] and stored["snrs"] == [0.0, "inf"]
    sent = [[(tokens + 1) * ceil(rate * WIDTH) / 64 for rate in (0.25, 0.5)] for tokens in (5, PATCHES)]
    assert stored["rho"] == sent and len(stored["latency"]) == 2
    assert "digits, validation" in stored["split"]
    again = sinkscope("select", "control", "--table", kept, "--mean-rate", 0.5, "--slots", 50, "--json").document
    assert again == found
    assert "exists already" in sinkscope(*given).mistake


def test_pictures_are_not_timed_where_that_is_asked(sinkscope: Command, model: Path) -> None:
    given = ("select", "control", model, *MEASURE, "--mean-rate", 0.5, "--slots", 20)
    assert sinkscope(*given, "--repeats", 0, "--channel", "rayleigh", "--json").document["table"]["latency"] is None
