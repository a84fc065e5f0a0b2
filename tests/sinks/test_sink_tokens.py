"""What tokens mean, and how often they hold a sink."""

from collections import Counter

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from sink_samples import END, LAWS, MASK, NEWLINE, SLOW_LAWS, STOP, TOKENS, autoregressive, diffusion

from sinkscope.errors import UserError
from sinkscope.sinks import (
    CLASSES,
    Excess,
    Lexicon,
    find_sinks,
    received_from,
    sink_classes,
    sink_positions,
    sink_tokens,
)
from sinkscope.sinks.lexicon import plain_text
from sinkscope.sinks.surroundings import sink_cells


@pytest.mark.parametrize(
    ("spelling", "text"),
    [
        ("Ġthe", " the"),
        ("Ċ", "\n"),
        ("ĊĊ", "\n\n"),
        ("Ġ", " "),
        ("ĉ", "\t"),
        (".Ċ", ".\n"),
        ("<0x0A>", "\n"),
        ("<0x41>", "A"),
        ("▁cat", " cat"),
        ("▁", " "),
        ("##ing", "ing"),
        ("##", "##"),
        ("\n", "\n"),
        ("é", "é"),
        ("cafÃ©", "café"),
        ("âĢĶ", "—"),
        ("日本", "日本"),
        ("", ""),
    ],
)
def test_spellings_are_read_back(spelling: str, text: str) -> None:
    assert plain_text(spelling) == text


@LAWS
@given(st.text(max_size=9))
def test_every_byte_level_spelling_is_read_back(text: str) -> None:
    # The published table: printable bytes stand for themselves, the others follow from U+0100 in order.
    hidden = [b for b in range(256) if not (33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255)]
    spelled = "".join(chr(0x100 + hidden.index(b)) if b in hidden else chr(b) for b in text.encode())
    assert plain_text(spelled) == (text if not (len(text) > 2 and text.startswith("##")) else text[2:])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Ċ", "newline"),
        ("ĊĠĠ", "newline"),
        ("<0x0D>", "newline"),
        ("Ġ", "other"),
        (".", "punctuation"),
        ("Ġ(", "punctuation"),
        (".Ċ", "punctuation"),
        ("=", "punctuation"),
        ("##,", "punctuation"),
        ("âĢĶ", "punctuation"),
        ("a.", "other"),
        ("7", "other"),
        ("<|eot_id|>", "special"),
        ("", "other"),
    ],
)
def test_classes_of_texts(text: str, kind: str) -> None:
    assert Lexicon({5: text}, None, frozenset(), 0).class_of(5) == kind


def test_ids_come_before_texts() -> None:
    lexicon = Lexicon({1: "Ċ", 2: "."}, mask_token_id=1, special_ids=frozenset({1, 2}), prompt_length=0)
    assert lexicon.class_of(1) == "mask"
    assert lexicon.class_of(2) == "special"
    assert lexicon.class_of(3) == "other"
    assert lexicon.text(3) == "<3>"


def test_classes_of_a_canvas() -> None:
    sample = diffusion(1).sample
    canvas = xr.DataArray(
        [[0, NEWLINE, MASK, END, 0, STOP, MASK, 5]], dims=("step", "position"), coords={"position": np.arange(8)}
    )
    kinds = [CLASSES[kind] for kind in Lexicon.of(sample).classes(canvas).values[0]]
    assert kinds == ["prompt", "newline", "mask", "special", "other", "punctuation", "mask", "other"]


def hand_sample() -> xr.Dataset:
    """Two steps, one layer, one head, three positions: the top holds [MASK], then the line break."""
    return xr.Dataset(
        {
            "received": (("step", "layer", "head", "position"), np.array([[[[0.1, 0.2, 0.7]]], [[[0.1, 0.8, 0.1]]]])),
            "canvas": (("step", "position"), np.array([[0, NEWLINE, MASK], [0, NEWLINE, MASK]], dtype=np.int32)),
        },
        coords={"step": [0, 1], "layer": [0], "head": [0], "position": [0, 1, 2]},
        attrs={"tokens": TOKENS, "prompt_length": 1, "sinkscope": {"model": {"mask_token_id": MASK}}},
    )


def test_a_table_worked_out_by_hand() -> None:
    table = sink_tokens(hand_sample())
    assert table["token"].values.tolist() == [NEWLINE, MASK, 0]
    assert table["text"].values.tolist() == ["\n", "[MASK]", " the"]
    assert table["frequency"].values.tolist() == [0.5, 0.5, 0.0]
    np.testing.assert_allclose(table["base_rate"], [1 / 3] * 3)
    np.testing.assert_allclose(table["lift"], [1.5, 1.5, 0.0])
    assert table["sinks"].values.tolist() == [1, 1, 0]
    classes = sink_classes(hand_sample())
    assert classes["sinks"].sel(token_class=["mask", "newline", "prompt"]).values.tolist() == [1, 1, 0]
    assert float(classes["base_rate"].sel(token_class="prompt")) == pytest.approx(1 / 3)
    assert np.isnan(classes["lift"].sel(token_class="other"))


@pytest.mark.parametrize("sample", [diffusion(4).sample, autoregressive(4)], ids=["dlm", "arm"])
@pytest.mark.parametrize("per", ["step", "layer", "head", "rule"])
def test_frequencies_are_those_counted_in_loops(sample: xr.Dataset, per: str) -> None:
    where = sink_positions(sample)
    held: Counter[int] = Counter()
    sinks = find_sinks(sample, Excess(1.2))
    for step, layer, head in np.ndindex(sinks.shape[:3]):
        canvas = sample["canvas"].values[step]
        if per == "rule":
            held.update(int(canvas[j]) for j in np.flatnonzero(sinks.values[step, layer, head]))
        elif per == "head":
            held[int(canvas[int(where["by_head"][step, layer, head])])] += 1
        elif head == 0 and per == "layer":
            held[int(canvas[int(where["by_layer"][step, layer])])] += 1
        elif head == 0 and layer == 0 and per == "step":
            held[int(canvas[int(where["overall"][step])])] += 1
    exists = sample["received"].notnull().values[:, 0, 0]
    cells = Counter(sample["canvas"].values[exists].tolist())
    table = sink_tokens(sample, sinks) if per == "rule" else sink_tokens(sample, per=per)
    assert dict(zip(table["token"].values.tolist(), table["sinks"].values.tolist(), strict=True)) == {
        token: held[token] for token in cells
    }
    assert dict(zip(table["token"].values.tolist(), table["cells"].values.tolist(), strict=True)) == dict(cells)


@SLOW_LAWS
@given(st.integers(0, 10**6))
def test_rates_add_up_to_one(seed: int) -> None:
    sample = diffusion(seed, layers=2, heads=3).sample
    sinks = find_sinks(sample, Excess(0.5))
    for table in (sink_tokens(sample, sinks), sink_classes(sample, sinks), sink_tokens(sample), sink_classes(sample)):
        assert float(table["base_rate"].sum()) == pytest.approx(1)
        assert float(table["frequency"].sum()) == pytest.approx(1)
    assert (np.diff(sink_tokens(sample)["frequency"]) <= 0).all()


def test_sinks_of_a_group_count_only_where_the_group_asks() -> None:
    sample = diffusion(4).sample
    later = received_from(sample, "later")
    cells = sink_cells(sample, received=later)
    assert cells["exists"].any("position").values.tolist() == [True] * 4 + [False] * 4
    assert int(cells["sinks"].sum()) == 4
    assert int(sink_tokens(sample, received=later)["cells"].sum()) == 4 * 12


def test_without_a_sink_the_frequency_is_nan() -> None:
    sample = diffusion(4).sample
    table = sink_tokens(sample, find_sinks(sample, Excess(11.9)))
    assert table["frequency"].isnull().all()
    assert float(table["base_rate"].sum()) == pytest.approx(1)


def test_without_texts_ids_are_shown() -> None:
    sample = diffusion(4).sample
    sample.attrs |= {"tokens": {}, "sinkscope": None}
    table = sink_tokens(sample)
    assert set(table["text"].values) <= {f"<{token}>" for token in [0, 1, 2, 3, 4, 5, 7, 9]}
    assert set(table["kind"].values) == {"other"}


def test_what_is_missing_is_said() -> None:
    sample = diffusion(4).sample
    with pytest.raises(UserError, match="no canvas"):
        sink_tokens(sample.drop_vars("canvas"))
    with pytest.raises(UserError, match="per step, layer or head, got 'token'"):
        sink_tokens(sample, per="token")
    with pytest.raises(UserError, match="no heads to count top sinks by"):
        sink_tokens(sample, received=received_from(sample, "prompt"), per="head")
