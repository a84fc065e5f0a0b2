"""The sentences of the demo follow from the numbers: what they say turns where the numbers turn."""

import numpy as np
import pytest
import xarray as xr

from sinkscope.report.claims import Told, introduction, sentences, verdict

MEASURES = ("first", "moved", "strong", "received")


def told(name: str, *, causal: bool, token: str = "<bos>", chance: float = 0.2, **shares: list[float]) -> Told:
    """A model whose measures by text are these, every chance the same."""
    texts = len(next(iter(shares.values())))
    values = {
        one: (("origin", "text"), np.array([shares.get(one, [0.3] * texts), [chance] * texts])) for one in MEASURES
    }
    fair = {"fair": ("text", np.full(texts, 0.05))}
    return Told(
        name=name, causal=causal, token=token, measures=xr.Dataset(values | fair, {"origin": ["own", "shuffled"]})
    )


AR = told("ar", causal=True, first=[0.9, 1.0], moved=[0.02, 0.04], strong=[0.8, 0.8])
DLM = told("dlm", causal=False, first=[0.3, 0.1], moved=[0.12, 0.18], strong=[0.1, 0.3])


def test_every_claim_has_its_numbers_and_their_chance() -> None:
    where, moves, strong, published = [" ".join(one) for one in sentences([AR, DLM])]
    assert where == (
        "Where? A head's strongest key is <bos> in 95 % of the maps of ar (chance 20 %) and 20 % of dlm (chance 20 %: "
        "no more than chance)."
    )
    assert "3 % of cases in ar (chance 20 %)" in moves and "15 % in dlm (chance 20 %)" in moves
    assert moves.endswith("; less than chance in all of them: mostly it stays.")
    assert "80 % of the maps of ar (chance 20 %)" in strong
    assert "20 % of dlm (chance 20 %: no more than chance)" in strong
    assert "on average .30, .30, where a fair share is .05" in strong
    assert published.endswith(verdict([AR, DLM]))


def test_the_first_token_is_named_only_where_all_have_the_same() -> None:
    assert "strongest key is <bos> in" in sentences([AR, DLM])[0][1]
    other = told("other", causal=False, token="[CLS]", moved=[0.1])
    assert "strongest key is its text's first token in" in sentences([AR, other])[0][1]


@pytest.mark.parametrize(
    ("moved", "chance", "said"),
    [
        ([0.12, 0.18], 0.2, "dlm's move 5.0 times as often (15 % against 3 %), yet less than by chance: as published."),
        ([0.22, 0.28], 0.2, "dlm's move 8.3 times as often (25 % against 3 %): as published."),
        ([0.01, 0.29], 0.2, "(15 % against 3 %), yet less than by chance: as published on average, not in every text."),
        ([0.01, 0.03], 0.2, "dlm's move no more often (2 % against 3 %): not as published"),
        ([0.0, 0.0], 0.2, "not as published"),
        ([0.12, 0.18], 1.0, "(15 % against 3 %), but relative to chance no more: not as published"),
    ],
)
def test_the_verdict_turns_with_the_numbers(moved: list[float], chance: float, said: str) -> None:
    model = told("dlm", causal=False, chance=chance, moved=moved, strong=[0.9, 0.9])
    assert said in verdict([AR, model])
    assert ("receive more than .3" in verdict([AR, model])) is False


def test_what_moves_but_is_weak_is_said_to_be_weak() -> None:
    assert "as published, and only 20 % of them receive more than .3" in verdict([AR, DLM])


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ([0.9, 1.0], "ar's strongest keys stay on the first token"),
        ([0.3, 0.4], "ar's strongest keys are at the first token more than by chance, but not mostly"),
        ([0.9, 0.1], "ar's strongest keys are not at the first token by more than chance"),
    ],
)
def test_whether_those_of_the_causal_model_stay(first: list[float], said: str) -> None:
    assert said in verdict([told("ar", causal=True, first=first, moved=[0.02, 0.04]), DLM])


def test_a_model_whose_strongest_keys_never_move() -> None:
    still = told("ar", causal=True, first=[1.0, 1.0], moved=[0.0, 0.0])
    assert "dlm's move where ar's never do (15 % against 0 %)" in verdict([still, DLM])


def test_small_shares_are_not_rounded_to_none_and_numbers_come_as_json() -> None:
    model = told("ar", causal=True, first=[0.998, 0.998], moved=[0.001, float("nan")])
    assert "99.8 % of the maps" in sentences([model, DLM])[0][1]
    found = model.to_dict()
    assert found["moved"]["texts"] == [0.001, None]
    assert found["first"] == {"value": 0.998, "chance": 0.2, "texts": [0.998] * 2, "texts_chance": [0.2] * 2}
    assert (found["fair"], found["first_token"], found["causal"]) == (0.05, "<bos>", True)


def test_how_each_model_writes_is_told_first() -> None:
    other = told("other", causal=False, moved=[0.1])
    assert introduction([AR, DLM]).endswith("ar writes from left to right; dlm fills masks in any order.")
    assert introduction([DLM, AR, other]).endswith(
        "ar writes from left to right; dlm and other fill masks in any order."
    )
