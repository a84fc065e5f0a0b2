"""Seeds from texts."""

from hypothesis import given
from hypothesis import strategies as st

from sinkscope.seeds import MOST_SEED, seed_from


def test_a_text_stands_for_the_same_seed_as_ever() -> None:
    # The first seven bytes of the text's SHA-256, as `printf text | sha256sum` prints them.
    assert seed_from("text") == 0x982D9E3EB996F5


@given(text=st.text())
def test_seeds_are_what_torch_and_json_take(text: str) -> None:
    assert 0 <= seed_from(text) < 2**56
    assert MOST_SEED == 2**53 and float(MOST_SEED) == MOST_SEED
