"""Measures and the harness over a block-causal model: the fixture `llada2-tiny` with a character for every token."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import letter_tokenizer, requests

import sinkscope as ss
from sinkscope.decoding import default_settings
from sinkscope.errors import UserError
from sinkscope.evaluation import log_likelihood
from sinkscope.evaluation.harness.model import SinkscopeLM

QUESTIONS = ("One", "Two and a half?", "Three", "Is four more than three?", "Fours")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Path:
    """The mask token is the tokenizer's, the block length is told."""
    folder = tmp_path_factory.mktemp("letters") / "llada2"
    shutil.copytree(fixtures / "llada2-tiny", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1024}))
    letter_tokenizer().save_pretrained(folder)
    return folder


def harness(folder: Path, **given: Any) -> SinkscopeLM:
    return SinkscopeLM(pretrained=str(folder), dtype="float32", device="cpu", attention_block_length=8, **given)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_answers_are_those_of_generate_in_any_batch(folder: Path, batch_size: int) -> None:
    lm = harness(folder, batch_size=batch_size)
    assert lm.model.family.blocks is not None
    assert lm.model.family.blocks.length == lm.description.block_length == 8
    asked = requests("generate_until", *((text, {"until": [], "max_gen_toks": 16}) for text in QUESTIONS), task="five")
    settings = default_settings(lm.model)
    assert isinstance(settings, ss.Denoising)
    wanted = [
        ss.generate(lm.model, text, ss.Denoising(**{**vars(settings), "gen_length": 16})).text for text in QUESTIONS
    ]
    assert lm.generate_until(asked) == [one[0] for one in wanted if one is not None]


@pytest.mark.parametrize(
    "given", [{"mask": "top-k:2", "detect": "same"}, {"drop": "key-norm", "budget": "ratio:0.3", "cache": "prefix"}]
)
def test_masking_and_dropping_change_answers(folder: Path, given: dict[str, object]) -> None:
    asked = [(text, {"until": [], "max_gen_toks": 16}) for text in QUESTIONS]
    plain = harness(folder).generate_until(requests("generate_until", *asked, task="five"))
    assert harness(folder, **given).generate_until(requests("generate_until", *asked, task="five")) != plain


def test_likelihoods_and_their_greedy_check(folder: Path) -> None:
    lm = harness(folder, mc_num=4, check_greedy=True)
    greedy = ss.Denoising(gen_length=4, block_length=None, steps=None, cache="blocks")
    filled = ss.generate(lm.model, "One", greedy).sequences[0, 3:7].tolist()
    right = letter_tokenizer().decode(filled)
    if letter_tokenizer().encode(right, add_special_tokens=False) != filled:  # an id without a character of its own
        pytest.skip("the random network fills in what can't be written")
    found = lm.loglikelihood(requests("loglikelihood", ("One", right), ("One", " is twelve long"), task="two"))
    for (value, _), answer in zip(found, (right, " is twelve long"), strict=True):
        ids = letter_tokenizer().encode(answer, add_special_tokens=False)
        assert value == pytest.approx(
            log_likelihood(lm.model, letter_tokenizer().encode("One", add_special_tokens=False), ids, mc_num=4).value,
            abs=1e-4,
        )
    assert [greedy for _, greedy in found] == [True, False]


def test_dropping_names_the_cache_that_serves(folder: Path) -> None:
    with pytest.raises(UserError, match="add cache=prefix"):
        harness(folder, drop="key-norm")


@pytest.mark.parametrize("length", [1, 2])
def test_a_seeded_block_begins_with_an_exact_token(length: int) -> None:
    """In blocks of two tokens the second is the only one that is masked, so that all is exact."""
    model = ss.load_model("chain-joint", dtype="float64", device="cpu", block_length=length)
    tokens = [0, *torch.randint(3, 43, (12,)).tolist()]
    prompt, whole = 2 * length, 0.0
    for place in range(prompt, len(tokens)):
        block = torch.arange(place + 1) // length
        sees = (block[None] <= block[:, None])[None, None]
        seeds = place % length == 0
        fed, sees = ([*tokens[:place]], sees[..., :place, :place]) if seeds else ([*tokens[:place], 1], sees)
        with torch.no_grad():
            logits = model.network(torch.tensor([fed]), attention_mask=sees, use_cache=False).logits[0, -1]
        whole += float(logits.log_softmax(-1)[tokens[place]])
    found = log_likelihood(model, tokens[:prompt], tokens[prompt:], mc_num=3)
    # float64 in both; passes of other lengths differ in the order of their sums
    assert found.value == pytest.approx(whole, abs=1e-9) and found.standard_error == pytest.approx(0, abs=1e-9)
