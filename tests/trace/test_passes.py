"""Passes of modules of one's own as traces: against maps written out in float64, and every mistake in one line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sinkscope.errors import UserError
from sinkscope.sinks import Excess, summarise
from sinkscope.trace import OwnModule, Recording, open_module, open_trace, own_module, record_passes

HEADS, SIZE, VOCABULARY = 3, 7, 31


class Attention(nn.Module):
    """Self-attention by PyTorch's own function, and the maps that it must have."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.project, self.causal = nn.Linear(HEADS * SIZE, 3 * HEADS * SIZE), causal
        self.maps: list[torch.Tensor] = []

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(hidden).view(*hidden.shape[:2], 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
        scores = query.double() @ key.double().transpose(-1, -2) / SIZE**0.5
        if self.causal:
            scores += torch.full_like(scores[0, 0], -torch.inf).triu(1)
        self.maps.append(scores.softmax(-1))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return hidden + mixed.transpose(1, 2).flatten(2)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HEADS * SIZE)
        self.blocks = nn.Sequential(Attention(causal=True), Attention(causal=True))

    def forward(self, scale: float, ids: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.blocks(scale * self.embed(ids))
        return made


def patches(rows: int = 2, keys: int = 11) -> torch.Tensor:
    return 3 * torch.randn(rows, keys, HEADS * SIZE)


def layers(network: nn.Module) -> list[Attention]:
    return [one for one in network.modules() if isinstance(one, Attention)]


@pytest.mark.parametrize("kernel", ["one-pass", "two-pass"])
def test_positions_are_the_keys_of_a_module_without_tokens(tmp_path: Path, kernel: str) -> None:
    network = nn.Sequential(*(Attention(causal=False) for _ in range(5)))
    calls = [patches() for _ in range(3)]
    trace = record_passes(
        own_module((network, calls, ["class"]), "mine"),
        out=tmp_path / "t.zarr",
        recording=Recording(entropy=True, norms=True, kernel=kernel),
    )
    assert trace.ids == ("0", "1")
    for row, sample in enumerate(trace):
        for step in range(3):
            maps = torch.stack([layer.maps[step][row] for layer in layers(network)])
            received = sample["received"].sel(step=step).values
            # Scores below 30 in float32: relative error below 30 x 2^-23 of each probability.
            np.testing.assert_allclose(received, maps.mean(-2), rtol=1e-5, atol=1e-7)
            entropy = torch.special.entr(maps).sum(-1)
            np.testing.assert_allclose(sample["entropy"].sel(step=step).values, entropy, rtol=1e-4, atol=1e-5)
        assert sample["canvas"].values.tolist() == [[*range(11)]] * 3
        assert sample["key_norm"].sizes["kv_head"] == HEADS
        assert (sample.attrs["tokens"], sample.attrs["prompt_length"]) == ({"0": "class"}, 0)
        assert not sample["committed"].values.any()
    model = trace.attrs["model"]
    assert (model["network"], model["bidirectional"], model["layer_names"]) == ("Sequential", True, [*"01234"])
    assert trace.attrs["decoding"] == {"kind": "passes", "positions": "keys"}


def test_positions_are_tokens_and_may_grow(tmp_path: Path) -> None:
    network, ids = Words(), torch.randint(0, VOCABULARY, (2, 13))
    calls = [(2.0, ids[:, :5]), {"scale": 2.0, "ids": ids[:, :7]}, (2.0, ids)]
    texts = [f"word {one}" for one in range(VOCABULARY)]
    trace = record_passes(own_module((network, calls, texts), "mine"), out=tmp_path / "t.zarr")
    for row, sample in enumerate(trace):
        for step, length in enumerate((5, 7, 13)):
            maps = torch.stack([layer.maps[step][row] for layer in layers(network)])
            received = sample["received"].sel(step=step).values
            np.testing.assert_allclose(received[..., :length], maps.mean(-2), rtol=1e-5, atol=1e-7)
            assert np.isnan(received[..., length:]).all()
            assert sample["canvas"].values[step, :length].tolist() == ids[row, :length].tolist()
        assert sample["sequence"].values.tolist() == ids[row].tolist()
        assert sample.attrs["tokens"] == {str(one): f"word {one}" for one in set(ids[row].tolist())}
        assert sample.attrs["prompt_length"] == 5
    assert trace.attrs["model"]["bidirectional"] is False
    report = summarise(open_trace(tmp_path / "t.zarr"), Excess(), tables=["overview", "tokens", "positions", "sink-k"])
    assert not report.absent


def test_tokens_may_get_fewer(tmp_path: Path) -> None:
    """What an earlier, longer pass showed stays; the text is that of the last of the longest passes."""
    network, ids = Words(), torch.randint(0, VOCABULARY, (2, 13))
    calls = [(2.0, ids[:, :11].flip(1)), (2.0, ids[:, :11]), (2.0, ids[:, 9:])]
    texts = [f"word {one}" for one in range(VOCABULARY)]
    trace = record_passes(own_module((network, calls, texts), "mine"), out=tmp_path / "t.zarr")
    for row, sample in enumerate(trace):
        maps = torch.stack([layer.maps[0][row] for layer in layers(network)])
        np.testing.assert_allclose(sample["received"].sel(step=0).values, maps.mean(-2), rtol=1e-5, atol=1e-7)
        assert sample["sequence"].values.tolist() == ids[row, :11].tolist()
        assert sample["canvas"].values[2].tolist() == [*ids[row, 9:].tolist(), *[-1] * 7]
        assert sample.attrs["tokens"].keys() == {str(one) for one in ids[row].tolist()}


def test_tokens_are_called_input_ids_before_a_mask(tmp_path: Path) -> None:
    class Named(Words):
        def forward(self, attention_mask: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return super().forward(2.0, input_ids * attention_mask)

    ids = torch.randint(2, VOCABULARY, (2, 5))
    call = {"attention_mask": torch.ones_like(ids), "input_ids": ids}
    trace = record_passes(own_module((Named(), call), "mine"), out=tmp_path / "t.zarr")
    assert trace[1]["sequence"].values.tolist() == ids[1].tolist()


class OtherHeads(Attention):
    """Attention with a single head."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + nn.functional.scaled_dot_product_attention(*(hidden[:, None],) * 3)[:, 0]


def test_layers_may_differ_in_heads(tmp_path: Path) -> None:
    network = nn.Sequential(Attention(causal=False), OtherHeads(causal=False))
    trace = record_passes(
        own_module((network, patches()), "mine"), out=tmp_path / "t.zarr", recording=Recording(norms=True)
    )
    assert trace[0]["layer_heads"].values.tolist() == [HEADS, 1]
    report = summarise(open_trace(tmp_path / "t.zarr"), Excess(1.0), tables=["overview", "heads", "key-norms"])
    assert not report.absent
    assert int(trace[0]["received"].isnull().all("position").sum()) == HEADS - 1


def test_a_call_need_not_lie_in_one_piece(tmp_path: Path) -> None:
    ids = torch.randint(0, VOCABULARY, (3, 6))
    trace = record_passes(own_module((Words(), (2.0, ids[:, 2:3])), "mine"), out=tmp_path / "t.zarr")
    assert trace[2]["sequence"].values.tolist() == ids[2, 2:3].tolist()


class Fewer(nn.Module):
    """A module that leaves out a layer the second time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.passes = Attention(causal=False), Attention(causal=False), 0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        made: torch.Tensor = self.first(hidden)
        return self.second(made) if self.passes == 1 else made


def test_a_batch_is_the_same_as_its_rows(tmp_path: Path) -> None:
    network, inputs = nn.Sequential(Attention(causal=False)), patches(rows=3)
    whole = record_passes(own_module((network, inputs), "mine"), out=tmp_path / "whole.zarr")
    for row in range(3):
        alone = record_passes(own_module((network, inputs[row : row + 1]), "mine"), out=tmp_path / f"{row}.zarr")
        np.testing.assert_allclose(alone[0]["received"].values, whole[row]["received"].values, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (None, r"mine gives None; wanted a torch module and what to call it with: \(module, inputs\)"),
        (nn.Linear(2, 2), "mine gives a Linear; wanted a torch module"),
        (([1], torch.ones(2)), r"gives \(list, Tensor\)"),
        ((nn.Linear(2, 2),), r"gives \(Linear\)"),
        ((nn.Linear(2, 2), 3), "got a int"),
        ((nn.Linear(2, 2), {3: torch.ones(2)}), "got a dict"),
        ((nn.Linear(2, 2), []), "a list of no calls"),
        ((nn.Linear(2, 2), [torch.ones(2), "x"]), "got a str"),
        ((nn.Linear(2, 2), torch.ones(2), "text"), "the text of each token id or key"),
        ((nn.Linear(2, 2), torch.ones(2), [1]), "the text of each token id or key"),
        ((nn.Linear(2, 2), torch.ones(2), ["a", "\ud800"]), r"mine: text 1 is not valid Unicode text \(character 1\)"),
    ],
)
def test_what_a_function_may_give(made: object, line: str) -> None:
    with pytest.raises(UserError, match=line):
        own_module(made, "mine")


@pytest.mark.parametrize(
    ("network", "calls", "line"),
    [
        (nn.Linear(4, 4), torch.ones(2, 4), "calls neither torch.nn.functional.scaled_dot_product_attention nor"),
        (nn.Linear(4, 4), torch.ones(2, 5), r"mine: pass 1 of 1 through Linear fails \(mat1"),
        (Attention(causal=False), {"wrong": torch.ones(2, 5)}, "fails .*; mend the module or its inputs"),
        (nn.MultiheadAttention(4, 2), (torch.ones(3, 1, 4),) * 3, "where it can't be seen"),
        (Attention(causal=False), [patches(), patches(keys=12)], "pass 2 has 2 rows of 12 keys, wanted 2 rows of the"),
        (Attention(causal=False), [patches(), patches(rows=3)], "pass 2 has 3 rows of 11 keys"),
        (Fewer(), [patches(), patches()], r"pass 2 attends with \[3\] heads by layer, the first with \[3, 3\]; record"),
        (Attention(causal=False), torch.full((1, 5, HEADS * SIZE), torch.nan), "computes NaN or infinity"),
    ],
)
def test_passes_that_make_no_trace(tmp_path: Path, network: nn.Module, calls: Any, line: str) -> None:
    with pytest.raises(UserError, match=line) as caught:
        record_passes(own_module((network, calls), "mine"), out=tmp_path / "t.zarr")
    assert "\n" not in str(caught.value)


def test_nothing_is_replaced_unasked(tmp_path: Path) -> None:
    own = OwnModule(name="mine", module=Attention(causal=False), calls=(((patches(),), {}),))
    record_passes(own, out=tmp_path / "t.zarr")
    with pytest.raises(UserError, match="exists"):
        record_passes(own, out=tmp_path / "t.zarr")
    assert len(record_passes(own, out=tmp_path / "t.zarr", overwrite=True)) == 2


HERE = """
import torch
from beside import Attention

def network():
    return Attention(), torch.randn(1, 6, 8)
"""
BESIDE = """
import torch

class Attention(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])
"""


def test_a_file_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HERE)
    (tmp_path / "beside.py").write_text(BESIDE)
    own = open_module(f"{tmp_path / 'mine.py'}:network")
    assert record_passes(own, out=tmp_path / "t.zarr")[0]["received"].shape == (1, 1, 1, 6)
