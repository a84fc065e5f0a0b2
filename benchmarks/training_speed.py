"""What makes training faster: tokens a second of whole optimizer steps, documents drawn and masks put included.

    python benchmarks/training_speed.py                               # the size that is shipped, on two threads
    python benchmarks/training_speed.py --twin twin-dlm --width 256 --layers 8
    python benchmarks/training_speed.py --device cuda --steps 30

Every way of training is warmed up once (which compiles it), then all ways take turns in one process, each on the same
batch numbers; printed are medians and the ratios to plain float32 (Muon and AdamW, batches of 3072 tokens, not
compiled), turn by turn. Misleads: more tokens a second are not more learned a second. A larger batch makes fewer steps
of the same tokens, and AdamW alone learns more slowly than Muon.
"""

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from transformers import LlamaForCausalLM

from sinkscope.training import KINDS, Kind, Recipe, find_kind
from sinkscope.training.export import configuration
from sinkscope.training.objectives import batch, masked_diffusion_loss, next_token_loss, put_masks
from sinkscope.training.optimizers import optimizers


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way of training."""

    half: bool = False
    """Passes in bfloat16 by autocast, weights in float32."""
    batch_tokens: int = 3072
    compiled: bool = False
    muon: bool = True

    def __str__(self) -> str:
        parts = ["bfloat16" if self.half else "float32", "compiled" if self.compiled else ""]
        return ", ".join(part for part in (*parts, "" if self.muon else "AdamW alone") if part)


PLAIN = Way()
WAYS = (
    PLAIN,
    Way(batch_tokens=1536),
    Way(batch_tokens=6144),
    Way(half=True, batch_tokens=1536),
    Way(half=True),
    Way(half=True, batch_tokens=6144),
    Way(compiled=True),
    Way(half=True, compiled=True),
    Way(muon=False),
    Way(half=True, muon=False),
)


class Training:
    """A network and its optimizers, on which one way of training is tried."""

    def __init__(self, way: Way, kind: Kind, recipe: Recipe, device: torch.device) -> None:
        self.way, self.kind, self.recipe, self.device = way, kind, recipe, device
        torch.manual_seed(recipe.seed)
        config = configuration(recipe)
        config.is_causal = kind.objective == "next-token"
        module: torch.nn.Module = LlamaForCausalLM(config)
        self.network = module.to(device).train()
        self.forward: Any = torch.compile(self.network) if way.compiled else self.network
        self.made = optimizers(self.network, recipe)

    def tokens_per_second(self, steps: int) -> float:
        """Speed of that many optimizer steps on batches 0, 1 ..."""
        self._wait()
        start, tokens = time.perf_counter(), 0
        for number in range(steps):
            tokens += self._step(number)
        self._wait()
        return tokens / (time.perf_counter() - start)

    def _step(self, number: int) -> int:
        given = batch(self.recipe, number)
        tokens = given.tokens.to(self.device)
        if self.kind.objective == "next-token":
            loss = next_token_loss(self._logits(tokens), tokens)
        else:
            generator = torch.Generator().manual_seed(number)
            masks = put_masks(given, 0.5, generator).to(self.device)
            logits = self._logits(masks.tokens)
            loss = masked_diffusion_loss(logits, tokens, masks, logit_shift=self.kind.logit_shift)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.largest_norm)
        for optimizer in self.made:
            optimizer.step()
            optimizer.zero_grad()
        return tokens.numel()

    def _logits(self, tokens: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.way.half):
            logits: Tensor = self.forward(tokens, use_cache=False).logits
        return logits

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def make(way: Way, arguments: argparse.Namespace) -> Training:
    heads = max(1, arguments.width // 32)
    recipe = Recipe(
        width=arguments.width,
        layers=arguments.layers,
        heads=heads,
        mlp_width=3 * arguments.width,
        batch_tokens=way.batch_tokens,
        matrix_optimizer="muon" if way.muon else "adamw",
        matrix_rate=0.02 if way.muon else 0.003,
    )
    return Training(way, find_kind(arguments.twin), recipe, torch.device(arguments.device))


def measured(arguments: argparse.Namespace, console: Console) -> dict[Way, list[float]]:
    """Tokens a second of every way, turn by turn."""
    trainings = {way: make(way, arguments) for way in WAYS if arguments.compile or not way.compiled}
    speeds: dict[Way, list[float]] = {way: [] for way in trainings}
    for turn in track(range(arguments.repeats + 1), "taking turns", console=console, transient=True):
        for way, training in trainings.items():
            speed = training.tokens_per_second(arguments.steps)
            if turn > 0:
                speeds[way].append(speed)
    return speeds


def table(arguments: argparse.Namespace, speeds: dict[Way, list[float]]) -> Table:
    """Medians and ratios."""
    parameters = sum(weight.numel() for weight in make(PLAIN, arguments).network.parameters())
    where = f"{arguments.threads} threads" if arguments.device == "cpu" else arguments.device
    title = (
        f"{arguments.twin}, {parameters / 1e6:.2f} M parameters, {where}, {arguments.repeats} turns of "
        f"{arguments.steps} steps"
    )
    made = Table(title=title)
    for column in ("way", "batch tokens", "tokens/s", "over plain", "lowest to highest"):
        made.add_column(column, justify="left" if column == "way" else "right")
    for way, found in speeds.items():
        ratios = sorted(one / plain for one, plain in zip(found, speeds[PLAIN], strict=True))
        made.add_row(
            str(way),
            f"{way.batch_tokens}",
            f"{statistics.median(found):,.0f}",
            f"{statistics.median(ratios):.2f}",
            f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--twin", choices=KINDS, default="twin-ar")
    parser.add_argument("--width", type=int, default=192, help="a multiple of 32")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="needs a C++ compiler")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    console = Console(width=120)
    console.print(table(arguments, measured(arguments, console)))


if __name__ == "__main__":
    main()
