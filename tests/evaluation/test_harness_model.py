"""The harness's model class in the tests' own process, against what it is made of and against the networks."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_runs import letter_causal, letter_llada, requests
from lm_eval.api.model import CacheHook

import sinkscope as ss
from sinkscope.compression import Compress, Tokens, compress_prefix
from sinkscope.errors import TrainedLengthWarning, UserError
from sinkscope.evaluation import examples, find_task
from sinkscope.evaluation.harness.model import SinkscopeLM
from sinkscope.evaluation.likelihood import log_likelihood
from sinkscope.evaluation.perplexity import sequence_log_likelihood
from sinkscope.interventions import MaskSinks

QUESTIONS = ("One", "Two and a half?", "Three", "Is four more than three?", "Five")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> dict[str, Path]:
    """Random models that read and write characters."""
    root = tmp_path_factory.mktemp("letters")
    return {"causal": letter_causal(root / "causal"), "llada": letter_llada(fixtures, root / "llada")}


@pytest.fixture(scope="module")
def made(folders: dict[str, Path]) -> Callable[..., SinkscopeLM]:
    """A model for the harness, which shares its network with all others of the same folder."""
    shared = cache(lambda kind: ss.load_model(folders[kind], dtype="float32", device="cpu"))

    def make(kind: str, **given: Any) -> SinkscopeLM:
        lm = SinkscopeLM(pretrained=str(folders[kind]), **given)
        lm.__dict__["model"] = shared(kind)
        return lm

    return make


def asked(*until: str, tokens: int = 16) -> list[Any]:
    return requests(
        "generate_until", *((text, {"until": list(until), "max_gen_toks": tokens}) for text in QUESTIONS), task="five"
    )


@pytest.mark.parametrize("kind", ["causal", "llada"])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_answers_are_those_of_generate_in_any_batch(
    made: Callable[..., SinkscopeLM], kind: str, batch_size: int
) -> None:
    lm = made(kind, batch_size=batch_size)
    settings = (
        ss.Decoding(max_new_tokens=16) if kind == "causal" else ss.Denoising(gen_length=16, block_length=16, steps=None)
    )
    alone = [ss.generate(lm.model, question, settings).text for question in QUESTIONS]
    assert lm.generate_until(asked()) == [text[0].split("<end>")[0] for text in alone if text]
    [run] = lm.get_model_info()["sinkscope"]["runs"]
    assert run["requests"] == 5 and run["task"] == "five"
    assert run["forward_passes"] <= 16 * -(-5 // batch_size)


def test_an_answer_ends_before_a_string_of_the_task_and_its_batch_ends_with_it(
    made: Callable[..., SinkscopeLM],
) -> None:
    lm = made("causal", batch_size=5)
    whole = lm.generate_until(asked(tokens=24))
    second = [text[2:4] for text in whole]  # each answer ends there, if not before
    until = lm.generate_until(asked(*second, tokens=24))
    for text, got in zip(whole, until, strict=True):
        assert got == text[: min(text.find(end) for end in second if end in text)]
    first, last = lm.get_model_info()["sinkscope"]["runs"]
    assert last["forward_passes"] == max(map(len, until)) + 2 < first["forward_passes"]


def test_what_is_removed_does_not_depend_on_the_batch_where_answers_end_early(made: Callable[..., SinkscopeLM]) -> None:
    lm = made("causal")
    ends = {text[5:6] for text in lm.generate_until(asked(tokens=24))}
    removed = []
    for batch_size in (1, 5):
        masked = made("causal", batch_size=batch_size, mask="top-k:1", control="random", seed=3)
        masked.generate_until(asked(*ends, tokens=24))
        [run] = masked.get_model_info()["sinkscope"]["runs"]
        removed.append(run["removed"])
    assert removed[0]["keys"] == 1
    assert removed[0] == pytest.approx(removed[1])


@pytest.mark.parametrize("kind", ["causal", "llada"])
def test_masking_changes_answers_and_zero_keys_change_nothing(made: Callable[..., SinkscopeLM], kind: str) -> None:
    plain = made(kind).generate_until(asked())
    assert made(kind, mask="top-k:0").generate_until(asked()) == plain
    masked = made(kind, mask="top-k:2", detect="same", first_step=0)
    assert masked.generate_until(asked()) != plain
    info = masked.get_model_info()["sinkscope"]
    assert info["intervention"]["keys"] == 2
    assert info["runs"][0]["removed"]["keys"] == 2
    assert info["runs"][0]["removed"]["mass"] > 0


def test_repeats_of_a_prompt_draw_differently_and_the_seed_repeats_them(made: Callable[..., SinkscopeLM]) -> None:
    wish = {"until": [], "max_gen_toks": 12, "do_sample": True, "temperature": 2.0}
    four = requests("generate_until", *[("Say it", wish)] * 4)
    answers = made("causal", batch_size=2).generate_until(four)
    assert len(set(answers)) == 4
    assert made("causal", batch_size=3).generate_until(four) == answers
    assert made("causal", batch_size=3, seed=1).generate_until(four) != answers
    greedy = made("causal", temperature=0.0).generate_until(four)
    assert len(set(greedy)) == 1


def test_requests_of_several_tasks_run_by_what_they_ask_for(made: Callable[..., SinkscopeLM]) -> None:
    lm = made("llada", batch_size=4, block_length=4)
    mixed = [*asked(tokens=7), *requests("generate_until", ("One", {"until": ["x"], "max_gen_toks": 4}), task="other")]
    answers = lm.generate_until(list(reversed(mixed)))
    assert answers[0] == made("llada", gen_length=4, block_length=4).generate_until(mixed[-1:])[0]
    runs = {run["task"]: run["settings"] for run in lm.get_model_info()["sinkscope"]["runs"]}
    assert {task: settings["gen_length"] for task, settings in runs.items()} == {"five": 8, "other": 4}
    assert runs["other"]["until"] == ("x",)


def test_a_prompt_that_does_not_fit_is_refused_before_any_pass(made: Callable[..., SinkscopeLM]) -> None:
    lm = made("causal")
    with pytest.raises(UserError, match="a prompt of 1000 tokens and max_new_tokens 30 make 1030"):
        lm.generate_until(requests("generate_until", ("short", {}), ("x" * 1000, {"max_gen_toks": 30})))
    with pytest.raises(UserError, match="prompt 0 of test is empty"):
        lm.generate_until(requests("generate_until", ("", {})))
    with pytest.raises(UserError, match="5 keys can't be masked where there are 5"):
        made("causal", mask="top-k:5").generate_until(requests("generate_until", ("short", {"max_gen_toks": 4})))
    assert lm.get_model_info()["sinkscope"]["runs"] == []


PAIRS = (("Is it so? ", "Yes"), ("Is it so?", " No, it is not"), ("Once", " upon a time"), ("", "start"))


@torch.no_grad()
def test_log_likelihoods_of_an_autoregressive_model_are_exact(made: Callable[..., SinkscopeLM]) -> None:
    lm = made("causal", batch_size=3)
    model = lm.model
    assert model.tokenizer is not None
    for (context, continuation), (value, greedy) in zip(
        PAIRS, lm.loglikelihood(requests("loglikelihood", *PAIRS)), strict=True
    ):
        ids = list(model.tokenizer(context + continuation)["input_ids"])
        ids = ids if context else [model.family.eos_token_ids[0], *ids]
        scored = len(continuation) + (1 if context.endswith(" ") else 0)
        rows = model.network(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        by_hand = sum(float(rows[at - 1, ids[at]]) for at in range(len(ids) - scored, len(ids)))
        best = rows.argmax(-1)
        assert value == pytest.approx(by_hand, abs=1e-4)
        assert greedy == all(int(best[at - 1]) == ids[at] for at in range(len(ids) - scored, len(ids)))
    answer = lm.generate_until(requests("generate_until", ("Once", {"until": [], "max_gen_toks": 3})))[0]
    assert lm.loglikelihood(requests("loglikelihood", ("Once", answer)))[0][1] is (len(answer) == 3)


def test_log_likelihoods_of_a_diffusion_model_are_the_estimates_of_its_bound(made: Callable[..., SinkscopeLM]) -> None:
    lm = made("llada", batch_size=4, mc_num=12, cfg_scale=0.5, seed=2)
    got = lm.loglikelihood(requests("loglikelihood", ("Once", " upon"), ("Once", "!"), task="guess"))
    assert lm.model.tokenizer is not None
    ids = [list(lm.model.tokenizer(text)["input_ids"]) for text in ("Once", " upon", "!")]
    for (value, greedy), answer in zip(got, ids[1:], strict=True):
        one = log_likelihood(lm.model, ids[0], answer, mc_num=12, batch_size=4, cfg_scale=0.5, seed=2)
        assert (value, greedy) == (one.value, False)
    [run] = lm.get_model_info()["sinkscope"]["runs"]
    assert run["settings"] == {"kind": "Monte Carlo", "mc_num": 12, "cfg_scale": 0.5, "seed": 2, "check_greedy": False}
    assert run["requests"] == 2 and run["standard_error"] > 0


def test_a_diffusion_model_says_on_demand_what_it_would_fill_in(made: Callable[..., SinkscopeLM]) -> None:
    filling = ss.Denoising(gen_length=5, block_length=None, steps=None)
    checking = made("llada", mc_num=1, check_greedy=True)
    filled = ss.generate(checking.model, "Once", filling).sequences[0, 4:].tolist()
    assert checking.model.tokenizer is not None
    text = checking.model.tokenizer.decode(filled)
    assert list(checking.model.tokenizer(text)["input_ids"]) == filled, "choose a prompt that is answered in characters"
    both = requests("loglikelihood", ("Once", text), ("Once", " upon"))
    assert [greedy for _, greedy in checking.loglikelihood(both)] == [True, False]


def test_masking_reaches_log_likelihoods_and_says_what_single_passes_need(made: Callable[..., SinkscopeLM]) -> None:
    pairs = requests("loglikelihood", *PAIRS[:3])
    for kind in ("causal", "llada"):
        plain, cut = made(kind, mc_num=3), made(kind, mc_num=3, mask="top-k:2", detect="same", first_step=0)
        assert all(
            one != other
            for (one, _), (other, _) in zip(plain.loglikelihood(pairs), cut.loglikelihood(pairs), strict=True)
        )
        assert cut.get_model_info()["sinkscope"]["runs"][0]["removed"]["mass"] > 0
    with pytest.raises(UserError, match="detect='same', first_step=0; --detect same"):
        made("llada", mask="top-k:2").loglikelihood(pairs)


@torch.no_grad()
def test_rolling_sums_the_whole_text(made: Callable[..., SinkscopeLM]) -> None:
    text = "A text that is longer than one window, by far. " * 30
    lm = made("causal", batch_size=2)
    model = lm.model
    assert model.tokenizer is not None
    ids = list(model.tokenizer(text)["input_ids"])
    [value, short] = lm.loglikelihood_rolling(requests("loglikelihood_rolling", (text,), ("Hi",)))
    by_hand = 0.0
    context = 1023  # tokens of the text that a window may hold: one place is for the token that begins it
    for first in range(0, len(ids), context):
        scored = ids[first : first + context]
        # The last window reaches back as far as it can without its scored tokens being seen.
        given = [model.family.eos_token_ids[0]] if first == 0 else ids[first + len(scored) - context - 1 : first]
        rows = model.network(torch.tensor([given + scored])).logits[0].double().log_softmax(-1)
        by_hand += sum(float(rows[len(given) + at - 1, token]) for at, token in enumerate(scored))
    assert value == pytest.approx(by_hand, rel=1e-5)
    assert short == pytest.approx(lm.loglikelihood(requests("loglikelihood", ("", "Hi")))[0][0], abs=1e-5)
    assert [run.requests for run in lm.runs][:1] == [2]  # of windows there are more
    assert lm.loglikelihood_rolling(requests("loglikelihood_rolling", ("",))) == [0.0]
    bound = made("llada", mc_num=2).loglikelihood_rolling(requests("loglikelihood_rolling", ("Hi there",)))
    assert bound[0] < 0


@pytest.mark.parametrize("scorer", ["key-norm", "received-attention"])
def test_answers_over_a_cache_that_drops_are_those_of_generate(made: Callable[..., SinkscopeLM], scorer: str) -> None:
    harness = made("causal", drop=scorer, budget=0.3, batch_size=2)
    got = harness.generate_until(asked(tokens=9))
    if scorer == "key-norm":
        for question, text in zip(QUESTIONS, got, strict=True):
            alone = ss.generate(
                harness.model, question, ss.Decoding(max_new_tokens=9), compression=Compress(scorer, 0.3)
            )
            assert alone.text is not None and text == alone.text[0]
    plain = made("causal", batch_size=2).generate_until(asked(tokens=9))
    assert [one[0] for one in got] == [one[0] for one in plain] and got != plain
    stated = harness.get_model_info()["sinkscope"]["compression"]
    assert stated["scorer"] == {"scorer": scorer} and stated["budget"] == 0.3


def test_a_diffusion_model_drops_in_its_block_cache_and_has_no_likelihoods_then(
    made: Callable[..., SinkscopeLM],
) -> None:
    harness = made("llada", drop="key-norm", budget=0.2, cache="dual", block_length=4)
    got = harness.generate_until(asked(tokens=8))
    settings = ss.Denoising(gen_length=8, block_length=4, steps=None, cache="dual")
    for question, text in zip(QUESTIONS, got, strict=True):
        alone = ss.generate(harness.model, question, settings, compression=Compress("key-norm", 0.2))
        assert alone.text is not None and text == alone.text[0].split("<end>")[0]
    with pytest.raises(UserError, match="makes likelihoods without a cache"):
        harness.loglikelihood(requests("loglikelihood", ("Tides", " follow")))


def test_a_likelihood_drops_from_the_text_that_is_given(made: Callable[..., SinkscopeLM]) -> None:
    pairs = [("The moon pulls at the near side", " abc"), ("Bread rises because", " it"), ("Tides", "s")]
    harness, plain = made("causal", drop="streaming", budget="ratio:0.4", batch_size=2), made("causal", batch_size=2)
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


def test_masking_over_a_cache_that_drops_is_that_of_the_loops_and_of_passages(made: Callable[..., SinkscopeLM]) -> None:
    lm = made("causal", drop="key-norm", budget="tokens:6", mask="top-k:2", control="random", seed=5, batch_size=3)
    masking, dropping = MaskSinks(2, control="random", seed=5), Compress("key-norm", Tokens(6), seed=5)
    settings = ss.Decoding(max_new_tokens=9, seed=5)
    alone = [
        ss.generate(lm.model, question, settings, intervention=masking, compression=dropping).text
        for question in QUESTIONS
    ]
    assert lm.generate_until(asked(tokens=9)) == [text[0] for text in alone if text]
    pairs = [("The moon pulls at the near side", " of it"), ("Bread rises because", " of yeast")]
    got = lm.loglikelihood(requests("loglikelihood", *pairs))
    assert lm.model.tokenizer is not None
    prompts, answers = (
        [list(lm.model.tokenizer(text)["input_ids"]) for text in some] for some in zip(*pairs, strict=True)
    )
    direct = sequence_log_likelihood(lm.model, prompts, answers, intervention=masking, compression=dropping)
    assert [value for value, _ in got] == pytest.approx([one.value for one in direct], abs=1e-4)
    generated, scored = lm.get_model_info()["sinkscope"]["runs"]
    assert generated["removed"]["mass"] > 0 and scored["removed"]["mass"] > 0
    for fewer in ({"mask": "top-k:0"}, {"budget": "ratio:1.0"}):
        other = made("causal", **{"drop": "key-norm", "budget": "tokens:6", "mask": "top-k:2", "seed": 5, **fewer})
        assert all(
            abs(one - two) > 1e-3
            for (one, _), (two, _) in zip(got, other.loglikelihood(requests("loglikelihood", *pairs)), strict=True)
        )


def test_chats_are_written_out_with_the_template_of_the_tokenizer(made: Callable[..., SinkscopeLM]) -> None:
    lm = made("causal")
    chat = [{"role": "user", "content": "Hi"}]
    assert lm.apply_chat_template(chat) == "user: Hi<turn>assistant: "
    assert lm.apply_chat_template(chat, add_generation_prompt=False) == "user: Hi"
    assert lm.chat_template(True) == lm.model.tokenizer.chat_template  # type: ignore[union-attr]
    assert lm.chat_template(False) is None
    with pytest.raises(UserError, match="no chat template 'tools'; there is only one"):
        lm.chat_template("tools")
    assert "/" not in lm.tokenizer_name


def test_a_tokenizer_without_a_template_says_so() -> None:
    with pytest.raises(UserError, match="the tokenizer of rxnmapper has no chat template"):
        SinkscopeLM(pretrained="rxnmapper", device="cpu").chat_template(True)


def test_a_masked_language_model_fills_prompts_writes_after_them_and_scores() -> None:
    lm = SinkscopeLM(pretrained="rxnmapper", device="cpu", mc_num=4, batch_size=2)
    assert lm.model.tokenizer is not None
    mask = lm.model.tokenizer.mask_token
    filled, written = lm.generate_until(
        requests("generate_until", (f"CC{mask}O>>CC=O", {}), ("CCO>>", {"max_gen_toks": 3}))
    )
    direct = ss.generate(lm.model, [f"CC{mask}O>>CC=O"])
    assert [filled] == direct.text
    assert [written] == ss.generate(lm.model, ["CCO>>"], ss.Denoising(gen_length=3, block_length=None, steps=None)).text
    [(right, _), (wrong, _)] = lm.loglikelihood(requests("loglikelihood", ("CCO>>CC", "=O"), ("CCO>>CC", "(Br")))
    assert 0 > right > wrong


def test_finished_requests_are_kept_for_the_cache_of_the_harness(made: Callable[..., SinkscopeLM]) -> None:
    class Kept(CacheHook):  # type: ignore[misc]  # the harness is untyped
        def __init__(self) -> None:
            self.seen: list[tuple[str, Any, Any]] = []

        def add_partial(self, attr: str, req: Any, res: Any) -> None:
            self.seen.append((attr, req, res))

    lm = made("causal", batch_size=2)
    hook = Kept()
    lm.set_cache_hook(hook)
    some = asked(tokens=3)
    answers = lm.generate_until(some)
    assert {(request[0], answer) for _, request, answer in hook.seen} == set(zip(QUESTIONS, answers, strict=True))
    [one] = lm.loglikelihood(requests("loglikelihood", ("a", "b")))
    assert hook.seen[-1] == ("loglikelihood", ("a", "b"), one)


def test_memory_that_runs_out_is_told_with_a_smaller_batch(
    made: Callable[..., SinkscopeLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    lm = made("causal", batch_size=6)
    monkeypatch.setattr(lm.model.network, "forward", full)
    with pytest.raises(UserError, match="memory ran out with batch size 6: use --batch_size 3"):
        lm.loglikelihood(requests("loglikelihood", ("a", "b")))


def test_results_are_json_and_name_everything_that_was_set(made: Callable[..., SinkscopeLM]) -> None:
    lm = made("llada", preset="llada-gsm8k", gen_length=16, mask="top-k:3", control="mask-matched", seed=9)
    lm.generate_until(asked())
    info = json.loads(json.dumps(lm.get_model_info()))
    ours = info["sinkscope"]
    assert info["model_dtype"] == "torch.float32" and info["model_num_parameters"] > 0
    assert ours["preset"]["name"] == "llada-gsm8k" and "EVAL.md" in ours["preset"]["source"]
    assert ours["arguments"]["gen_length"] == 16
    assert (ours["intervention"]["control"], ours["intervention"]["seed"]) == ("mask-matched", 9)
    [run] = ours["runs"]
    assert (run["settings"]["gen_length"], run["settings"]["block_length"], run["settings"]["seed"]) == (16, 8, 9)
    assert ours["model"]["family"] == "llada" and ours["model"]["device"] == "cpu"


def test_long_texts_of_a_twin_are_warned_of_and_unknown_words_refused(twin_folders: dict[str, Path]) -> None:
    lm = SinkscopeLM(pretrained=str(twin_folders["twin-dlm"]), device="cpu", gen_length=24)
    prompt = examples(find_task("copy"), 1)[0].prompt
    with pytest.warns(TrainedLengthWarning, match="trained on texts of at most 30 tokens"):
        lm.generate_until(requests("generate_until", (prompt, {})))
    with pytest.raises(UserError, match="prompt 1 of words has the word 'zebra'"):
        lm.generate_until(requests("generate_until", (prompt, {}), ("Copy the zebra =>", {}), task="words"))
