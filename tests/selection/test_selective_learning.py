"""Training a selection: it learns, the schedule is applied, a killed one ends as an unbroken one, mistakes are told."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small_trainings
import torch
from transformers import DeiTConfig, DeiTForImageClassification

from sinkscope.errors import UserError
from sinkscope.selection import relaxed_pass
from sinkscope.selection.data import ImageSet, Splits
from sinkscope.selection.learning import StepReport, new_model, read_recipe, recipe_from, train_selective
from sinkscope.selection.learning.log import read_log
from sinkscope.selection.learning.steps import draw, selecting_loss, shifted, steps_in_pass, whole_loss
from sinkscope.selection.saved import load_backbone, load_selective, save_selective
from sinkscope.training.optimizers import factor

TINY = replace(small_trainings.TINY, pictures=96, shift=1)


@pytest.fixture(scope="module")
def digits() -> Splits:
    return small_trainings.small_digits(40)


def small_deit(image_size: int) -> DeiTConfig:
    return DeiTConfig(**small_trainings.stock_settings(image_size, 10))


class KilledError(Exception):
    """Stands for a kill."""


def kill_at(part: str, step: int) -> Callable[[StepReport], None]:
    def observe(now: StepReport) -> None:
        if (now.part, now.step) == (part, step):
            raise KilledError

    return observe


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_selective(folder).model.state_dict()


@pytest.fixture(scope="module")
def whole(digits: Splits, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[StepReport]]:
    """An unbroken training, and what it told."""
    out, seen = tmp_path_factory.mktemp("whole"), list[StepReport]()
    train_selective(TINY, digits, out, source="digits", observer=seen.append)
    return out, seen


def test_the_schedule_is_applied(whole: tuple[Path, list[StepReport]]) -> None:
    """The authors configure a cosine that their code never reads; here every step's rate is the one of the schedule."""
    out, seen = whole
    assert [now.part for now in seen] == ["pretraining"] * 6 + ["selecting"] * 6
    for part, share in (("pretraining", 1), ("selecting", TINY.selecting_rates)):
        rates = [now.learning_rate for now in seen if now.part == part]
        assert rates == pytest.approx(
            [share * TINY.matrix_rate * factor(step, warm_up=TINY.warm_up, cosines=(6,)) for step in range(6)]
        )
        assert len(set(rates)) > 3
    rows = read_log(out)
    assert [(row["part"], row["number"]) for row in rows] == [
        (p, n) for p in ("pretraining", "selecting") for n in (1, 2)
    ]
    assert rows[-1]["scores"]["sent 0.1"] == pytest.approx(2 / 16)  # ceil(0.1 x 16 patches)


@pytest.mark.parametrize(("part", "step", "left"), [("pretraining", 2, 12), ("selecting", 5, 3)])
def test_a_killed_training_ends_as_an_unbroken_one(
    part: str, step: int, left: int, digits: Splits, whole: tuple[Path, list[StepReport]], tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    with pytest.raises(KilledError):
        train_selective(TINY, digits, broken, source="digits", observer=kill_at(part, step))
    steps: list[StepReport] = []
    train_selective(TINY, digits, broken, source="digits", observer=steps.append)
    assert len(steps) == left, "passes that were finished are not done again"
    expected, found = weights(whole[0] / "model"), weights(broken / "model")
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0)
    assert read_log(broken) == read_log(whole[0])


def test_it_learns_to_honour_its_threshold(digits: Splits) -> None:
    """The budget's term alone moves each gate's threshold to where the count cuts."""
    model = new_model(TINY, digits)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    def miss(step: int) -> torch.Tensor:
        drawn = draw(digits.train, TINY, "selecting", step)
        relaxed = relaxed_pass(model, drawn.images, drawn.alpha)
        return (relaxed.shares - relaxed.targets.to(relaxed.shares)).square().mean()

    first = float(miss(0).detach())
    for step in range(60):
        loss = miss(step)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    assert float(miss(100).detach()) < 0.1 * first


def test_losses_are_of_all_the_weights_they_should_move(digits: Splits) -> None:
    model = new_model(TINY, digits)
    drawn = next(one for step in range(20) if (one := draw(digits.train, TINY, "selecting", step)).link is not None)
    torch.autograd.backward(whole_loss(model, drawn))
    moved = {
        name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.abs().sum() > 0
    }
    assert moved and all(name.startswith("backbone.") for name in moved)
    model.zero_grad()
    torch.autograd.backward(selecting_loss(model, drawn, 1.0))
    still = {name for name, weight in model.named_parameters() if weight.grad is None or weight.grad.abs().sum() == 0}
    assert not still


def test_a_step_draws_all_shares_and_the_noise_asked_for(digits: Splits) -> None:
    recipe = replace(TINY, batch=64, pictures=0, least_alpha=0.2, least_rate=0.1, snr=(-5.0, 3.0), clean=0.5)
    every = [draw(digits.train, recipe, "selecting", step) for step in range(60)]
    for drawn in every:
        places = ((drawn.alpha - 0.2) / 0.8 * 64).floor()
        assert sorted(places.tolist()) == list(range(64)), "one share from each even part of the range"
    links = [drawn.link for drawn in every if drawn.link is not None]
    assert 15 < len(links) < 45  # of 60 at a half: beyond 4 standard deviations otherwise
    assert all(0.1 <= link.rate <= 1 for link in links) and len({link.rate for link in links}) > 10
    snrs = torch.cat([torch.as_tensor(link.snr) for link in links])
    assert -5 <= float(snrs.min()) < -4.5 and 2.5 < float(snrs.max()) <= 3
    again = draw(digits.train, recipe, "selecting", 7)
    torch.testing.assert_close(again.images, every[7].images, rtol=0, atol=0)
    assert not torch.equal(draw(digits.train, replace(recipe, seed=1), "selecting", 7).labels, every[7].labels)


def test_a_pass_sees_every_picture_once(digits: Splits) -> None:
    data = digits.train.take(130)
    recipe = replace(TINY, batch=64, shift=0)
    assert steps_in_pass(130, 64) == 2 and steps_in_pass(10, 64) == 1
    seen = torch.cat([draw(data, recipe, "selecting", step).images.flatten(1) for step in (2, 3)])
    assert len(torch.unique(seen, dim=0)) == 128


def test_pictures_are_moved_and_their_edges_repeated() -> None:
    pictures = torch.rand(50, 1, 6, 6)
    moved = shifted(pictures, 1, torch.Generator().manual_seed(3))
    assert moved.shape == pictures.shape
    places = set()
    for one, other in zip(pictures, moved, strict=True):
        found = [
            (row, column)
            for row in (-1, 0, 1)
            for column in (-1, 0, 1)
            if torch.equal(torch.roll(one, (row, column), (1, 2))[:, 1:-1, 1:-1], other[:, 1:-1, 1:-1])
        ]
        assert len(found) == 1
        places.add(found[0])
    assert len(places) == 9
    assert shifted(pictures, 0, torch.Generator()) is pictures


def test_what_is_saved_is_what_was_trained(digits: Splits, tmp_path: Path) -> None:
    recipe = replace(TINY, mode="up-to", pretraining=0, selecting=1, pictures=32)
    trained = train_selective(recipe, digits, tmp_path / "a", source="digits")
    images = digits.test.pixels(range(8))
    save_selective(trained, tmp_path / "b")
    again = load_selective(tmp_path / "b")
    assert (again.source, again.model.mode, len(again.classes)) == ("digits", "up-to", 10)
    torch.testing.assert_close(again.model(images, 0.4).logits, trained.model(images, 0.4).logits, rtol=0, atol=0)
    assert recipe_from(dict(again.recipe)) == recipe == read_recipe(tmp_path / "a")


def test_a_training_starts_from_a_network_of_its_own(digits: Splits, tmp_path: Path) -> None:
    config = small_deit(8)
    DeiTForImageClassification(config).save_pretrained(tmp_path / "deit")
    start = load_backbone(str(tmp_path / "deit"), 10)
    recipe = replace(TINY, pretraining=0, selecting=1)
    trained = train_selective(recipe, digits, tmp_path / "out", source="digits", start=start)
    assert type(trained.model.backbone.network).__name__ == "DeiTForImageClassification"
    assert [row["part"] for row in read_log(tmp_path / "out")] == ["selecting"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mode": "sharp"}, "unknown mode"),
        ({"channel": "wire"}, "unknown channel"),
        ({"least_alpha": 0.0}, "alpha must lie"),
        ({"least_rate": 2.0}, "rate must lie"),
        ({"snr": [3, -3]}, "ascending"),
        ({"snr": [0.0, float("inf")]}, "snr .*finite"), ({"snr": [1.0]}, "two"), ({"snr": [1.0, 2.0, 3.0]}, "two"),
        ({"budget_weight": float("nan")}, "budget_weight"), ({"weight_decay": -1.0}, "weight_decay"),
        ({"largest_norm": -1.0}, "largest_norm"), ({"matrix_rate": float("inf")}, "matrix_rate"),
        ({"seed": -1}, "seed must lie"), ({"seed": 2**70}, "seed must lie"),
        ({"matrix_optimizer": "sgd"}, "muon or adamw"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"shift": -1}, "shift must be at least 0"),
        ({"clean": 1.5}, "clean must lie"),
        ({"width": "wide"}, "width got .*whole number"),
        ({"batch": True}, "batch got True"),
        ({"colour": 1}, "a recipe has no colour"),
    ],
)  # fmt: skip
def test_a_recipe_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        recipe_from(changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"patch": 3}, "patches of 3"), ({"width": 18, "heads": 4}, "over 4 heads"), ({"split": 4}, "split")],
)
def test_a_recipe_that_does_not_fit_the_pictures(
    changes: dict[str, Any], words: str, digits: Splits, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        train_selective(replace(TINY, **changes), digits, tmp_path / "out", source="digits")
    assert not (tmp_path / "out").exists(), "nothing is written for what can't be"


def test_folders_that_cannot_be_gone_on_with(digits: Splits, tmp_path: Path) -> None:
    quick = replace(TINY, pretraining=0, selecting=1, pictures=32)
    out = tmp_path / "out"
    train_selective(quick, digits, out, source="digits")
    with pytest.raises(UserError, match="another seed, mode"):
        train_selective(replace(quick, seed=1, mode="soft"), digits, out, source="digits")
    with pytest.raises(UserError, match="another source"):
        train_selective(quick, digits, out, source="folder:x")
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        train_selective(quick, digits, other, source="digits")
    (out / "recipe.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        train_selective(quick, digits, out, source="digits")


def test_models_that_cannot_be_loaded(digits: Splits, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "model"
    train_selective(replace(TINY, pretraining=0, selecting=1, pictures=32), digits, tmp_path / "out", source="digits")
    with pytest.raises(UserError, match=r"holds no trained selection.*digits"):
        load_selective(tmp_path / "nowhere")
    card = json.loads((folder / "selection.json").read_text())

    def refused(words: str, **changes: Any) -> None:
        (folder / "selection.json").write_text(json.dumps({**card, **changes}))
        with pytest.raises(UserError, match=words):
            load_selective(folder)

    refused("not of this version", format=99)
    refused("names the network 'GPT2'", network="GPT2")
    refused("of another model", gates=[1])
    refused("split must lie", split=9)
    (folder / "selection.json").write_text("[]")
    with pytest.raises(UserError, match=r"not of this version|damaged"):
        load_selective(folder)
    (folder / "selection.json").write_text(json.dumps(card))
    weights_file = folder / "selection.safetensors"
    weights_file.write_bytes(weights_file.read_bytes()[:-9])
    with pytest.raises(UserError, match="does not fit"):
        load_selective(folder)
    with pytest.raises(UserError, match="can't be read as a vision transformer"):
        load_backbone(str(tmp_path / "nowhere"), 10)


def test_pictures_of_another_size_are_refused_before_work(digits: Splits, tmp_path: Path) -> None:
    config = small_deit(12)
    with pytest.raises(UserError, match="1 x 12 x 12"):
        train_selective(TINY, digits, tmp_path / "out", source="digits", start=DeiTForImageClassification(config))
    assert not (tmp_path / "out").exists()


def test_data_may_be_anyones(tmp_path: Path) -> None:
    """Colour, two classes, not square."""
    pictures = torch.randint(256, (64, 3, 8, 12), dtype=torch.uint8)
    labels = torch.arange(64) % 2
    data = ImageSet(images=pictures, labels=labels, classes=("a", "b"), name="made up")
    recipe = replace(TINY, pretraining=0, selecting=1, pictures=0)
    trained = train_selective(recipe, Splits(train=data, validation=data, test=data), tmp_path, source="made up")
    assert trained.model(data.pixels(range(3)), [0.1, 0.5, 1.0]).sent.tolist() == [3, 12, 24]
