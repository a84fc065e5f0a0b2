"""`sinkscope demo` on the twins and, with `--real`, on the two real models that come inside packages, run once each."""

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import strict_json

from sinkscope.cli.main import run
from sinkscope.trace import open_trace

Demo = tuple[dict[str, Any], Path]


TWINS = ("twin-ar", "twin-dlm", "twin-adapted")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The printed document of the real models and the folder of the traces.

    In a process of its own, where no library that is imported already shows its progress.
    """
    out = tmp_path_factory.mktemp("real")
    command = [str(Path(sys.executable).parent / "sinkscope"), "demo", "--out", str(out), "--json", "--real"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    return strict_json(done.stdout), out


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The printed document of the twins and the folder of the traces."""
    out, printed = tmp_path_factory.mktemp("twins"), io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert run(["demo", "--out", str(out), "--json"]) == 0
    return strict_json(printed.getvalue()), out


def columns(report: dict[str, Any], table: str) -> dict[str, list[Any]]:
    found = report["tables"][table]
    return {**found["coords"], **{name: data["values"] for name, data in found["data"].items()}}


def report_of(demo: Demo, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(report for report in demo[0]["reports"] if report["model"]["name"] == name)
    return found


def test_both_models_are_reported(demo: Demo) -> None:
    reports = demo[0]["reports"]
    assert [report["model"]["name"] for report in reports] == ["smollm2-135m", "rxnmapper"]
    assert [report["model"]["bidirectional"] for report in reports] == [False, True]
    assert [report["samples"] for report in reports] == [3, 3]
    for report in reports:
        assert report["rule"] == {"rule": "excess", "epsilon": 3.0, "scale": "sum"}
        assert report["absent"] == {}


def test_smollm2_has_its_sink_on_its_first_token(demo: Demo) -> None:
    report = report_of(demo, "smollm2-135m")
    tokens, positions = columns(report, "tokens"), columns(report, "positions")
    assert tokens["text"][0] == "<|im_start|>"
    assert tokens["top_frequency"][0] >= 0.95
    assert tokens["base_rate"][0] < 0.2
    assert sum(position == 0 for position in positions["position"]) >= 0.95 * len(positions["position"])
    assert min(positions["received"]) > 0.2


def test_rxnmapper_has_its_sink_on_cls(demo: Demo) -> None:
    tokens = columns(report_of(demo, "rxnmapper"), "tokens")
    assert tokens["text"][0] == "[CLS]"
    assert tokens["top_frequency"][0] > 0.5 > 10 * tokens["base_rate"][0]


def test_findings_are_told_in_words(demo: Demo) -> None:
    findings = demo[0]["findings"]
    assert len(findings) == 8
    for name, token in (("smollm2-135m", "<|im_start|>"), ("rxnmapper", "[CLS]")):
        told = [finding for finding in findings if finding.startswith(f"{name}: ")]
        assert len(told) == 4
        share = columns(report_of(demo, name), "tokens")["top_frequency"][0]
        assert any(f"{token!r} at {share:.0%} of steps" in finding for finding in told)
        received = report_of(demo, name)["tables"]["overview"]["data"]["top_received"]["values"]
        assert any(f"receives {received:.0%}" in finding for finding in told)


def test_what_finished_texts_give_is_told_by_layer(demo: Demo) -> None:
    for name, layers in (("smollm2-135m", 30), ("rxnmapper", 12)):
        told = demo[0]["finished"][name]
        assert len(told) == layers
        [sample, *others] = open_trace(demo[1] / f"{name}.zarr")
        tops = [one["final_received"].values.astype("float64").max(-1).mean(-1) for one in (sample, *others)]
        assert told == pytest.approx(sum(tops) / len(tops))


def test_the_traces_are_there(demo: Demo) -> None:
    for name, steps in (("smollm2-135m", 24), ("rxnmapper", None)):
        trace = open_trace(demo[1] / f"{name}.zarr")
        assert len(trace.complete_ids) == 3
        assert steps is None or {int(sample.attrs["steps"]) for sample in trace} <= set(range(1, steps + 1))
        assert all(sample.attrs["text"] for sample in trace)


def test_the_twins_answer_the_same_problems(twins: Demo) -> None:
    answers = twins[0]["answers"]
    assert len({answer["task"] for answer in answers}) == len(answers) == 6
    assert [report["model"]["name"] for report in twins[0]["reports"]] == list(TWINS)
    for name in TWINS:
        told = {answer["task"]: answer[name] for answer in answers}
        assert sum("(wrong)" not in text for text in told.values()) >= 3
        trace = open_trace(twins[1] / f"{name}.zarr")
        for task, text in told.items():
            assert text.removesuffix(" (wrong)") == str(trace[task].attrs["text"]).strip()
    for answer in answers:
        if answer["task"].startswith("arithmetic"):  # only the result counts
            continue
        right = answer["answer"].replace(" ", "")
        assert all(answer[name].replace(" ", "") == right for name in TWINS if "(wrong)" not in answer[name])


def test_what_is_told_of_the_twins_is_what_their_traces_hold(twins: Demo) -> None:
    findings = twins[0]["findings"]
    assert len(findings) == 4 * len(TWINS)
    for name in TWINS:
        tops = [
            np.nanmax(sample["final_received"].values.astype(np.float64), axis=-1).mean(-1)
            for sample in open_trace(twins[1] / f"{name}.zarr")
        ]
        by_layer = np.mean(tops, axis=0)
        assert len(by_layer) == 6
        strongest = f"{by_layer.mean():.0%}, most in layer {by_layer.argmax()} ({by_layer.max():.0%})"
        assert sum(finding.startswith(f"{name}: ") and strongest in finding for finding in findings) == 1
