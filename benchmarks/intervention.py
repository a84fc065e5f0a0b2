"""What masking costs: whole generations in which keys are masked over plain ones (see `generations.py`).

    python benchmarks/intervention.py                                # the table of docs/results/costs.md
    python benchmarks/intervention.py --device cuda --dtypes bfloat16 --layers 32 --width 4096 --heads 32 --hidden 12288

The additive way is the mask that others write: a mask (batch, head, query, key) added to the scores of eager attention,
here for the same K keys of every layer and head.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from generations import Way, compare
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from sinkscope.decoding import Denoising, generate
from sinkscope.families import Model
from sinkscope.interventions import MaskSinks


def masked(masking: MaskSinks) -> Way:
    """A generation under an intervention."""

    def way(model: Model, prompts: torch.Tensor, settings: Denoising) -> None:
        generate(model, prompts, settings, intervention=masking)

    return way


def two_rows(model: Model, prompts: torch.Tensor, settings: Denoising) -> None:
    """The prompts twice, plainly: what a clean copy costs at least."""
    generate(model, torch.cat([prompts, prompts]), settings)


def additive(model: Model, prompts: torch.Tensor, settings: Denoising) -> None:
    """Whole maps and an additive mask from the step before, 5 keys."""
    with _additive_attention(model, 5):
        generate(model, prompts, settings)


@contextmanager
def _additive_attention(model: Model, count: int) -> Iterator[None]:
    strongest: dict[int, torch.Tensor] = {}

    def attention(
        module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _: Any, **__: Any
    ) -> tuple[torch.Tensor, None]:
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        if layer in strongest:
            added = torch.zeros_like(scores)
            added.scatter_(-1, strongest[layer].unsqueeze(2).expand(-1, -1, scores.shape[2], -1), -torch.inf)
            scores = scores + added
        probabilities = torch.softmax(scores.float(), -1)
        strongest[layer] = probabilities.mean(2).topk(count).indices
        return (probabilities.to(value.dtype) @ value).transpose(1, 2).contiguous(), None

    AttentionInterface.register("additive", attention)
    AttentionMaskInterface.register("additive", sdpa_mask)
    model.network.set_attn_implementation("additive")
    try:
        yield
    finally:
        model.network.set_attn_implementation("sinkscope")


WAYS: dict[str, Way] = {
    "plain": generate,
    "top-1": masked(MaskSinks(1)),
    "top-5": masked(MaskSinks(5)),
    "top-10": masked(MaskSinks(10)),
    "random instead of top-5": masked(MaskSinks(5, control="random")),
    "equal-mass instead of top-5": masked(MaskSinks(5, control="equal-mass")),
    "top-5, same step": masked(MaskSinks(5, detect="same")),
    "top-5, clean copy": masked(MaskSinks(5, detect_from="clean")),
    "top-5, additive masks and whole maps": additive,
    "plain, two rows": two_rows,
}


if __name__ == "__main__":
    compare(__doc__, WAYS, lengths=[256, 1024], dtypes=["float32"])
