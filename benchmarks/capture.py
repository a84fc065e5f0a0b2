"""What watching costs: whole generations with and without it, in time and in memory (see `generations.py`).

    python benchmarks/capture.py                       # the table of docs/results/costs.md
    python benchmarks/capture.py --device cuda         # single passes at LLaDA-8B's shape, beside `kernel_cost`
    TRITON_INTERPRET=1 python benchmarks/capture.py --passes --lengths 40 --layers 1 --width 32 --heads 2 \\
        --hidden 48 --dtypes float32 --runs 1          # the same script in Triton's interpreter, to see that it runs
"""

import sys
from typing import Any

import torch
from generations import Way, compare, options
from kernel_cost import LLADA_8B, side_by_side

from sinkscope.attention import Collect, watch
from sinkscope.decoding import Denoising, generate
from sinkscope.families import Model


def watched(collect: Collect, kernel: str | None = None) -> Way:
    """A generation that is watched."""

    def way(model: Model, prompts: torch.Tensor, settings: Denoising) -> None:
        with watch(model, collect, kernel=kernel):
            generate(model, prompts, settings)

    return way


def eager_maps(model: Model, prompts: torch.Tensor, settings: Denoising) -> None:
    """What people do today: eager attention, `output_attentions=True`, then column means."""
    network = model.network
    network.set_attn_implementation("eager")

    def ask(
        _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, {**kwargs, "output_attentions": True}

    def reduce(_: torch.nn.Module, __: object, output: Any) -> None:
        torch.stack([layer.float().mean(-2) for layer in output.attentions])

    hooks = [network.register_forward_pre_hook(ask, with_kwargs=True), network.register_forward_hook(reduce)]
    try:
        generate(model, prompts, settings)
    finally:
        for hook in hooks:
            hook.remove()
        network.set_attn_implementation("sinkscope")


WAYS: dict[str, Way] = {
    "plain SDPA": generate,
    "watched": watched(Collect()),
    "watched, by group": watched(Collect(groups=True)),
    "watched, two-pass": watched(Collect(), "two-pass"),
    "eager output_attentions": eager_maps,
}


if __name__ == "__main__":
    if "cuda" in sys.argv or "--passes" in sys.argv:
        parser = options(__doc__, WAYS, **LLADA_8B)
        parser.add_argument("--passes", action="store_true", help="single passes, as on a GPU")
        side_by_side(parser.parse_args())
    else:
        compare(__doc__, WAYS, lengths=[256, 1024, 2048], dtypes=["float32", "bfloat16"])
