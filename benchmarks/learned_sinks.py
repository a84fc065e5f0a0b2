"""What a learned sink costs on a CPU: the output by SDPA's kernel, by blocks of rows, and SDPA without a sink.

    python benchmarks/learned_sinks.py [TOKENS ...]

Ways take turns; each time is the fastest of several. One thread.
"""

import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention

from sinkscope.attention.given import Attention
from sinkscope.attention.kernels import chunked_output, output_beside_sink

HEADS, KV_HEADS, DIM, ROUNDS = 16, 4, 64, 7


def main(lengths: list[int]) -> None:
    torch.set_num_threads(1)
    print("tokens  sdpa ms  beside (ratio)  blocks (ratio)  greatest error")
    for tokens in lengths:
        query, key, value = (torch.randn(1, heads, tokens, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
        attention = Attention(
            query=query, key=key, value=value, mask=None, causal=True, scale=DIM**-0.5, learned_sink=torch.randn(HEADS)
        )
        ways: list[Callable[[], object]] = [
            partial(scaled_dot_product_attention, query, key, value, is_causal=True, enable_gqa=True),
            partial(output_beside_sink, attention),
            partial(chunked_output, attention),
        ]
        best = [float("inf")] * len(ways)
        for _ in range(ROUNDS):
            for number, way in enumerate(ways):
                begun = time.perf_counter()
                way()
                best[number] = min(best[number], 1e3 * (time.perf_counter() - begun))
        beside = output_beside_sink(attention)
        assert beside is not None
        error = (beside - chunked_output(attention)).abs().max().item()
        plain = best[0]
        print(
            f"{tokens:6} {plain:8.1f}  {best[1]:6.1f} ({best[1] / plain:4.2f})  "
            f"{best[2]:7.1f} ({best[2] / plain:4.2f})  {error:.1e}"
        )


if __name__ == "__main__":
    with torch.no_grad():
        main([int(one) for one in sys.argv[1:]] or [128, 512, 1024, 2048])
