"""Interventions in traces: what is stored, that it is what happened, and that a resumed run must be the same."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cut_maps import strongest

from sinkscope.decoding import Decoding, Denoising, denoise, generate
from sinkscope.decoding.protocols import MaskingStats
from sinkscope.errors import NothingMaskedWarning, UserError
from sinkscope.families import Model, load_model
from sinkscope.interventions import MaskSinks
from sinkscope.sinks import Excess, TopK, find_sinks
from sinkscope.trace import Maps, Recording, open_trace, record

PROMPTS = [[7, 3, 11], [5, 9, 2, 8, 1, 4, 6]]
SETTINGS = Denoising(gen_length=6, block_length=3, steps=None)
EXACT = Recording(precision="float32", norms=True, entropy=True, maps=Maps(steps=(2,), layers=(1,), heads=(0, 3)))


def numbers(trace: Any) -> list[dict[str, np.ndarray[Any, Any]]]:
    return [{name: sample[name].values for name in sample.data_vars} for sample in trace]


def same(one: Any, other: Any) -> bool:
    """Every stored number of every sample."""
    return all(
        a.keys() == b.keys() and all(np.array_equal(a[k], b[k], equal_nan=a[k].dtype.kind == "f") for k in a)
        for a, b in zip(numbers(one), numbers(other), strict=True)
    )


@pytest.mark.parametrize("way", ["plain", "guided", "dual"])
def test_with_no_keys_the_trace_is_that_of_the_plain_run(
    tiny: Callable[[str], Model], tmp_path: Path, way: str
) -> None:
    settings = {"plain": SETTINGS, "guided": replace(SETTINGS, cfg_scale=0.7), "dual": replace(SETTINGS, cache="dual")}[
        way
    ]
    traces = [
        record(
            tiny("llada-tiny"), PROMPTS, settings, out=tmp_path / str(number), recording=EXACT, intervention=what,
            batch_size=2,
        )
        for number, what in enumerate((None, MaskSinks(0, detect_from="clean", control="random")))
    ]  # fmt: skip
    assert same(*traces)
    assert "intervention" not in traces[0].attrs
    assert traces[1].attrs["intervention"]["keys"] == 0


def test_a_last_batch_may_be_smaller(tiny: Callable[[str], Model], tmp_path: Path) -> None:
    prompts = [[7, 3, 11], [5, 9, 2], [4, 4, 8], [1, 2, 3], [9, 8, 7]]
    model, masking = tiny("llada-tiny"), MaskSinks(1)
    threes, ones = (
        record(model, prompts, SETTINGS, out=tmp_path / str(size), intervention=masking, batch_size=size)
        for size in (3, 1)
    )
    for one, other in zip(threes, ones, strict=True):
        np.testing.assert_allclose(one["removed"], other["removed"], atol=1e-5)  # batches round otherwise


@pytest.mark.parametrize("detect_from", ["masked", "clean"])
def test_a_trace_holds_what_keys_receive_under_the_cut(
    tiny: Callable[[str], Model], tmp_path: Path, detect_from: str
) -> None:
    model, intervention = tiny("llada-tiny"), MaskSinks(2, detect_from=detect_from)
    settings = replace(SETTINGS, cfg_scale=0.7)
    trace = record(
        model, PROMPTS, settings, out=tmp_path / "t", recording=EXACT, intervention=intervention, batch_size=2
    )
    plain = record(model, PROMPTS, settings, out=tmp_path / "plain", recording=EXACT, batch_size=2)
    result = generate(model, PROMPTS, settings, intervention=intervention)
    for number, (sample, without) in enumerate(zip(trace, plain, strict=True)):
        keys = sample.sizes["position"]
        assert sample["sequence"].values.tolist() == result.sequences[number, -keys:].tolist()
        received = torch.from_numpy(sample["received"].values)
        np.testing.assert_allclose(received.sum(-1), 1, atol=1e-5)
        for name in ("received", "received_unconditional"):
            shown = torch.from_numpy(sample[name].values)
            lost = (shown == 0).sum(-1)
            assert (lost[1:] == 2).all() and (lost[0] == 0).all()
            if detect_from == "masked":
                for before, now in pairwise(shown):
                    assert torch.equal(now == 0, strongest(before, 2))
        # Watching computes the outputs itself (see `attention.kernels`): equal to rounding.
        np.testing.assert_allclose(received[0], without["received"].values[0], atol=1e-5)
        assert sample["attention"].shape == (1, 1, 2, keys, keys)
        assert ((sample["attention"].values[0, 0] == 0).all(1).sum(-1) == 2).all()


def test_the_finished_sequence_is_passed_once_more_without_any_cut(
    tiny: Callable[[str], Model], tmp_path: Path
) -> None:
    trace = record(
        tiny("llada-tiny"), PROMPTS, SETTINGS, out=tmp_path / "t", recording=EXACT, intervention=MaskSinks(3)
    )
    for sample in trace:
        assert (sample["final_received"].values > 0).all()


def test_rules_see_in_a_trace_what_was_masked(tmp_path: Path, causal_folder: Path) -> None:
    """The sinks of a step by the trace are the keys that receive nothing at the next."""
    model = load_model(causal_folder, dtype="float32", device="cpu")
    trace = record(
        model, PROMPTS, Decoding(max_new_tokens=8), out=tmp_path / "t", recording=Recording(precision="float32"),
        intervention=MaskSinks(1), batch_size=2,
    )  # fmt: skip
    for sample in trace:
        received = sample["received"].values
        sinks = find_sinks(sample, TopK(1)).values
        for step in range(1, sample.sizes["step"] - 1):  # step 0 of the trace counts all queries of the prompt
            assert (received[step + 1][sinks[step]] == 0).all()
            assert (received[step + 1] == 0).sum(-1).max() == 1


def test_what_was_taken_away_is_stored_step_by_step(tiny: Callable[[str], Model], tmp_path: Path) -> None:
    """Alone as in a batch, and as the loop tells it."""
    model, intervention = tiny("llada-tiny"), MaskSinks(2, detect_from="clean")
    trace = record(model, PROMPTS, SETTINGS, out=tmp_path / "t", intervention=intervention, batch_size=2)
    for sample, prompt in zip(trace, PROMPTS, strict=True):
        alone = [step.removed for step in denoise(model, [prompt], SETTINGS, intervention=intervention)]
        for name in MaskingStats.names():
            wanted = [float(getattr(one, name)) for one in alone]
            np.testing.assert_allclose(sample["removed"].sel(quantity=name), wanted, rtol=1e-5)
        keys = sample["removed"].sel(quantity="keys").values
        assert keys.tolist() == [0] + [2 * model.shape.layers * model.shape.heads] * (len(keys) - 1)
    assert "removed" not in record(model, PROMPTS, SETTINGS, out=tmp_path / "plain")[0]


def test_a_trace_in_which_nothing_was_masked_is_warned_of(tiny: Callable[[str], Model], tmp_path: Path) -> None:
    nothing = MaskSinks(1, classes=("newline",))
    with pytest.warns(NothingMaskedWarning):
        record(tiny("llada-tiny"), PROMPTS, SETTINGS, out=tmp_path / "t", intervention=nothing)
    # Nothing is left to run, so nothing is known of it.
    record(tiny("llada-tiny"), PROMPTS, SETTINGS, out=tmp_path / "t", intervention=nothing, resume=True)


def test_the_intervention_is_stored_and_resume_refuses_another(tiny: Callable[[str], Model], tmp_path: Path) -> None:
    model, out = tiny("llada-tiny"), tmp_path / "t"
    intervention = MaskSinks(Excess(0.9), layers=(0, 2), queries=("masked",), control="random", seed=3)
    trace = record(model, PROMPTS, SETTINGS, out=out, intervention=intervention)
    stored = open_trace(out).attrs["intervention"]
    assert stored == json.loads(json.dumps(intervention.to_dict()))
    assert stored["keys"] == {"rule": "excess", "epsilon": 0.9, "scale": "sum"}
    assert stored["layers"] == [0, 2]
    assert same(record(model, PROMPTS, SETTINGS, out=out, intervention=intervention, resume=True), trace)
    for other in (None, MaskSinks(1), replace(intervention, seed=4), replace(intervention, layers=None)):
        with pytest.raises(UserError, match=r"can't resume .* with other settings: .*intervention"):
            record(model, PROMPTS, SETTINGS, out=out, intervention=other, resume=True)
    assert same(open_trace(out), trace)


def test_a_stopped_run_is_resumed_to_the_same_numbers(tiny: Callable[[str], Model], tmp_path: Path) -> None:
    model, intervention = tiny("llada-tiny"), MaskSinks(2, control="random")
    whole = record(model, PROMPTS, SETTINGS, out=tmp_path / "whole", intervention=intervention)

    def stop(progress: Any) -> None:
        if progress.samples_done == 1 and progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(model, PROMPTS, SETTINGS, out=tmp_path / "stopped", intervention=intervention, observer=stop)
    resumed = record(model, PROMPTS, SETTINGS, out=tmp_path / "stopped", intervention=intervention, resume=True)
    assert same(resumed, whole)


def test_mistakes_name_the_prompt_and_leave_no_trace(tiny: Callable[[str], Model], tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match="prompt '0': 9 keys can't be masked where there are 9, in the shortest row: a query must keep one",
    ):
        record(tiny("llada-tiny"), PROMPTS, SETTINGS, out=tmp_path / "t", intervention=MaskSinks(9))
    assert not (tmp_path / "t").exists()
