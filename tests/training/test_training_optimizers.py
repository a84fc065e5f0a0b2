"""Optimizers: who updates which weight, and how fast."""

import math

import pytest
import torch
from transformers import LlamaForCausalLM
from twin_runs import TINY, changed

from sinkscope.training.export import configuration
from sinkscope.training.optimizers import factor, optimizers, schedules

MATRICES = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def network() -> LlamaForCausalLM:
    return LlamaForCausalLM(configuration(TINY))


def test_every_weight_has_one_optimizer_and_matrices_of_layers_have_muon() -> None:
    made = network()
    names = {id(weight): name for name, weight in made.named_parameters()}
    muon, adamw = (
        [names[id(weight)] for group in one.param_groups for weight in group["params"]]
        for one in optimizers(made, TINY)
    )
    assert sorted(muon + adamw) == sorted(names.values())
    assert {(name.split(".")[2], name.split(".")[-2]) for name in muon} == {
        (str(layer), matrix) for layer in range(TINY.layers) for matrix in MATRICES
    }
    norms = {name for name in names.values() if "norm" in name}
    assert set(adamw) == norms | {"model.embed_tokens.weight"}


@pytest.mark.parametrize(("name", "kind"), [("muon", torch.optim.Muon), ("adamw", torch.optim.AdamW)])
def test_the_recipe_names_the_optimizer_of_the_matrices(name: str, kind: type[torch.optim.Optimizer]) -> None:
    made = network()
    [for_matrices, for_rest] = optimizers(made, changed(TINY, matrix_optimizer=name))
    assert type(for_matrices) is kind and type(for_rest) is torch.optim.AdamW
    held = [{id(weight) for weight in one.param_groups[0]["params"]} for one in (for_matrices, for_rest)]
    assert len(held[0] & held[1]) == 0 and len(held[0] | held[1]) == len(list(made.parameters()))


def test_rates_and_decay_are_the_recipes() -> None:
    recipe = changed(TINY, matrix_rate=0.07, other_rate=0.005, weight_decay=0.3)
    for one, rate in zip(optimizers(network(), recipe), (0.07, 0.005), strict=True):
        assert [group["lr"] for group in one.param_groups] == [rate]
        assert [group["weight_decay"] for group in one.param_groups] == [0.3]


@pytest.mark.parametrize(("steps", "warm_up", "warm"), [(200, 0.1, 20), (97, 0.05, 5), (12, 0.02, 1), (30, 0.0, 1)])
def test_rates_warm_up_and_fall_to_a_twentieth_on_a_cosine(steps: int, warm_up: float, warm: int) -> None:
    recipe = changed(TINY, warm_up=warm_up)
    made = optimizers(network(), recipe)
    rates = schedules(made, recipe.warm_up, (steps,))
    used: list[list[float]] = [[], []]
    for _ in range(steps + 1):
        for place, (one, schedule) in enumerate(zip(made, rates, strict=True)):
            used[place].append(one.param_groups[0]["lr"])
            one.step()  # there are no gradients; a schedule wants it to come first
            schedule.step()
    for found, highest in zip(used, (recipe.matrix_rate, recipe.other_rate), strict=True):
        shares = [rate / highest for rate in found]
        assert shares[0] == pytest.approx(1 / warm)
        assert shares[:warm] == pytest.approx([(step + 1) / warm for step in range(warm)])
        assert shares[warm - 1] == pytest.approx(1)
        assert shares[warm] == pytest.approx(1)
        assert shares[steps] == pytest.approx(0.05)
        falling = shares[warm:]
        assert falling == sorted(falling, reverse=True)
        for step in range(warm, steps):  # the half-angle form of the same curve
            way = (step - warm) / (steps - warm)
            assert shares[step] == pytest.approx(0.05 + 0.95 * math.cos(math.pi * way / 2) ** 2)


def test_a_second_cosine_starts_from_half_the_rates() -> None:
    first = [factor(step, warm_up=0.1, cosines=(40,)) for step in range(40)]
    second = [factor(step, warm_up=0.1, cosines=(30,)) for step in range(40)]  # 10 steps beyond its end
    both = [factor(step, warm_up=0.1, cosines=(40, 30)) for step in range(80)]
    assert both == [*first, *(rate / 2 for rate in second)]
