"""Measures and the harness over a block-causal model: the fixture `llada2-tiny` with a character for every token."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
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
