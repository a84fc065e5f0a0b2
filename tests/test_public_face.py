"""The package as a user meets it: one import, one model, from text in to sinks out."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
import xarray

import sinkscope as ss


def test_the_whole_way_from_a_checkpoint_to_its_sinks(fixtures: Path, tmp_path: Path) -> None:
    model = ss.load_model(fixtures / "llada-tiny", dtype="float32", device="cpu")
    prompts = [[5, 9, 2, 8], [7, 3, 11]]
    assert model.tokenizer is None
    assert model.family.mask_token_id == 255
    assert (model.family.bidirectional, model.family.logit_shift) == (True, False)
    assert 255 in model.family.special_ids
    input_ids = torch.tensor(prompts[:1])
    assert model.network(input_ids).logits.shape == (1, 4, 256)

    settings = ss.Denoising(
        gen_length=8, block_length=4, steps=8, confidence="max-prob", threshold=None, cache=None, cfg_scale=0.0,
        temperature=0.0, seed=0,
    )  # fmt: skip
    result = ss.generate(model, prompts, settings)
    assert result.sequences.shape == (2, 12)
    assert result.forward_passes == 8
    assert result.text is None
    assert result.history is None

    with ss.watch(model) as watched:
        model.network(input_ids)
    assert watched.received.shape == (3, 1, 4, 4)
    torch.testing.assert_close(watched.received.sum(-1), torch.ones(3, 1, 4))

    trace = ss.record(model, prompts, settings, out=tmp_path / "llada.zarr")
    assert isinstance(trace, ss.Trace)
    sample = trace[0]
    assert isinstance(sample, xarray.Dataset)
    assert sample["received"].dims == ("step", "layer", "head", "position")
    assert sample["sequence"].values.tolist() == result.sequences[0].tolist()

    sinks = ss.find_sinks(sample, ss.Excess(epsilon=3.0, scale="sum"))
    received = sample["received"].values.astype(np.float64)
    others = (received.sum(-1, keepdims=True) - received) / 11
    np.testing.assert_array_equal(sinks.values, (received - others) * 12 > 3)
    assert sinks.any()
    assert not sinks.all()

    where = ss.sink_positions(sample)
    np.testing.assert_array_equal(where["by_head"].values, received.argmax(-1))
    motion = ss.sink_motion(sample, sinks)
    assert motion.sizes["step"] >= 7
    tokens = ss.sink_tokens(sample, sinks)
    assert set(tokens["token"].values.tolist()) <= set(sample["canvas"].values.flatten().tolist())
    np.testing.assert_allclose(tokens["frequency"].sum().item(), 1)
    per_layer = ss.sinks_per_layer(sinks)
    np.testing.assert_allclose(per_layer["sinks"].values, sinks.values.sum(-1).mean((0, 2)))

    again = ss.open_trace(tmp_path / "llada.zarr")
    xarray.testing.assert_identical(again["0"].load(), sample.load())
    report = ss.summarise(again, ss.Excess(epsilon=3.0, scale="sum"))
    assert report.samples == 2


def test_the_package_lists_what_it_offers() -> None:
    for name in ("load_model", "generate", "watch", "record", "find_sinks", "sink_positions", "sink_motion"):
        assert name in ss.__all__
        assert name in dir(ss)
    assert not hasattr(ss, "no_such_name")


def test_importing_the_package_loads_no_network_code() -> None:
    check = "import sys, sinkscope; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_model_loads_whatever_was_imported_before(fixtures: Path) -> None:
    """In a process of its own: here the attention function has long been registered."""
    check = f"from sinkscope.families import load_model; load_model({str(fixtures / 'llada-tiny')!r}, device='cpu')"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
