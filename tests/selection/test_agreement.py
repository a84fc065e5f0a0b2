"""Gates beside attention: choices that must agree, and choices that must not."""

import pytest
import torch
from tiny_vits import pictures, selective

from sinkscope.cli.select.agree import averaged
from sinkscope.report.selection import agreement_bars
from sinkscope.selection.agreement import OTHERS, agreement
from sinkscope.selection.selectors import SELECTORS, GateInput


def test_every_gate_is_compared_with_every_other_way() -> None:
    model = selective("vit")
    images = pictures(model.backbone, 6)
    found = list(agreement(model, images, 0.25))
    assert [(one.gate, one.other) for one in found] == [(g, o) for g in model.gate_places for o in OTHERS]
    n = model.backbone.patches
    first, last = -(-n // 2), -(-n // 4)  # gates keep a half, then a quarter
    assert [one.chance for one in found] == pytest.approx([first / n] * 3 + [last / first] * 3)
    for one in found:
        assert one.correlation is not None and -1 <= one.correlation <= 1 and 0 <= one.overlap <= 1


def test_one_patch_alone_has_no_order() -> None:
    model = selective("vit")
    found = list(agreement(model, pictures(model.backbone, 3), 0.0005))
    assert [one.correlation is None for one in found] == [False] * 3 + [True] * 3
    averaged_ones = averaged([(3, found), (3, found)])
    assert [one.correlation is None for one in averaged_ones] == [False] * 3 + [True] * 3
    assert averaged_ones[0].correlation == pytest.approx(found[0].correlation)
    agreement_bars(averaged_ones)


def test_gates_that_copy_an_other_agree_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first gate made to score as the class token looks, by way of the selector's own code."""
    model = selective("vit")
    images = pictures(model.backbone, 4)
    copied: list[torch.Tensor] = []
    others = SELECTORS["cls-attention"]

    def listen(self: object, at: GateInput) -> torch.Tensor:
        del self
        assert at.attention is not None
        copied.append(at.attention.by_class)
        return at.attention.by_class

    monkeypatch.setattr(others, "scores", listen)
    gate = model.gate_at(model.gate_places[0])
    list(agreement(model, images, 0.25))
    monkeypatch.setattr(gate, "scores", lambda patches: copied[0][:, : patches.shape[1]])
    found = {one.other: one for one in agreement(model, images, 0.25) if one.gate == model.gate_places[0]}
    assert found["cls-attention"].correlation == pytest.approx(1.0)
    assert found["cls-attention"].overlap == 1.0
    assert found["key-norm"].overlap < 1.0
