"""Each control on made-up maps: laws that hold for all of them, and a slow recount of what each one is to choose."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.errors import UserError
from sinkscope.interventions import CONTROLS, Control, Situation
from sinkscope.interventions.controls import find_control, lowest_ranked
from sinkscope.sinks import CLASSES

LAWS = settings(deadline=None, max_examples=40)
every_control = pytest.mark.parametrize("name", sorted(CONTROLS))


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Some rows and heads over up to 19 keys; shares are multiples of 2^-10, so that sums are exact and ties happen."""
    batch, heads, keys = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 19))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (batch, heads, keys)
    received = random.integers(0, draw(st.sampled_from([2, 9, 400])), shape) / 1024
    eligible = random.random(shape) < draw(st.sampled_from([0.5, 0.9, 1.0]))
    sinks = (random.random(shape) < draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))) & eligible
    kinds = random.integers(0, draw(st.sampled_from([1, 3, len(CLASSES)])), (batch, keys))
    noise = random.random(shape).astype(np.float32)
    if draw(st.booleans()):
        noise = noise.round(1)  # with ties
    now = torch.from_numpy(random.permuted(received, axis=-1)).float()
    return Situation(
        received=torch.from_numpy(received).float(),
        now=lambda: now,
        eligible=torch.from_numpy(eligible),
        sinks=torch.from_numpy(sinks),
        classes=torch.from_numpy(kinds),
        noise=torch.from_numpy(noise),
    )


def heads_of(situation: Situation, chosen: torch.Tensor) -> list[dict[str, Any]]:
    """Everything about one row and head at a time, as lists."""
    batch, heads, _ = situation.received.shape
    parts = {name: getattr(situation, name) for name in ("received", "eligible", "sinks", "noise")}
    return [
        {name: part[row, head].tolist() for name, part in parts.items()}
        | {"now": situation.now()[row, head].tolist(), "classes": situation.classes[row].tolist()}
        | {"chosen": chosen[row, head].nonzero().flatten().tolist()}
        for row in range(batch)
        for head in range(heads)
    ]


def others(one: dict[str, Any], kind: int | None = None) -> list[int]:
    """Keys that may take a sink's place."""
    free = [key for key, may in enumerate(one["eligible"]) if may and not one["sinks"][key]]
    return [key for key in free if kind is None or one["classes"][key] == kind]


@every_control
@LAWS
@given(situation=situations())
def test_never_a_sink_and_only_what_may_be_cut(name: str, situation: Situation) -> None:
    chosen = find_control(name).choose(situation)
    assert chosen.dtype == torch.bool
    assert chosen.shape == situation.sinks.shape
    assert not bool((chosen & situation.sinks).any())
    assert not bool((chosen & ~situation.eligible).any())
    assert not bool(chosen[~situation.sinks.any(-1)].any()), "a head without sinks loses nothing"


@every_control
@LAWS
@given(situation=situations(), seed=st.integers(0, 999))
def test_heads_are_chosen_for_one_by_one(name: str, situation: Situation, seed: int) -> None:
    """In another order of heads the same keys are chosen; batch and heads are no neighbours of one another."""
    order = torch.randperm(situation.received.shape[1], generator=torch.Generator().manual_seed(seed))
    parts = {name: getattr(situation, name)[:, order] for name in ("received", "eligible", "sinks", "noise")}
    now = situation.now()[:, order]
    moved = find_control(name).choose(Situation(classes=situation.classes, now=lambda: now, **parts))
    assert torch.equal(moved, find_control(name).choose(situation)[:, order])


@pytest.mark.parametrize("name", ["random", "lowest"])
@LAWS
@given(situation=situations())
def test_as_many_as_there_are_sinks(name: str, situation: Situation) -> None:
    for one in heads_of(situation, find_control(name).choose(situation)):
        by = one["noise" if name == "random" else "received"]
        ranked = sorted(others(one), key=lambda key: (by[key], key))
        assert one["chosen"] == sorted(ranked[: sum(one["sinks"])])


@LAWS
@given(situation=situations())
def test_mask_matched_counts_every_class_for_itself(situation: Situation) -> None:
    for one in heads_of(situation, find_control("mask-matched").choose(situation)):
        expected: list[int] = []
        for kind in range(len(CLASSES)):
            wanted = sum(sink for sink, its in zip(one["sinks"], one["classes"], strict=True) if its == kind)
            ranked = sorted(others(one, kind), key=lambda key: (one["noise"][key], key))
            expected += ranked[:wanted]
            assert sum(one["classes"][key] == kind for key in one["chosen"]) == min(wanted, len(ranked))
        assert one["chosen"] == sorted(expected)


@LAWS
@given(situation=situations(), seed=st.integers(0, 999))
def test_rounding_noise_changes_no_choice(situation: Situation, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    noise = 1 + 1e-6 * (2 * torch.rand(situation.received.shape, generator=draw) - 1)
    now = situation.now()
    noisy = replace(situation, received=situation.received * noise, now=lambda: now * noise)
    for name in CONTROLS:
        assert torch.equal(find_control(name).choose(noisy), find_control(name).choose(situation)), name


@pytest.mark.parametrize(("name", "by"), [("equal-mass", "received"), ("equal-mass-at-step", "now")])
@LAWS
@given(situation=situations())
def test_equal_mass_is_the_nearest_beginning_of_a_random_order(name: str, by: str, situation: Situation) -> None:
    for one in heads_of(situation, find_control(name).choose(situation)):
        held, wanted = one[by], sum(r for r, sink in zip(one[by], one["sinks"], strict=True) if sink)
        ranked = sorted(others(one), key=lambda key: (one["noise"][key], key))
        distance = [abs(sum(held[key] for key in ranked[:count]) - wanted) for count in range(len(ranked) + 1)]
        assert one["chosen"] == sorted(ranked[: distance.index(min(distance))])


def test_equal_mass_by_hand() -> None:
    """Sinks hold .5; in the order of noise the others hold .2, .2, .05, .05: all of them come nearest."""
    received = torch.tensor([[[0.3, 0.2, 0.2, 0.2, 0.05, 0.05]]])
    sinks = torch.tensor([[[True, True, False, False, False, False]]])
    noise = torch.tensor([[[0.0, 0.0, 0.2, 0.1, 0.3, 0.4]]])

    def chosen(held: torch.Tensor) -> list[bool]:
        whole = torch.ones_like(sinks)
        kinds = torch.zeros(1, 6, dtype=torch.long)
        found: list[bool] = (
            find_control("equal-mass")
            .choose(
                Situation(received=held, now=lambda: held, eligible=whole, sinks=sinks, classes=kinds, noise=noise)
            )[0, 0]
            .tolist()
        )
        return found

    assert chosen(received) == [False, False, True, True, True, True]
    assert chosen(received * torch.tensor([0.4, 0, 1, 1, 1, 1])) == [False, False, False, True, False, False]
    assert chosen(received * torch.tensor([0, 0, 1, 1, 1, 1])) == [False] * 6


@LAWS
@given(situation=situations(), seed=st.integers(0, 999))
def test_random_draws_do_not_look_at_attention(situation: Situation, seed: int) -> None:
    """Other attention, the same sinks: the same keys."""
    other = torch.rand(situation.received.shape, generator=torch.Generator().manual_seed(seed))
    parts = {name: getattr(situation, name) for name in ("eligible", "sinks", "classes", "noise")}
    for name in ("random", "mask-matched"):
        again = find_control(name).choose(Situation(received=other, now=lambda: other, **parts))
        assert torch.equal(again, find_control(name).choose(situation))


def test_random_keys_are_uniform() -> None:
    """Each of 11 others takes the place of one of 2 sinks in 2/11 of 20,000 heads; 5 standard errors are 0.014."""
    shape = (1, 20_000, 13)
    sinks = torch.zeros(shape, dtype=torch.bool)
    sinks[..., 3:5] = True
    situation = Situation(
        received=torch.rand(shape),
        eligible=torch.ones(shape, dtype=torch.bool),
        sinks=sinks,
        classes=torch.zeros(1, 13, dtype=torch.long),
        noise=torch.rand(shape),
        now=lambda: torch.rand(shape),
    )
    for name in ("random", "mask-matched"):
        often = find_control(name).choose(situation)[0].double().mean(0)
        others = torch.cat([often[:3], often[5:]])
        torch.testing.assert_close(others, torch.full((11,), 2 / 11, dtype=torch.float64), atol=0.014, rtol=0)


@LAWS
@given(situation=situations(), more=st.integers(0, 25))
def test_lowest_ranked_takes_what_comes_first(situation: Situation, more: int) -> None:
    count = torch.randint(0, more + 1, situation.received.shape[:2])
    chosen = lowest_ranked(situation.received, situation.eligible, count)
    for one, wanted in zip(heads_of(situation, chosen), count.flatten().tolist(), strict=True):
        ranked = sorted((r, key) for key, r in enumerate(one["received"]) if one["eligible"][key])
        assert one["chosen"] == sorted(key for _, key in ranked[:wanted])


def test_the_registry() -> None:
    assert {"equal-mass", "equal-mass-at-step", "lowest", "mask-matched", "random"} <= set(CONTROLS)
    for name, control in CONTROLS.items():
        assert issubclass(control, Control)
        assert control.name == name
        assert type(find_control(name)) is control
        assert control.__doc__
    assert [name for name in sorted(CONTROLS) if not CONTROLS[name].noisy] == ["lowest"]
    assert [name for name in CONTROLS if CONTROLS[name].by_class] == ["mask-matched"]
    with pytest.raises(TypeError):
        CONTROLS["mine"] = CONTROLS["random"]  # type: ignore[index]
    with pytest.raises(
        UserError, match="unknown control 'sinks': use one of equal-mass, equal-mass-at-step, lowest, mask"
    ):
        find_control("sinks")
