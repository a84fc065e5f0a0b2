"""Sink measures against eager attention in float64, head by head and key by key."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sinkscope.families import Model, load_model
from sinkscope.language.documents import document
from sinkscope.language.vocabulary import BOS, END, MASK, ids
from sinkscope.training import twins
from sinkscope.training.objectives import WEIGHTS, Batch
from sinkscope.training.twins import DOCUMENTS, LENGTH, sink_measures

NAMES = ("twin-ar", "twin-dlm", "twin-adapted")
STRENGTHS = (0.25, 3.0)
Numbers = NDArray[np.float64]


def planted(folder: Path, dtype: str, attention: str) -> Model:
    """A random twin with sinks: queries look for `<bos>` in its first layer and for `=>` in its second, each head
    harder than the one before.

    All other words are given a common direction, which queries turn into one that only the key of the word looked for
    has; the slowest rotary dimension carries it, so that distance does not matter.
    """
    model = load_model(folder, dtype=dtype, device="cpu", attention=attention)
    network: Any = model.network
    words, heads = network.model.embed_tokens.weight, model.shape.heads
    size = words.shape[1] // heads
    with torch.no_grad():
        words[:, :3] = torch.tensor([4.0, 0.0, 0.0])
        words[ids()[BOS], :3] = torch.tensor([0.0, 4.0, 0.0])
        words[ids()[END], :3] = torch.tensor([0.0, 0.0, 4.0])
        for column, layer in enumerate(network.model.layers, 1):
            for head in range(heads):
                place = head * size + size // 2 - 1
                layer.self_attn.q_proj.weight[place, 0] = STRENGTHS[column - 1] * (head + 1)
                layer.self_attn.k_proj.weight[place, column] = 1.0
    return model


def maps_of(model: Model, tokens: list[list[int]]) -> Numbers:
    """Eager attention (document, layer, head, query, key), one document at a time."""
    found = []
    with torch.no_grad():
        for row in tokens:
            attentions = model.network(torch.tensor([row]), output_attentions=True, use_cache=False).attentions
            found.append(np.stack([layer[0].numpy() for layer in attentions]))
    return np.stack(found)


def measured_again(maps: Numbers, *, causal: bool) -> dict[str, list[float]]:
    """The measures, from the maps, loop by loop."""
    documents, layers, heads, size, _ = maps.shape
    kept = size * 3 // 4 if causal else size
    result: dict[str, list[float]] = {
        "sink_first": [], "sink_most": [], "sink_most_at": [], "top_received": [], "first_received": []
    }  # fmt: skip
    for layer in range(layers):
        share = np.zeros(kept)
        top, first = [], []
        for map_ in maps[:, layer].reshape(documents * heads, size, size):
            for key in range(kept):
                seen_by = size - key if causal else size
                share[key] += (map_[:, key].sum() / seen_by > 0.3) / (documents * heads)
            top.append(max(map_[:, key].sum() / size for key in range(size)))
            first.append(map_[:, 0].sum() / size)
        result["sink_first"].append(share[0])
        result["sink_most"].append(share.max())
        result["sink_most_at"].append(int(share.argmax()))
        result["top_received"].append(float(np.mean(top)))
        result["first_received"].append(float(np.mean(first)))
    return result


def held_out() -> tuple[list[list[int]], list[list[bool]]]:
    """The documents that twins are measured on, and which of their tokens are answers."""
    random = Random("held out")
    rows = [document(random, LENGTH, split="test", weights=WEIGHTS) for _ in range(DOCUMENTS)]
    return [row.tokens for row in rows], [row.answer for row in rows]


@pytest.mark.parametrize("name", NAMES)
def test_sink_measures_are_those_of_eager_attention(twin_folders: dict[str, Path], name: str) -> None:
    oracle = planted(twin_folders[name], "float64", "eager")
    tokens, answers = held_out()
    passes = {"finished": tokens}
    if name != "twin-ar":
        passes["answers masked"] = [
            [ids()[MASK] if hidden else token for token, hidden in zip(row, marks, strict=True)]
            for row, marks in zip(tokens, answers, strict=True)
        ]
    found = sink_measures(planted(twin_folders[name], "float32", "sinkscope"))
    assert found.keys() == passes.keys()
    for of_pass, rows in passes.items():
        wanted = measured_again(maps_of(oracle, rows), causal=name == "twin-ar")
        for measure, numbers in wanted.items():
            # Rounded to four places. No key stands so near the threshold that single precision would move it across.
            assert found[of_pass][measure] == pytest.approx(numbers, abs=1e-4), (of_pass, measure)
        assert 0 < max(found[of_pass]["sink_most"]) < 1, "some are sinks and some are not, or nothing was compared"
        assert min(found[of_pass]["top_received"]) > 1.5 / LENGTH


def test_the_oracle_tells_the_divisors_apart() -> None:
    maps = np.zeros((1, 1, 1, LENGTH, LENGTH))
    maps[..., 40:, 40] = 0.4  # of every query that sees it, but of less than half of all
    right, wrong = measured_again(maps, causal=True), measured_again(maps, causal=False)
    assert (right["sink_most"], right["sink_most_at"], wrong["sink_most"]) == ([1.0], [40], [0.0])


def test_the_last_keys_of_a_causal_pass_are_left_out(
    twin_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word that all look for, among the last: it would be the strongest of all, though few ever see it."""
    tokens = torch.randint(20, 40, (DOCUMENTS, LENGTH))
    tokens[:, -4] = ids()[BOS]
    monkeypatch.setattr(twins, "_held_out", lambda: Batch(tokens, torch.zeros_like(tokens, dtype=torch.bool)))
    maps = maps_of(planted(twin_folders["twin-ar"], "float64", "eager"), tokens.tolist())
    assert (maps[:, 0, :, :, -4].sum(-1) / 4 > 0.3).mean() > 0.5
    found = sink_measures(planted(twin_folders["twin-ar"], "float32", "sinkscope"))["finished"]
    assert found["sink_most"] == pytest.approx(measured_again(maps, causal=True)["sink_most"], abs=1e-4)
    assert found["sink_most"][0] < 0.2


def test_measures_leave_the_model_as_it_was(twin_folders: dict[str, Path]) -> None:
    model = load_model(twin_folders["twin-dlm"], device="cpu")
    tokens = torch.tensor(held_out()[0][:2])
    with torch.no_grad():
        before = model.network(tokens).logits
        first, second = sink_measures(model), sink_measures(model)
        assert torch.equal(model.network(tokens).logits, before)
    assert first == second
    assert not any(weight.requires_grad for weight in model.network.parameters())


def test_a_row_of_the_log_has_every_task(twin_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "LITTLE", ("copy", "sort"))
    asked = []

    def evaluate(model: Model, task: str, *, n: int) -> object:
        asked.append((model.name, task, n))
        return type("Scored", (), {"score": 0.25})

    monkeypatch.setattr(twins, "evaluate", evaluate)
    model = load_model(twin_folders["twin-ar"], device="cpu")
    row = twins.measure(model, problems=7)
    assert asked == [(model.name, "copy", 7), (model.name, "sort", 7)]
    assert row == {"accuracy": {"copy": 0.25, "sort": 0.25}, "sinks": sink_measures(model)}
