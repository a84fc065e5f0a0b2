"""Keys dropped while the harness asks: `scorer=key-norm,ratio=0.5`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import letter_causal, letter_llada, requests
from lm_eval.api.instance import Instance

from sinkscope.compression import Compress, KeyNorm, Protect, Random, SkipLayers, Tokens, compress_prefix
from sinkscope.decoding import Decoding, Denoising, generate
from sinkscope.errors import UserError
from sinkscope.evaluation.harness.arguments import read_arguments
from sinkscope.evaluation.harness.model import SinkscopeLM
from sinkscope.evaluation.perplexity import sequence_log_likelihood
from sinkscope.families import load_model

PROMPTS = ("The moon pulls at the near side", "Bread rises because", "Tides")


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained autoregressive model."""
    return letter_causal(tmp_path_factory.mktemp("letters") / "model")


@pytest.fixture(scope="module")
def llada(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained diffusion model."""
    return letter_llada(fixtures, tmp_path_factory.mktemp("llada") / "model")


def refusal(**given: Any) -> str:
    with pytest.raises(UserError) as caught:
        SinkscopeLM(**given)
    message = str(caught.value)
    assert "\n" not in message
    return message


def asked(tokens: int) -> Sequence[Instance]:
    found: Sequence[Instance] = requests(
        "generate_until", *[(one, {"until": [], "max_gen_toks": tokens}) for one in PROMPTS]
    )  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"scorer": "key-norm", "ratio": 0.5}, Compress("key-norm", 0.5, seed=4)),
        ({"scorer": "random", "kept_tokens": 9}, Compress(Random(), Tokens(9), seed=4)),
        (
            {"scorer": "key-norm", "ratio": 1, "skip_layers": [0, 1], "protect_first": 2},
            Compress(Protect(KeyNorm(), first=2), SkipLayers(1.0, (0, 1)), seed=4),
        ),
        (
            {"scorer": "key-norm", "ratio": 0.5, "when": "decode", "prune_after": 7},
            Compress("key-norm", 0.5, when="decode", prune_after=7, seed=4),
        ),
    ],
)
def test_arguments_become_a_compression(given: dict[str, Any], expected: Compress) -> None:
    assert read_arguments({"pretrained": "x", "seed": 4, **given}).compression == expected
    assert read_arguments({"pretrained": "x", "seed": 4}).compression is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"scorer": "key-norm"}, "one of ratio=0.5 and kept_tokens=256"),
        ({"scorer": "key-norm", "ratio": 0.5, "kept_tokens": 3}, "one of ratio=0.5 and kept_tokens=256"),
        ({"ratio": 0.5}, "ratio says how keys are dropped, not which"),
        ({"scorer": "key-norm", "ratio": 0}, "must lie above 0"),
        ({"scorer": "lowest", "ratio": 0.5}, "unknown scorer 'lowest'"),
        ({"scorer": "key-norm", "ratio": 0.5, "when": "decode"}, "needs prune_after"),
        ({"scorer": "key-norm", "ratio": "half"}, "wanted a number"),
    ],
)
def test_what_can_not_be_followed_is_refused_before_a_model_is_read(given: dict[str, Any], said: str) -> None:
    assert said in refusal(pretrained="nowhere", **given)


def test_a_diffusion_model_needs_a_block_cache(llada: Path) -> None:
    assert "so add cache=dual" in refusal(pretrained=str(llada), scorer="key-norm", ratio=0.5)


@pytest.mark.parametrize("scorer", ["key-norm", "received-attention"])
def test_answers_are_those_of_generate(letters: Path, scorer: str) -> None:
    harness = SinkscopeLM(pretrained=str(letters), scorer=scorer, ratio=0.3, batch_size=2, device="cpu")
    got = harness.generate_until(list(asked(9)))
    model = load_model(letters, device="cpu")
    if scorer == "key-norm":
        for prompt, text in zip(PROMPTS, got, strict=True):
            alone = generate(model, prompt, Decoding(max_new_tokens=9), compression=Compress(scorer, 0.3))
            assert alone.text is not None and text == alone.text[0]
    plain = SinkscopeLM(pretrained=str(letters), batch_size=2, device="cpu").generate_until(list(asked(9)))
    assert [one[0] for one in got] == [one[0] for one in plain] and got != plain
    stated = harness.get_model_info()["sinkscope"]["compression"]
    assert stated["scorer"] == {"scorer": scorer} and stated["budget"] == 0.3


def test_a_diffusion_model_drops_in_its_block_cache(llada: Path) -> None:
    harness = SinkscopeLM(
        pretrained=str(llada), scorer="key-norm", ratio=0.2, cache="dual", block_length=4, device="cpu"
    )  # fmt: skip
    got = harness.generate_until(list(asked(8)))
    settings = Denoising(gen_length=8, block_length=4, steps=None, cache="dual")
    model = load_model(llada, device="cpu")
    for prompt, text in zip(PROMPTS, got, strict=True):
        alone = generate(model, prompt, settings, compression=Compress("key-norm", 0.2))
        assert alone.text is not None and text == alone.text[0].split("<end>")[0]
    with pytest.raises(UserError, match="makes likelihoods without a cache"):
        harness.loglikelihood(requests("loglikelihood", ("Tides", " follow")))


def test_a_likelihood_drops_from_the_text_that_is_given(letters: Path) -> None:
    pairs = [(PROMPTS[0], " abc"), (PROMPTS[1], " it"), (PROMPTS[2], "s")]
    harness = SinkscopeLM(pretrained=str(letters), scorer="streaming", ratio=0.4, batch_size=2, device="cpu")
    plain = SinkscopeLM(pretrained=str(letters), batch_size=2, device="cpu")
    got, whole = (one.loglikelihood(requests("loglikelihood", *pairs)) for one in (harness, plain))
    assert got[2][0] == pytest.approx(whole[2][0], abs=1e-4)  # its only token comes from the whole cache
    assert all(abs(one[0] - other[0]) > 1e-2 for one, other in zip(got[:2], whole[:2], strict=True))
    model = harness.model
    assert model.tokenizer is not None
    given, scored = ([int(t) for t in model.tokenizer(text)["input_ids"]] for text in pairs[0])
    first = sequence_log_likelihood(model, [given], [scored[:1]])[0].value
    cache = compress_prefix(model, [given], Compress("streaming", 0.4)).cache(model)
    with torch.no_grad():
        positions = torch.arange(len(given), len(given) + len(scored) - 1).unsqueeze(0)
        logits = model.network(torch.tensor([scored[:-1]]), position_ids=positions, cache=cache).logits[0]
    rest = logits.log_softmax(-1)[torch.arange(len(scored) - 1), scored[1:]].sum()
    assert got[0][0] == pytest.approx(first + float(rest), abs=1e-3)


def test_masking_and_dropping_can_not_be_had_in_one_likelihood(letters: Path) -> None:
    harness = SinkscopeLM(
        pretrained=str(letters), scorer="key-norm", ratio=0.5, top_k=1, detect="same", first_step=0, device="cpu"
    )  # fmt: skip
    with pytest.raises(UserError, match="leave one out"):
        harness.loglikelihood(requests("loglikelihood", ("Tides follow", " the moon")))
