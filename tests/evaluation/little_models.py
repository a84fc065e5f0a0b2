"""Tiny random models of the little language, and decoding written out anew to check what they answer."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import sinkscope.attention  # noqa: F401  registers the attention function that loading asks for by default
from sinkscope.families import Model, load_model
from sinkscope.language.tokenizer import little_tokenizer
from sinkscope.language.vocabulary import BOS, EOS, MASK, PAD, WORDS, decode, encode, ids

KINDS = {
    "causal": ("next-token", False),
    "diffusion": ("masked-diffusion", False),
    "shifted": ("masked-diffusion", True),
}
CONTEXT = 96


def little_model(folder: Path, kind: str) -> Model:
    """Make and load a twin that knows nothing, `kind` one of `KINDS`."""
    objective, shift = KINDS[kind]
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=40, intermediate_size=53, num_hidden_layers=2, num_attention_heads=5,
        num_key_value_heads=5, max_position_embeddings=CONTEXT, initializer_range=0.3,
        bos_token_id=ids()[BOS], eos_token_id=ids()[EOS], pad_token_id=ids()[PAD],
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    little_tokenizer().save_pretrained(folder)
    stored = json.loads((folder / "config.json").read_text())
    if objective == "masked-diffusion":
        stored["mask_token_id"] = ids()[MASK]
    stored["sinkscope"] = {"objective": objective, "logit_shift": shift, "trained_length": CONTEXT}
    (folder / "config.json").write_text(json.dumps(stored))
    return load_model(folder, device="cpu")


def ending_at(model: Model, *tokens: int) -> Model:
    """The same model for which these tokens end a text."""
    return replace(model, family=replace(model.family, eos_token_ids=tokens))


@torch.no_grad()
def generated(model: Model, prompt: str, length: int) -> list[int]:
    """`length` tokens after one prompt: greedy one by one, or masks filled one by one in blocks of 4, the surest
    first."""
    start = [ids()[BOS], *encode(prompt)]
    if not model.family.bidirectional:
        for _ in range(length):
            start.append(int(model.network(torch.tensor([start]), use_cache=False).logits[0, -1].argmax()))
        return start[-length:]
    mask = ids()[MASK]
    canvas = torch.tensor(start + [mask] * length)
    for block in range(len(start), len(canvas), 4):
        for _ in range(4):
            logits = model.network(canvas.unsqueeze(0), use_cache=False).logits[0]
            if model.family.logit_shift:
                logits = torch.cat([logits[:1], logits[:-1]])
            probabilities = logits.softmax(-1)
            probabilities[:, mask] = 0  # never chosen, but its share is not given to the others
            sure, token = probabilities.max(-1)
            sure[canvas != mask] = -1
            best = block + int(sure[block : block + 4].argmax())
            canvas[best] = token[best]
    return canvas[len(start) :].tolist()


def said(model: Model, tokens: list[int]) -> str:
    """The text of tokens up to the first that ends one."""
    ends = [place for place, token in enumerate(tokens) if token in model.family.eos_token_ids]
    return decode(tokens[: ends[0]] if ends else tokens)
