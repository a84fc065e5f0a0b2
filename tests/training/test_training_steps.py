"""Optimizer steps against a plain loop of torch: loss, clipping, Muon and AdamW, rates, masks."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import AdamW, Muon
from transformers import LlamaForCausalLM
from twin_runs import TINY, changed

from sinkscope.training import Kind, Recipe, find_kind, objectives, train_twin, training
from sinkscope.training.export import export
from sinkscope.training.objectives import Batch, Masked, batch, put_masks
from sinkscope.training.training import initial_network

RECIPE = changed(TINY, largest_norm=0.05, warm_up=0.3, weight_decay=0.5, answers_only=(0.0, 1.0), restarts=1)
"""Gradients are clipped hard, weights decay fast, and the rates rise for 2 of 8 steps, then for 1 of 4."""
Weights = dict[str, Tensor]


def plain_loop(kind: Kind, recipe: Recipe, masks: list[Masked], out: Path) -> Weights:
    """The weights after the recipe's 12 steps."""
    network: Any = initial_network(recipe, kind, out)
    matrices = [weight for name, weight in network.named_parameters() if "_proj" in name]
    others = [weight for name, weight in network.named_parameters() if "_proj" not in name]
    muon: Any = Muon(matrices, weight_decay=0.5, momentum=0.95)
    if recipe.matrix_optimizer == "adamw":
        muon = AdamW(matrices, weight_decay=0.5, betas=(0.9, 0.95))
    adamw = AdamW(others, weight_decay=0.5, betas=(0.9, 0.95))
    for step in range(12):
        at, warm, last, height = (step, 2, 8, 1.0) if step < 8 else (step - 8, 1, 4, 0.5)
        way = (at - warm) / (last - warm)
        share = height * ((at + 1) / warm if at < warm else 0.05 + 0.95 * math.cos(math.pi * way / 2) ** 2)
        muon.param_groups[0]["lr"], adamw.param_groups[0]["lr"] = recipe.matrix_rate * share, 3e-3 * share
        network.zero_grad()
        tokens = batch(recipe, step).tokens
        if kind.name == "twin-ar":
            loss = network(tokens, labels=tokens).loss  # transformers' own
        else:
            given = masks[step]
            logs = network(given.tokens).logits.log_softmax(-1)
            right = logs.gather(-1, tokens[..., None])[..., 0]
            loss = -torch.stack([(row * hidden * weight).sum() for row, hidden, weight in zip(
                right, given.masked, given.weight, strict=True)]).mean()  # fmt: skip
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 0.05)
        muon.step()
        adamw.step()
    found: Weights = network.state_dict()
    return found


@pytest.mark.parametrize(
    ("name", "optimizer", "rate"), [("twin-ar", "muon", 0.02), ("twin-dlm", "muon", 0.02), ("twin-ar", "adamw", 0.004)]
)
def test_steps_are_those_of_a_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, optimizer: str, rate: float
) -> None:
    kind, masks, shares, trained = find_kind(name), [], [], {}
    own = changed(RECIPE, matrix_optimizer=optimizer, matrix_rate=rate)

    def masking(given: Batch, answers_only: float, generator: torch.Generator) -> Masked:
        masks.append(put_masks(given, answers_only, generator))
        shares.append(answers_only)
        return masks[-1]

    def exporting(network: LlamaForCausalLM, recipe: Recipe, kind: Kind, folder: Path) -> None:
        trained.update({name: weight.detach().clone() for name, weight in network.state_dict().items()})
        export(network, recipe, kind, folder)

    monkeypatch.setattr(objectives, "put_masks", masking)
    monkeypatch.setattr(training, "export", exporting)
    assert len([*train_twin(kind, own, tmp_path)]) == 4
    initial, wanted = initial_network(own, kind, tmp_path).state_dict(), plain_loop(kind, own, masks, tmp_path)
    for weight, end in wanted.items():
        # Muon orthogonalises in bfloat16, so that the last bits of a gradient may show in the first ones of a step.
        way = float((end - initial[weight]).norm())
        assert way > 0
        assert float((trained[weight] - end).norm()) < 0.03 * way, weight
    if name == "twin-dlm":
        assert shares == pytest.approx([min(1, step / 8) for step in range(12)])
        assert len({float(given.weight.sum()) for given in masks}) == 12, "every step draws its own masks"


def test_masks_follow_from_seed_and_step_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Tensor] = []

    def masking(given: Batch, answers_only: float, generator: torch.Generator) -> Masked:
        masks = put_masks(given, answers_only, generator)
        drawn.append(masks.weight.clone())
        return masks

    monkeypatch.setattr(objectives, "put_masks", masking)
    runs = []
    for number, recipe in enumerate((RECIPE, changed(RECIPE, matrix_rate=0.001), changed(RECIPE, seed=12))):
        drawn.clear()
        torch.manual_seed(number)
        assert len([*train_twin(find_kind("twin-dlm"), recipe, tmp_path / str(number))]) == 4
        runs.append([*drawn])
    assert all(torch.equal(one, other) for one, other in zip(runs[0], runs[1], strict=True))
    assert not any(torch.equal(one, other) for one, other in zip(runs[0], runs[2], strict=True))
