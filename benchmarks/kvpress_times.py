# mypy: ignore-errors
# (it runs in an environment of its own)
"""The side of kvpress in `compression.py --kvpress PYTHON`: one run of one of its presses, printed as JSON.

    python benchmarks/kvpress_times.py FOLDER 2048 0.5          # a checkpoint, tokens of context, the share kept

Reads the context under the press, then generates greedily from the compressed cache as kvpress' own pipeline does:
the question in one pass, then token by token. Nothing of sinkscope is imported.
"""

import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import kvpress
import torch
from transformers import AutoModelForCausalLM, DynamicCache

QUESTION, NEW_TOKENS = list(range(1, 9)), 32


def resident(name: str) -> int:
    """Bytes; VmHWM is the highest since the last reset (Linux)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


@torch.no_grad()
def run(network: torch.nn.Module, tokens: torch.Tensor, kept: float) -> dict[str, float]:
    """Seconds of reading tokens (1, position), bytes of the cache, tokens a second."""
    cache, length = DynamicCache(config=network.config), tokens.shape[1]
    start = time.process_time()
    with nullcontext() if kept == 1 else kvpress.KnormPress(1 - kept)(network):
        network.model(input_ids=tokens, past_key_values=cache)
    read = time.process_time() - start
    nbytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    start = time.process_time()
    fed = torch.tensor([QUESTION])
    for _ in range(NEW_TOKENS):
        places = torch.arange(length, length + fed.shape[1])[None]
        logits = network(input_ids=fed, past_key_values=cache, position_ids=places, logits_to_keep=1).logits
        length += fed.shape[1]
        fed = logits[:, -1].argmax(-1, keepdim=True)
        fed.item()
    return {"read": read, "cache": nbytes, "decoded": NEW_TOKENS / (time.process_time() - start)}


def main() -> None:
    """Load, warm up, measure."""
    folder, context, kept = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    network = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").eval()
    tokens = torch.randint(1, 1000, (1, context), generator=torch.Generator().manual_seed(0))
    run(network, tokens[:, :64], kept)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    print(json.dumps({**run(network, tokens, kept), "peak": resident("VmHWM") - before}))


if __name__ == "__main__":
    main()
