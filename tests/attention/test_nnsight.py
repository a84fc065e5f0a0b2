"""The recipe for nnsight, as the page shows it, against PyTorch's own hooks. Skipped where nnsight is not installed:
the package does not need it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sinkscope.attention import watch

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "look-inside-with-nnsight.md"


def test_the_pages_recipe_is_what_hooks_of_pytorch_do(tmp_path: Path) -> None:
    pytest.importorskip("nnsight")
    [recipe] = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    file = tmp_path / "recipe.py"  # nnsight reads the source of its blocks
    file.write_text(recipe)
    made: dict[str, Any] = {}
    exec(compile(recipe, str(file), "exec"), made)
    model, tokens, dim = made["model"], made["tokens"], made["dim"]
    first = model.network.model.layers[0]

    def run(hook: Callable[[], Any]) -> tuple[torch.Tensor, torch.Tensor]:
        handle = hook()
        try:
            with torch.no_grad(), watch(model) as watched:
                return model.network(tokens).logits, watched.received
        finally:
            handle.remove()

    def patch(_: object, __: object, output: torch.Tensor) -> torch.Tensor:
        return torch.cat([output[:, :3], made["source"][:, 3:4], output[:, 4:]], dim=1)

    def ablate(_: object, given: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        kept = given[0].clone()
        kept[..., dim : 2 * dim] = 0
        return (kept,)

    for name, hook in (
        ("patched", lambda: first.register_forward_hook(patch)),
        ("ablated", lambda: first.self_attn.o_proj.register_forward_pre_hook(ablate)),
    ):
        logits, received = run(hook)
        torch.testing.assert_close(made[f"{name}_logits"], logits)
        torch.testing.assert_close(made[name].received, received)
        assert float((received - made["plain"].received).abs().max()) > 0.01
        assert torch.equal(received[0], made["plain"].received[0])
    assert torch.equal(made["lens"][-1], made["logits"].argmax(-1))
