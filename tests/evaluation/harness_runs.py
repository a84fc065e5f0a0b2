"""Models and runs for the tests of the harness's adapter."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LOCAL_TASKS = Path(__file__).parent / "local_tasks"
END, MASK, UNKNOWN, TURN = 250, 255, 251, 252
"""Ids of the special tokens of `letter_tokenizer`."""
_LETTERS = ["\n", *map(chr, range(32, 127)), "\u2019", *map(chr, range(0x400, 0x400 + 250 - 97))]
"""A character for every id below the special ones: random networks write any of them."""


def letter_tokenizer() -> PreTrainedTokenizerFast:
    """A token for every character; ids as in the fixture `llada-tiny`."""
    words = {letter: index for index, letter in enumerate(_LETTERS)}
    special = {"<end>": END, "<mask>": MASK, "<unk>": UNKNOWN, "<turn>": TURN}
    core = Tokenizer(models.WordLevel({**words, **special}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    wrapper: Any = PreTrainedTokenizerFast
    made: PreTrainedTokenizerFast = wrapper(
        tokenizer_object=core, eos_token="<end>", pad_token="<end>", mask_token="<mask>", unk_token="<unk>",
        additional_special_tokens=["<turn>"], clean_up_tokenization_spaces=False,
    )  # fmt: skip
    made.chat_template = (
        "{% for m in messages %}{{ m.role + ': ' + m.content + '<turn>' }}{% endfor %}"
        "{{ 'assistant: ' if add_generation_prompt else '' }}"
    )
    return made


def letter_causal(folder: Path) -> Path:
    """A random autoregressive model that reads and writes characters."""
    torch.manual_seed(23)
    config = LlamaConfig(
        hidden_size=48, intermediate_size=71, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        vocab_size=256, initializer_range=0.3, max_position_embeddings=1024, eos_token_id=END, pad_token_id=END,
        bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    letter_tokenizer().save_pretrained(folder)
    return folder


def letter_llada(fixtures: Path, folder: Path) -> Path:
    """The fixture `llada-tiny` with a longer context and characters for tokens."""
    shutil.copytree(fixtures / "llada-tiny", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_sequence_length": 1024}))
    letter_tokenizer().save_pretrained(folder)
    return folder


def json_lines(path: Path) -> list[dict[str, Any]]:
    """One object a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def requests(kind: str, *arguments: tuple[Any, ...], task: str = "test") -> list[Any]:
    """Requests as the harness makes them."""
    return [
        Instance(request_type=kind, doc={}, arguments=one, idx=number, metadata=(task, number, 1))
        for number, one in enumerate(arguments)
    ]


@dataclass(frozen=True)
class Written:
    """What a run of the command left."""

    results: Mapping[str, Any]
    samples: Mapping[str, Sequence[Mapping[str, Any]]]

    @property
    def ours(self) -> Mapping[str, Any]:
        """What sinkscope writes into the results."""
        part: Mapping[str, Any] = self.results["config"]["sinkscope"]
        return part


def always(out: Path) -> list[str]:
    """Arguments of every run: our model, on the local tasks, everything kept below `out`."""
    return ["--model", "sinkscope", "--include_path", ".", "--output_path", str(out), "--log_samples"]


def written(out: Path) -> Written:
    """What the command wrote below `out`."""
    [found] = out.rglob("results_*.json")
    samples = {
        path.name.removeprefix("samples_").rsplit("_", 1)[0]: json_lines(path) for path in out.rglob("samples_*.jsonl")
    }
    return Written(json.loads(found.read_text()), samples)


def command(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `sinkscope-lm-eval` offline, on the local tasks, in a process of its own."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(out / "cache")}
    script = Path(sys.executable).parent / "sinkscope-lm-eval"
    return subprocess.run(
        [script, *always(out), *arguments], cwd=LOCAL_TASKS, env={**os.environ, **offline, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
