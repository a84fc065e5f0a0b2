"""`sinkscope demo` on the two real models that come inside packages, run once."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_runs import strict_json

from sinkscope.trace import open_trace

Demo = tuple[dict[str, Any], Path]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The printed document and the folder of the traces."""
    out = tmp_path_factory.mktemp("demo")
    command = [str(Path(sys.executable).parent / "sinkscope"), "demo", "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    return strict_json(done.stdout), out


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


def test_the_traces_are_there(demo: Demo) -> None:
    for name, steps in (("smollm2-135m", 24), ("rxnmapper", None)):
        trace = open_trace(demo[1] / f"{name}.zarr")
        assert len(trace.complete_ids) == 3
        assert steps is None or {int(sample.attrs["steps"]) for sample in trace} <= set(range(1, steps + 1))
        assert all(sample.attrs["text"] for sample in trace)
