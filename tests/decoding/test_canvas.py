"""Everything a user may call a prompt."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from sinkscope.decoding import Denoising, encode_prompts, generate
from sinkscope.errors import UserError
from sinkscope.families import Model


@pytest.fixture
def talking(tiny: Callable[[str], Model]) -> Model:
    words = {word: index for index, word in enumerate(["<unk>", "the", "cat", "sat", "user", ":", "assistant"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")  # type: ignore[no-untyped-call]
    wrapped.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    return replace(tiny("llada-tiny"), tokenizer=wrapped)


def test_text_chat_and_token_ids(talking: Model) -> None:
    assert encode_prompts(talking, "the cat") == [[1, 2]]
    assert encode_prompts(talking, ["the cat", "sat"]) == [[1, 2], [3]]
    chat = [{"role": "user", "content": "the cat"}]
    assert encode_prompts(talking, chat) == [[4, 5, 1, 2, 6, 5]]
    assert encode_prompts(talking, [chat, chat]) == [[4, 5, 1, 2, 6, 5]] * 2
    assert encode_prompts(talking, [3, 4]) == [[3, 4]]
    assert encode_prompts(talking, [[3], [4, 5]]) == [[3], [4, 5]]
    assert encode_prompts(talking, torch.tensor([3, 4])) == [[3, 4]]
    assert encode_prompts(talking, torch.tensor([[3, 4], [5, 6]])) == [[3, 4], [5, 6]]
    assert encode_prompts(talking, np.array([[3, 4]])) == [[3, 4]]
    assert encode_prompts(talking, [np.int64(3), np.int64(4)]) == [[3, 4]]
    padded = {"input_ids": [[0, 3], [4, 5]], "attention_mask": [[0, 1], [1, 1]]}
    assert encode_prompts(talking, padded) == [[3], [4, 5]]
    assert talking.tokenizer is not None
    assert encode_prompts(talking, talking.tokenizer(["sat", "the cat"])) == [[3], [1, 2]]
    ragged = {"input_ids": [[3], [0, 4]], "attention_mask": [[1], [0, 1]]}
    assert encode_prompts(talking, ragged) == [[3], [4]]


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ({"role": "user", "content": "the"}, "tokenizer's output with input_ids, got role, content; the messages of"),
        ({"input_ids": [[1, 2]], "attention_mask": [[1]]}, r"attention_mask \(1, 1\) does not fit input_ids \(1, 2\)"),
    ],
)
def test_mappings_that_are_no_prompts(talking: Model, prompts: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        encode_prompts(talking, prompts)


def test_generated_text_is_only_what_was_generated(talking: Model) -> None:
    result = generate(talking, "the cat", Denoising(gen_length=4, block_length=4, steps=4))
    assert result.text is not None
    assert len(result.text) == 1
    assert not result.text[0].startswith("the cat")


def test_messages_without_a_template_are_refused(talking: Model) -> None:
    assert talking.tokenizer is not None
    talking.tokenizer.chat_template = None
    with pytest.raises(UserError, match="no chat template; give the prompt as text"):
        encode_prompts(talking, [{"role": "user", "content": "the"}])


def test_unequal_prompts_need_position_ids(talking: Model) -> None:
    without = replace(talking, family=replace(talking.family, position_offset=None))
    with pytest.raises(UserError, match="no position ids, so it can't take prompts of unequal length together"):
        generate(without, [[1], [2, 3]], Denoising(gen_length=4, block_length=4, steps=4))
    assert generate(without, [[1, 2], [2, 3]], Denoising(gen_length=4, block_length=4, steps=4)).forward_passes == 4


def test_fixture_ids_are_data(fixtures: Path) -> None:
    cases = json.loads((fixtures / "llada-tiny" / "generation.json").read_text())
    assert all(0 <= token < 256 for case in cases for row in case["sequences"] for token in row)
