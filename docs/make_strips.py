"""Draw docs/figures/chains/strips.svg, the picture of the README: one text in three chains, in each the head with the
strongest keys, in whole passes.

    OMP_NUM_THREADS=1 python docs/make_strips.py
"""

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

import sinkscope as ss
from sinkscope.evaluation.chain_measures import PROMPT, WRITTEN
from sinkscope.families import load_model
from sinkscope.language.chains import CHAIN_WORDS, Chains
from sinkscope.report.figures.labels import caption, entitle
from sinkscope.report.figures.style import SINK, WIDE, heat_colors, house_style, write_figure
from sinkscope.sinks import Excess
from sinkscope.sinks.whole_passes import whole_passes
from sinkscope.trace import Prompt, record

NAMES = ("chain-ar", "chain-dlm", "chain-adapted")
FILE = Path("docs/figures/chains/strips.svg")


@house_style
def main() -> None:
    """Write the texts, pass them whole, draw."""
    figure = Figure(figsize=(WIDE + 0.4, 2.9), layout="constrained")
    start = Chains().sample(1, PROMPT, torch.Generator().manual_seed(0)).tolist()
    for number, (ax, name) in enumerate(zip(figure.subplots(1, 3, sharey=True), NAMES, strict=True)):
        model = load_model(name, dtype="float32", device="cpu")
        asked = [Prompt("text", start[0])]
        way: ss.Decoding | ss.Denoising = ss.Decoding(max_new_tokens=WRITTEN, temperature=1.0)
        if model.family.bidirectional:
            way = ss.Denoising(gen_length=WRITTEN, block_length=WRITTEN, steps=None, temperature=1.0)
        trace = record(model, asked, way, out=Path(f"runs/strips/{name}.zarr"), overwrite=True)
        received = whole_passes(model, trace[0]).received
        tops = received.max("position").mean("step")
        layer, head = divmod(int(tops.values.argmax()), tops.sizes["head"])
        one = received.isel(layer=layer, head=head)
        image = ax.imshow(one.values, cmap=heat_colors(), vmin=0, vmax=0.6, aspect="auto")
        steps, places = np.nonzero(Excess(epsilon=3.0, scale="sum").marks(one).values)
        ax.scatter(places, steps, s=9, facecolors="none", edgecolors=SINK, linewidths=0.7)
        entitle(ax, f"{name}, layer {layer} head {head}")
        words = [CHAIN_WORDS[token] for token in trace[0]["sequence"].values]
        ax.set_xticks(range(len(words)), ["^", *words[1:]], fontsize=4.5)
        ax.set_xlabel("position (^: <bos>)")
        if number == 0:
            ax.set_ylabel("step")
    bar = figure.colorbar(image, ax=figure.axes, pad=0.01, fraction=0.03)
    bar.set_label("attention received, whole pass")
    caption(
        figure, "rings: sinks by the excess rule, epsilon 3, scale sum; white: too few queries see the key, or none"
    )
    write_figure(figure, FILE)


if __name__ == "__main__":
    main()
