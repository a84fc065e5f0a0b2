"""What dropping patches saves in time: speed by share at batch 1 and 64, beside the operations that are left.

    python benchmarks/selection.py                                      # the size of the model that ships
    python benchmarks/selection.py --width 192 --hidden 768 --depth 12 --heads 3 --size 224 --patch 16 --channels 3
    python benchmarks/selection.py --width 768 --hidden 3072 --depth 12 --heads 12 --size 224 --patch 16 --channels 3 \\
        --device cuda --runs 30                                         # ViT-B/16; above DeiT-Ti

All ways take turns in one process, after a run each to warm up: the transformer as transformers runs it, whole, and
the selection at each share, both sides together with the codec and a channel without noise between them. Printed are
medians over the runs, in milliseconds a batch, and the medians of the ratios to the whole transformer, turn by turn;
beside them the operations of both sides over those of the whole (`sinkscope.selection.costs`).

The second table is of batches in which every picture has a share of its own, drawn evenly from 0.05 to 1: rows of
similar length run together (packed), all rows are filled up to the longest (padded), and all patches are kept.

On a CPU the time is the processor's and not the clock's, which other work on the machine disturbs less; it takes one
thread. Misleads: weights are random and budgets exact, so every picture of one share is as long as the next. Small
transformers spend much of their time between the matrix products, and gain less than a large one would.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table
from transformers import ViTConfig, ViTForImageClassification

from sinkscope.selection import Link, SelectiveViT, find_channel, removal, wrap
from sinkscope.selection.costs import flops, taking_turns

ALPHAS = (0.1, 0.3, 0.5, 0.7, 1.0)
BATCHES = (1, 64)
WHOLE = "whole"


def selective(given: argparse.Namespace) -> SelectiveViT:
    """A transformer with random weights, two gates and the wire in its middle."""
    config = ViTConfig(
        hidden_size=given.width,
        num_hidden_layers=given.depth,
        num_attention_heads=given.heads,
        intermediate_size=given.hidden,
        image_size=given.size,
        patch_size=given.patch,
        num_channels=given.channels,
    )
    split = given.depth // 2
    model = SelectiveViT(wrap(ViTForImageClassification(config)), gates=(split // 3, 2 * split // 3), split=split)
    return model.train(False).requires_grad_(False).to(given.device)


def arguments(*given: str) -> argparse.Namespace:
    """The sizes; those of the model that ships where none is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--size", type=int, default=28)
    parser.add_argument("--patch", type=int, default=4)
    parser.add_argument("--channels", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.25)
    parser.add_argument("--alphas", type=float, nargs="+", default=ALPHAS)
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=15)
    return parser.parse_args(given)


def turns(ways: Mapping[str, Callable[[], object]], given: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of every way, its runs one after the other."""
    device = torch.device(given.device)
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    with torch.inference_mode():
        return taking_turns(ways, given.runs, device=device, clock=clock)


def ratio(seconds: Sequence[float], to: Sequence[float]) -> str:
    """Median over the turns, with its lowest and highest."""
    ratios = sorted(one / other for one, other in zip(seconds, to, strict=True))
    return f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def timed_shares(model: SelectiveViT, batch: int, link: Link, given: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of the whole transformer and at each share, turn by turn."""
    images = torch.rand(batch, *model.backbone.image_shape, device=given.device)
    network = model.backbone.network
    ways: dict[str, Callable[[], object]] = {WHOLE: lambda: network(images)}
    ways |= {f"{alpha:g}": lambda alpha=alpha: model(images, alpha, link=link) for alpha in given.alphas}  # type: ignore[misc]
    return turns(ways, given)


def awgn(given: argparse.Namespace) -> Link:
    """A channel without noise."""
    return Link(find_channel("awgn"), given.rate, float("inf"))


def by_share(model: SelectiveViT, batch: int, given: argparse.Namespace) -> Table:
    """One share for all pictures of a batch."""
    link = awgn(given)
    seconds = timed_shares(model, batch, link, given)
    made = Table("share kept", "ms", "over whole", "operations over whole", title=f"batch {batch}")
    for name, taken in seconds.items():
        left = 1.0 if name == WHOLE else flops(model, float(name), link).share
        made.add_row(name, f"{1000 * median(taken):.1f}", ratio(taken, seconds[WHOLE]), f"{left:.2f}")
    return made


def packed(model: SelectiveViT, batch: int, given: argparse.Namespace) -> Table:
    """A share of its own for every picture."""
    images = torch.rand(batch, *model.backbone.image_shape, device=given.device)
    shares = 0.05 + 0.95 * torch.rand(batch)

    def padded() -> None:
        with patch.object(removal, "LEAST_FILLED", 0.0):
            model(images, shares)

    ways: dict[str, Callable[[], object]] = {
        "padded": padded,
        "packed": lambda: model(images, shares),
        "all kept": lambda: model(images, 1.0),
    }
    seconds = turns(ways, given)
    made = Table("rows", "ms", "over padded", title=f"batch {batch}, shares drawn from 0.05 to 1")
    for name, taken in seconds.items():
        made.add_row(name, f"{1000 * median(taken):.1f}", ratio(taken, seconds["padded"]))
    return made


def main() -> None:
    """Print the tables."""
    given = arguments(*sys.argv[1:])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, console = selective(given), Console(width=120)
    for batch in given.batch:
        console.print(by_share(model, batch, given))
    for batch in given.batch:
        if batch > 1:
            console.print(packed(model, batch, given))


if __name__ == "__main__":
    main()
