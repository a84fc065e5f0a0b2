"""Traces of a model with learned sinks: what goes to no key is recorded and shown, and makes one with the keys."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
import transformers

import sinkscope as ss
from sinkscope.sinks.queries import no_key_from
from sinkscope.trace.planning import Recording


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ss.Model:
    folder = tmp_path_factory.mktemp("models") / "gpt-oss"
    config = transformers.GptOssConfig(
        vocab_size=101, hidden_size=48, intermediate_size=40, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=12, initializer_range=0.3, max_position_embeddings=64, sliding_window=64,
        num_local_experts=3, num_experts_per_tok=2, eos_token_id=None, bos_token_id=1, pad_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )  # fmt: skip
    transformers.GptOssForCausalLM(config).save_pretrained(folder)
    return ss.load_model(folder, device="cpu")


@pytest.mark.parametrize("by_group", ["mean", "heads"])
def test_no_key_is_recorded_and_shown(model: ss.Model, tmp_path: Path, by_group: Literal["mean", "heads"]) -> None:
    prompts = [[5, 9, 33, 41, 7], [5, 9]]
    settings = ss.Decoding(max_new_tokens=6)
    keep = Recording(by_group=by_group, precision="float32")
    trace = ss.record(model, prompts, settings, out=tmp_path / "t.zarr", recording=keep, batch_size=2)
    totals = []
    for sample in trace:
        no_key = sample["no_key"]
        assert no_key.dims == ("step", "layer", "head")
        ones = no_key + sample["received"].sum("position")
        # float32 sums of some ten shares
        np.testing.assert_allclose(ones, np.ones(ones.shape), atol=1e-5)
        totals.append(no_key.values.ravel())
        generated = no_key_from(sample, "committed")
        assert generated is not None
        assert generated.dims == (("step", "layer", "head") if by_group == "heads" else ("step", "layer"))
        last = no_key.isel(step=-1) if by_group == "heads" else no_key.isel(step=-1).mean("head")
        np.testing.assert_allclose(generated.isel(step=-1), last, atol=1e-5)  # one query, of what was generated
    network, tokens = model.network, torch.tensor(trace[0]["sequence"].values[None])
    network.set_attn_implementation("eager")
    with torch.no_grad():
        maps = torch.stack(network(tokens, output_attentions=True).attentions)[:, 0]
    network.set_attn_implementation("sinkscope")
    np.testing.assert_allclose(trace[0]["final_no_key"], 1 - maps.sum(-1).mean(-1), atol=1e-5)
    overview = ss.summarise(trace, ss.Excess(0.5), tables=["overview"]).tables["overview"]
    assert float(overview["no_key"]) == pytest.approx(float(np.concatenate(totals).mean()), abs=1e-6)
    assert 0.02 < float(overview["no_key"]) < 1
