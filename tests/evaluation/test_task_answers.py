"""When an answer counts as right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.evaluation import TASKS
from sinkscope.evaluation.chain_measures import first_symbol
from sinkscope.evaluation.tasks import exact, first_number, last_number
from sinkscope.language.vocabulary import decode, encode

WORKS = st.lists(st.sampled_from(["5+3=8", "20-10=10", "8-8=0", "9+ 1 = 1 0"]), min_size=1, max_size=3).map(", ".join)


@pytest.mark.parametrize("got", ["12", "1 2", " 12\n", "1\t2"])
def test_white_space_never_counts(got: str) -> None:
    assert exact("12", got)
    assert exact(got, "12")
    assert last_number("5+7=12", f"5 + 7 = {got}")


@pytest.mark.parametrize("got", ["", "1", "123", "012", "21", "12.", "twelve"])
def test_anything_else_does(got: str) -> None:
    assert not exact("12", got)


def test_order_and_case_count() -> None:
    assert not exact("a b c", "a c b")
    assert not exact("Ann", "ann")


@pytest.mark.parametrize(
    ("got", "right"),
    [
        ("5+3=8, 8-2=6", True),
        ("6", True),
        ("=6", True),
        ("1+1=6", True),  # wrong steps, right end
        ("there are 6 apples.", True),
        ("5+3=8, 8-2=6.", True),
        ("5+3=8, 8-2=6 apples", True),
        ("5+3=6, 8-2=8", False),
        ("5+3=8, 8-2=16", False),
        ("5+3=8, 8-2=6, 7", False),
        ("5+3=8, 8-2=-6", False),
        ("5+3=8, 8-2=6.5", False),
        ("5+3=8, 8-2=", False),
        ("6 apples =", False),
        ("six", False),
        ("", False),
    ],
)
def test_the_last_number_after_the_last_equals_sign_counts(got: str, right: bool) -> None:
    assert last_number("5+3=8, 8-2=6", got) is right


@given(WORKS)
def test_every_answer_is_right_as_it_is_and_as_tokens_say_it(work: str) -> None:
    assert last_number(work, work)
    assert last_number(work, decode(encode(work)))
    assert exact(work, decode(encode(work)))
    assert not last_number(work, work + "1")
    assert not exact(work, work + "1")


@pytest.mark.parametrize(
    ("got", "right"),
    [
        ("285", True),
        ("2 8 5", True),
        (" 285\n3 more", True),
        ("it is 285. Or 471", True),
        ("285 apples", True),
        ("471, 285", False),
        ("2850", False),
        ("2 8 5 0", False),
        ("28\n5", False),
        ("-285", False),
        ("285.5", False),
        ("two", False),
        ("", False),
    ],
)
def test_the_first_number_counts(got: str, right: bool) -> None:
    assert first_number("285", got) is right


def test_how_each_task_is_scored() -> None:
    own = {"passkey": first_number, "back-copy": first_symbol, "recall": first_symbol}
    own |= {f"arithmetic-{steps}": last_number for steps in (1, 2, 3)}
    assert {name: task.is_right for name, task in TASKS.items()} == {name: own.get(name, exact) for name in TASKS}
