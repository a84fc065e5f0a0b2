"""Autoregressive decoding against transformers' own `generate`, in left-padded batches, with a cache."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sinkscope.attention import watch
from sinkscope.decoding import Decoding, Denoising, decode, denoise, generate
from sinkscope.errors import UserError
from sinkscope.families import Model, load_model

PROMPTS = [[7, 3, 11], [5, 9, 2, 8, 1, 4, 6], [13]]


@pytest.fixture(scope="module")
def model(causal_folder: Path) -> Model:
    return load_model(causal_folder, device="cpu")


def test_greedy_equals_transformers_in_a_padded_batch(model: Model) -> None:
    ours = generate(model, PROMPTS, Decoding(max_new_tokens=20))
    tokens = torch.zeros(3, 7, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(PROMPTS):
        tokens[row, 7 - len(prompt) :] = torch.tensor(prompt)
        mask[row, 7 - len(prompt) :] = 1
    theirs: torch.Tensor = model.network.generate(  # type: ignore[operator]
        tokens, attention_mask=mask, max_new_tokens=20, do_sample=False
    )
    assert torch.equal(ours.sequences, theirs)


def test_batch_and_single_agree_also_when_sampling(model: Model) -> None:
    for way in (Decoding(max_new_tokens=12), Decoding(max_new_tokens=12, temperature=0.9, top_p=0.9, seed=2)):
        together = generate(model, PROMPTS, way)
        for row, prompt in enumerate(PROMPTS):
            alone = generate(model, prompt, way).sequences[0, len(prompt) :]
            assert together.sequences[row, 7 : 7 + len(alone)].tolist() == alone.tolist()


def test_a_row_ends_with_its_end_token(model: Model) -> None:
    first = generate(model, [7, 3, 11], Decoding(max_new_tokens=8)).sequences[0, 3:].tolist()
    end = first[2]
    stopping = replace(model, family=replace(model.family, eos_token_ids=(end,)))
    result = generate(stopping, [[7, 3, 11], [13]], Decoding(max_new_tokens=8))
    row = result.sequences[0, 3:].tolist()
    stop = first.index(end)
    assert row[: stop + 1] == first[: stop + 1]
    assert set(row[stop + 1 :]) <= {model.family.pad_token_id}
    steps = list(decode(stopping, [[7, 3, 11], [13]], Decoding(max_new_tokens=8)))
    assert sum(int(step.committed[0].sum()) for step in steps) == stop + 1


def test_steps_feed_one_token_and_are_watched_row_by_row(model: Model) -> None:
    with watch(model) as watched:
        received = [watched.received for _ in decode(model, [5, 9, 2, 8], Decoding(max_new_tokens=5))]
    steps = list(decode(model, [5, 9, 2, 8], Decoding(max_new_tokens=5)))
    assert [step.queries for step in steps] == [(0, 4), (4, 5), (5, 6), (6, 7), (7, 8)]
    whole = steps[-1].canvas[:, :8]
    model.network.set_attn_implementation("eager")
    maps = torch.stack(model.network(whole, output_attentions=True).attentions)
    model.network.set_attn_implementation("sinkscope")
    torch.testing.assert_close(received[0], maps[:, :, :, :4, :4].mean(3), atol=2e-5, rtol=0)
    for number in range(1, 5):
        query = 3 + number
        torch.testing.assert_close(received[number], maps[:, :, :, query, : query + 1], atol=2e-5, rtol=0)


def test_a_paradigm_refuses_the_other(model: Model, tiny: Callable[[str], Model]) -> None:
    with pytest.raises(UserError, match="has no mask token; use `decode` and Decoding settings"):
        denoise(model, [1, 2], Denoising())
    with pytest.raises(UserError, match="sees in both directions; use `denoise` and Denoising settings"):
        decode(tiny("llada-tiny"), [1, 2], Decoding())
    with pytest.raises(UserError, match="sees in both directions; use `denoise` and Denoising settings"):
        decode(tiny("llada-tiny"), [1, 2])
    with pytest.raises(UserError, match="has no mask token; use `decode` and Decoding settings"):
        denoise(model, [1, 2])
    wrong_settings: list[Any] = [Denoising(), Decoding()]
    with pytest.raises(UserError, match="takes Decoding settings, got Denoising"):
        decode(model, [1, 2], wrong_settings[0])
    with pytest.raises(UserError, match="takes Denoising settings, got Decoding"):
        denoise(tiny("llada-tiny"), [1, 2], wrong_settings[1])
    with pytest.raises(UserError, match="max_new_tokens 63 make 65, the context is 64"):
        decode(model, [1, 2], Decoding(max_new_tokens=63))
    for wrong in (999, -1):
        with pytest.raises(UserError, match=f"suppress names token id {wrong}"):
            decode(model, [1, 2], Decoding(max_new_tokens=3, suppress=(wrong,)))
