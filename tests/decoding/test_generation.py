"""`Run`: what is checked and how many steps there are; and texts longer than those of the training: one warning a call,
before any work, and none where all is well."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from sinkscope.decoding import Decoding, Denoising, Run, generate
from sinkscope.decoding.settings import Settings
from sinkscope.errors import TrainedLengthWarning, UserError
from sinkscope.families import Model, load_model
from sinkscope.interventions import MaskSinks
from sinkscope.trace import record

TRAINED = 30


@pytest.fixture(params=["twin-ar", "twin-dlm"])
def twin(request: pytest.FixtureRequest, twin_folders: Mapping[str, Path]) -> Model:
    return load_model(twin_folders[request.param], device="cpu")


def new_tokens(model: Model, number: int) -> Settings:
    """Settings that make a text longer by this many tokens."""
    if model.family.bidirectional:
        return Denoising(gen_length=number, block_length=None, steps=1)
    return Decoding(max_new_tokens=number)


def test_up_to_the_trained_length_nothing_is_said(twin: Model, tmp_path: Path) -> None:
    """Warnings are errors here."""
    prompts = [[7] * 5, [8] * 3]
    generate(twin, prompts, new_tokens(twin, TRAINED - 5))
    record(twin, prompts, new_tokens(twin, TRAINED - 5), out=tmp_path / "t.zarr")


def test_generate_says_it_once(twin: Model) -> None:
    seen: list[int] = []
    with pytest.warns(TrainedLengthWarning) as caught:
        generate(twin, [[7] * 5, [8] * 3], new_tokens(twin, TRAINED - 4), on_step=lambda _: seen.append(len(caught)))
    assert [type(one.message) for one in caught] == [TrainedLengthWarning]
    assert str(caught[0].message).startswith(
        f"{twin.name} was trained on texts of at most 30 tokens; a prompt of 5 and 26 new ones make 31, and"
    )
    assert caught[0].filename == __file__
    assert set(seen) == {1}  # said before the first step


def test_record_says_it_once_for_all_batches(twin: Model, tmp_path: Path) -> None:
    prompts = [[7] * 5, [8] * 11, [9] * 10, [10] * 2]
    with pytest.warns(TrainedLengthWarning) as caught:
        record(twin, prompts, new_tokens(twin, TRAINED - 6), out=tmp_path / "t.zarr")
    assert [type(one.message) for one in caught] == [TrainedLengthWarning]
    assert "a prompt of 11 and 24 new ones make 35" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_whoever_makes_it_an_error_has_no_work_done(
    twin: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = new_tokens(twin, TRAINED)
    with pytest.raises(TrainedLengthWarning):
        record(twin, [[7], [8]], settings, out=tmp_path / "t.zarr")
    assert [*tmp_path.iterdir()] == []

    def work(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(twin.network, "forward", work)
    with pytest.raises(TrainedLengthWarning):
        generate(twin, [7], settings)


def test_a_mistake_comes_before_a_caution(twin: Model) -> None:
    """Beyond the context of 64 there is nothing to warn of: it is refused."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(UserError, match="the context is 64"):
            generate(twin, [7] * 5, new_tokens(twin, 60))
    assert caught == []


def test_a_prompt_alone_may_be_too_long(twin_folders: Mapping[str, Path]) -> None:
    model = load_model(twin_folders["twin-dlm"], device="cpu")
    mask = model.family.mask_token_id
    assert mask is not None
    with pytest.warns(TrainedLengthWarning, match="a prompt of 31 and 0 new ones make 31"):
        generate(model, [7] * 30 + [mask], Denoising(gen_length=0, block_length=None, steps=None))


def test_a_family_that_does_not_know_says_nothing(twin: Model) -> None:
    model = replace(twin, family=replace(twin.family, trained_length=None))
    assert generate(model, [7] * 5, new_tokens(model, 40)).prompt_length == 5


def test_a_run_is_what_generate_runs(twin: Model) -> None:
    masked = MaskSinks(1, detect="same", first_step=0)
    run = Run(twin, new_tokens(twin, 4), masked)
    encoded = run.encode(["a b", "b"])
    *_, last = run.steps(encoded)
    assert last.index < run.max_steps(encoded)
    assert last.canvas.tolist() == generate(twin, encoded, run.settings, intervention=masked).sequences.tolist()
    assert run.masking is masked and Run(twin, run.settings, MaskSinks(0)).masking is None and run.prefix == ()


def test_a_run_refuses_settings_of_the_other_kind(twin: Model) -> None:
    both_ways = twin.family.bidirectional
    wrong: Settings
    wrong, wanted = (Decoding(), "Denoising") if both_ways else (Denoising(), "Decoding")
    run = Run(twin, wrong)
    for check in (run.check, run.steps):
        with pytest.raises(UserError, match=f"takes {wanted} settings, got {type(wrong).__name__}"):
            check([[1]])


@pytest.mark.parametrize(
    ("settings", "masks", "new", "most"),
    [
        (Decoding(max_new_tokens=5), 0, 5, 5),
        (Denoising(gen_length=8, block_length=4, steps=4), 0, 8, 8),
        (Denoising(gen_length=8, block_length=4, steps=16), 3, 8, 16),
        (Denoising(gen_length=4, block_length=1, steps=None, cache="dual"), 0, 4, 8),
        (Denoising(gen_length=0, block_length=None, steps=None), 3, 0, 3),
    ],
    ids=str,
)
def test_new_tokens_and_the_most_steps(settings: Decoding | Denoising, masks: int, new: int, most: int) -> None:
    assert (settings.new_tokens, settings.max_steps(masks)) == (new, most)
