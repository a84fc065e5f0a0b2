"""What can be said in model_args, and what is refused before a model is loaded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.compression import Compress, KeyNorm, Protect, Random, SkipLayers, SnapKV, Tokens
from sinkscope.decoding import Denoising
from sinkscope.errors import UserError
from sinkscope.evaluation.harness.arguments import ARGUMENTS, PRESETS, read_arguments, read_value
from sinkscope.evaluation.harness.model import SinkscopeLM
from sinkscope.interventions import MaskSinks
from sinkscope.sinks import Excess, First, ZScore


def refusal(**given: Any) -> str:
    with pytest.raises(UserError) as caught:
        SinkscopeLM(**given)
    message = str(caught.value)
    assert "\n" not in message
    return message


@given(st.integers(-(10**9), 10**9))
def test_whole_numbers_may_arrive_as_floats_but_not_with_a_fraction(number: int) -> None:
    assert read_value("n", number, int) == read_value("n", float(number), int) == number
    with pytest.raises(UserError, match=r"n=.*a whole number"):
        read_value("n", number + 0.5, int)


@pytest.mark.parametrize(
    ("value", "hint", "read"),
    [
        ("none", int | None, None),
        (None, float | None, None),
        (3, float, 3.0),
        (1234567, str, "1234567"),
        ([0, 2.0], tuple[int, ...], (0, 2)),
        (7, tuple[int, ...] | None, (7,)),
        ("prompt", tuple[str, ...], ("prompt",)),
        (True, bool, True),
    ],
)
def test_values_become_what_a_setting_wants(value: Any, hint: Any, read: Any) -> None:
    got = read_value("name", value, hint)
    assert got == read and type(got) is type(read)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (True, int), ("5", int), (float("nan"), int), (float("inf"), int), (True, float), ("x", float), (1, bool),
        (2.5, str), (None, int), ([0.5], tuple[int, ...]), ([True], tuple[str, ...]),
    ],
)  # fmt: skip
def test_values_of_another_kind_are_refused(value: Any, hint: Any) -> None:
    with pytest.raises(UserError, match=r"model argument name=.*: wanted"):
        read_value("name", value, hint)


def test_arguments_become_the_settings_of_decoding_and_masking() -> None:
    read = read_arguments(
        {
            "pretrained": "somewhere", "batch_size": "6", "dtype": "auto", "seed": 4, "mc_num": 16,
            "mask": "top-k:5",
            "control": "random", "detect": "same", "first_step": 0, "layers": [1, 2], "how": "values",
            "top_k": 9, "temperature": 1, "steps": None, "gen_length": 24, "cfg_scale": 1,
        }
    )  # fmt: skip
    assert read.condition.intervention == MaskSinks(
        5, control="random", detect="same", first_step=0, layers=(1, 2), how="values", seed=4
    )
    assert dict(read.decoding) == {
        "top_k": 9, "temperature": 1.0, "steps": None, "gen_length": 24, "cfg_scale": 1.0,
    }  # fmt: skip
    assert (read.batch_size, read.dtype, read.seed, read.mc_num, read.cfg_scale) == (6, None, 4, 16, 1.0)


def test_a_reference_is_a_file_with_texts(tmp_path: Path) -> None:
    given = {"pretrained": "x", "mask": "first:1", "how": "mean", "seed": 4}
    lines, prompts = tmp_path / "lines.txt", tmp_path / "prompts.jsonl"
    lines.write_text("one text\n\nanother\n", encoding="utf-8")
    prompts.write_text('{"prompt": "one text"}\n{"prompt": "another"}\n', encoding="utf-8")
    wanted = MaskSinks(First(1), how="mean", reference=["one text", "another"], seed=4)
    for file in (lines, prompts):
        assert read_arguments({**given, "reference": str(file)}).condition.intervention == wanted
    with pytest.raises(UserError, match="takes values from texts, and there are none"):
        read_arguments(given)
    with pytest.raises(UserError, match="No such file"):
        read_arguments({**given, "reference": "nowhere.txt"})


@pytest.mark.parametrize(
    ("spec", "keys"),
    [
        ("excess:epsilon=4;scale=percent", Excess(epsilon=4.0, scale="percent")),
        ("first:2", First(k=2)),
        ("zscore:2.5", ZScore(k=2.5)),
        ("top-k:5", 5),
        ("top-k:0", 0),
    ],
)
def test_keys_to_mask_are_a_rule_and_of_the_strongest_a_number(spec: str, keys: Any) -> None:
    masking = read_arguments({"pretrained": "x", "mask": spec}).condition.intervention
    assert masking is not None and masking.keys == keys


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"drop": "key-norm", "budget": "ratio:0.5"}, Compress("key-norm", 0.5, seed=4)),
        ({"drop": "key-norm", "budget": 0.25}, Compress("key-norm", 0.25, seed=4)),
        ({"drop": "random", "budget": "tokens:9"}, Compress(Random(), Tokens(9), seed=4)),
        ({"drop": "random", "budget": 9}, Compress(Random(), Tokens(9), seed=4)),
        ({"drop": "snapkv:window=16;kernel=5"}, Compress(SnapKV(window=16, kernel=5), 0.5, seed=4)),
        (
            {"drop": "key-norm", "budget": "1.0", "skip_layers": [0, 1], "protect_first": 2},
            Compress(Protect(KeyNorm(), first=2), SkipLayers(1.0, (0, 1)), seed=4),
        ),
        (
            {"drop": "key-norm", "when": "decode", "prune_after": 7},
            Compress("key-norm", 0.5, when="decode", prune_after=7, seed=4),
        ),
    ],
)
def test_keys_to_drop_are_a_scorer_and_a_budget(given: dict[str, Any], expected: Compress) -> None:
    assert read_arguments({"pretrained": "x", "seed": 4, **given}).condition.compression == expected


def test_without_specs_nothing_is_masked_or_dropped() -> None:
    condition = read_arguments({"pretrained": "x"}).condition
    assert condition.intervention is None and condition.compression is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "needs pretrained=MODEL"),
        ({"pretrained": "twin-ar", "genlength": 5}, "unknown model argument 'genlength'; did you mean gen_length?"),
        ({"pretrained": "twin-ar", "rule": "excess"}, "did you mean mask=excess:epsilon=3;scale=sum?"),
        ({"pretrained": "twin-ar", "scorer": "key-norm"}, "did you mean drop=key-norm?"),
        ({"pretrained": "twin-ar", "kept_tokens": 9}, "did you mean budget=tokens:256?"),
        ({"pretrained": "twin-ar", "top_k": 5}, "needs a temperature too; sinks are masked by mask=top-k:5"),
        ({"pretrained": "twin-ar", "mask": 5}, "unknown sink rule '5'"),
        ({"pretrained": "twin-ar", "mask": "top-k:five"}, "takes a whole number, got 'five'"),
        ({"pretrained": "twin-ar", "mask": "exces"}, "unknown sink rule 'exces'"),
        ({"pretrained": "twin-ar", "mask": "excess:value=1"}, "rule 'excess' has no parameter 'value'"),
        ({"pretrained": "twin-ar", "control": "random"}, "add mask=top-k:5, or mask=excess"),
        ({"pretrained": "twin-ar", "mask": "top-k:1", "control": "rand"}, "unknown control 'rand'"),
        ({"pretrained": "twin-ar", "mask": "top-k:1", "detect": "later"}, "unknown detect 'later'"),
        ({"pretrained": "twin-ar", "mask": "top-k:1", "control": "mask-matched"}, "needs mask tokens"),
        ({"pretrained": "twin-ar", "mask": "top-k:1", "classes": "mask"}, "no mask token"),
        ({"pretrained": "nowhere", "budget": 0.5}, "budget says how keys are dropped, not which; add drop=key-norm"),
        ({"pretrained": "nowhere", "drop": "key-norm", "budget": "ratio:0"}, "must lie above 0"),
        ({"pretrained": "nowhere", "drop": "key-norm", "budget": "half"}, "a budget is ratio:0.5 or tokens:256, say"),
        ({"pretrained": "nowhere", "drop": "lowest"}, "unknown scorer 'lowest'"),
        ({"pretrained": "nowhere", "drop": "key-norm", "when": "decode"}, "needs prune_after"),
        ({"pretrained": "twin-dlm", "drop": "key-norm"}, "so add cache=dual"),
        ({"pretrained": "twin-ar", "gen_length": 8}, "twin-ar is an autoregressive model, which has no gen_length"),
        ({"pretrained": "twin-dlm", "max_new_tokens": 8}, "twin-dlm is a mask-filling model"),
        ({"pretrained": "twin-dlm", "preset": "llada-gsm"}, "unknown preset 'llada-gsm'; choose one of dream-gsm8k"),
        ({"pretrained": "twin-dlm", "preset": "llada-gsm8k"}, "is of llada models, twin-dlm is of the family twin"),
        ({"pretrained": "twin-dlm", "dtype": "float12"}, "dtype='float12'"),
        ({"pretrained": "twin-dlm", "device": "gpu"}, "device='gpu' cannot be used here"),
        ({"pretrained": "twin-dlm", "batch_size": "auto:3"}, "batch_size auto is not for sinkscope"),
        ({"pretrained": "twin-dlm", "batch_size": 0}, "batch_size must be at least 1"),
        ({"pretrained": "twin-dlm", "max_batch_size": 8}, "max_batch_size goes with batch_size auto"),
        ({"pretrained": "twin-dlm", "check_greedy": "yes"}, "wanted true or false"),
        ({"pretrained": "twin-what"}, "there is no twin"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_one_line_before_weights_are_read(given: dict[str, Any], said: str) -> None:
    assert said in refusal(**given)


def test_the_device_that_the_command_line_names_by_itself_is_a_gpu_if_there_is_one() -> None:
    # Its default is cuda:0, also where there is none; what model_args say comes first.
    made = SinkscopeLM.create_from_arg_obj(
        {"pretrained": "twin-ar", "batch_size": 3}, {"device": "cuda:0", "batch_size": 1, "max_batch_size": None}
    )
    assert made.arguments.batch_size == 3
    assert made.arguments.device in (None, "cuda:0")
    assert SinkscopeLM.create_from_arg_obj({"pretrained": "twin-ar"}, {"device": "cpu"}).arguments.device == "cpu"


def test_every_argument_is_documented(fixtures: Path) -> None:
    page = (fixtures.parent.parent / "docs" / "reference" / "lm-eval.md").read_text()
    assert [name for name in ARGUMENTS if f"`{name}`" not in page] == []
    assert [name for name in PRESETS if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_name_arguments_and_make_settings(name: str) -> None:
    preset = PRESETS[name]
    assert preset.source and preset.family in ("llada", "dream", "mmada")
    read = read_arguments({"pretrained": "x", "preset": name, "temperature": 0.5})
    settings = Denoising(**{"steps": None, **read.decoding})
    assert settings.temperature == 0.5
    assert replace(settings, temperature=0.0).blocks >= 1


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        # gen_length, block_length, suppressed, deferred; EVAL.md of ML-GSAI/LLaDA
        ("llada-gsm8k", (256, 8, (), ())),
        ("llada-gsm8k-pure", (512, 512, (), (126081, 126348))),
        ("llada-humaneval", (512, 512, (126081,), ())),
        ("llada-1.5-gsm8k", (256, 16, (), (126081, 126348))),
        ("llada-1.5-gpqa", (256, 16, (), ())),
        ("llada-base-gsm8k", (1024, 1024, (), ())),
        ("llada-humaneval-sinks", (512, 32, (), ())),
        ("dream-humaneval", (768, None, (), ())),
        ("mmada-gsm8k", (256, 64, (), ())),
    ],
)
def test_presets_say_what_their_source_says(name: str, settings: tuple[Any, ...]) -> None:
    made = Denoising(**{"steps": None, **read_arguments({"pretrained": "x", "preset": name}).decoding})
    assert (made.gen_length, made.block_length, made.suppress, made.defer) == settings


def test_presets_of_likelihoods_say_draws_and_guidance_and_give_way_to_arguments() -> None:
    one = read_arguments({"pretrained": "x", "preset": "llada-base-truthfulqa"})
    assert (one.cfg_scale, one.mc_num) == (2.0, 128)
    assert read_arguments({"pretrained": "x", "preset": "llada-base-mmlu"}).mc_num == 1
    other = read_arguments({"pretrained": "x", "preset": "llada-base-mmlu", "mc_num": 5, "cfg_scale": 1.5})
    assert (other.cfg_scale, other.mc_num) == (1.5, 5)
